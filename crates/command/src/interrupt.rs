//! SIGTERM, SIGINT and SIGHUP ask to end; a second SIGINT ends at once. SIGXFSZ does not end anything.

use std::{fs, sync::Arc};

use anyhow::Context as _;
use memory::sync::AtomicBool;
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ},
    flag,
};

/// Set at the first signal; a second SIGINT has its usual effect.
///
/// A second SIGTERM has none: the kernel sends one for each thread of a parent that dies
/// (`PR_SET_PDEATHSIG`), and who loses patience with a process has SIGKILL. SIGHUP, of a terminal that closes, asks unless
/// the process was started with that signal ignored, as `nohup(1)` does.
///
/// # Errors
///
/// If the kernel refuses a handler.
pub fn stop_at_signal() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    flag::register_conditional_default(SIGINT, Arc::clone(&stop))
        .and_then(|_| flag::register(SIGINT, Arc::clone(&stop)))
        .and_then(|_| flag::register(SIGTERM, Arc::clone(&stop)))
        .and_then(|_| match ignores_hangup() {
            true => Ok(()),
            false => flag::register(SIGHUP, Arc::clone(&stop)).map(drop),
        })
        .context("cannot handle signals")?;
    Ok(stop)
}

/// Whether SIGHUP is ignored, as far as `proc(5)` tells.
fn ignores_hangup() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 << (SIGHUP - 1) != 0)
}

/// Beyond the limit of file sizes (`ulimit -f`) a write fails, and says so; by default it ends the
/// process, and with it all that was measured.
pub fn outlive_file_limits() {
    // Where that cannot be had, all is as usual.
    let _ = flag::register(SIGXFSZ, Arc::default());
}
