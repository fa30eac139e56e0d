//! What a provider asks its daemon for.

use std::time::Duration;

use crate::{
    HERE, To, call_head,
    message::{CallHead, DAEMON},
};

/// What a call to the daemon asks for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asks {
    /// A request.
    Work,
    /// Requests that nobody waits for any more.
    Watch,
    /// A sign that the daemon has read what was sent before.
    Sign,
}

/// The header of a request to the daemon of this node.
pub(super) fn daemon_head(method: u16) -> CallHead {
    call_head(To { rank: HERE, service: DAEMON, method }, Duration::MAX, 0, 0)
}
