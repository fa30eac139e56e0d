//! Heartbeats and invitations between daemons, as datagrams.
//!
//! ```text
//! magic │ version, invited │ from │ to │ heartbeat, 48 B │ invitation │ proof, 32 B
//! ```
//!
//! Datagrams, because a heartbeat that is late is worth nothing and one that is lost costs nothing:
//! no connections to keep between all pairs, and no queue in which one waits behind another. Each
//! carries the sender's invitation for the epoch of its heartbeat, so a link comes up without a
//! handshake of its own. A recorded datagram proves nothing: it echoes old times, of old epochs. One of
//! an earlier epoch than the receiver knows is answered, where it came from, with what the receiver
//! knows: a daemon that was restarted after its clock went back is not where its peers think it is.
//!
//! Builds of another version are told apart from strangers: in all versions the words to the rank of the
//! receiver are these, and the last 32 bytes prove all before them.

use std::{
    io,
    net::{SocketAddr, UdpSocket},
    os::fd::{AsFd, BorrowedFd},
};

use rpc::Invitation;
use rustix::net::sockopt;
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32},
};

use crate::membership::{HEARTBEAT_BYTES, Heartbeat};
use bootstrap::{
    JobId, Secret,
    secret::{PROOF_BYTES, ProofPurpose},
};

const MAGIC: [u8; 4] = *b"cRPd";
const VERSION: u16 = 1;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Bytes {
    magic: [u8; 4],
    version: U16,
    /// Whether there is an invitation.
    is_inviting: U16,
    from: U32,
    to: U32,
    heartbeat: [u8; HEARTBEAT_BYTES],
    invitation: [u8; Invitation::BYTES],
    proof: [u8; PROOF_BYTES],
}

/// Bytes of a datagram.
pub const DATAGRAM_BYTES: usize = size_of::<Bytes>();

/// Bytes of a datagram of any version, and one more.
pub(crate) const ANY_DATAGRAM_BYTES: usize = 1024;

/// What every version begins with.
#[derive(Clone, Copy, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Envelope {
    magic: [u8; 4],
    version: U16,
    _of_the_version: U16,
    from: U32,
    to: U32,
}

/// Why a datagram is no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unread {
    /// It is not of this job, or not for this rank, or makes no sense.
    #[error("it is not of this job, or not for this rank")]
    Foreign,
    /// It is of this job, for this rank, and of another version.
    #[error(
        "its heartbeats are of version {theirs}, this daemon's of version {VERSION}; update the older"
    )]
    Version {
        /// Rank of the sender.
        from: u32,
        /// The version.
        theirs: u16,
    },
}

/// A control message between daemons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlMessage {
    /// Rank of the sender.
    pub from: u32,
    /// The heartbeat of the sender.
    pub heartbeat: Heartbeat,
    /// The invitation to connect in this epoch.
    pub invitation: Option<Invitation>,
}

/// Writes and reads datagrams of one job.
#[derive(Clone, Debug)]
pub struct Codec {
    job: JobId,
    secret: Secret,
    rank: u32,
}

impl Codec {
    /// The signer of rank `rank`.
    #[must_use]
    pub fn new(job: JobId, secret: Secret, rank: u32) -> Self {
        Self { job, secret, rank }
    }

    /// A datagram for rank `to`.
    #[must_use]
    pub fn write(
        &self,
        to: u32,
        heartbeat: Heartbeat,
        invitation: Option<&Invitation>,
    ) -> [u8; DATAGRAM_BYTES] {
        let mut bytes = Bytes {
            magic: MAGIC,
            version: VERSION.into(),
            is_inviting: u16::from(invitation.is_some()).into(),
            from: self.rank.into(),
            to: to.into(),
            heartbeat: heartbeat.to_bytes(),
            invitation: [0; Invitation::BYTES],
            proof: [0; PROOF_BYTES],
        };
        if let Some(invitation) = invitation {
            bytes.invitation.copy_from_slice(invitation.as_bytes());
        }
        let signed = &bytes.as_bytes()[..DATAGRAM_BYTES - PROOF_BYTES];
        bytes.proof = self.secret.sign(ProofPurpose::Control, &[&self.job.padded(), signed]);
        zerocopy::transmute!(bytes)
    }

    /// Decodes a datagram.
    ///
    /// # Errors
    ///
    /// [`Unread`].
    pub fn read(&self, datagram: &[u8]) -> Result<ControlMessage, Unread> {
        let envelope = self.open(datagram).ok_or(Unread::Foreign)?;
        let theirs = envelope.version.get();
        if theirs != VERSION {
            return Err(Unread::Version { from: envelope.from.get(), theirs });
        }
        Self::decode(datagram).ok_or(Unread::Foreign)
    }

    /// What a datagram of any version says first, if it is of this job and for this rank.
    fn open(&self, datagram: &[u8]) -> Option<Envelope> {
        let (signed, proof) = datagram.split_last_chunk::<PROOF_BYTES>()?;
        let (envelope, _) = Envelope::read_from_prefix(signed).ok()?;
        let is_ours = envelope.magic == MAGIC
            && envelope.to.get() == self.rank
            && self.secret.verify(ProofPurpose::Control, &[&self.job.padded(), signed], proof);
        is_ours.then_some(envelope)
    }

    fn decode(datagram: &[u8]) -> Option<ControlMessage> {
        let bytes = Bytes::read_from_bytes(datagram).ok()?;
        let invitation = match bytes.is_inviting.get() {
            0 => None,
            _ => Some(Invitation::from_bytes(&bytes.invitation).ok()?),
        };
        let heartbeat = Heartbeat::from_bytes(&bytes.heartbeat)?;
        Some(ControlMessage { from: bytes.from.get(), heartbeat, invitation })
    }
}

/// A channel of datagrams between daemons. No method blocks, and any datagram may be lost.
pub trait Control {
    /// The source of a datagram.
    type From;

    /// Sends to a rank.
    fn send(&mut self, to: u32, datagram: &[u8]);

    /// Takes a datagram, if one is there: its length and its sender.
    fn recv(&mut self, into: &mut [u8]) -> Option<(usize, Self::From)>;

    /// Sends to where a datagram came from.
    fn answer(&mut self, to: &Self::From, datagram: &[u8]);

    /// A datagram that proved to be of `rank` came from there: this is where it is now.
    fn learn(&mut self, rank: u32, from: Self::From);
}

/// Datagrams over UDP.
#[derive(Debug)]
pub struct UdpControl {
    socket: UdpSocket,
    /// Where each rank listens, by rank.
    addresses: Vec<Option<SocketAddr>>,
}

impl UdpControl {
    /// Listens at `address`; port 0 is one of the kernel's choice.
    ///
    /// # Errors
    ///
    /// As for binding a socket.
    pub fn bind(address: SocketAddr, size: u32) -> io::Result<Self> {
        let socket = UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, addresses: vec![None; size as usize] })
    }

    /// Gives datagrams that are sent from now on a traffic class.
    ///
    /// # Errors
    ///
    /// As for setting an option of a socket.
    pub fn set_traffic_class(&self, class: u8) -> io::Result<()> {
        match self.address()? {
            SocketAddr::V4(_) => sockopt::set_ip_tos(&self.socket, class)?,
            SocketAddr::V6(_) => sockopt::set_ipv6_tclass(&self.socket, class.into())?,
        }
        Ok(())
    }

    /// The address on which it listens.
    ///
    /// # Errors
    ///
    /// As for asking the kernel.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Says where a rank is.
    pub fn set(&mut self, rank: u32, address: SocketAddr) {
        if let Some(entry) = self.addresses.get_mut(rank as usize) {
            *entry = Some(address);
        }
    }
}

impl Control for UdpControl {
    type From = SocketAddr;

    fn send(&mut self, to: u32, datagram: &[u8]) {
        if let Some(Some(address)) = self.addresses.get(to as usize) {
            // A heartbeat that is lost is followed by the next.
            let _ = self.socket.send_to(datagram, address);
        }
    }

    fn answer(&mut self, to: &SocketAddr, datagram: &[u8]) {
        // It comes again if it still needs an answer.
        let _ = self.socket.send_to(datagram, to);
    }

    fn recv(&mut self, into: &mut [u8]) -> Option<(usize, SocketAddr)> {
        // An error is that of an earlier send to somebody who is gone.
        self.socket.recv_from(into).ok()
    }

    fn learn(&mut self, rank: u32, from: SocketAddr) {
        self.set(rank, from);
    }
}

impl AsFd for UdpControl {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_have_a_traffic_class_of_their_own() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            // A machine may have no IPv6 at all.
            let Ok(control) = UdpControl::bind(address.parse().unwrap(), 2) else { continue };
            control.set_traffic_class(192).unwrap();
            let class = match control.address().unwrap() {
                SocketAddr::V4(_) => u32::from(sockopt::ip_tos(&control.socket).unwrap()),
                SocketAddr::V6(_) => sockopt::ipv6_tclass(&control.socket).unwrap(),
            };
            assert_eq!(class, 192);
        }
    }

    #[test]
    fn a_datagram_survives_and_one_of_others_is_ignored() {
        let codec = |job: &str, secret: &[u8], rank| {
            Codec::new(JobId::new(job).unwrap(), Secret::from_bytes(secret), rank)
        };
        let heartbeat = Heartbeat { epoch: 4, sent_ns: 5, ..Heartbeat::default() };
        let invitation = Invitation::from_bytes(&[7; Invitation::BYTES]).unwrap();
        let sent = codec("job", b"secret", 3).write(1, heartbeat, Some(&invitation));
        let message = codec("job", b"secret", 1).read(&sent);
        assert_eq!(
            message,
            Ok(ControlMessage { from: 3, heartbeat, invitation: Some(invitation) })
        );
        for other in
            [codec("job", b"other", 1), codec("bob", b"secret", 1), codec("job", b"secret", 2)]
        {
            assert_eq!(other.read(&sent), Err(Unread::Foreign));
        }
        for at in 0..DATAGRAM_BYTES {
            let mut changed = sent;
            changed[at] ^= 1;
            let read = codec("job", b"secret", 1).read(&changed);
            assert_eq!(read, Err(Unread::Foreign), "byte {at}");
        }
        assert_eq!(codec("job", b"secret", 1).read(&sent[1..]), Err(Unread::Foreign));
    }

    const PROOF: [u8; PROOF_BYTES] = [
        197, 91, 54, 136, 127, 102, 70, 154, 74, 126, 140, 1, 188, 141, 118, 94, 251, 218, 175, 17,
        126, 253, 228, 96, 55, 189, 196, 136, 59, 122, 253, 119,
    ];

    /// Another build may be on the other side: whoever changes these bytes raises [`VERSION`].
    #[test]
    fn fault_e7_a_datagram_has_the_bytes_that_builds_in_use_have() {
        assert_eq!(VERSION, 1);
        let codec = Codec::new(JobId::new("job").unwrap(), Secret::from_bytes(b"secret"), 3);
        let heartbeat = Heartbeat {
            epoch: 0x0101,
            peer_epoch: 0x0202,
            peer_epoch_over: 0x0303,
            sent_ns: 0x0404,
            echo_ns: 0x0505,
            is_leaving: true,
        };
        let invitation = Invitation::from_bytes(&[7; Invitation::BYTES]).unwrap();
        let mut bytes = b"cRPd\x01\0\x01\0\x03\0\0\0\x01\0\0\0".to_vec();
        for word in [0x0101u64, 0x0202, 0x0303, 0x0404, 0x0505, 1] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend([7; 100]);
        bytes.extend(PROOF);
        assert_eq!(codec.write(1, heartbeat, Some(&invitation))[..], bytes);
        let reader = Codec { rank: 1, ..codec };
        let read = ControlMessage { from: 3, heartbeat, invitation: Some(invitation) };
        assert_eq!(reader.read(&bytes), Ok(read));
    }

    /// Longer, shorter, and with other contents: the envelope is the same.
    #[test]
    fn fault_e7_a_datagram_of_another_version_is_told_from_a_stranger_and_names_both() {
        let job = JobId::new("job").unwrap();
        let secret = Secret::from_bytes(b"secret");
        let codec = Codec::new(job.clone(), secret.clone(), 1);
        for (theirs, more_bytes) in [(0, 0), (2, 0), (2, 300), (u16::MAX, 900)] {
            let mut signed = MAGIC.to_vec();
            signed.extend(theirs.to_le_bytes());
            signed.extend([9, 9, 3, 0, 0, 0, 1, 0, 0, 0]);
            signed.resize(signed.len() + more_bytes, 5);
            let proof = secret.sign(ProofPurpose::Control, &[&job.padded(), &signed]);
            let datagram = [&signed[..], &proof].concat();
            assert!(datagram.len() < ANY_DATAGRAM_BYTES);
            let unread = codec.read(&datagram).unwrap_err();
            assert_eq!(unread, Unread::Version { from: 3, theirs });
            let reason = unread.to_string();
            for version in [theirs, VERSION] {
                assert!(reason.contains(&format!("version {version}")), "{reason}");
            }
            let mut forged = datagram;
            *forged.last_mut().unwrap() ^= 1;
            assert_eq!(codec.read(&forged), Err(Unread::Foreign));
        }
    }
}
