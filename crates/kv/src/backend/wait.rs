//! What a thread does that has found nothing to do.

use std::{fmt, str::FromStr, thread};

use memory::sync::hint;
use os::crowd::Crowd;
use serde::{Deserialize, Serialize};

use super::Counters;

/// How often an adaptive thread gives up its core in vain before it sleeps, and how often it polls in
/// between, if nobody else wants the core.
const YIELDS: u32 = 256;
const SPINS: u32 = 32;

/// How a thread waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wait {
    /// Polls again.
    Spin,
    /// Lets others run, then polls again.
    Yield,
    /// Sleeps until there is something.
    Block,
    /// Yields, spins in between while nobody else wants the core, then sleeps.
    Adaptive,
}

impl Wait {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Spin, Self::Yield, Self::Block, Self::Adaptive];

    /// Its name on the command line and in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Spin => "spin",
            Self::Yield => "yield",
            Self::Block => "block",
            Self::Adaptive => "adaptive",
        }
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Not a way to wait.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no way to wait; there are: spin, yield, block, adaptive")]
pub struct UnknownWait(String);

impl FromStr for Wait {
    type Err = UnknownWait;

    fn from_str(name: &str) -> Result<Self, UnknownWait> {
        Self::ALL
            .into_iter()
            .find(|wait| wait.name() == name)
            .ok_or_else(|| UnknownWait(name.to_owned()))
    }
}

/// A thread's idle state.
#[derive(Debug)]
pub struct Idle {
    wait: Wait,
    /// Since something was found.
    yields: u32,
    /// Polls until the next.
    spins: u32,
    crowd: Crowd,
    /// How often the core was offered, ever.
    offers: u64,
}

impl Idle {
    /// Of a thread that waits in this way.
    #[must_use]
    pub fn new(wait: Wait) -> Self {
        Self { wait, yields: 0, spins: 0, crowd: Crowd::default(), offers: 0 }
    }

    /// Something was found.
    #[inline]
    pub fn found(&mut self) {
        self.yields = 0;
        self.spins = if self.crowd.is_crowded() { 0 } else { SPINS };
    }

    /// Nothing was found. If this returns `true`, the caller is to sleep until there is something;
    /// else the waiting is done.
    #[inline]
    #[must_use]
    pub fn is_to_sleep(&mut self) -> bool {
        match self.wait {
            Wait::Block => return true,
            Wait::Yield => {
                self.offers += 1;
                thread::yield_now();
            }
            Wait::Spin => hint::spin_loop(),
            Wait::Adaptive if self.spins > 0 => {
                self.spins -= 1;
                hint::spin_loop();
            }
            Wait::Adaptive if self.yields == YIELDS => return true,
            Wait::Adaptive => {
                self.yields += 1;
                self.offers += 1;
                self.crowd.offer();
                self.spins = if self.crowd.is_crowded() { 0 } else { SPINS };
            }
        }
        false
    }

    /// Adds how often this thread, of a client or a daemon, has offered its core.
    pub fn count(&self, side: &str, counters: &mut Counters) {
        counters.named.insert(format!("{side} yields"), self.offers);
    }

    /// Whether the thread decides by what it sees whether to offer its core.
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
        let mut idle = Idle::new(Wait::Adaptive);
        let polls = (1..).find(|_| idle.is_to_sleep()).unwrap();
        assert!((YIELDS + 1..=YIELDS * (SPINS + 1) + 1).contains(&polls), "{polls}");
        idle.found();
        assert!(!idle.is_to_sleep());
    }

    #[test]
    fn only_blocking_sleeps_at_once() {
        for wait in Wait::ALL {
            assert_eq!(wait.name().parse(), Ok(wait));
            assert_eq!(Idle::new(wait).is_to_sleep(), wait == Wait::Block);
            assert_eq!(Idle::new(wait).sleeps_at_once(), wait == Wait::Block);
        }
        assert!("doze".parse::<Wait>().is_err());
    }
}
