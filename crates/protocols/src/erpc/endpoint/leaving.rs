//! Sessions of clients that have ended here, until their servers know.

use std::net::SocketAddr;

use ids::slots::Key;
use proto::erpc::management::{Management, Operation, SESSION_NONE, SessionEnd};
use verbs::Nic;

use super::{Endpoint, ns};
use crate::erpc::session::{Role, Session};

/// Time in which a server gets the end of a session.
const TELL_NS: u64 = 10_000_000_000;
/// Sessions that end at a time; the oldest makes room.
const LEAVING_MAX: usize = 1024;

/// A session that has ended here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaving {
    token: u64,
    client: SessionEnd,
    server: SessionEnd,
    to: SocketAddr,
    /// The server has to say first that it has the session: rule E5.5.
    asks_first: bool,
    retry_ns: u64,
    until_ns: u64,
}

impl Leaving {
    fn packet(&self, operation: Operation) -> Management {
        let Self { token, client, server, .. } = *self;
        Management { operation, refusal: None, token, client, server }
    }
}

impl<N: Nic> Endpoint<N> {
    /// Tells the server of a session that it has ended, now if `is_known` to be there, and again until it answers.
    pub(super) fn leave(&mut self, key: Key, is_known: bool) {
        let Some(session) = self.sessions.get(key) else { return };
        let (Role::Client(_), Some(remote), Some(to)) =
            (&session.role, &session.remote, session.peer_address())
        else {
            return;
        };
        let leaving = Leaving {
            token: session.token,
            client: self.own_endpoint(session.number, to),
            server: remote.endpoint,
            to,
            asks_first: !remote.endpoint.route.takes_pings,
            retry_ns: self.now_ns.saturating_add(ns(self.config.management_retry)),
            until_ns: self.now_ns.saturating_add(TELL_NS),
        };
        if is_known {
            self.socket.send(&leaving.packet(Operation::DisconnectRequest), to);
        }
        if self.leaving.len() == LEAVING_MAX {
            self.leaving.remove(0);
        }
        self.leaving.push(leaving);
    }

    /// Tells servers again that have not answered.
    pub(super) fn keep_leaving(&mut self) {
        let now_ns = self.now_ns;
        let retry_ns = ns(self.config.management_retry);
        self.leaving.retain(|leaving| now_ns < leaving.until_ns);
        for leaving in &mut self.leaving {
            if now_ns < leaving.retry_ns {
                continue;
            }
            leaving.retry_ns = now_ns.saturating_add(retry_ns);
            let mut packet = leaving.packet(Operation::DisconnectRequest);
            if leaving.asks_first {
                packet.operation = Operation::ConnectRequest;
                packet.server.session = SESSION_NONE;
            }
            self.socket.send(&packet, leaving.to);
        }
    }

    /// A server has answered a request for a session. One that has ended here gets its end.
    pub(super) fn receive_left(&mut self, packet: &Management) {
        let of = |leaving: &&mut Leaving| leaving.token == packet.token;
        let Some(leaving) = self.leaving.iter_mut().find(of) else { return };
        if packet.refusal.is_some() {
            leaving.until_ns = 0; // it has no session
            return;
        }
        leaving.server = packet.server;
        self.socket.send(&leaving.packet(Operation::DisconnectRequest), leaving.to);
    }

    /// A server has ended a session that has ended here.
    pub(super) fn receive_disconnected(&mut self, packet: &Management) {
        self.leaving.retain(|leaving| leaving.token != packet.token);
    }

    /// Of sessions of clients that take no pings, the one that was silent for longest, if that was `abandoned_after`
    /// at least: it makes room for another.
    pub(super) fn abandoned(&self) -> Option<Key> {
        let silent_ns = |session: &Session| self.now_ns.saturating_sub(session.heard_ns);
        let is_abandoned = |session: &Session| {
            matches!(session.role, Role::Server(_))
                && session.is_original()
                && silent_ns(session) >= ns(self.config.abandoned_after)
        };
        let candidates = self.sessions.iter().filter(|(_, session)| is_abandoned(session));
        candidates.max_by_key(|(_, session)| silent_ns(session)).map(|(key, _)| key)
    }
}
