//! The machine of the raw operations: a ConnectX-7 that talks to itself, Xeon Gold 6530.

/// Times of a program and of queues, in ns.
#[derive(Clone, Debug)]
pub struct LoopbackProfile {
    /// What it is called in reports.
    pub name: &'static str,
    /// A turn of a program that finds nothing. Assumed.
    pub turn: f64,
    /// A message of a batch, taken and answered. Fitted: 34.7 ns per call of 8 endpoints with 256 calls each.
    pub message: f64,
    /// Takes a completion. As fitted to the delegation machine.
    pub completion: f64,
    /// Posts a batch. As fitted to the two-rank machine.
    pub flush: f64,
    /// A queue goes on after a SEND. Fitted: its rate.
    pub send: f64,
    /// A queue goes on after a WRITE with immediate. Fitted: its rate.
    pub write: f64,
    /// A doorbell for each entry takes the program longer than the queue takes. Fitted: its rate.
    pub doorbell: f64,
    /// From an entry to its completion at the other side. Fitted: 2.97 µs of a ping-pong.
    pub one_way: f64,
    /// What a batch takes longer than a raw entry. Fitted: 3.76 µs of a ping-pong of calls.
    pub batch: f64,
    /// A byte of a large transfer, in ps. Fitted: 47.4 µs of a READ of 1 MiB.
    pub byte_ps: f64,
}

/// Fitted as each field says.
pub const LOOPBACK: LoopbackProfile = LoopbackProfile {
    name: "loopback machine (ConnectX-7)",
    turn: 15.0,
    message: 33.5,
    completion: 41.0,
    flush: 20.0,
    send: 50.7,
    write: 56.4,
    doorbell: 129.1,
    one_way: 1490.0,
    batch: 280.0,
    byte_ps: 42.4,
};
