//! Work by time: deadlines, packets that are sent again, peers that are silent.

use ids::slots::Key;
use proto::erpc::management::Operation;
use verbs::{AsyncEvent, Nic};

use super::{Endpoint, ns};
use crate::erpc::{
    CloseReason, Handler, SessionId,
    session::{Role, Session},
};

/// Between two looks at client sessions with calls.
const SCAN_NS: u64 = 500_000;
/// Between two looks at the socket.
const SOCKET_NS: u64 = 1_000_000;
/// Between two looks at all sessions.
const ALL_NS: u64 = 10_000_000;

/// When to look next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clocks {
    scan_ns: u64,
    socket_ns: u64,
    all_ns: u64,
}

impl Clocks {
    pub(super) fn new(now_ns: u64) -> Self {
        Self { scan_ns: now_ns, socket_ns: now_ns, all_ns: now_ns }
    }
}

/// Whether a time has come; if so, when it comes next.
fn is_due(at_ns: &mut u64, every_ns: u64, now_ns: u64) -> bool {
    let is_due = *at_ns <= now_ns;
    if is_due {
        *at_ns = now_ns + every_ns;
    }
    is_due
}

/// The reaction to the silence of a peer.
enum Silence {
    Nothing,
    Ask,
    Ping,
    /// All calls have ended of a session that its program has ended.
    Leave,
    Fail(CloseReason),
}

impl<N: Nic> Endpoint<N> {
    /// Returns how many management packets and events there were.
    pub(super) fn look_after(&mut self, handler: &mut impl Handler<N>) -> usize {
        let mut work = 0;
        if is_due(&mut self.clocks.scan_ns, SCAN_NS, self.now_ns) {
            self.scan(handler);
            // A send that failed tells of it.
            self.datagrams.reap();
            work += self.take_event(handler);
        }
        if is_due(&mut self.clocks.socket_ns, SOCKET_NS, self.now_ns) {
            work += self.receive_management(handler);
            self.keep_asking(handler);
            self.keep_leaving();
        }
        if is_due(&mut self.clocks.all_ns, ALL_NS, self.now_ns) {
            self.look_at_all(handler);
        }
        if self.datagrams.is_failed() {
            self.restart(handler);
        }
        work
    }

    /// Deadlines and retransmissions.
    fn scan(&mut self, handler: &mut impl Handler<N>) {
        for at in (0..self.watched.len()).rev() {
            let key = self.watched[at];
            let now_ns = self.now_ns;
            let client = self.sessions.get_mut(key).and_then(|session| match &mut session.role {
                Role::Client(client) => Some(client),
                _ => None,
            });
            let Some(client) = client else {
                self.watched.swap_remove(at);
                continue;
            };
            client.core.handle_timeout(now_ns);
            if client.core.is_idle() {
                client.is_watched = false;
                self.watched.swap_remove(at);
            }
            self.tell_ended(key, handler);
            self.release_held(key);
            self.enqueue(key);
        }
    }

    /// Sends requests for sessions that are being made, again if they are not answered.
    fn keep_asking(&mut self, handler: &mut impl Handler<N>) {
        self.look_at(handler, |session, now_ns, retry_ns, _| {
            let (Role::Connecting, Some(asking)) = (&session.role, &mut session.asking) else {
                return Silence::Nothing;
            };
            if asking.deadline_ns <= now_ns {
                return Silence::Fail(CloseReason::ConnectTimeout);
            }
            if is_due(&mut asking.retry_ns, retry_ns, now_ns) {
                Silence::Ask
            } else {
                Silence::Nothing
            }
        });
    }

    /// Asks silent peers whether they are alive.
    fn look_at_all(&mut self, handler: &mut impl Handler<N>) {
        self.look_at(handler, |session, now_ns, _, config| {
            let (since_ns, after_ns) = match &session.role {
                Role::Connecting => return Silence::Nothing,
                // A client of the original answers nothing, and ends by a ping.
                Role::Server(_) if session.is_original() => return Silence::Nothing,
                Role::Client(client) if session.is_leaving && client.core.is_idle() => {
                    return Silence::Leave;
                }
                Role::Server(_) => (session.heard_ns, ns(config.idle_after)),
                Role::Client(client) => match client.core.unanswered_since_ns() {
                    Some(since_ns) => (since_ns.max(session.heard_ns), ns(config.ping_after)),
                    // Nothing is owed; a server that forgot the session is noticed by the next call.
                    None => return Silence::Nothing,
                },
            };
            if now_ns.saturating_sub(since_ns) < after_ns {
                return Silence::Nothing;
            }
            let is_original = session.is_original();
            let failure_after_ns =
                ns(if is_original { config.original_failure_after } else { config.failure_after });
            // Silence before the first ping may be this side's own: it may not have looked for long.
            if session.first_pinged_ns <= since_ns {
                session.first_pinged_ns = now_ns;
            } else if now_ns.saturating_sub(session.first_pinged_ns) >= failure_after_ns {
                return Silence::Fail(CloseReason::Silent);
            } else if now_ns.saturating_sub(session.pinged_ns) < ns(config.ping_after) {
                return Silence::Nothing;
            }
            session.pinged_ns = now_ns;
            // The original answers a request for a session that it has: rule E5.4.
            if is_original { Silence::Ask } else { Silence::Ping }
        });
    }

    fn look_at(
        &mut self,
        handler: &mut impl Handler<N>,
        judge: impl Fn(&mut Session, u64, u64, &crate::erpc::Config) -> Silence,
    ) {
        let retry_ns = ns(self.config.management_retry);
        let mut due: Vec<(Key, Silence)> = Vec::new();
        for (key, session) in self.sessions.iter_mut() {
            match judge(session, self.now_ns, retry_ns, &self.config) {
                Silence::Nothing => {}
                silence => due.push((key, silence)),
            }
        }
        for (key, silence) in due {
            let to = self.sessions.get(key).and_then(Session::peer_address);
            match (silence, to) {
                (Silence::Ask, Some(to)) => {
                    self.send_management(Operation::ConnectRequest, None, key, to);
                }
                (Silence::Ping, Some(to)) => {
                    self.send_management(Operation::PingRequest, None, key, to);
                }
                (Silence::Leave, _) => self.disconnect(SessionId(key), handler),
                (Silence::Fail(reason), _) => self.fail(key, reason, handler),
                _ => {}
            }
        }
    }

    /// The NIC may know that a port is gone.
    fn take_event(&mut self, handler: &mut impl Handler<N>) -> usize {
        let Some(event) = self.nic.poll_event() else { return 0 };
        if let AsyncEvent::PeerGone(lid) = event {
            let is_there = |session: &Session| {
                session.remote.as_ref().is_some_and(|remote| remote.lid == Some(lid))
            };
            let sessions = self.sessions.iter().filter(|(_, session)| is_there(session));
            let gone: Vec<_> = sessions.map(|(key, _)| key).collect();
            for key in gone {
                self.fail(key, CloseReason::PeerGone(lid), handler);
            }
        }
        1
    }

    /// The queue pair failed: packets on their way are lost, which retransmission makes good.
    fn restart(&mut self, handler: &mut impl Handler<N>) {
        self.stats.restarts += 1;
        if self.datagrams.restart(&self.nic).is_err() {
            let all: Vec<_> = self.sessions.iter().map(|(key, _)| key).collect();
            for key in all {
                self.fail(key, CloseReason::QueuePair, handler);
            }
        }
    }
}
