//! The machine of the measurements with one and two ranks: ConnectX-7, Xeon Gold 6530, 16 clients per rank.

use super::connect_x7::{
    CLIENT_JITTER_NS, CLIENT_NS, FLUSH_NS, JITTER_NS, ONE_WAY_NS, SEND_QUEUE_NS, TAKE_NS,
};

/// Times of a daemon that looks at a slot per client, and of the NIC below it, in ns.
#[derive(Clone, Debug)]
pub struct TwoRankProfile {
    /// What it is called in reports.
    pub name: &'static str,
    /// Clients of a rank, with one call in flight each.
    pub clients: u32,
    /// A turn of the loop that finds nothing. Fitted: requests per turn of two ranks.
    pub turn: f64,
    /// Takes a request from a slot, and executes it or encodes it. Fitted: 964 ns for 16 slots.
    pub take: f64,
    /// Takes a completion and gives responses to their slots. Fitted: phases that find one.
    pub completion: f64,
    /// Executes a call of the other rank. Fitted: phases that find one.
    pub serve: f64,
    /// Posts a batch. Fitted: phases that do it.
    pub flush: f64,
    /// Rings a doorbell for a message: 129.1 ns − 50.7 ns of a SEND with and without one, on the same machine.
    pub doorbell: f64,
    /// From a response in its slot to the next request. A call of one client takes 631 ns on this machine
    /// with another ring; of that, this daemon's part is taken off.
    pub client: f64,
    /// Mean of what a client takes longer.
    pub client_jitter: f64,
    /// The send queue goes on to its next entry: a WRITE with immediate, at its highest rate.
    pub wqe: f64,
    /// The same, if it is the one send queue of a daemon.
    pub send_queue: f64,
    /// From doorbell to visible completion at the other side.
    pub one_way: f64,
    /// Mean of what it takes longer.
    pub jitter: f64,
    /// A NIC reads host memory. Fitted: 5.50 µs of a ping-pong of calls, if that read is what takes it.
    pub pcie_read: f64,
    /// A program that plays ping-pong encodes a call, or takes it.
    pub program: f64,
}

/// Fitted as each field says.
pub const TWO_RANK: TwoRankProfile = TwoRankProfile {
    name: "two-rank machine (ConnectX-7)",
    clients: 16,
    turn: 20.7,
    take: TAKE_NS,
    completion: 75.0,
    serve: 30.0,
    flush: FLUSH_NS,
    doorbell: 78.4,
    client: CLIENT_NS,
    client_jitter: CLIENT_JITTER_NS,
    wqe: 56.4,
    send_queue: SEND_QUEUE_NS,
    one_way: ONE_WAY_NS,
    jitter: JITTER_NS,
    pcie_read: 600.0,
    program: 20.0,
};
