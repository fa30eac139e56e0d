//! How a thread waits after a poll that found nothing.

use os::idle::{self, IdleStep};

use super::Counters;
use crate::words::words;

/// Polls in a row in which an adaptive thread spins, then those in which it yields its core, before it
/// sleeps. On a contended core it does not spin.
const SPINS: u32 = 32;
const YIELDS: u32 = 256;

words! {
    /// How a thread waits.
    Wait, "way to wait" {
        /// Polls; yields the core now and then.
        Spin = "spin",
        /// Yields the core after every poll.
        Yield = "yield",
        /// Sleeps in the kernel.
        Block = "block",
        /// Spins on a core that nobody else wants, then yields, then sleeps.
        Adaptive = "adaptive",
    }
}

impl Wait {
    /// Whether threads that wait like this ever sleep: only then their backend has something to wake them.
    #[must_use]
    pub fn can_sleep(self) -> bool {
        matches!(self, Self::Block | Self::Adaptive)
    }

    /// As the threads of daemons and providers are told.
    #[inline]
    pub(crate) fn policy(self) -> idle::Wait {
        match self {
            Self::Spin => idle::Wait::Busy,
            Self::Yield => idle::Wait::Adaptive { spins: 0, yields: u32::MAX },
            Self::Adaptive => idle::Wait::Adaptive { spins: SPINS, yields: YIELDS },
            Self::Block => idle::Wait::Block,
        }
    }
}

/// A thread's idle state.
#[derive(Debug)]
pub struct ThreadIdle {
    wait: Wait,
    idle: idle::Idle,
    /// Since the thread began.
    yields: u64,
}

impl ThreadIdle {
    /// Of a thread that waits in this way.
    #[must_use]
    pub fn new(wait: Wait) -> Self {
        Self { wait, idle: idle::Idle::default(), yields: 0 }
    }

    /// A poll found something.
    #[inline]
    pub fn reset(&mut self) {
        self.idle.reset();
    }

    /// A poll found nothing. If this returns `true`, the caller is to sleep; else it polls again.
    #[inline]
    #[must_use]
    pub fn is_to_sleep(&mut self) -> bool {
        let step = self.idle.step(self.wait.policy());
        self.yields += u64::from(step == IdleStep::Yielded);
        step == IdleStep::Sleep
    }

    /// A poll found nothing, but something is due at any moment: spins, or returns `false` beside threads that compute.
    #[inline]
    #[must_use]
    pub fn spin(&mut self) -> bool {
        self.idle.spin()
    }

    /// Adds how often this thread, of a client or a daemon, has yielded its core.
    pub fn count(&self, side: &str, counters: &mut Counters) {
        counters.named.insert(format!("{side} yields"), self.yields);
    }

    /// Whether the thread decides by what it finds how to wait.
    #[inline]
    #[must_use]
    pub fn is_adaptive(&self) -> bool {
        self.wait == Wait::Adaptive
    }

    /// Whether the thread would sleep at the first empty poll, so that a poll without a wait before
    /// it is in vain.
    #[inline]
    #[must_use]
    pub fn sleeps_at_once(&self) -> bool {
        self.wait == Wait::Block
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adaptive_thread_sleeps_after_some_polls_in_vain() {
        let mut idle = ThreadIdle::new(Wait::Adaptive);
        let polls = (1..).find(|_| idle.is_to_sleep()).unwrap();
        assert!((YIELDS + 1..=SPINS + YIELDS + 1).contains(&polls), "{polls}");
        idle.reset();
        assert!(!idle.is_to_sleep());
    }

    #[test]
    fn only_blocking_sleeps_at_once() {
        for wait in Wait::ALL {
            assert_eq!(wait.name().parse(), Ok(wait));
            assert_eq!(ThreadIdle::new(wait).is_to_sleep(), wait == Wait::Block);
            assert_eq!(ThreadIdle::new(wait).sleeps_at_once(), wait == Wait::Block);
        }
        assert!("doze".parse::<Wait>().is_err());
    }
}
