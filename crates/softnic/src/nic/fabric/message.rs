//! What ports tell each other over their socket: a few words each, and descriptors beside them.

/// Words of a datagram; unused ones are zero.
pub(super) const WORDS: usize = 12;
pub(super) const BYTES: usize = WORDS * size_of::<u64>();

/// Most descriptors that a message carries.
pub(super) const FDS_MAX: usize = 2;

/// Changes whenever a message changes meaning.
const VERSION: u64 = 2;

/// One datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// Always first. With it: the card's "ro" and "rw".
    Hello(Hello),
    /// A segment. With it: its memory.
    Segment { id: u32, len_bytes: u64 },
    /// A completion channel. With it: its event.
    Channel { id: u32 },
    /// The segment is no longer registered.
    SegmentGone { id: u32 },
    /// The channel is gone.
    ChannelGone { id: u32 },
    /// Who gets it may use the memory of who sends it.
    Welcome,
    /// Who sends it has no memory for the card of who gets it.
    NoMemory { len_bytes: u64 },
}

/// Who is there, and how to read its card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) lid: u16,
    /// Differs between ports that had the same LID one after the other.
    pub(super) instance: u64,
    pub(super) mrs: u32,
    pub(super) qps: u32,
    pub(super) cqs: u32,
    pub(super) rqs: u32,
    pub(super) ro_bytes: u64,
    pub(super) rw_bytes: u64,
}

/// Why a datagram is no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum MessageError {
    #[error("{0} B instead of {BYTES}")]
    Length(usize),
    #[error("unknown kind {0}")]
    Kind(u64),
    #[error("protocol version {0} instead of {VERSION}: use the same version on both sides")]
    Version(u64),
    #[error("a number out of range")]
    Range,
}

impl Message {
    /// Descriptors that go with it.
    pub(super) fn fds(&self) -> usize {
        match self {
            Self::Hello(_) => 2,
            Self::Segment { .. } | Self::Channel { .. } => 1,
            Self::SegmentGone { .. }
            | Self::ChannelGone { .. }
            | Self::Welcome
            | Self::NoMemory { .. } => 0,
        }
    }

    pub(super) fn encode(&self) -> [u8; BYTES] {
        let mut words = [0u64; WORDS];
        match *self {
            Self::Hello(hello) => {
                let counts = [hello.mrs, hello.qps, hello.cqs, hello.rqs].map(u64::from);
                words[..4].copy_from_slice(&[1, VERSION, u64::from(hello.lid), hello.instance]);
                words[4..8].copy_from_slice(&counts);
                words[8..10].copy_from_slice(&[hello.ro_bytes, hello.rw_bytes]);
            }
            Self::Segment { id, len_bytes } => {
                words[..3].copy_from_slice(&[2, u64::from(id), len_bytes]);
            }
            Self::Channel { id } => words[..2].copy_from_slice(&[3, u64::from(id)]),
            Self::SegmentGone { id } => words[..2].copy_from_slice(&[4, u64::from(id)]),
            Self::ChannelGone { id } => words[..2].copy_from_slice(&[5, u64::from(id)]),
            Self::Welcome => words[0] = 6,
            Self::NoMemory { len_bytes } => words[..2].copy_from_slice(&[7, len_bytes]),
        }
        let mut bytes = [0; BYTES];
        for (to, word) in bytes.chunks_exact_mut(size_of::<u64>()).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        if bytes.len() != BYTES {
            return Err(MessageError::Length(bytes.len()));
        }
        let mut words = [0u64; WORDS];
        for (word, from) in words.iter_mut().zip(bytes.chunks_exact(size_of::<u64>())) {
            *word = u64::from_le_bytes(from.try_into().unwrap_or_default());
        }
        let id = || u32::try_from(words[1]).map_err(|_| MessageError::Range);
        let count = |at: usize| u32::try_from(words[at]).map_err(|_| MessageError::Range);
        Ok(match words[0] {
            1 if words[1] != VERSION => return Err(MessageError::Version(words[1])),
            1 => Self::Hello(Hello {
                lid: u16::try_from(words[2]).map_err(|_| MessageError::Range)?,
                instance: words[3],
                mrs: count(4)?,
                qps: count(5)?,
                cqs: count(6)?,
                rqs: count(7)?,
                ro_bytes: words[8],
                rw_bytes: words[9],
            }),
            2 => Self::Segment { id: id()?, len_bytes: words[2] },
            3 => Self::Channel { id: id()? },
            4 => Self::SegmentGone { id: id()? },
            5 => Self::ChannelGone { id: id()? },
            6 => Self::Welcome,
            7 => Self::NoMemory { len_bytes: words[1] },
            kind => return Err(MessageError::Kind(kind)),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A port of another build may be on the other side. Whoever changes these bytes, or the layout of a card, raises
    /// these numbers, and the version between daemons (crate `proto`), which names both to an operator.
    #[test]
    fn fault_e7_messages_have_the_bytes_that_builds_in_use_have() {
        assert_eq!((VERSION, crate::nic::card::layout::LAYOUT), (2, 6));
        let [mrs, qps, cqs, rqs] = [4, 5, 6, 7];
        let [ro_bytes, rw_bytes] = [8, 9];
        let hello = Hello { lid: 0x0102, instance: 3, mrs, qps, cqs, rqs, ro_bytes, rw_bytes };
        for (message, words) in [
            (Message::Hello(hello), &[1, 2, 0x0102, 3, 4, 5, 6, 7, 8, 9][..]),
            (Message::Segment { id: 5, len_bytes: 6 }, &[2, 5, 6]),
            (Message::Channel { id: 5 }, &[3, 5]),
            (Message::SegmentGone { id: 5 }, &[4, 5]),
            (Message::ChannelGone { id: 5 }, &[5, 5]),
            (Message::Welcome, &[6]),
            (Message::NoMemory { len_bytes: 6 }, &[7, 6]),
        ] {
            let mut bytes: Vec<u8> =
                words.iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
            bytes.resize(96, 0);
            assert_eq!(message.encode()[..], bytes);
        }
        let mut other = Message::Hello(hello).encode();
        other[8] += 1;
        let text = Message::decode(&other).unwrap_err().to_string();
        assert!(text.contains("version 3 instead of 2"), "{text}");
    }

    fn any_message() -> impl Strategy<Value = Message> {
        let hello = (any::<u16>(), any::<u64>(), any::<[u32; 4]>(), any::<[u64; 2]>());
        let hello = hello.prop_map(|(lid, instance, [mrs, qps, cqs, rqs], [ro, rw])| {
            let (ro_bytes, rw_bytes) = (ro, rw);
            Message::Hello(Hello { lid, instance, mrs, qps, cqs, rqs, ro_bytes, rw_bytes })
        });
        prop_oneof![
            hello,
            any::<(u32, u64)>().prop_map(|(id, len_bytes)| Message::Segment { id, len_bytes }),
            any::<u32>().prop_map(|id| Message::Channel { id }),
            any::<u32>().prop_map(|id| Message::SegmentGone { id }),
            any::<u32>().prop_map(|id| Message::ChannelGone { id }),
            Just(Message::Welcome),
            any::<u64>().prop_map(|len_bytes| Message::NoMemory { len_bytes }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 8 } else { 512 }, failure_persistence: None, ..Default::default()
        })]
        #[test]
        fn what_is_sent_is_what_arrives(message in any_message()) {
            prop_assert_eq!(Message::decode(&message.encode()), Ok(message));
        }

        #[test]
        fn garbage_is_refused_not_believed(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(message) = Message::decode(&bytes) {
                prop_assert_eq!(Message::decode(&message.encode()), Ok(message));
            }
        }
    }
}
