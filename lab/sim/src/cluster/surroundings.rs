//! What the world is for a client in a step, and what the step leads to.

use super::{
    direct::{Descriptors, SharedDesk},
    history::History,
    plan::Plan,
};
use crate::world::Time;

/// Between two polls.
pub(super) const POLL: Time = Time::from_ns(100);

/// What a step of a client leads to.
#[derive(Clone, Debug, Default)]
pub(super) struct Stepped {
    /// The daemon sleeps and is to be woken.
    pub(super) wakes_daemon: bool,
    /// Requests were published, or announced: a daemon that polls finds them.
    pub(super) has_told: bool,
    /// When to step again if nothing comes; `None`: never.
    pub(super) again: Option<Time>,
    /// Sessions that hold requests which their providers may not have seen, and those whose providers sleep.
    pub(super) told: Vec<u64>,
    pub(super) wakes_hosts: Vec<u64>,
    /// A provider answered callers, and those of these sessions sleep.
    pub(super) has_answered: bool,
    pub(super) wakes_callers: Vec<u64>,
}

/// What the world is for a client in one step.
pub(super) struct Surroundings<'a> {
    pub(super) plan: &'a Plan,
    pub(super) history: &'a mut History,
    pub(super) rank: u32,
    /// Of the client.
    pub(super) id: ipc::ClientId,
    pub(super) now: Time,
    /// As its node's clock shows it.
    pub(super) now_ns: u64,
    /// No new calls are made, except those of `checks`.
    pub(super) is_draining: bool,
    /// Something is, or was, wrong with the node itself: its calls may end later than they should.
    pub(super) is_disturbed: bool,
    /// What goes to the daemon beside requests.
    pub(super) descriptors: &'a mut Descriptors,
    pub(super) desk: &'a SharedDesk,
}
