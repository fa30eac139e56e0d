//! What the connection manager tells of paths and queue pairs, in structures of the kernel.

use verbs::{Gid, Lid, LinkLayer};

use super::{address::Address, id::Id};
use crate::abi::Record;

/// What all identifiers of a process have in common.
#[derive(Clone, Debug)]
pub(super) struct PortIdentity {
    pub(super) lid: Lid,
    pub(super) link: LinkLayer,
    /// Its GID table.
    pub(super) gids: Vec<Gid>,
}

impl PortIdentity {
    /// The row that connections use: on RoCE, version 2 over IPv4.
    fn row(&self) -> usize {
        self.gids.iter().rposition(|gid| *gid != Gid::default()).unwrap_or(0)
    }

    pub(super) fn gid(&self) -> [u8; 16] {
        self.gids[self.row()].to_bytes()
    }

    pub(super) fn has_gid(&self, gid: &[u8; 16]) -> bool {
        self.gids.iter().any(|own| own.to_bytes() == *gid)
    }

    /// That of another port: GIDs end like LIDs.
    pub(super) fn gid_of(&self, lid: u16) -> [u8; 16] {
        let mut gid = self.gid();
        gid[14..].copy_from_slice(&lid.to_be_bytes());
        gid
    }

    /// `struct ib_uverbs_ah_attr` of a port.
    pub(super) fn ah_attr(&self, lid: u16, traffic_class: u8) -> Vec<u8> {
        const HOPS: u8 = 64;
        let mut bytes = Record::zeroed(32);
        let is_global = self.link == LinkLayer::Ethernet;
        if is_global {
            bytes.set(0, &self.gid_of(lid));
            bytes.set(20, &[self.row().to_le_bytes()[0], HOPS, traffic_class]);
        } else {
            bytes.u16(24, lid);
        }
        bytes.set(29, &[u8::from(is_global), 1]);
        bytes.0
    }

    /// `struct ib_user_path_rec` to a port; all of it in the order of the network.
    pub(super) fn path(&self, lid: u16, traffic_class: u8) -> Vec<u8> {
        const MTU_4096: u32 = 5;
        let mut bytes = Record::zeroed(64);
        bytes.set(0, &self.gid_of(lid));
        bytes.set(16, &self.gid());
        bytes.set(32, &lid.to_be_bytes());
        bytes.set(34, &self.lid.get().to_be_bytes());
        bytes.u32(44, 1); // reversible
        bytes.u32(48, MTU_4096);
        bytes.set(52, &PKEY.to_be_bytes());
        // hop limit, traffic class, number of paths, SL; then "exactly" before MTU, rate and lifetime
        bytes.set(54, &[64, traffic_class, 1, 0, 2, 2, 3, 2, 18, 0]);
        bytes.0
    }

    /// Before the peer is known: that of the GID that is asked for, or as on one host, whose processes share a port.
    pub(super) fn lid_of_peer(&self, id: &Id) -> u16 {
        match id.destination {
            _ if id.peer.lid != 0 => id.peer.lid,
            Some(Address::Ib(to)) => u16::from_be_bytes([to.gid[14], to.gid[15]]),
            _ => self.lid.get(),
        }
    }

    /// `struct rdma_ucm_query_route_resp`; `guid` is that of the device in sysfs.
    pub(super) fn route(&self, id: &Id, guid: [u8; 8]) -> Vec<u8> {
        let mut bytes = Record::zeroed(208);
        if id.has_device {
            bytes.set(0, &guid);
            bytes.set(8, &self.path(self.lid_of_peer(id), id.service_type));
            bytes.set(196, &[1]); // port
        }
        for (at, address) in [(136, id.source), (164, id.destination)] {
            if let Some(address) = address {
                // Those of InfiniBand are cut, as by a kernel.
                bytes.set(at, &super::address::encode(address)[..28]);
            }
        }
        bytes.u32(192, u32::from(id.has_route));
        bytes.u32(200, u32::MAX); // device index: found by GUID
        bytes.0
    }

    /// `struct ib_uverbs_qp_attr` for a transition to `state`. `None`: it is none of those to be told.
    pub(super) fn qp_attr(&self, id: &Id, state: u32) -> Option<Vec<u8>> {
        let mut bytes = Record::zeroed(144);
        bytes.u32(4, state);
        let mask = match state {
            INIT if id.is_datagram => {
                bytes.u32(20, QKEY);
                bytes.set(133, &[1]);
                mask::QKEY | mask::PKEY_INDEX | mask::PORT
            }
            // The rest of the way of one for datagrams depends on nobody: programs know it.
            _ if id.is_datagram => return None,
            INIT => {
                bytes.set(133, &[1]);
                bytes.u32(36, REMOTE_ACCESS);
                mask::ACCESS | mask::PKEY_INDEX | mask::PORT
            }
            RTR => {
                const MTU_4096: u32 = 5;
                const RNR_640_MICROSECONDS: u8 = 12;
                bytes.u32(12, MTU_4096);
                bytes.u32(24, id.peer.psn);
                bytes.u32(32, id.peer.qpn);
                bytes.set(40, &self.ah_attr(id.peer.lid, id.service_type));
                bytes.set(131, &[id.own.responder_resources, RNR_640_MICROSECONDS]);
                mask::AV
                    | mask::PATH_MTU
                    | mask::DEST_QPN
                    | mask::RQ_PSN
                    | mask::READS_IN
                    | mask::RNR_TIMER
            }
            RTS => {
                bytes.u32(28, id.own.psn);
                bytes.set(130, &[id.own.initiator_depth]);
                bytes.set(
                    134,
                    &[id.ack_timeout, id.own.retry_count.min(7), id.own.rnr_retry.min(7)],
                );
                mask::SQ_PSN | mask::TIMEOUT | mask::RETRIES | mask::READS_OUT
            }
            _ => return None,
        };
        bytes.u32(0, mask | mask::STATE);
        Some(bytes.0)
    }
}

/// The only row of the table of P_Keys.
pub(super) const PKEY: u16 = 0xffff;

/// Of every queue pair for datagrams: `RDMA_UDP_QKEY`.
pub(super) const QKEY: u32 = 0x0123_4567;

/// `enum ib_qp_state`
const INIT: u32 = 1;
const RTR: u32 = 2;
const RTS: u32 = 3;

/// `IB_ACCESS_REMOTE_{WRITE,READ,ATOMIC}`
const REMOTE_ACCESS: u32 = 1 << 1 | 1 << 2 | 1 << 3;

/// `enum ib_qp_attr_mask`
mod mask {
    pub(super) const STATE: u32 = 1;
    pub(super) const ACCESS: u32 = 1 << 3;
    pub(super) const PKEY_INDEX: u32 = 1 << 4;
    pub(super) const PORT: u32 = 1 << 5;
    pub(super) const QKEY: u32 = 1 << 6;
    pub(super) const AV: u32 = 1 << 7;
    pub(super) const PATH_MTU: u32 = 1 << 8;
    pub(super) const TIMEOUT: u32 = 1 << 9;
    pub(super) const RETRIES: u32 = 1 << 10 | 1 << 11;
    pub(super) const RQ_PSN: u32 = 1 << 12;
    pub(super) const READS_OUT: u32 = 1 << 13;
    pub(super) const RNR_TIMER: u32 = 1 << 15;
    pub(super) const SQ_PSN: u32 = 1 << 16;
    pub(super) const READS_IN: u32 = 1 << 17;
    pub(super) const DEST_QPN: u32 = 1 << 20;
}
