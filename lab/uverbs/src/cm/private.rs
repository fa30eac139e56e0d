//! Private data: how much a program may send with a message, and how much the other one is told of.
//!
//! A message on the wire has room for a fixed number of bytes. An event tells of all of them, whatever was sent: the rest is
//! zero. Before what is sent with a request lies the header of the connection manager, of 36 bytes, with the IP addresses;
//! addresses of InfiniBand need none.
//!
//! Source: Linux `include/rdma/ib_cm.h`, `IB_CM_*_PRIVATE_DATA_SIZE`; `drivers/infiniband/core/cma.c`, `cma_connect_ib`,
//! `cma_resolve_ib_udp`, `cma_req_handler` and `cma_user_data_offset`.

use rustix::io::Errno;

/// A message with private data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageKind {
    Request,
    Reply,
    Reject,
}

/// Bytes that a message has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PrivateRoom(usize);

impl PrivateRoom {
    pub(super) const fn of(kind: MessageKind, is_datagram: bool, is_ib: bool) -> Self {
        let header_bytes = if is_ib { 0 } else { 36 };
        Self(match (kind, is_datagram) {
            (MessageKind::Request, false) => 92 - header_bytes,
            (MessageKind::Reply, false) => 196,
            (MessageKind::Reject, false) => 148,
            (MessageKind::Request, true) => 216 - header_bytes,
            (MessageKind::Reply | MessageKind::Reject, true) => 136,
        })
    }

    /// Whether so much may be sent.
    pub(super) fn check(self, private: &[u8]) -> Result<(), Errno> {
        if private.len() > self.0 { Err(Errno::INVAL) } else { Ok(()) }
    }

    /// What the event tells.
    pub(super) fn padded(self, private: &[u8]) -> Vec<u8> {
        let mut all = private.to_vec();
        all.resize(self.0, 0);
        all
    }
}
