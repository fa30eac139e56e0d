//! The numbers that stand in these layouts: those of any NIC, and the user index of mlx5.

pub use ids::{Cqn, DcKey, Gid, Lid, Lkey, Psn, QKey, Qpn, Rkey, Srqn};

/// Number that a driver chose for a queue, so that a completion leads back to the driver's own table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UserIndex(u32);

impl UserIndex {
    /// Returns `None` if `raw` does not fit in 24 bits.
    #[must_use]
    #[inline]
    pub const fn new(raw: u32) -> Option<Self> {
        if raw >> 24 == 0 { Some(Self(raw)) } else { None }
    }

    /// The low 24 bits of a wire word whose high byte belongs to another field.
    #[must_use]
    #[inline]
    pub const fn from_low_bits(word: u32) -> Self {
        Self(word & 0xff_ffff)
    }

    /// The number, below 2²⁴.
    #[must_use]
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }
}
