//! The 32 bits that a WRITE WITH IMMEDIATE carries.
//!
//! ```text
//!  31    30 ……… 16   15 ……… 0
//! │wrap │  slot    │  lines  │
//! ```

/// Slots that an immediate can name.
pub const SLOTS_MAX: u16 = 1 << 15;

/// The immediate value of a WRITE: connection, lines and credit. Untrusted: any value can come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Imm {
    /// The batch starts at the start of the ring; the lines left at its end are skipped.
    pub is_wrapped: bool,
    /// The receiver's name of the connection.
    pub slot: u16,
    /// Length of the batch in lines.
    pub lines: u16,
}

impl Imm {
    /// # Panics
    ///
    /// If the slot has more than 15 bits.
    #[must_use]
    pub fn encode(self) -> u32 {
        assert!(self.slot < SLOTS_MAX, "slot {} has more than 15 bits", self.slot);
        u32::from(self.is_wrapped) << 31 | u32::from(self.slot) << 16 | u32::from(self.lines)
    }

    /// Every value means something; whether it means something here is for the connection to say.
    #[must_use]
    pub fn decode(imm: u32) -> Self {
        Self {
            is_wrapped: imm >> 31 == 1,
            slot: (imm >> 16) as u16 & (SLOTS_MAX - 1),
            lines: (imm & 0xffff) as u16,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_decodes_to_what_encodes_to_it() {
        for imm in [0, 1, 0xffff, 0x7fff_0000, 0x8000_0000, u32::MAX, 0x8003_0010] {
            assert_eq!(Imm::decode(imm).encode(), imm);
        }
        let imm = Imm { is_wrapped: true, slot: 3, lines: 16 };
        assert_eq!(imm.encode(), 0x8003_0010);
    }
}
