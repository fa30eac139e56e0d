//! Address vectors: where a UD or DC send goes, InfiniBand and RoCE.

use super::seg::{AvBaseSeg, AvExtensionSeg};
use crate::ids::{DcKey, Gid, Lid, QKey, Qpn};

/// Bit 31 of the destination word: the 32-byte extension follows (`MLX5_EXTENDED_UD_AV`).
const EXTENDED: u32 = 1 << 31;

/// Bit 30 of `grh_gid_fl`: the packet carries a global route header. Reserved on RoCE.
const GRH_PRESENT: u32 = 1 << 30;

/// The key that proves the right to send to the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AvKey {
    /// UD: must equal the receiving queue pair's key.
    Queue(QKey),
    /// DC: must equal the target's access key.
    Dc(DcKey),
}

/// The address vector of one UD or DC send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Av {
    /// Key that the destination checks.
    pub key: AvKey,
    /// Queue pair (UD) or DC target.
    pub destination: Qpn,
    /// `static rate << 4 | service level`; on RoCE `static rate << 4 | priority << 1`.
    pub stat_rate_sl: u8,
    /// `force loopback << 7 | source path bits`.
    pub fl_mlid: u8,
    /// Destination LID; UDP source port on RoCE v2.
    pub rlid: u16,
    /// The 32 bytes that Ethernet and global routes need. `None` is the 16-byte compact form.
    pub extension: Option<AvExtension>,
}

/// Second part of an address vector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AvExtension {
    /// Destination Ethernet address.
    pub rmac: [u8; 6],
    /// Traffic class.
    pub tclass: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// `GRH present << 30 | source GID index << 20 | flow label`.
    pub grh_gid_fl: u32,
    /// Destination GID.
    pub rgid: Gid,
}

impl AvExtension {
    /// Whether an InfiniBand packet gets a global route header.
    #[must_use]
    pub const fn has_grh(&self) -> bool {
        self.grh_gid_fl & GRH_PRESENT != 0
    }

    /// Row of the sender's GID table that becomes the source address.
    #[must_use]
    pub const fn source_gid_index(&self) -> u8 {
        self.grh_gid_fl.to_be_bytes()[0] << 4 | self.grh_gid_fl.to_be_bytes()[1] >> 4
    }
}

impl Av {
    /// A destination in the same InfiniBand subnet, in the 48-byte form that `libmlx5` writes.
    ///
    /// # Panics
    ///
    /// If `service_level` exceeds 15: the field has four bits.
    #[must_use]
    #[inline]
    pub fn infiniband(key: AvKey, destination: Qpn, lid: Lid, service_level: u8) -> Self {
        assert!(service_level < 1 << 4, "service level {service_level}");
        Self {
            key,
            destination,
            stat_rate_sl: service_level,
            fl_mlid: 0,
            rlid: lid.get(),
            extension: Some(AvExtension::default()),
        }
    }

    /// The same destination, reached with a global route header.
    ///
    /// `source_gid_index` is the row of the sender's GID table.
    #[must_use]
    #[inline]
    pub fn with_grh(mut self, rgid: Gid, source_gid_index: u8, hop_limit: u8) -> Self {
        let grh_gid_fl = GRH_PRESENT | u32::from(source_gid_index) << 20;
        self.extension = Some(AvExtension { rmac: [0; 6], tclass: 0, hop_limit, grh_gid_fl, rgid });
        self
    }

    /// The same, with a traffic class, and a flow label of 20 bits in its global route header.
    #[must_use]
    #[inline]
    pub fn with_path(mut self, traffic_class: u8, flow_label: u32) -> Self {
        if let Some(extension) = &mut self.extension {
            extension.tclass = traffic_class;
            extension.grh_gid_fl |= flow_label & 0xf_ffff;
        }
        self
    }

    /// A destination on Ethernet (RoCE v2).
    ///
    /// `source_gid_index` is the row of the sender's GID table; `udp_source_port` spreads flows
    /// over paths. `GRH present` stays clear: RoCE packets always have the header, and there the
    /// bit is reserved.
    #[must_use]
    #[inline]
    pub fn roce(
        key: AvKey,
        destination: Qpn,
        rmac: [u8; 6],
        rgid: Gid,
        source_gid_index: u8,
        hop_limit: u8,
        udp_source_port: u16,
    ) -> Self {
        Self {
            key,
            destination,
            stat_rate_sl: 0,
            fl_mlid: 0,
            rlid: udp_source_port,
            extension: Some(AvExtension {
                rmac,
                tclass: 0,
                hop_limit,
                grh_gid_fl: u32::from(source_gid_index) << 20,
                rgid,
            }),
        }
    }

    /// Length in octowords.
    #[must_use]
    #[inline]
    pub const fn octowords(&self) -> u8 {
        if self.extension.is_some() { 3 } else { 1 }
    }

    #[inline]
    pub(super) fn base_seg(&self) -> AvBaseSeg {
        let key = match self.key {
            AvKey::Queue(key) => u64::from(key.get()) << 32,
            AvKey::Dc(key) => key.get(),
        };
        let extended = if self.extension.is_some() { EXTENDED } else { 0 };
        AvBaseSeg {
            key: key.into(),
            dqp_dct: (extended | self.destination.get()).into(),
            stat_rate_sl: self.stat_rate_sl,
            fl_mlid: self.fl_mlid,
            rlid: self.rlid.into(),
        }
    }

    /// The vector that `base` starts, and whether its extension follows.
    #[inline]
    pub(super) fn from_base_seg(base: &AvBaseSeg, is_dc: bool) -> (Self, bool) {
        let key = base.key.get();
        let dqp_dct = base.dqp_dct.get();
        let av = Self {
            key: if is_dc {
                AvKey::Dc(DcKey::new(key))
            } else {
                AvKey::Queue(QKey::new(high_half(key)))
            },
            destination: Qpn::from_low_bits(dqp_dct),
            stat_rate_sl: base.stat_rate_sl,
            fl_mlid: base.fl_mlid,
            rlid: base.rlid.get(),
            extension: None,
        };
        (av, dqp_dct & EXTENDED != 0)
    }
}

/// A queue key is the first of the two words that a DC key fills.
#[inline]
const fn high_half(key: u64) -> u32 {
    let [a, b, c, d, ..] = key.to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

impl From<AvExtension> for AvExtensionSeg {
    #[inline]
    fn from(extension: AvExtension) -> Self {
        Self {
            reserved: [0; 4],
            rmac: extension.rmac,
            tclass: extension.tclass,
            hop_limit: extension.hop_limit,
            grh_gid_fl: extension.grh_gid_fl.into(),
            rgid: extension.rgid.to_bytes(),
        }
    }
}

impl From<AvExtensionSeg> for AvExtension {
    #[inline]
    fn from(seg: AvExtensionSeg) -> Self {
        Self {
            rmac: seg.rmac,
            tclass: seg.tclass,
            hop_limit: seg.hop_limit,
            grh_gid_fl: seg.grh_gid_fl.get(),
            rgid: Gid::new(seg.rgid),
        }
    }
}
