//! Events of the connection manager, as programs read them.

use super::message::Side;
use crate::abi::Record;

/// `enum rdma_cm_event_type`
pub(super) mod kind {
    pub(crate) const ADDR_RESOLVED: u32 = 0;
    pub(crate) const ADDR_ERROR: u32 = 1;
    pub(crate) const ROUTE_RESOLVED: u32 = 2;
    pub(crate) const CONNECT_REQUEST: u32 = 4;
    pub(crate) const CONNECT_RESPONSE: u32 = 5;
    pub(crate) const UNREACHABLE: u32 = 7;
    pub(crate) const REJECTED: u32 = 8;
    pub(crate) const ESTABLISHED: u32 = 9;
    pub(crate) const DISCONNECTED: u32 = 10;
}

/// Bytes of `struct rdma_ucm_event_resp`, and where its parameters begin.
const BYTES: usize = 336;
const PARAMETERS: usize = 20;

/// Of the parameters of a connection: private data, its length, what follows.
const CONNECTION: [usize; 3] = [8, 264, 265];

/// Of the parameters of datagrams: address, private data, its length.
const DATAGRAM: [usize; 3] = [8, 40, 296];

/// An event that waits for the program.
#[derive(Clone, Debug)]
pub(super) struct Event {
    pub(super) id: u32,
    pub(super) kind: u32,
    pub(super) status: i32,
    /// Of the program; of a request, that of the listener.
    pub(super) uid: u64,
    pub(super) parameters: Vec<u8>,
}

impl Event {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Record::zeroed(BYTES);
        bytes.u64(0, self.uid);
        bytes.u32(8, self.id);
        bytes.u32(12, self.kind);
        bytes.u32(16, self.status.cast_unsigned());
        bytes.set(PARAMETERS, &self.parameters);
        bytes.0
    }
}

/// Parameters of what says nothing.
pub(super) fn nothing() -> Vec<u8> {
    Vec::new()
}

/// `struct rdma_ucm_ud_param`: where the peer's queue pair is; `ah_attr` is nothing if it is not known.
pub(super) fn datagram(peer: &Side, ah_attr: &[u8]) -> Vec<u8> {
    let mut bytes = Record::zeroed(304);
    bytes.u32(0, peer.qpn);
    bytes.u32(4, peer.qkey);
    let [address, data, len] = DATAGRAM;
    bytes.set(address, ah_attr);
    bytes.set(data, &peer.private);
    bytes.set(len, &[peer.private.len().to_le_bytes()[0]]);
    bytes.0
}

/// `struct rdma_ucm_conn_param` of what the peer says: what it answers is what may be asked for here.
pub(super) fn connection(peer: &Side) -> Vec<u8> {
    let mut bytes = Record::zeroed(272);
    bytes.u32(0, peer.qpn);
    let [data, len, rest] = CONNECTION;
    bytes.set(data, &peer.private);
    bytes.set(len, &[peer.private.len().to_le_bytes()[0]]);
    let depths = [peer.initiator_depth, peer.responder_resources];
    bytes.set(rest, &[peer.has_srq, depths[0], depths[1], peer.flow_control]);
    bytes.set(rest + 4, &[peer.retry_count, peer.rnr_retry, 1]);
    bytes.0
}
