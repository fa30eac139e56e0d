//! Flux: calls between any two of n threads.
//!
//! ```text
//!            lane 0→2: requests and notices of 0, replies of 0 to calls of 2
//! Node 0 ───────────────────────────────► Node 2     a lane exists once it is first used
//!        ◄───────────────────────────────
//!            lane 2→0: requests and notices of 2, replies of 2 to calls of 0
//! ```
//!
//! A node is polled: [`Node::poll`] hands out requests, notices and replies, one at a time, and does
//! nothing else. [`Node::call`] leaves the request and some user data, and the reply brings the user
//! data back, in whatever order the other side answers. A node may call itself.
//!
//! # Bounds
//!
//! With `c = calls_max` calls in flight from one node to another:
//!
//! - A lane has `2c` slots, and takes a request only while more than `c` of them are free. So there
//!   is always room for the replies to the other side's `c` calls: **a reply never fails**, and a
//!   request that does not fit comes back to the caller. Nothing is lost, nothing blocks.
//! - Memory: `2c` slots for each ordered pair that ever talked, and a bit and a pointer for each pair
//!   that might. An idle lane costs a poll nothing; 64 idle lanes cost it one load.
//! - Deferred replies: `tokens_max` per node.
//!
//! # Cost
//!
//! A call moves two items over two lanes: see [`crate::mpsc`] and the discipline of the lanes. With
//! lanes of one-line slots and both bits set, that is two line transfers per call and two barriers. A barrier waits for the
//! line that the item was written to. Nodes with many messages per turn have one barrier per lane and turn instead
//! ([`Announce::OnRequest`]).

mod node;
mod reply;

use core::fmt;

use ids::slots::Key;
use memory::sync::Arc;

pub use self::{
    node::Node,
    reply::{Event, Responder},
};
use crate::{
    Unanswered,
    mpsc::{self, ReceiverState},
    parker::{Alarm, Waiting},
    spsc::Discipline,
};

/// When a node tells another one of messages on its lane. A node that has polled the lane lately sees them without.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Announce {
    /// With each message.
    #[default]
    EachMessage,
    /// When [`Node::announce`], [`Node::arm`] or [`Node::wait`] is called, or the node dropped.
    OnRequest,
}

/// Bounds of a mesh; the same for all its nodes.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Nodes, each for one thread.
    pub nodes: usize,
    /// Calls in flight from one node to another.
    pub calls_max: u32,
    /// Replies that a node may have deferred at a time.
    pub tokens_max: u32,
    /// Items that a node takes from one peer before it looks at the next.
    pub budget_items: u32,
    /// The waiting of [`Node::wait`].
    pub waiting: Waiting,
    /// When messages are announced.
    pub announce: Announce,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            nodes: 2,
            calls_max: 64,
            tokens_max: 256,
            budget_items: 32,
            waiting: Waiting::default(),
            announce: Announce::default(),
        }
    }
}

/// Why [`Node::call`] did not accept a request. Hands the request and the user data back.
///
/// [`Busy`](Self::Busy) is *backpressure*: expected under load. The others are final.
#[derive(PartialEq, Eq, thiserror::Error)]
pub enum CallError<Q, U> {
    /// The lane is full, or `calls_max` calls wait for a reply. Retry after [`Node::poll`].
    ///
    /// Replies wake a sleeper. Without a call in flight to that node, its lane is full of notices and
    /// replies to it; then room comes back silently, so give a [`Node::wait`] for it a deadline.
    #[error("too much in flight to that node: poll, then retry")]
    Busy(Q, U),
    /// The node is gone.
    #[error("the node is gone: its thread dropped it")]
    Gone(Q, U),
    /// The mesh has no such node.
    #[error("no such node: the mesh has {nodes}")]
    NoSuchNode {
        /// As passed.
        request: Q,
        /// As passed.
        user: U,
        /// Nodes of the mesh: from 0 to this, exclusive.
        nodes: usize,
    },
}

impl<Q, U> CallError<Q, U> {
    /// The request and cookie that were passed to [`Node::call`].
    pub fn into_parts(self) -> (Q, U) {
        match self {
            Self::Busy(request, user)
            | Self::Gone(request, user)
            | Self::NoSuchNode { request, user, .. } => (request, user),
        }
    }
}

impl<Q, U> fmt::Debug for CallError<Q, U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Busy(..) => "Busy(..)",
            Self::Gone(..) => "Gone(..)",
            Self::NoSuchNode { .. } => "NoSuchNode { .. }",
        })
    }
}

/// A message on a lane.
enum Message<Q, R> {
    Call { key: Key, request: Q },
    Notice(Q),
    Reply { key: Key, result: Result<R, Unanswered> },
}

/// The receiving side of one node.
type Inbox<Q, R, D> = Arc<ReceiverState<Message<Q, R>, D>>;

/// State that all nodes share: the receiving side of each.
struct Mesh<Q, R, D: Discipline> {
    receivers: Box<[Inbox<Q, R, D>]>,
    config: Config,
}

impl<Q, R, D: Discipline> Mesh<Q, R, D> {
    /// `2c` slots: room for `c` requests or notices beside the replies to `c` calls.
    fn lane_items(&self) -> usize {
        2 * self.config.calls_max as usize
    }
}

/// Creates the nodes of a mesh, in order of their numbers. Send each to its thread.
///
/// `Q` and `R` are requests (and notices) and responses, `U` what a caller wants back with the reply.
///
/// # Panics
///
/// If `calls_max` or `budget_items` is zero.
#[must_use]
pub fn mesh<Q, R, U, D>(config: Config) -> Vec<Node<Q, R, U, D>>
where
    Q: Send + 'static,
    R: Send + 'static,
    D: Discipline,
{
    build(config, |_| None)
}

/// As [`mesh`], for threads that also wait for other things than their node: a node that
/// [said so](Node::arm) is woken by its alarm, once per sleep.
///
/// # Panics
///
/// As [`mesh`] does.
#[must_use]
pub fn mesh_with_alarms<Q, R, U, D>(
    config: Config,
    mut alarm: impl FnMut(usize) -> Alarm,
) -> Vec<Node<Q, R, U, D>>
where
    Q: Send + 'static,
    R: Send + 'static,
    D: Discipline,
{
    build(config, |number| Some(alarm(number)))
}

fn build<Q, R, U, D>(
    config: Config,
    mut alarm: impl FnMut(usize) -> Option<Alarm>,
) -> Vec<Node<Q, R, U, D>>
where
    Q: Send + 'static,
    R: Send + 'static,
    D: Discipline,
{
    assert!(config.calls_max > 0, "a mesh without calls in flight moves nothing");
    let lanes = mpsc::Config {
        lanes_max: config.nodes,
        lane_items: 2 * config.calls_max as usize,
        budget_items: config.budget_items,
        waiting: config.waiting,
    };
    let state = |number| {
        let state = ReceiverState::with_alarm(lanes, alarm(number));
        state.join(); // any node may open a lane at any time, so no node is ever the last
        Arc::new(state)
    };
    let receivers = (0..config.nodes).map(state).collect();
    let mesh = Arc::new(Mesh { receivers, config });
    (0..config.nodes).map(|number| Node::new(mesh.clone(), number)).collect()
}
