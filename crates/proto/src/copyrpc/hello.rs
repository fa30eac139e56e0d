//! The hello: the parameters that two sides exchange before the first batch.
//!
//! ```text
//!  0       4         6          8          12            16      20     22          24
//!  │ magic │ version │ reserved │ features │ layout hash │ epoch │ slot │ calls max │
//!  24           28               32              34         36                40
//!  │ ring lines │ response lines │ batch lines   │ batches  │ large bytes max │
//! ```
//!
//! The driver transports it and authenticates the sides.

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32},
};

use super::{
    geometry::Geometry,
    imm::SLOTS_MAX,
    layout::{LAYOUT_HASH, LINE_BYTES},
};

/// Version of the protocol. Sides with different versions refuse each other.
///
/// 2: a sender to whom everything was given back may start the ring over (C2.10). 3: no more batches
/// are sent than the receiver has receives for (C3.6), and credit takes no receive (C3.4).
pub const VERSION: u16 = 3;
const MAGIC: u32 = u32::from_le_bytes(*b"crpc");
/// Bytes of an encoded hello.
pub const HELLO_BYTES: usize = size_of::<Bytes>();
/// Most batches that a side can announce to take: their numbers are compared modulo 2¹⁶.
pub const BATCHES_MAX: u16 = 1 << 14;

/// Abilities that a later version may lack or add. Sent, and not looked at: sides of this version can do
/// all that there is, and say by sizes what they accept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Features(pub u32);

impl Features {
    /// Everything that this version can do: bodies in registered memory, fetched by READ.
    pub const ALL: Self = Self(1);
}

/// The parameters of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The features of the side.
    pub features: Features,
    /// Random, not 0: batches to this side must carry it.
    pub epoch: u32,
    /// Its name of the connection: immediates to this side must carry it.
    pub slot: u16,
    /// Calls that it can have in flight.
    pub calls_max: u16,
    /// Of its receive ring.
    pub geometry: Geometry,
    /// Batches to it that may be unhandled: it has a receive for each.
    pub batches_max: u16,
    /// Longest large body that it accepts.
    pub large_bytes_max: u32,
}

/// Why a hello was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    /// Not a hello.
    #[error("{0} B that are no hello of copyrpc")]
    NotHello(usize),
    /// Another version.
    #[error(
        "the peer speaks version {theirs} of the protocol, this side {ours}; run equal versions"
    )]
    Version {
        /// Of the peer.
        theirs: u16,
        /// Of this side.
        ours: u16,
    },
    /// The same version, with other bytes: a development build.
    #[error("the peer's layout hash is {theirs:#x}, this side's {ours:#x}; run equal builds")]
    Layout {
        /// Of the peer.
        theirs: u32,
        /// Of this side.
        ours: u32,
    },
    /// Sizes that no correct peer announces.
    #[error("the peer announces an impossible {0}")]
    Impossible(&'static str),
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Bytes {
    magic: U32,
    version: U16,
    reserved0: U16,
    features: U32,
    layout_hash: U32,
    epoch: U32,
    slot: U16,
    calls_max: U16,
    ring_lines: U32,
    response_lines: U32,
    batch_lines_max: U16,
    batches_max: U16,
    large_bytes_max: U32,
}

impl Hello {
    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let bytes = Bytes {
            magic: MAGIC.into(),
            version: VERSION.into(),
            reserved0: 0.into(),
            features: self.features.0.into(),
            layout_hash: LAYOUT_HASH.into(),
            epoch: self.epoch.into(),
            slot: self.slot.into(),
            calls_max: self.calls_max.into(),
            ring_lines: self.geometry.ring_lines().into(),
            response_lines: self.geometry.response_lines().into(),
            batch_lines_max: self.geometry.batch_lines_max().into(),
            batches_max: self.batches_max.into(),
            large_bytes_max: self.large_bytes_max.into(),
        };
        zerocopy::transmute!(bytes)
    }

    /// From bytes of a peer.
    ///
    /// # Errors
    ///
    /// [`HelloError`]; bytes after the hello are not looked at.
    pub fn decode(bytes: &[u8]) -> Result<Self, HelloError> {
        let not_hello = HelloError::NotHello(bytes.len());
        let (hello, _) = Bytes::read_from_prefix(bytes).map_err(|_| not_hello)?;
        if hello.magic.get() != MAGIC {
            return Err(not_hello);
        }
        let theirs = hello.version.get();
        if theirs != VERSION {
            return Err(HelloError::Version { theirs, ours: VERSION });
        }
        let theirs = hello.layout_hash.get();
        if theirs != LAYOUT_HASH {
            return Err(HelloError::Layout { theirs, ours: LAYOUT_HASH });
        }
        let geometry = Geometry::new(
            in_bytes(hello.ring_lines.get()),
            in_bytes(hello.response_lines.get()),
            in_bytes(hello.batch_lines_max.get().into()),
        )
        .map_err(|_| HelloError::Impossible("ring"))?;
        if hello.epoch.get() == 0 {
            return Err(HelloError::Impossible("epoch"));
        }
        if hello.slot.get() >= SLOTS_MAX {
            return Err(HelloError::Impossible("slot"));
        }
        if !(1..=BATCHES_MAX).contains(&hello.batches_max.get()) {
            return Err(HelloError::Impossible("number of batches"));
        }
        Ok(Self {
            features: Features(hello.features.get()),
            epoch: hello.epoch.get(),
            slot: hello.slot.get(),
            calls_max: hello.calls_max.get(),
            geometry,
            batches_max: hello.batches_max.get(),
            large_bytes_max: hello.large_bytes_max.get(),
        })
    }
}

fn in_bytes(lines: u32) -> usize {
    (lines as usize).saturating_mul(LINE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello {
            features: Features::ALL,
            epoch: 0x1234_5678,
            slot: 7,
            calls_max: 256,
            geometry: Geometry::new(1 << 16, 1 << 14, 1 << 12).unwrap(),
            batches_max: 12,
            large_bytes_max: 1 << 24,
        }
    }

    /// A binary of the version before, or of the next, is refused, and so is one whose bytes mean something
    /// else though it says the same version: each says what both have.
    #[test]
    fn fault_e7_an_old_and_a_new_binary_refuse_each_other_and_name_both_versions() {
        for theirs in [VERSION - 1, VERSION + 1] {
            let mut bytes = hello().encode();
            bytes[4..6].copy_from_slice(&theirs.to_le_bytes());
            let error = Hello::decode(&bytes).unwrap_err();
            assert_eq!(error, HelloError::Version { theirs, ours: VERSION });
            let text = alloc::format!("{error}");
            for version in [theirs, VERSION] {
                assert!(text.contains(&alloc::format!("{version}")), "{text}");
            }
        }
        let mut bytes = hello().encode();
        bytes[12] ^= 1;
        let error = Hello::decode(&bytes).unwrap_err();
        let ours = alloc::format!("{LAYOUT_HASH:#x}");
        assert!(matches!(error, HelloError::Layout { .. }), "{error}");
        assert!(alloc::format!("{error}").contains(&ours), "{error} names {ours}");
    }

    /// Another build may be on the other side: a change of these bytes raises [`VERSION`].
    #[test]
    fn fault_e7_a_hello_has_the_bytes_that_builds_in_use_have() {
        assert_eq!(VERSION, 3);
        let bytes = b"crpc\x03\0\0\0\x01\0\0\0\x85\x5e\xbc\xd6\x78\x56\x34\x12\x07\0\0\x01\
            \0\x04\0\0\0\x01\0\0\x40\0\x0c\0\0\0\0\x01";
        assert_eq!(&hello().encode(), bytes);
    }

    /// Rules C1.1, C1.2 and C1.3.
    #[test]
    fn a_hello_survives_its_bytes_and_wrong_ones_say_why() {
        let good = hello().encode();
        assert_eq!(good.len(), 40);
        assert_eq!(Hello::decode(&good), Ok(hello()));
        assert_eq!(Hello::decode(&good[..39]), Err(HelloError::NotHello(39)));
        let broken = |at: usize, value: u8| {
            let mut bytes = good;
            bytes[at] = value;
            Hello::decode(&bytes)
        };
        assert_eq!(broken(0, 0), Err(HelloError::NotHello(40)));
        assert_eq!(broken(4, 9), Err(HelloError::Version { theirs: 9, ours: VERSION }));
        assert!(matches!(broken(12, !good[12]), Err(HelloError::Layout { .. })));
        assert_eq!(broken(24, 3), Err(HelloError::Impossible("ring")));
        assert_eq!(broken(21, 0x80), Err(HelloError::Impossible("slot")));
        assert_eq!(broken(34, 0), Err(HelloError::Impossible("number of batches")));
        assert_eq!(broken(35, 0xff), Err(HelloError::Impossible("number of batches")));
        let mut bytes = good;
        bytes[16..20].fill(0);
        assert_eq!(Hello::decode(&bytes), Err(HelloError::Impossible("epoch")));
    }
}
