//! Private data: how much a program may send with a message, and how much the other one is told of.
//!
//! A message on the wire has room for a fixed number of bytes. An event tells of all of them, whatever was sent: the rest is
//! zero. Before what is sent with a request lies the header of the connection manager, of 36 bytes.
//!
//! Source: Linux `include/rdma/ib_cm.h`, `IB_CM_*_PRIVATE_DATA_SIZE`; `drivers/infiniband/core/cma.c`, `cma_connect_ib`,
//! `cma_resolve_ib_udp` and `cma_req_handler`.

use rustix::io::Errno;

/// What is said with private data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    Request,
    Reply,
    Reject,
}

/// Bytes that a message has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PrivateRoom(usize);

impl PrivateRoom {
    pub(super) const fn of(said: Said, is_datagram: bool) -> Self {
        const HEADER_BYTES: usize = 36;
        Self(match (said, is_datagram) {
            (Said::Request, false) => 92 - HEADER_BYTES,
            (Said::Reply, false) => 196,
            (Said::Reject, false) => 148,
            (Said::Request, true) => 216 - HEADER_BYTES,
            (Said::Reply | Said::Reject, true) => 136,
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
