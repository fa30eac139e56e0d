//! Blocks, entries and immediates.
//!
//! ```text
//!  block   │ free │ data: len bytes │ len │ method │ mapping │ valid: generation << 32 | number │
//!                                     4     2        2         8, written last
//!  entry   │ mask: 8, a bit per slot │ ack: 4 │ warm: 4 │
//!  imm     │ kind: 2 bits │ slot or generation: 30 bits │
//! ```
//!
//! All integers are little-endian. A message ends where its block ends, so a NIC that writes by ascending
//! address writes `valid` last.

/// Bytes behind the data of a message.
pub const HEADER_BYTES: usize = 16;
/// Slots that a client can have: an entry has a bit for each.
pub const SLOTS_MAX: u8 = 64;
/// Generations wrap after this one; none is 0.
pub const GENERATION_MAX: u32 = (1 << 30) - 1;
/// No mapping.
const UNMAPPED: u16 = u16::MAX;
/// Bit of the pool in a mapping.
const POOL: u16 = 1 << 15;

/// Where a client may write: a zone of one of the two pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mapping {
    /// 0 or 1.
    pub pool: u8,
    /// Number of the zone in the pool, below 2¹⁵ − 1.
    pub zone: u16,
}

impl Mapping {
    fn encode(mapping: Option<Self>) -> u16 {
        mapping.map_or(UNMAPPED, |Self { pool, zone }| if pool == 0 { zone } else { zone | POOL })
    }

    fn decode(word: u16) -> Option<Self> {
        (word != UNMAPPED).then(|| Self { pool: u8::from(word & POOL != 0), zone: word & !POOL })
    }
}

/// The trailer behind the data of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Trailer {
    /// Of the data.
    pub len_bytes: u32,
    /// Of a request: which method. Of a response: its status.
    pub method: u16,
    /// Of a response: where its client may write; `None`: nowhere.
    pub mapping: Option<Mapping>,
    /// Of a request that is written: of the zone. Of one that is announced: the number of the announcement. Of
    /// a response: of the mapping.
    pub generation: u32,
    /// Of the call, among those of its connection; never 0.
    pub number: u32,
}

/// Why the end of a block is no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum MessageError {
    /// Nothing was written yet.
    #[error("the block is empty")]
    Empty,
    /// The length exceeds the block.
    #[error("a message of {len_bytes} B exceeds its block, which has room for {room_bytes} B")]
    Length {
        /// As it says.
        len_bytes: u32,
        /// Of the block, without the header.
        room_bytes: u32,
    },
}

impl Trailer {
    /// As the last bytes of a block.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&self.len_bytes.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.method.to_le_bytes());
        bytes[6..8].copy_from_slice(&Mapping::encode(self.mapping).to_le_bytes());
        bytes[8..].copy_from_slice(&self.valid().to_le_bytes());
        bytes
    }

    /// The word that is written last.
    #[must_use]
    pub fn valid(&self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.number)
    }

    /// From the last bytes of a block with room for `room_bytes` of data.
    ///
    /// # Errors
    ///
    /// [`MessageError`].
    pub fn decode(bytes: &[u8; HEADER_BYTES], room_bytes: u32) -> Result<Self, MessageError> {
        let [l0, l1, l2, l3, m0, m1, p0, p1, valid @ ..] = *bytes;
        let valid = u64::from_le_bytes(valid);
        let len_bytes = u32::from_le_bytes([l0, l1, l2, l3]);
        let [n0, n1, n2, n3, g0, g1, g2, g3] = valid.to_le_bytes();
        let number = u32::from_le_bytes([n0, n1, n2, n3]);
        if number == 0 {
            return Err(MessageError::Empty);
        }
        if len_bytes > room_bytes {
            return Err(MessageError::Length { len_bytes, room_bytes });
        }
        Ok(Self {
            len_bytes,
            method: u16::from_le_bytes([m0, m1]),
            mapping: Mapping::decode(u16::from_le_bytes([p0, p1])),
            generation: u32::from_le_bytes([g0, g1, g2, g3]),
            number,
        })
    }
}

/// The record of a client at its place at the server: which requests wait in its memory, and which zone it has
/// left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Slots whose requests the server is to read.
    pub mask: u64,
    /// Generation of the zone that the client has left: it writes there no more.
    pub ack: u32,
    /// Number of the announcement; as before if there is none.
    pub warm: u32,
}

impl Entry {
    /// Length of an entry.
    pub const BYTES: usize = 16;

    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.mask.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.ack.to_le_bytes());
        bytes[12..].copy_from_slice(&self.warm.to_le_bytes());
        bytes
    }

    /// From bytes: any are an entry.
    #[must_use]
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Self {
        let [m0, m1, m2, m3, m4, m5, m6, m7, a0, a1, a2, a3, w0, w1, w2, w3] = *bytes;
        Self {
            mask: u64::from_le_bytes([m0, m1, m2, m3, m4, m5, m6, m7]),
            ack: u32::from_le_bytes([a0, a1, a2, a3]),
            warm: u32::from_le_bytes([w0, w1, w2, w3]),
        }
    }
}

/// The content of immediate data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Imm {
    /// A request is in this slot of the client's zone.
    Request(u8),
    /// The client's entry is new.
    Entry,
    /// A response is in this slot of the client's memory.
    Response(u8),
    /// The client's turn is over: it leaves the zone of this generation.
    Event(u32),
}

impl Imm {
    /// As immediate data.
    #[must_use]
    pub fn encode(self) -> u32 {
        match self {
            Self::Request(slot) => u32::from(slot),
            Self::Entry => 1 << 30,
            Self::Response(slot) => 2 << 30 | u32::from(slot),
            Self::Event(generation) => 3 << 30 | generation & GENERATION_MAX,
        }
    }

    /// `None`: no correct peer sends that.
    #[must_use]
    pub fn decode(word: u32) -> Option<Self> {
        let value = word & GENERATION_MAX;
        let slot = || u8::try_from(value).ok().filter(|slot| *slot < SLOTS_MAX);
        match word >> 30 {
            0 => slot().map(Self::Request),
            1 => (value == 0).then_some(Self::Entry),
            2 => slot().map(Self::Response),
            _ => Some(Self::Event(value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use hex_literal::hex;
    use proptest::prelude::*;

    use super::*;

    /// Rule S1.1: bytes laid out by hand.
    #[test]
    fn golden_bytes_of_a_header() {
        let header = Trailer {
            len_bytes: 0x0102_0304,
            method: 0x0506,
            mapping: Some(Mapping { pool: 1, zone: 7 }),
            generation: 0x1112_1314,
            number: 0x2122_2324,
        };
        assert_eq!(header.encode(), hex!("04030201 0605 0780 24232221 14131211"));
        assert_eq!(Trailer::decode(&header.encode(), u32::MAX), Ok(header));
        let refused = MessageError::Length { len_bytes: 0x0102_0304, room_bytes: 16 };
        assert_eq!(Trailer::decode(&header.encode(), 16), Err(refused));
        assert_eq!(Trailer::decode(&[0; HEADER_BYTES], 16), Err(MessageError::Empty));
    }

    /// Rule S2.1.
    #[test]
    fn golden_bytes_of_an_entry() {
        let entry = Entry { mask: 0x8000_0000_0000_0001, ack: 0x0102_0304, warm: 5 };
        assert_eq!(entry.encode(), hex!("0100000000000080 04030201 05000000"));
        assert_eq!(Entry::decode(&entry.encode()), entry);
    }

    proptest! {
        /// Rule S1.2.
        #[test]
        fn any_immediate_is_one_of_four_or_refused(word: u32) {
            if let Some(imm) = Imm::decode(word) {
                prop_assert_eq!(imm.encode(), word);
            }
        }

        #[test]
        fn no_bytes_make_decoding_panic(bytes: [u8; HEADER_BYTES], room: u32) {
            if let Ok(header) = Trailer::decode(&bytes, room) {
                prop_assert!(header.len_bytes <= room && header.number != 0);
                prop_assert_eq!(header.encode(), bytes);
            }
        }
    }
}
