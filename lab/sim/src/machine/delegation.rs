//! The machine of the delegation measurements: ConnectX-7, 46 clients per node, one daemon thread.

use super::connect_x7::{
    CLIENT_JITTER_NS, CLIENT_NS, FLUSH_NS, JITTER_NS, ONE_WAY_NS, SEND_QUEUE_NS, TAKE_NS,
};

/// Times of a daemon that takes calls over one ring that all clients share, in µs.
#[derive(Clone, Copy, Debug)]
pub struct DelegationProfile {
    /// What it is called in reports.
    pub name: &'static str,
    /// Clients of a node.
    pub clients: u32,
    /// A turn of the loop that finds nothing.
    pub turn: f64,
    /// Executes a call for the own node.
    pub local: f64,
    /// Takes a call for another node from the ring and encodes it.
    pub call: f64,
    /// Gives a response to its client.
    pub response: f64,
    /// Executes a call of another node and encodes the response.
    pub serve: f64,
    /// Takes a completion.
    pub completion: f64,
    /// Posts a batch to an endpoint.
    pub flush: f64,
    /// Factor of what is beyond [`warm_items`](Self::warm_items) in a turn: it has left the caches.
    pub cold: f64,
    /// Items of a turn that the caches hold.
    pub warm_items: u32,
    /// NIC: a WQE of the daemon's one send queue.
    pub wqe: f64,
    /// NIC: a message of a batch.
    pub message: f64,
    /// From NIC to NIC.
    pub wire: f64,
    /// Mean of what a delivery takes longer.
    pub jitter: f64,
    /// From a visible response to the next request of a client.
    pub client: f64,
    /// Mean of what a client takes longer.
    pub client_jitter: f64,
    /// The ring passes one request after the other.
    pub ring: f64,
    /// Polls the completion queue once more.
    pub poll: f64,
}

/// The daemon of the delegation measurements on the one ConnectX-7.
///
/// Its send queue, the way between NICs, what it takes to take a call and to post a batch, and clients have the times that
/// other measurements have given ([`SEND_QUEUE_NS`] and those beside it).
///
/// `turn`, `response`, `serve`, `completion`, `cold`, `warm_items` and `ring` were fitted to one table, 32 calls per client at
/// 2, 8 and 16 nodes: throughput, responses per turn, turns. The fit meets the three throughputs, and turns and responses of 2 nodes, which
/// are called fitted. It does not meet turns and responses of 8 and 16 nodes, which are called missed, and of which none is a
/// prediction. Of the sets of constants that fit that table alike, this one also has the reference's two throughputs with a poll budget,
/// which are called fitted, too. `poll` is the 16 µs that the reference gives for 16 polls; `message` is assumed.
pub const CONNECT_X7: DelegationProfile = DelegationProfile {
    name: "delegation on a ConnectX-7",
    clients: 46,
    turn: 0.48,
    local: TAKE_NS / 1000.0,
    call: TAKE_NS / 1000.0,
    response: 0.029,
    serve: 0.011,
    completion: 0.03,
    flush: FLUSH_NS / 1000.0,
    cold: 1.5,
    warm_items: 64,
    wqe: SEND_QUEUE_NS / 1000.0,
    message: 0.006,
    wire: ONE_WAY_NS / 1000.0,
    jitter: JITTER_NS / 1000.0,
    client: CLIENT_NS / 1000.0,
    client_jitter: CLIENT_JITTER_NS / 1000.0,
    ring: 0.134,
    poll: 1.0,
};

/// The same with a NIC whose time per WQE is assumed: as long as the Connect-IB of the model takes with one target.
pub const QUICK_NIC: DelegationProfile =
    DelegationProfile { name: "delegation with a quick NIC", wqe: 0.074, ..CONNECT_X7 };
