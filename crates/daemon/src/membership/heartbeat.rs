//! Heartbeats between daemons.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, little_endian::U64};

/// One heartbeat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heartbeat {
    /// The sender's epoch with the receiver; never 0.
    pub epoch: u64,
    /// The latest epoch of the receiver that the sender knows; 0 if none.
    pub peer_epoch: u64,
    /// The latest epoch of the receiver that is over for the sender; 0 if none.
    pub peer_epoch_over: u64,
    /// The sender's time.
    pub sent_ns: u64,
    /// The latest `sent_ns` that the sender had from the receiver in that epoch; 0 if none.
    pub echo_ns: u64,
    /// The sender ends by itself.
    pub is_leaving: bool,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Bytes {
    epoch: U64,
    peer_epoch: U64,
    peer_epoch_over: U64,
    sent_ns: U64,
    echo_ns: U64,
    flags: U64,
}

/// Bytes of a heartbeat.
pub const HEARTBEAT_BYTES: usize = size_of::<Bytes>();
const _: () = assert!(HEARTBEAT_BYTES == 48);

const LEAVING: u64 = 1;

impl Heartbeat {
    /// Its bytes on the wire.
    #[must_use]
    pub fn to_bytes(self) -> [u8; HEARTBEAT_BYTES] {
        let bytes = Bytes {
            epoch: self.epoch.into(),
            peer_epoch: self.peer_epoch.into(),
            peer_epoch_over: self.peer_epoch_over.into(),
            sent_ns: self.sent_ns.into(),
            echo_ns: self.echo_ns.into(),
            flags: if self.is_leaving { LEAVING } else { 0 }.into(),
        };
        zerocopy::transmute!(bytes)
    }

    /// Reads what [`to_bytes`](Self::to_bytes) wrote; `None` if it is anything else.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes = Bytes::read_from_bytes(bytes).ok()?;
        let flags = bytes.flags.get();
        let is_known = bytes.epoch.get() != 0 && flags & !LEAVING == 0;
        is_known.then(|| Self {
            epoch: bytes.epoch.get(),
            peer_epoch: bytes.peer_epoch.get(),
            peer_epoch_over: bytes.peer_epoch_over.get(),
            sent_ns: bytes.sent_ns.get(),
            echo_ns: bytes.echo_ns.get(),
            is_leaving: flags & LEAVING != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heartbeat_survives_and_anything_else_is_refused() {
        let heartbeat = Heartbeat {
            epoch: 1,
            peer_epoch: 2,
            peer_epoch_over: 1,
            sent_ns: 3,
            echo_ns: u64::MAX,
            is_leaving: true,
        };
        let bytes = heartbeat.to_bytes();
        assert_eq!(Heartbeat::from_bytes(&bytes), Some(heartbeat));
        assert_eq!(Heartbeat::from_bytes(&bytes[1..]), None);
        assert_eq!(Heartbeat::from_bytes(&[0; HEARTBEAT_BYTES]), None, "no epoch");
        assert_eq!(Heartbeat::from_bytes(&[0xff; HEARTBEAT_BYTES]), None, "unknown flags");
    }
}
