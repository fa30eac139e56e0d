//! The condition of the adapter, as a test says it in a file: a cable that is pulled, a device that fails and comes back,
//! an address that goes and returns to other rows of the GID table.

use std::path::PathBuf;

/// The file in which the condition is written; nothing is wrong while there is none.
pub const CONDITION_ENV: &str = "COPYRPC_UVERBS_CONDITION";

/// Time between two looks at the file.
const LOOK_NS: u64 = 2_000_000;

/// The condition of the adapter and its port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AdapterCondition {
    /// The port carries traffic.
    #[default]
    Active,
    /// The port is down: what is sent is lost, what comes is lost, and objects stay.
    Down,
    /// The device has failed, and is not there: no object of it is of any more use, and it cannot be opened.
    Gone,
    /// On RoCE: the interface has lost its IPv4 address, and the GID table the rows of it.
    Unaddressed,
    /// On RoCE: the IPv4 address has other rows. A kernel gives it those while queue pairs hold the old ones.
    Moved,
}

impl AdapterCondition {
    /// The condition that a word in the file says.
    #[must_use]
    pub fn named(word: &str) -> Option<Self> {
        match word.trim() {
            "active" => Some(Self::Active),
            "down" => Some(Self::Down),
            "gone" => Some(Self::Gone),
            "unaddressed" => Some(Self::Unaddressed),
            "moved" => Some(Self::Moved),
            _ => None,
        }
    }

    /// Its word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Down => "down",
            Self::Gone => "gone",
            Self::Unaddressed => "unaddressed",
            Self::Moved => "moved",
        }
    }

    /// Whether the port carries traffic.
    pub(crate) fn is_up(self) -> bool {
        !matches!(self, Self::Down | Self::Gone)
    }
}

/// Looks at the file now and then.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    file: Option<PathBuf>,
    next_ns: u64,
    pub(crate) now: AdapterCondition,
}

impl Watch {
    pub(crate) fn from_environment() -> Self {
        let file = std::env::var_os(CONDITION_ENV).filter(|path| !path.is_empty());
        let mut watch = Self { file: file.map(Into::into), ..Self::default() };
        let _ = watch.changed();
        watch
    }

    /// The condition, if it has changed. A file that is being written says nothing.
    pub(crate) fn changed(&mut self) -> Option<AdapterCondition> {
        let file = self.file.as_ref()?;
        let now_ns = os::clock::now_ns();
        if now_ns < self.next_ns {
            return None;
        }
        self.next_ns = now_ns + LOOK_NS;
        let told = match std::fs::read_to_string(file) {
            Ok(text) => AdapterCondition::named(&text)?,
            Err(_) => AdapterCondition::Active,
        };
        (core::mem::replace(&mut self.now, told) != told).then_some(told)
    }
}
