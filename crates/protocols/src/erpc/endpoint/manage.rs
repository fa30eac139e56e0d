//! How sessions begin and end: management packets.

use std::{
    collections::hash_map::RandomState,
    hash::BuildHasher as _,
    net::{IpAddr, SocketAddr},
};

use ids::slots::Key;
use proto::{
    Status,
    erpc::{
        Client,
        client::ClientConfig,
        congestion::{Pacer, Timely},
        management::{self, HostName, Management, Operation, Refusal, SESSION_NONE},
    },
};
use verbs::{Nic, PortRoute};

use super::{Endpoint, ns};
use crate::erpc::{
    CloseReason, Congestion, ConnectError, ConnectOptions, Handler, SessionId,
    session::{Asking, ClientSide, Remote, Role, ServerSide, Session},
};

impl<N: Nic> Endpoint<N> {
    /// Begins a session with the endpoint `rpc_id` of the process whose management packets arrive at `server`.
    /// [`Handler::connected`] or [`Handler::closed`] tells what became of it.
    ///
    /// # Errors
    ///
    /// [`ConnectError`].
    pub fn connect(
        &mut self,
        server: SocketAddr,
        rpc_id: u8,
        options: ConnectOptions,
    ) -> Result<SessionId, ConnectError> {
        if !server.is_ipv4() {
            return Err(ConnectError::Address);
        }
        let session = Session::new(Role::Connecting, 0, self.now_ns);
        let full = ConnectError::Full(self.sessions.slots_max());
        let key = self.sessions.insert(session).map_err(|_| full)?;
        let asking = Asking { server, rpc_id, options, deadline_ns: 0, retry_ns: 0 };
        if let Some(session) = self.sessions.get_mut(key) {
            session.asking = Some(asking);
        }
        self.ask(key);
        Ok(SessionId(key))
    }

    /// Asks the server for a session, under a number and a token that no session had before.
    fn ask(&mut self, key: Key) {
        let numbers = self.numbers;
        let now_ns = self.now_ns;
        let Some(session) = self.sessions.get_mut(key) else { return };
        let Some(asking) = &mut session.asking else { return };
        asking.deadline_ns = now_ns.saturating_add(ns(asking.options.timeout));
        asking.retry_ns = now_ns;
        session.role = Role::Connecting;
        session.remote = None;
        session.attempt = session.attempt.wrapping_add(1);
        session.number = numbers.number(key, session.attempt);
        session.token = RandomState::new().hash_one(now_ns);
    }

    /// Ends a session. Its calls end with [`Status::Cancelled`], and the peer is notified, again until it answers.
    ///
    /// A server of the original must not end a session while it executes calls of it. With it the session takes no calls
    /// any more, those that are in flight end as they would, and then the session does.
    pub fn disconnect(&mut self, session: SessionId, handler: &mut impl Handler<N>) {
        let key = session.0;
        if let Some(session) = self.sessions.get_mut(key) {
            if session.is_original()
                && let Role::Client(client) = &session.role
                && !client.core.is_idle()
            {
                session.is_leaving = true;
                return;
            }
            // A server cannot say that in the original; its client will ask whether it is alive.
            self.leave(key, true);
        }
        self.fail(key, CloseReason::Closed, handler);
    }

    /// This side's end of a session with a peer whose management packets go to `to`.
    pub(super) fn own_endpoint(&self, number: u16, to: SocketAddr) -> management::SessionEnd {
        let (lid, gid) = match self.nic.address().route {
            PortRoute::Lid(lid) => (lid.get(), [0; 16]),
            PortRoute::Gid(route) => (0, route.gid.to_bytes()),
            PortRoute::Global(lid, route) => (lid.get(), route.gid.to_bytes()),
        };
        let qpn = self.datagrams.qpn().get();
        let route = management::DatagramRoute { lid, qpn, gid, takes_pings: true };
        management::SessionEnd {
            host: self.socket.host_towards(to),
            udp_port: self.socket.address().port(),
            rpc_id: self.config.rpc_id,
            session: number,
            route,
        }
    }

    /// The peer's end, as far as this side knows it.
    fn peer_endpoint(session: &Session) -> Option<management::SessionEnd> {
        if let Some(remote) = &session.remote {
            return Some(remote.endpoint);
        }
        let asking = session.asking.as_ref()?;
        Some(management::SessionEnd {
            host: HostName::new(&asking.server.ip().to_string())?,
            udp_port: asking.server.port(),
            rpc_id: asking.rpc_id,
            session: SESSION_NONE,
            route: management::DatagramRoute::default(),
        })
    }

    pub(super) fn send_management(
        &self,
        operation: Operation,
        refusal: Option<Refusal>,
        key: Key,
        to: SocketAddr,
    ) {
        let Some(session) = self.sessions.get(key) else { return };
        let own = self.own_endpoint(session.number, to);
        let Some(peer) = Self::peer_endpoint(session) else { return };
        let (client, server) =
            if matches!(session.role, Role::Server(_)) { (peer, own) } else { (own, peer) };
        let packet = Management { operation, refusal, token: session.token, client, server };
        self.socket.send(&packet, to);
    }

    pub(super) fn receive_management(&mut self, handler: &mut impl Handler<N>) -> usize {
        let arrived = self.socket.receive();
        let count = arrived.len();
        for (packet, from) in arrived {
            match packet.operation {
                Operation::ConnectRequest => self.receive_connect(packet, from.ip(), handler),
                Operation::ConnectResponse => self.receive_connected(&packet, handler),
                Operation::DisconnectRequest => self.receive_disconnect(packet, from, handler),
                Operation::PingRequest => self.receive_ping(packet, from),
                Operation::PingResponse => self.receive_pong(&packet, handler),
                Operation::DisconnectResponse => self.receive_disconnected(&packet),
                // Threads are not woken by packets.
                Operation::Unblock => {}
            }
        }
        count
    }

    /// A client asks for a session. The answer goes to the port that it names, at the address that it has:
    /// names of hosts are not resolved, and no sender can have a third one answered.
    fn receive_connect(&mut self, packet: Management, from: IpAddr, handler: &mut impl Handler<N>) {
        let to = SocketAddr::new(from, packet.client.udp_port);
        if self.sessions.len() == self.sessions.slots_max() as usize
            && !self.tokens.contains_key(&packet.token)
            && let Some(key) = self.abandoned()
        {
            self.fail(key, CloseReason::Silent, handler);
        }
        let outcome = self.accept(&packet, from);
        let mut answer = Management { operation: Operation::ConnectResponse, ..packet };
        match outcome {
            // The server is called as the client calls it: the original compares, and sends to that name later.
            Ok(number) => {
                let management::SessionEnd { host, udp_port, .. } = packet.server;
                answer.server =
                    management::SessionEnd { host, udp_port, ..self.own_endpoint(number, to) };
            }
            Err(refusal) => answer.refusal = Some(refusal),
        }
        self.socket.send(&answer, to);
    }

    /// The number of the session that the client asks for.
    fn accept(&mut self, packet: &Management, from: IpAddr) -> Result<u16, Refusal> {
        if packet.server.rpc_id != self.config.rpc_id {
            return Err(Refusal::InvalidRpcId);
        }
        if let Some(session) =
            self.tokens.get(&packet.token).and_then(|key| self.sessions.get(*key))
        {
            return Ok(session.number);
        }
        let host = HostName::new(&from.to_string()).ok_or(Refusal::RoutingResolution)?;
        let client = management::SessionEnd { host, ..packet.client };
        let remote = Remote::new(client, &self.nic.address(), &self.config);
        let remote = remote.ok_or(Refusal::RoutingResolution)?;
        let side = ServerSide::new(self.geometry, packet.client.session);
        let session = Session::new(Role::Server(Box::new(side)), packet.token, self.now_ns);
        let key = self.sessions.insert(session).map_err(|_| Refusal::RingExhausted)?;
        let number = self.numbers.number(key, 0);
        if let Some(session) = self.sessions.get_mut(key) {
            (session.number, session.remote) = (number, Some(remote));
        }
        self.tokens.insert(packet.token, key);
        Ok(number)
    }

    /// A server answers.
    fn receive_connected(&mut self, packet: &Management, handler: &mut impl Handler<N>) {
        self.receive_left(packet);
        let Some(key) = self.sessions.key_at(self.numbers.slot(packet.client.session)) else {
            return;
        };
        let own = self.nic.address();
        let Some(session) = self.sessions.get_mut(key) else { return };
        if session.token != packet.token || session.number != packet.client.session {
            return;
        }
        if !matches!(session.role, Role::Connecting) {
            return self.receive_probed(key, packet, handler);
        }
        match packet.refusal {
            // The server may be about to start.
            Some(Refusal::InvalidRpcId) => return,
            Some(refusal) => return self.fail(key, CloseReason::Refused(refusal), handler),
            None => {}
        }
        let Some(remote) = Remote::new(packet.server, &own, &self.config) else {
            let theirs = verbs::Gid::new(packet.server.route.gid);
            let reason = match own.route {
                PortRoute::Gid(own) if own.gid.is_ipv4() != theirs.is_ipv4() => {
                    CloseReason::GidKinds { own: own.gid, theirs }
                }
                _ => CloseReason::Refused(Refusal::RoutingResolution),
            };
            return self.fail(key, reason, handler);
        };
        let config = ClientConfig {
            geometry: self.geometry,
            credits: self.config.credits,
            backlog_max: self.config.backlog_max,
            retransmit_ns: ns(self.config.retransmit),
        };
        let control = match self.config.congestion {
            Congestion::Off => None,
            Congestion::Timely(timely) => Some(crate::erpc::session::Control {
                timely: Timely::new(timely),
                pace: Pacer::default(),
                sent_ns: Box::default(),
            }),
        };
        session.remote = Some(remote);
        session.heard_ns = self.now_ns;
        session.role = Role::Client(Box::new(ClientSide {
            core: Client::new(config, packet.server.session),
            held: Vec::new(),
            control,
            is_watched: false,
        }));
        handler.connected(self, SessionId(key));
    }

    /// A server answers a request for a session that is there: it was asked whether it is alive (rule E5.4).
    fn receive_probed(&mut self, key: Key, packet: &Management, handler: &mut impl Handler<N>) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        let (Role::Client(_), Some(remote)) = (&session.role, &session.remote) else { return };
        let known = &remote.endpoint;
        let told = &packet.server;
        let is_it = (known.session, known.route.qpn) == (told.session, told.route.qpn);
        match packet.refusal {
            None if is_it => session.heard_ns = self.now_ns,
            // Another life of the server, which has made a session of it, or has no endpoint yet.
            None => {
                let server = *told;
                if let Some(remote) = &mut session.remote {
                    remote.endpoint = server;
                }
                self.leave(key, true);
                self.fail(key, CloseReason::Forgotten, handler);
            }
            Some(_) => self.fail(key, CloseReason::Forgotten, handler),
        }
    }

    /// A client ends a session. It gets a confirmation, also if that has happened before.
    fn receive_disconnect(
        &mut self,
        packet: Management,
        from: SocketAddr,
        handler: &mut impl Handler<N>,
    ) {
        let answer = Management { operation: Operation::DisconnectResponse, ..packet };
        self.socket.send(&answer, SocketAddr::new(from.ip(), packet.client.udp_port));
        if let Some(key) = self.tokens.get(&packet.token).copied() {
            self.fail(key, CloseReason::Disconnected, handler);
        }
    }

    /// The peer asks whether the session is alive.
    fn receive_ping(&mut self, packet: Management, from: SocketAddr) {
        let is_known = self.session_of(&packet).is_some();
        let refusal = (!is_known).then_some(Refusal::Disconnected);
        let answer = Management { operation: Operation::PingResponse, refusal, ..packet };
        self.socket.send(&answer, from);
    }

    fn receive_pong(&mut self, packet: &Management, handler: &mut impl Handler<N>) {
        let Some(key) = self.session_of(packet) else { return };
        if packet.refusal.is_some() {
            self.fail(key, CloseReason::Forgotten, handler);
        } else if let Some(session) = self.sessions.get_mut(key) {
            session.heard_ns = self.now_ns;
        }
    }

    /// The connected session that a packet of a peer is about, in either role.
    fn session_of(&self, packet: &Management) -> Option<Key> {
        [packet.client.session, packet.server.session].into_iter().find_map(|number| {
            let key = self.sessions.key_at(self.numbers.slot(number))?;
            let session = self.sessions.get(key)?;
            let is_it = session.number == number
                && session.token == packet.token
                && session.remote.is_some();
            is_it.then_some(key)
        })
    }

    /// Ends a session, and its calls. A failed one of a client connects again if it shall.
    pub(super) fn fail(&mut self, key: Key, reason: CloseReason, handler: &mut impl Handler<N>) {
        if matches!(reason, CloseReason::Silent | CloseReason::PeerGone(_)) {
            // The peer may live after all.
            self.leave(key, false);
        }
        let Some(session) = self.sessions.get_mut(key) else { return };
        let was_asked = session.asking;
        let role = core::mem::replace(&mut session.role, Role::Connecting);
        self.stats.failures += u64::from(reason.is_failure());
        let reconnects = was_asked.is_some_and(|asking| asking.options.reconnect)
            && reason.is_failure()
            && !core::mem::take(&mut session.is_leaving)
            && !matches!(reason, CloseReason::ConnectTimeout);
        if reconnects {
            self.ask(key);
            // A server that refuses is asked again after a while.
            let retry_ns = self.now_ns.saturating_add(ns(self.config.management_retry));
            if let Some(asking) =
                self.sessions.get_mut(key).and_then(|session| session.asking.as_mut())
            {
                asking.retry_ns = retry_ns;
            }
        } else if let Some(session) = self.sessions.remove(key) {
            self.tokens.remove(&session.token);
        }
        if let Role::Client(client) = role {
            self.end_all(*client, reason.status(), handler);
        }
        handler.closed(self, SessionId(key), reason);
    }

    fn end_all(&mut self, mut client: ClientSide, status: Status, handler: &mut impl Handler<N>) {
        self.stats.retransmissions += client.core.counters().retransmissions;
        client.core.close(status);
        client.held.drain(..).for_each(|call| self.forget(call));
        while let Some(ended) = client.core.poll_ended() {
            if let Some(call) = Key::from_u64(ended.cookie) {
                self.end(call, ended.status, ended.was_sent, false, handler);
            }
        }
    }
}
