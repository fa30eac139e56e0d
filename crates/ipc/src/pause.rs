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

    use rustix::process::{Signal, getpid, kill_process};

    pub(super) fn at(point: &str) {
        static CHOSEN: OnceLock<Option<String>> = OnceLock::new();
        let chosen = CHOSEN.get_or_init(|| std::env::var("COPYRPC_PAUSE").ok());
        if chosen.as_deref() == Some(point) {
            kill_process(getpid(), Signal::STOP).expect("a process may stop itself");
        }
    }
}
