//! How a step of a scenario ends.

use core::panic::Location;

use crate::oob::RoleGone;

/// Why a scenario ended early.
#[derive(Debug)]
pub enum Stop {
    /// The NIC lacks something, and does not claim it; not a failure.
    Skipped(String),
    /// The NIC broke a rule.
    Violation {
        /// Which, and how.
        what: String,
        /// Where the suite noticed.
        at: &'static Location<'static>,
    },
    /// The other role ended first: a consequence, never the cause.
    PeerEnded,
}

impl Stop {
    /// A rule is broken.
    #[track_caller]
    pub(super) fn violation(what: impl Into<String>) -> Self {
        Self::Violation { what: what.into(), at: Location::caller() }
    }
}

impl core::fmt::Display for Stop {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Skipped(why) => write!(f, "skipped for want of {why}"),
            Self::Violation { what, at } => write!(f, "{what}\n    at {at}"),
            Self::PeerEnded => RoleGone.fmt(f),
        }
    }
}

impl From<RoleGone> for Stop {
    fn from(_: RoleGone) -> Self {
        Self::PeerEnded
    }
}

/// Errors of the interface that a scenario does not expect are violations.
macro_rules! unexpected {
    ($($error:ty),*) => {$(
        impl From<$error> for Stop {
            #[track_caller]
            fn from(error: $error) -> Self {
                Self::violation(format!("unexpected {}: {error}", stringify!($error)))
            }
        }
    )*};
}
unexpected!(
    verbs::CreateError,
    verbs::MemoryError,
    verbs::ModifyError,
    verbs::PostSendError,
    verbs::PostRecvError,
    verbs::ArmError
);

/// Result of a step or of a scenario.
pub type Verdict<T = ()> = Result<T, Stop>;

/// Leaves the scenario with a [`Stop::Violation`] if a rule does not hold.
macro_rules! ensure {
    ($holds:expr, $($what:tt)+) => {
        if !$holds {
            return core::result::Result::Err($crate::verdict::Stop::violation(format!($($what)+)));
        }
    };
}
pub(super) use ensure;

/// Leaves the scenario if two values differ.
macro_rules! ensure_eq {
    ($found:expr, $expected:expr, $($what:tt)+) => {{
        let found = &$found;
        let expected = &$expected;
        if found != expected {
            let what = format!($($what)+);
            return core::result::Result::Err($crate::verdict::Stop::violation(format!(
                "{what}: {found:?} instead of {expected:?}"
            )));
        }
    }};
}
pub(super) use ensure_eq;
