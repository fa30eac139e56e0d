//! What the server's poller says: which client, and which of its descriptors.
//!
//! ```text
//! bit 63     62 61           48 47                     0
//!     ┌────────┬───────────────┬───────────────────────┐
//!     │ kind   │ place         │ generation            │
//!     └────────┴───────────────┴───────────────────────┘
//! ```
//!
//! The generation tells an event of a client that left from one of its successor.

const PLACE_SHIFT: u32 = 48;
const PLACE_MASK: u64 = (1 << 14) - 1;
const KIND_SHIFT: u32 = 62;
const GENERATION_MASK: u64 = (1 << PLACE_SHIFT) - 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Listener,
    /// A connection before its hello; numbered by the generation.
    Pending,
    Socket,
    Process,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) kind: Kind,
    pub(crate) place: u16,
    pub(crate) generation: u64,
}

impl Key {
    pub(crate) const LISTENER: Self = Self { kind: Kind::Listener, place: 0, generation: 0 };
    /// Clients that another server of the team let in.
    pub(crate) const LOBBY: Self = Self { kind: Kind::Listener, place: 1, generation: 0 };

    pub(crate) fn pending(number: u64) -> Self {
        Self { kind: Kind::Pending, place: 0, generation: number }
    }

    pub(crate) fn to_word(self) -> u64 {
        let kind = self.kind as u64;
        kind << KIND_SHIFT
            | u64::from(self.place) << PLACE_SHIFT
            | self.generation & GENERATION_MASK
    }

    pub(crate) fn from_word(word: u64) -> Self {
        let kind = match word >> KIND_SHIFT {
            0 => Kind::Listener,
            1 => Kind::Pending,
            2 => Kind::Socket,
            _ => Kind::Process,
        };
        let place = u16::try_from(word >> PLACE_SHIFT & PLACE_MASK).unwrap_or(u16::MAX);
        Self { kind, place, generation: word & GENERATION_MASK }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_survive_their_words() {
        for kind in [Kind::Listener, Kind::Pending, Kind::Socket, Kind::Process] {
            let key = Key { kind, place: 4095, generation: GENERATION_MASK - 1 };
            assert_eq!(Key::from_word(key.to_word()), key);
        }
    }
}
