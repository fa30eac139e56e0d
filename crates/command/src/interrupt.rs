//! SIGTERM and SIGINT ask to end; a second SIGINT ends at once. SIGXFSZ does not end anything.

use std::sync::Arc;

use anyhow::Context as _;
use memory::sync::AtomicBool;
use signal_hook::{
    consts::{SIGINT, SIGTERM, SIGXFSZ},
    flag,
};

/// Set at the first signal; a second SIGINT has its usual effect.
///
/// A second SIGTERM has none: the kernel sends one for each thread of a parent that dies
/// (`PR_SET_PDEATHSIG`), and who loses patience with a process has SIGKILL.
///
/// # Errors
///
/// If the kernel refuses a handler.
pub fn stop_at_signal() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    flag::register_conditional_default(SIGINT, Arc::clone(&stop))
        .and_then(|_| flag::register(SIGINT, Arc::clone(&stop)))
        .and_then(|_| flag::register(SIGTERM, Arc::clone(&stop)))
        .context("cannot handle signals")?;
    Ok(stop)
}

/// Beyond the limit of file sizes (`ulimit -f`) a write fails, and says so; by default it ends the
/// process, and with it all that was measured.
pub fn outlive_file_limits() {
    // Where that cannot be had, all is as usual.
    let _ = flag::register(SIGXFSZ, Arc::default());
}
