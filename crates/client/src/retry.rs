//! When a call is made again.

use std::time::Duration;

use proto::Status;

use crate::CallError;

/// Hundredths of a retry that a client may have saved up.
const SAVED_MAX: u32 = 1000;

/// When a call is made again, within its deadline: only where it was certainly not executed, unless
/// [`is_idempotent`](Self::is_idempotent) says that this does not matter.
///
/// | how it ended | made again |
/// |---|---|
/// | the daemon is gone | after connecting again |
/// | refused: no room, rank not up | yes |
/// | no process offers the service | if [`awaits_service`](Self::awaits_service) |
/// | perhaps executed: peer gone | if [`is_idempotent`](Self::is_idempotent) |
/// | deadline, a status of the service | never |
///
/// ```
/// # use copyrpc_client as copyrpc;
/// use copyrpc::{CallError, Retry, Status};
///
/// let retry = Retry { awaits_service: true, ..Retry::standard() };
/// assert!(retry.applies_to(&CallError::Refused(Status::Unavailable)));
/// assert!(!retry.applies_to(&CallError::Unanswered(Status::Unavailable)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// The most retries of one call; 0: none, and no connection is made again either.
    pub retries_max: u32,
    /// Before the first retry; each later one waits twice as long, and a random part of that less.
    pub backoff: Duration,
    /// Longest wait between two.
    pub backoff_max: Duration,
    /// Retries per hundred calls, lest retries keep a service down that has too much to do; up to ten are
    /// saved up.
    pub budget_percent: u32,
    /// Whether a call waits for a service without a provider.
    pub awaits_service: bool,
    /// Whether executing a call twice does no harm.
    pub is_idempotent: bool,
}

impl Retry {
    /// No call is made again.
    pub const NEVER: Self = Self {
        retries_max: 0,
        backoff: Duration::ZERO,
        backoff_max: Duration::ZERO,
        budget_percent: 0,
        awaits_service: false,
        is_idempotent: false,
    };

    /// Waits from 1 ms to 1 s, up to 10 times, and for one call in five.
    #[must_use]
    pub const fn standard() -> Self {
        Self {
            retries_max: 10,
            backoff: Duration::from_millis(1),
            backoff_max: Duration::from_secs(1),
            budget_percent: 20,
            awaits_service: false,
            is_idempotent: false,
        }
    }

    /// Whether a call that ended like this may be made again.
    #[must_use]
    pub fn applies_to(&self, error: &CallError) -> bool {
        let may_repeat = error.is_certainly_not_executed() || self.is_idempotent;
        may_repeat
            && !error.is_handle_over()
            && match error {
                CallError::NoService(_) => self.awaits_service,
                CallError::Refused(status) | CallError::Unanswered(status) => {
                    matches!(status, Status::Unavailable | Status::ResourceExhausted)
                }
                CallError::Daemon(_) | CallError::NotSent(_) => {
                    matches!(error.status(), Status::Unavailable | Status::ResourceExhausted)
                }
                CallError::Service(_)
                | CallError::NoMethod(_)
                | CallError::NoRank(_)
                | CallError::NotHeld
                | CallError::LendsTooMuch { .. }
                | CallError::Denied(_) => false,
            }
    }

    /// How long to wait before the retry of this number, from 0. `seed` is any number: half of the wait is
    /// random.
    #[must_use]
    pub fn wait(&self, number: u32, seed: u64) -> Duration {
        let doubled = self.backoff.saturating_mul(1 << number.min(20)).min(self.backoff_max);
        // Fibonacci hashing: consecutive seeds spread.
        let part = (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u32;
        doubled / 2 + (doubled / 2) * part / 256
    }
}

impl Default for Retry {
    fn default() -> Self {
        Self::NEVER
    }
}

/// Retries that a client may still make.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetryBudget {
    /// Hundredths of a retry.
    saved: u32,
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self { saved: SAVED_MAX }
    }
}

impl RetryBudget {
    /// A call begins.
    pub(crate) fn earn(&mut self, retry: &Retry) {
        self.saved = self.saved.saturating_add(retry.budget_percent).min(SAVED_MAX);
    }

    /// Takes a retry, if one is left.
    pub(crate) fn spend(&mut self) -> bool {
        let left = self.saved.checked_sub(100);
        self.saved = left.unwrap_or(self.saved);
        left.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::To;

    const TO: To = To { rank: 0, service: 1, method: 2 };

    #[test]
    fn only_what_was_certainly_not_executed_is_made_again() {
        let retry = Retry::standard();
        assert!(retry.applies_to(&CallError::Refused(Status::ResourceExhausted)));
        assert!(retry.applies_to(&CallError::NotSent(ipc::CallError::ServerGone)));
        assert!(!retry.applies_to(&CallError::Daemon(ipc::CallError::ServerGone)));
        assert!(!retry.applies_to(&CallError::Unanswered(Status::Unavailable)));
        assert!(!retry.applies_to(&CallError::NoService(TO)));
        assert!(!retry.applies_to(&CallError::NoRank(7)));
        let bold = Retry { is_idempotent: true, awaits_service: true, ..retry };
        assert!(bold.applies_to(&CallError::Daemon(ipc::CallError::ServerGone)));
        assert!(bold.applies_to(&CallError::NoService(TO)));
        assert!(!bold.applies_to(&CallError::Unanswered(Status::DeadlineExceeded)));
    }

    #[test]
    fn waits_double_up_to_the_longest_and_spread() {
        let retry = Retry::standard();
        for (number, most_ms) in [(0, 1), (3, 8), (9, 512), (10, 1000), (63, 1000)] {
            for seed in 0..50 {
                let wait = retry.wait(number, seed);
                let most = Duration::from_millis(most_ms);
                assert!(most / 2 <= wait && wait <= most, "{number}, {seed}: {wait:?}");
            }
        }
        assert_ne!(retry.wait(9, 1), retry.wait(9, 2));
    }

    #[test]
    fn a_service_that_is_down_gets_one_retry_in_five_calls() {
        let (retry, mut budget) = (Retry::standard(), RetryBudget::default());
        let mut retries = 0;
        for _ in 0..1000 {
            budget.earn(&retry);
            retries += u32::from(budget.spend());
        }
        // What the first call saves finds no room.
        assert_eq!(retries, 10 + 1000 / 5 - 1);
    }
}
