//! The key of an epoll event: which descriptor of the server is ready.
//!
//! ```text
//! bit 63     61 60           48 47                     0
//!     ┌────────┬───────────────┬───────────────────────┐
//!     │ source │ slot          │ generation            │
//!     └────────┴───────────────┴───────────────────────┘
//! ```
//!
//! The generation tells an event of a client that left from one of its successor.

const SLOT_SHIFT: u32 = 48;
const SLOT_MASK: u64 = (1 << 13) - 1;
const SOURCE_SHIFT: u32 = 61;
const GENERATION_MASK: u64 = (1 << SLOT_SHIFT) - 1;

/// The kind of descriptor that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The listening socket.
    Listener,
    /// The event that announces clients which another server of the team accepted.
    Handoff,
    /// A connection before its hello; numbered by the generation.
    Pending,
    /// The socket of a client.
    Socket,
    /// The pidfd of a client.
    Process,
    /// The channel by which clients are introduced.
    Introducer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PollKey {
    pub(crate) source: Source,
    pub(crate) slot: u16,
    pub(crate) generation: u64,
}

impl PollKey {
    pub(crate) const LISTENER: Self = Self { source: Source::Listener, slot: 0, generation: 0 };
    pub(crate) const HANDOFF: Self = Self { source: Source::Handoff, slot: 0, generation: 0 };
    pub(crate) const INTRODUCER: Self = Self { source: Source::Introducer, slot: 0, generation: 0 };

    pub(crate) fn pending(number: u64) -> Self {
        Self { source: Source::Pending, slot: 0, generation: number }
    }

    /// Whether it is of a process that is no client yet.
    pub(crate) fn is_of_newcomer(self) -> bool {
        match self.source {
            Source::Listener | Source::Handoff | Source::Pending | Source::Introducer => true,
            Source::Socket | Source::Process => false,
        }
    }

    pub(crate) fn to_word(self) -> u64 {
        let source = self.source as u64;
        source << SOURCE_SHIFT
            | u64::from(self.slot) << SLOT_SHIFT
            | self.generation & GENERATION_MASK
    }

    pub(crate) fn from_word(word: u64) -> Self {
        let source = match word >> SOURCE_SHIFT {
            0 => Source::Listener,
            1 => Source::Handoff,
            2 => Source::Pending,
            3 => Source::Socket,
            4 => Source::Process,
            _ => Source::Introducer,
        };
        let slot = u16::try_from(word >> SLOT_SHIFT & SLOT_MASK).unwrap_or(u16::MAX);
        Self { source, slot, generation: word & GENERATION_MASK }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_survive_their_words() {
        let sources = [
            Source::Listener,
            Source::Handoff,
            Source::Pending,
            Source::Socket,
            Source::Process,
            Source::Introducer,
        ];
        for source in sources {
            let key = PollKey { source, slot: 4095, generation: GENERATION_MASK - 1 };
            assert_eq!(PollKey::from_word(key.to_word()), key);
        }
    }
}
