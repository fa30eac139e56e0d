//! The messages of a client and a server before they connect.

use verbs::{
    AddressVector, Gid, GidRoute, Lid, Mtu, PathClass, PortRoute, Psn, QpAddress, Qpn, RemoteSlice,
    Rkey,
};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

const MAGIC: u32 = u32::from_le_bytes(*b"srpc");

const LINK_LID: u8 = 0;
const LINK_GID: u8 = 1;
const LINK_GLOBAL: u8 = 2;

/// Of a client, for its server, and of the server for it. Opaque bytes, to be carried by any means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invitation([u8; Self::BYTES]);

impl Invitation {
    /// Length of every invitation.
    pub const BYTES: usize = size_of::<Bytes>();

    /// As bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// From bytes, which are judged when they are used.
    ///
    /// # Errors
    ///
    /// [`ContactError::Length`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ContactError> {
        bytes.try_into().map(Self).map_err(|_| ContactError::Length(bytes.len()))
    }
}

/// Why bytes are no invitation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContactError {
    /// Wrong length.
    #[error("it has {0} B, an invitation has {expected} B", expected = Invitation::BYTES)]
    Length(usize),
    /// A value that no peer writes.
    #[error("its {0} is impossible")]
    Field(&'static str),
}

/// One side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Contact {
    pub(crate) endpoint: QpAddress,
    pub(crate) psn: Psn,
    pub(crate) mtu: Mtu,
    pub(crate) reads_max: u8,
    /// Server: the pools. Client: its requests, then its responses.
    pub(crate) blocks: RemoteSlice,
    /// Server: the client's entry. Client: nothing.
    pub(crate) entry: RemoteSlice,
    pub(crate) block_bytes: u32,
    /// Server: of each pool.
    pub(crate) zones: u16,
    pub(crate) slots: u8,
    /// Server: it looks at blocks, so requests need no immediate data.
    pub(crate) is_polling: bool,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct Bytes {
    magic: U32,
    qpn: U32,
    psn: U32,
    link: u8,
    service_level: u8,
    mtu: u8,
    reads_max: u8,
    lid: U16,
    hop_limit: u8,
    slots: u8,
    gid: [u8; 16],
    blocks_addr: U64,
    entry_addr: U64,
    blocks_rkey: U32,
    entry_rkey: U32,
    block_bytes: U32,
    zones: U16,
    is_polling: u8,
    reserved: u8,
}

impl Contact {
    pub(crate) fn invitation(&self) -> Invitation {
        let AddressVector { route, service_level } = self.endpoint.address;
        let (link, lid, hop_limit, gid) = match route {
            PortRoute::Lid(lid) => (LINK_LID, lid.get(), 0, [0; 16]),
            PortRoute::Gid(route) => (LINK_GID, 0, route.hop_limit, route.gid.to_bytes()),
            PortRoute::Global(lid, route) => {
                (LINK_GLOBAL, lid.get(), route.hop_limit, route.gid.to_bytes())
            }
        };
        let bytes = Bytes {
            magic: MAGIC.into(),
            qpn: self.endpoint.qpn.get().into(),
            psn: self.psn.get().into(),
            link,
            service_level,
            mtu: self.mtu as u8,
            reads_max: self.reads_max,
            lid: lid.into(),
            hop_limit,
            slots: self.slots,
            gid,
            blocks_addr: self.blocks.addr.into(),
            entry_addr: self.entry.addr.into(),
            blocks_rkey: self.blocks.rkey.get().into(),
            entry_rkey: self.entry.rkey.get().into(),
            block_bytes: self.block_bytes.into(),
            zones: self.zones.into(),
            is_polling: self.is_polling.into(),
            reserved: 0,
        };
        Invitation(zerocopy::transmute!(bytes))
    }

    /// The peer that invites, and the way to it in this class.
    pub(crate) fn peer(theirs: &Invitation, class: PathClass) -> Result<Self, ContactError> {
        let mut contact = Self::parse(theirs)?;
        class.apply(&mut contact.endpoint.address);
        Ok(contact)
    }

    fn parse(invitation: &Invitation) -> Result<Self, ContactError> {
        let bytes: Bytes = zerocopy::transmute!(invitation.0);
        if bytes.magic.get() != MAGIC {
            return Err(ContactError::Field("magic"));
        }
        let lid = Lid::new(bytes.lid.get());
        let global = GidRoute {
            gid: Gid::new(bytes.gid),
            hop_limit: bytes.hop_limit,
            traffic_class: 0,
            flow_label: 0,
        };
        let route = match bytes.link {
            LINK_LID => PortRoute::Lid(lid),
            LINK_GID => PortRoute::Gid(global),
            LINK_GLOBAL => PortRoute::Global(lid, global),
            _ => return Err(ContactError::Field("link")),
        };
        let all = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096];
        let mtu = all.into_iter().find(|mtu| *mtu as u8 == bytes.mtu);
        let qpn = Qpn::new(bytes.qpn.get()).ok_or(ContactError::Field("queue pair number"))?;
        let slots = bytes.slots;
        if !(1..=proto::scalerpc::SLOTS_MAX).contains(&slots) {
            return Err(ContactError::Field("number of slots"));
        }
        let block_bytes = bytes.block_bytes.get();
        if !(24..=1 << 26).contains(&block_bytes) {
            return Err(ContactError::Field("block length"));
        }
        let blocks_addr = bytes.blocks_addr.get();
        let blocks = 2 * u64::from(bytes.zones.get().max(1)) * u64::from(slots);
        if blocks_addr.checked_add(blocks * u64::from(block_bytes)).is_none() {
            return Err(ContactError::Field("address of blocks"));
        }
        let blocks = bytes.blocks_rkey.get();
        let entry = bytes.entry_rkey.get();
        let address = AddressVector { route, service_level: bytes.service_level };
        Ok(Self {
            endpoint: QpAddress { address, qpn },
            psn: Psn::new(bytes.psn.get()).ok_or(ContactError::Field("packet number"))?,
            mtu: mtu.ok_or(ContactError::Field("path MTU"))?,
            reads_max: bytes.reads_max,
            blocks: RemoteSlice { addr: blocks_addr, rkey: Rkey::new(blocks) },
            entry: RemoteSlice { addr: bytes.entry_addr.get(), rkey: Rkey::new(entry) },
            block_bytes,
            zones: bytes.zones.get(),
            slots,
            is_polling: bytes.is_polling != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contact(route: PortRoute) -> Contact {
        Contact {
            endpoint: QpAddress {
                address: AddressVector { route, service_level: 2 },
                qpn: Qpn::new(0x1234).unwrap(),
            },
            psn: Psn::new(77).unwrap(),
            mtu: Mtu::B2048,
            reads_max: 7,
            blocks: RemoteSlice { addr: 1 << 50, rkey: Rkey::new(5) },
            entry: RemoteSlice { addr: 1 << 51, rkey: Rkey::new(6) },
            block_bytes: 4096,
            zones: 60,
            slots: 8,
            is_polling: true,
        }
    }

    #[test]
    fn the_way_to_a_peer_has_the_class_that_is_set() {
        let gid =
            GidRoute { gid: Gid::new([7; 16]), hop_limit: 64, traffic_class: 0, flow_label: 0 };
        let way = |class| Contact::peer(&contact(PortRoute::Gid(gid)).invitation(), class);
        let address = |class| way(class).unwrap().endpoint.address;
        let class = PathClass { service_level: Some(3), traffic_class: Some(106) };
        let route = PortRoute::Gid(GidRoute { traffic_class: 106, ..gid });
        assert_eq!(address(class), AddressVector { route, service_level: 3 });
        assert_eq!(address(PathClass::default()).service_level, 2, "as the peer says");
    }

    #[test]
    fn a_contact_survives_its_bytes_and_wrong_bytes_say_what_is_wrong() {
        let gid =
            GidRoute { gid: Gid::new([7; 16]), hop_limit: 64, traffic_class: 0, flow_label: 0 };
        for route in [PortRoute::Lid(Lid::new(9)), PortRoute::Gid(gid)] {
            let contact = contact(route);
            assert_eq!(Contact::parse(&contact.invitation()), Ok(contact));
            let wrong = Contact { slots: 65, ..contact }.invitation();
            assert_eq!(Contact::parse(&wrong), Err(ContactError::Field("number of slots")));
        }
        let zeros = Invitation::from_bytes(&[0; Invitation::BYTES]).unwrap();
        assert_eq!(Contact::parse(&zeros), Err(ContactError::Field("magic")));
        assert_eq!(Invitation::from_bytes(&[0; 3]), Err(ContactError::Length(3)));
    }
}
