//! The invitation: what one worker sends another before they are peers.
//!
//! ```text
//!  │ transport, link, path, limits │ QPN, PSN │ LID or GID │ DC key │ ring address, rkey │ hello (proto) │
//! ```

use proto::copyrpc::{HELLO_BYTES, Hello, HelloError};
use verbs::{
    AddressVector, DcKey, Gid, GidRoute, Lid, Mtu, PortRoute, Psn, QpAddress, Qpn, RemoteSlice,
    Rkey,
};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

use crate::TransportKind;

const CONTACT_BYTES: usize = size_of::<Bytes>();
const LINK_LID: u8 = 1;
const LINK_GID: u8 = 2;
const LINK_GLOBAL: u8 = 3;

/// The queue pair, ring and hello of a worker, for the worker that is to become its peer. Opaque bytes, to be carried by any
/// means: a socket, a file, a bootstrap service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invitation([u8; Self::BYTES]);

impl Invitation {
    /// Length of every invitation.
    pub const BYTES: usize = CONTACT_BYTES + HELLO_BYTES;

    /// The bytes that the other worker is to be given.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// An invitation from its bytes, which only [`Worker::connect`](crate::Worker::connect) judges.
    ///
    /// # Errors
    ///
    /// [`ContactError::Length`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ContactError> {
        bytes.try_into().map(Self).map_err(|_| ContactError::Length(bytes.len()))
    }

    pub(crate) fn new(contact: &Contact, hello: &Hello) -> Self {
        let mut bytes = [0; Self::BYTES];
        bytes[..CONTACT_BYTES].copy_from_slice(contact.to_bytes().as_bytes());
        bytes[CONTACT_BYTES..].copy_from_slice(&hello.encode());
        Self(bytes)
    }

    /// The same queue pair, ring and hello behind another address of the NIC: it may change before the peer connects.
    #[must_use]
    pub fn readdressed(&self, address: AddressVector) -> Self {
        let Ok((mut contact, _)) = self.parse() else { return *self };
        contact.endpoint.address = address;
        let mut bytes = self.0;
        bytes[..CONTACT_BYTES].copy_from_slice(contact.to_bytes().as_bytes());
        Self(bytes)
    }

    pub(crate) fn parse(&self) -> Result<(Contact, Result<Hello, HelloError>), ContactError> {
        let (contact, hello) = self.0.split_at(CONTACT_BYTES);
        let bytes = Bytes::read_from_bytes(contact).map_err(|_| ContactError::Field("length"))?;
        Ok((Contact::from_bytes(&bytes)?, Hello::decode(hello)))
    }
}

/// Why bytes are no invitation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContactError {
    /// Wrong length.
    #[error("it has {0} B, an invitation has {expected} B", expected = Invitation::BYTES)]
    Length(usize),
    /// A value that no worker writes.
    #[error("its {0} is impossible")]
    Field(&'static str),
}

/// The address of a worker's queue pair and ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Contact {
    pub(crate) transport: TransportKind,
    pub(crate) endpoint: QpAddress,
    pub(crate) psn: Psn,
    /// DC: what requests to the target must carry.
    pub(crate) key: DcKey,
    pub(crate) ring: RemoteSlice,
    pub(crate) limits: PathLimits,
}

/// Limits of a port on what peers send to it. Each side keeps to the lower limits of both ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PathLimits {
    /// Largest packet.
    pub(crate) mtu: Mtu,
    /// READs outstanding.
    pub(crate) reads_max: u8,
}

impl PathLimits {
    /// The lower limits of both ports.
    pub(crate) fn min(self, other: Self) -> Self {
        Self { mtu: self.mtu.min(other.mtu), reads_max: self.reads_max.min(other.reads_max) }
    }
}

impl core::fmt::Display for PathLimits {
    fn fmt(&self, to: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(to, "packets of {} B and {} READs", self.mtu.bytes(), self.reads_max)
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Bytes {
    transport: u8,
    link: u8,
    service_level: u8,
    mtu: u8,
    hop_limit: u8,
    traffic_class: u8,
    reserved2: [u8; 6],
    qpn: U32,
    psn: U32,
    flow_label: U32,
    lid: U16,
    reads_max: u8,
    reserved: u8,
    gid: [u8; 16],
    key: U64,
    addr: U64,
    rkey: U32,
}

impl Contact {
    fn to_bytes(self) -> Bytes {
        let QpAddress { address: AddressVector { route, service_level }, qpn } = self.endpoint;
        let mut bytes = Bytes {
            transport: match self.transport {
                TransportKind::Rc => 1,
                TransportKind::Dc => 2,
            },
            link: LINK_LID,
            service_level,
            mtu: self.limits.mtu as u8,
            hop_limit: 0,
            traffic_class: 0,
            reserved2: [0; 6],
            qpn: qpn.get().into(),
            psn: self.psn.get().into(),
            flow_label: 0.into(),
            lid: 0.into(),
            reads_max: self.limits.reads_max,
            reserved: 0,
            gid: [0; 16],
            key: self.key.get().into(),
            addr: self.ring.addr.into(),
            rkey: self.ring.rkey.get().into(),
        };
        match route {
            PortRoute::Lid(lid) => bytes.lid = lid.get().into(),
            PortRoute::Gid(_) => bytes.link = LINK_GID,
            PortRoute::Global(lid, _) => {
                bytes.link = LINK_GLOBAL;
                bytes.lid = lid.get().into();
            }
        }
        match route {
            PortRoute::Lid(_) => {}
            PortRoute::Gid(route) | PortRoute::Global(_, route) => {
                bytes.hop_limit = route.hop_limit;
                bytes.traffic_class = route.traffic_class;
                bytes.flow_label = route.flow_label.into();
                bytes.gid = route.gid.to_bytes();
            }
        }
        bytes
    }

    fn from_bytes(bytes: &Bytes) -> Result<Self, ContactError> {
        let transport = match bytes.transport {
            1 => TransportKind::Rc,
            2 => TransportKind::Dc,
            _ => return Err(ContactError::Field("transport")),
        };
        let (lid, global) = (
            Lid::new(bytes.lid.get()),
            GidRoute {
                gid: Gid::new(bytes.gid),
                hop_limit: bytes.hop_limit,
                traffic_class: bytes.traffic_class,
                flow_label: bytes.flow_label.get(),
            },
        );
        let route = match bytes.link {
            LINK_LID => PortRoute::Lid(lid),
            LINK_GID => PortRoute::Gid(global),
            LINK_GLOBAL => PortRoute::Global(lid, global),
            _ => return Err(ContactError::Field("link")),
        };
        let qpn = Qpn::new(bytes.qpn.get()).ok_or(ContactError::Field("queue pair number"))?;
        let psn = Psn::new(bytes.psn.get()).ok_or(ContactError::Field("packet number"))?;
        let mtu = match bytes.mtu {
            1 => Mtu::B256,
            2 => Mtu::B512,
            3 => Mtu::B1024,
            4 => Mtu::B2048,
            5 => Mtu::B4096,
            _ => return Err(ContactError::Field("path MTU")),
        };
        let address = AddressVector { route, service_level: bytes.service_level };
        Ok(Self {
            transport,
            endpoint: QpAddress { address, qpn },
            psn,
            key: DcKey::new(bytes.key.get()),
            ring: RemoteSlice { addr: bytes.addr.get(), rkey: Rkey::new(bytes.rkey.get()) },
            limits: PathLimits { mtu, reads_max: bytes.reads_max },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contact_survives_its_bytes_with_both_kinds_of_address() {
        let gid = GidRoute {
            gid: Gid::new([7; 16]),
            hop_limit: 64,
            traffic_class: 106,
            flow_label: 0xa_bcde,
        };
        for route in
            [PortRoute::Lid(Lid::new(9)), PortRoute::Gid(gid), PortRoute::Global(Lid::new(9), gid)]
        {
            let contact = Contact {
                transport: TransportKind::Dc,
                endpoint: QpAddress {
                    address: AddressVector { route, service_level: 2 },
                    qpn: Qpn::new(0x1234).unwrap(),
                },
                psn: Psn::new(77).unwrap(),
                key: DcKey::new(1 << 60),
                ring: RemoteSlice { addr: 1 << 50, rkey: Rkey::new(5) },
                limits: PathLimits { mtu: Mtu::B2048, reads_max: 7 },
            };
            assert_eq!(Contact::from_bytes(&contact.to_bytes()), Ok(contact));
            let mut invitation = Invitation([0; Invitation::BYTES]);
            invitation.0[..CONTACT_BYTES].copy_from_slice(contact.to_bytes().as_bytes());
            let address = AddressVector { route: PortRoute::Lid(Lid::new(1)), service_level: 0 };
            let moved = invitation.readdressed(address).parse().unwrap().0;
            let endpoint = QpAddress { address, ..contact.endpoint };
            assert_eq!(moved, Contact { endpoint, ..contact });
        }
    }

    #[test]
    fn wrong_bytes_say_what_is_wrong() {
        let short = ContactError::Length(3);
        assert_eq!(Invitation::from_bytes(&[0; 3]), Err(short));
        let zeros = Invitation::from_bytes(&[0; Invitation::BYTES]).unwrap();
        assert_eq!(zeros.parse(), Err(ContactError::Field("transport")));
        let mut no_mtu = [0; Invitation::BYTES];
        no_mtu[..2].copy_from_slice(&[1, LINK_LID]);
        let no_mtu = Invitation::from_bytes(&no_mtu).unwrap();
        assert_eq!(no_mtu.parse(), Err(ContactError::Field("path MTU")));
    }

    proptest::proptest! {
        /// The bytes of a peer are an invitation, or are refused with a reason.
        #[test]
        fn any_bytes_are_an_invitation_or_an_error(
            flips in proptest::collection::vec((0..Invitation::BYTES, 0_u8..), 0..20),
            is_like_one in proptest::bool::ANY,
        ) {
            let mut bytes = [0; Invitation::BYTES];
            if is_like_one {
                // Transport, link, MTU and the magic of the hello.
                bytes[..4].copy_from_slice(&[1, LINK_LID, 0, 5]);
                bytes[CONTACT_BYTES..CONTACT_BYTES + 4].copy_from_slice(b"crpc");
            }
            for (at, value) in flips {
                bytes[at] = value;
            }
            let invitation = Invitation::from_bytes(&bytes).unwrap();
            if let Ok((contact, _)) = invitation.parse() {
                proptest::prop_assert_eq!(Contact::from_bytes(&contact.to_bytes()), Ok(contact));
            }
        }
    }
}
