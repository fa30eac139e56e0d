//! The machine of the delegation measurements: ConnectX-7, 46 clients per node, one daemon thread.

use super::connect_x7::{JITTER_NS, ONE_WAY_NS, SEND_QUEUE_NS};

/// Times of a daemon that takes calls over one ring that all clients share, in µs.
#[derive(Clone, Debug)]
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

/// Times fitted to the throughput of 2 to 32 nodes, by an independent model: none is a measurement of its own.
pub const DELEGATION: DelegationProfile = DelegationProfile {
    name: "delegation machine (ConnectX-7)",
    clients: 46,
    turn: 0.86,
    local: 0.062,
    call: 0.0245,
    response: 0.026,
    serve: 0.036,
    completion: 0.041,
    flush: 0.1,
    cold: 1.8,
    warm_items: 64,
    wqe: 0.609,
    message: 0.006,
    wire: 0.547,
    jitter: 0.063,
    client: 0.376,
    client_jitter: 0.15,
    ring: 0.1427,
    poll: 1.23,
};

/// The same with a NIC whose time per WQE is assumed: as long as the Connect-IB of the model takes with one target.
pub const QUICK_NIC: DelegationProfile =
    DelegationProfile { name: "delegation machine with a quick NIC", wqe: 0.074, ..DELEGATION };

/// The same daemon on the ConnectX-7 whose send queue and way between NICs other measurements have given.
pub const CONNECT_X7: DelegationProfile = DelegationProfile {
    name: "delegation on a ConnectX-7",
    wqe: SEND_QUEUE_NS / 1000.0,
    wire: ONE_WAY_NS / 1000.0,
    jitter: JITTER_NS / 1000.0,
    ..DELEGATION
};
