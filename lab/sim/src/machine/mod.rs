//! Profiles of machines: what their NIC, CPU and links take. Those of different NICs are never mixed.

mod connect_ib;
mod connect_x7;
mod constants;
mod delegation;
mod loopback;
mod two_rank;

pub use connect_ib::CONNECT_IB;
pub use connect_x7::{
    CLIENT_JITTER_NS, CLIENT_NS, FLUSH_NS, JITTER_NS, ONE_WAY_NS, SEND_QUEUE_NS, TAKE_NS,
};
pub use constants::{BadConstant, Constants, CountField, with_constant};
pub use delegation::{CONNECT_X7, DelegationProfile, QUICK_NIC};
pub use loopback::{LOOPBACK, LoopbackProfile};
pub use two_rank::{TWO_RANK, TwoRankProfile};

use crate::world::Time;

/// A machine.
#[derive(Clone, Debug)]
pub struct Profile {
    /// What it is called in reports.
    pub name: &'static str,
    /// Its NIC.
    pub nic: NicProfile,
    /// Its link to any other machine.
    pub wire: Time,
    /// What its program takes.
    pub cpu: CpuProfile,
}

/// A NIC. Times of processing units are means.
#[derive(Clone, Debug)]
pub struct NicProfile {
    /// Processing units. A queue pair's work is always done by the same one.
    pub units: usize,
    /// Initiator: sends a request.
    pub issue: Time,
    /// Initiator: takes a response and writes a completion.
    pub complete: Time,
    /// Responder: serves a READ.
    pub respond: Time,
    /// Responder: makes the context of a DC initiator that connects, in addition.
    pub connect: Time,
    /// Initiator: sends DISCONNECT, and takes its answer, together.
    pub disconnect_issue: Time,
    /// Responder: drops the context.
    pub disconnect_respond: Time,
    /// Responder: reads payload from memory, while its unit goes on.
    pub payload_read: Time,
    /// From a posted WQE to a NIC that has it.
    pub doorbell: Time,
    /// From a finished request to a program that sees the completion.
    pub completion: Time,
    /// Reads a WQE again that came while its initiator was connected elsewhere and had no other work.
    pub refetch: Time,
    /// READs of a queue pair on their way at once.
    pub reads_max: u32,
    /// Contexts on the NIC.
    pub cache_contexts: usize,
    /// Places that one context can have.
    pub cache_ways: usize,
    /// A unit waits for a context that is not there.
    pub context_miss: Time,
    /// Whether times of processing units vary; else each is its mean.
    pub varies: bool,
    /// Whether an initiator lets its READs end before it changes its target.
    pub drains: bool,
}

/// A program that posts requests one at a time.
#[derive(Clone, Debug)]
pub struct CpuProfile {
    /// A turn of its loop: one request, one completion.
    pub turn: Time,
    /// The same, with two looks at the clock.
    pub timed_turn: Time,
}
