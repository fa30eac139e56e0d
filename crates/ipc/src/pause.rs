//! Points at which a test stops a process from the inside, to signal it exactly there.

/// Stops this process (`SIGSTOP`) if `COPYRPC_PAUSE` names this point. Nothing at all without the
/// feature `pause`.
#[inline(always)]
pub(crate) fn at(_point: &str) {
    #[cfg(all(any(test, feature = "pause"), not(any(loom, miri))))]
    stop::at(_point);
}

#[cfg(all(any(test, feature = "pause"), not(any(loom, miri))))]
mod stop {
    use std::sync::OnceLock;

    use rustix::process::Signal;

    // `raise(3)` of the C library that `std` links anyway; it takes any number.
    unsafe extern "C" {
        /// Unlike `kill(2)`, stops the calling thread before it returns.
        safe fn raise(signal: i32) -> i32;
    }

    pub(super) fn at(point: &str) {
        static CHOSEN: OnceLock<Option<String>> = OnceLock::new();
        let chosen = CHOSEN.get_or_init(|| std::env::var("COPYRPC_PAUSE").ok());
        if chosen.as_deref() == Some(point) {
            assert_eq!(raise(Signal::STOP.as_raw()), 0, "a process may stop itself");
        }
    }
}
