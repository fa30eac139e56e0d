//! Numbers and keys that name queues, ports and memory to any NIC: each its own type. [`slots`] has the keys of
//! values that a program holds.
//!
//! A field may be narrower than the integer that carries it (a QPN has 24 bits). [`Qpn::new`] checks the
//! width; [`Qpn::from_low_bits`] masks a word whose high byte belongs to another field.
//!
//! Source: InfiniBand Architecture Specification 1.4, chapters 4, 9 and 10. DC is an extension of mlx5.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod slots;

use core::fmt;

/// Number of values of a 24-bit field.
const LIMIT_24: u32 = 1 << 24;

/// Defines a name for a 24-bit number.
macro_rules! id24 {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(u32);

        impl $name {
            /// Returns `None` if `raw` does not fit in 24 bits.
            #[must_use]
            #[inline]
            pub const fn new(raw: u32) -> Option<Self> {
                if raw < LIMIT_24 { Some(Self(raw)) } else { None }
            }

            /// The low 24 bits of a wire word whose high byte belongs to another field.
            #[must_use]
            #[inline]
            pub const fn from_low_bits(word: u32) -> Self {
                Self(word & (LIMIT_24 - 1))
            }

            /// The number, below 2²⁴.
            #[must_use]
            #[inline]
            pub const fn get(self) -> u32 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#08x}", self.0)
            }
        }
    };
}

/// Defines a name for a value that uses every bit of its integer.
macro_rules! full_width {
    ($(#[$doc:meta])* $name:ident($int:ty), $format:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name($int);

        impl $name {
            /// Names `raw`.
            #[must_use]
            #[inline]
            pub const fn new(raw: $int) -> Self {
                Self(raw)
            }

            /// The value.
            #[must_use]
            #[inline]
            pub const fn get(self) -> $int {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        }
    };
}

id24! {
    /// Queue-pair number; also the number of a DC target (DCTN).
    Qpn
}
id24! {
    /// Completion-queue number.
    Cqn
}
id24! {
    /// Shared-receive-queue number.
    Srqn
}
id24! {
    /// Packet sequence number: counts modulo 2²⁴, so it has an order only within a window.
    Psn
}
full_width! {
    /// Key under which a NIC finds a *local* memory region.
    Lkey(u32), "{:#010x}"
}
full_width! {
    /// Key under which a peer's NIC finds a *remote* memory region.
    Rkey(u32), "{:#010x}"
}
full_width! {
    /// Queue key of a UD queue pair.
    QKey(u32), "{:#010x}"
}
full_width! {
    /// Access key of a DC target: a DCI must present the same one.
    DcKey(u64), "{:#018x}"
}
full_width! {
    /// Local identifier of an InfiniBand port.
    Lid(u16), "{}"
}

impl Psn {
    /// The number `count` packets later.
    #[must_use]
    #[inline]
    pub const fn wrapping_add(self, count: u32) -> Self {
        Self::from_low_bits(self.0.wrapping_add(count))
    }

    /// Packets from `earlier` to `self`, going forward.
    ///
    /// A result of 2²³ or more means that `self` is in truth the older one.
    #[must_use]
    #[inline]
    pub const fn distance_from(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0) & (LIMIT_24 - 1)
    }

    /// Whether `self` lies before `other` in the half of the number space that ends at `other`.
    #[must_use]
    #[inline]
    pub const fn is_before(self, other: Self) -> bool {
        let ahead = other.distance_from(self);
        ahead != 0 && ahead < LIMIT_24 / 2
    }
}

/// Global identifier of a port: an IPv6 address, in network byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gid([u8; 16]);

impl Gid {
    /// Names the address with these bytes.
    #[must_use]
    #[inline]
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes, as on the wire.
    #[must_use]
    #[inline]
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0
    }

    /// Whether it is an IPv4 address (`::ffff:a.b.c.d`). No route leads from such a GID to one that is none.
    #[must_use]
    pub const fn is_ipv4(self) -> bool {
        core::net::Ipv6Addr::from_bits(u128::from_be_bytes(self.0)).to_ipv4_mapped().is_some()
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        core::net::Ipv6Addr::from(self.0).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::string::ToString as _;

    use super::*;

    #[test]
    fn numbers_of_24_bits_are_checked_not_truncated() {
        assert_eq!(Qpn::new(0xff_ffff).map(Qpn::get), Some(0xff_ffff));
        assert_eq!(Qpn::new(0x100_0000), None);
        assert_eq!(Cqn::new(u32::MAX), None);
        assert_eq!(Srqn::from_low_bits(0xab12_3456).get(), 0x12_3456);
    }

    #[test]
    fn packet_numbers_wrap_at_24_bits() {
        let last = Psn::new(0xff_ffff).unwrap();
        let first = last.wrapping_add(1);
        assert_eq!(first.get(), 0);
        assert_eq!(first.distance_from(last), 1);
        assert_eq!(last.distance_from(first), 0xff_ffff);
        assert!(last.is_before(first));
        assert!(!first.is_before(last));
        assert!(!first.is_before(first));
    }

    #[test]
    fn the_far_half_of_the_number_space_is_behind() {
        let zero = Psn::new(0).unwrap();
        assert!(zero.is_before(zero.wrapping_add(0x7f_ffff)));
        assert!(!zero.is_before(zero.wrapping_add(0x80_0000)));
    }

    #[test]
    fn display_matches_what_rdma_tools_print() {
        assert_eq!(Qpn::new(0x118).unwrap().to_string(), "0x000118");
        assert_eq!(Lid::new(7).to_string(), "7");
        assert_eq!(Rkey::new(0x1f2e).to_string(), "0x00001f2e");
        let mut gid = [0; 16];
        gid[0] = 0xfe;
        gid[1] = 0x80;
        gid[15] = 1;
        assert_eq!(Gid::new(gid).to_string(), "fe80::1");
    }
}
