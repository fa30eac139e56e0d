//! SIGTERM and SIGINT: the first asks to end, the second ends at once.

use std::sync::Arc;

use anyhow::Context as _;
use memory::sync::AtomicBool;
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    flag,
};

/// Set at the first signal; the second has its usual effect.
pub(crate) fn stop_at_signal() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        flag::register_conditional_default(signal, Arc::clone(&stop))
            .and_then(|_| flag::register(signal, Arc::clone(&stop)))
            .context("cannot handle signals")?;
    }
    Ok(stop)
}
