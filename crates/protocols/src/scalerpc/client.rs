//! The client.

use core::time::Duration;

use proto::{
    Status,
    scalerpc::{
        self, Entry, HEADER_BYTES, Imm, Mapping, Trailer,
        client::{Action, State},
    },
};
use verbs::{
    Access, AsyncEvent, CompletionQueue as _, MemoryRegion as _, Nic, PortRoute, PostSendError,
    RemoteSlice,
};

use crate::{
    bodies::BodyMemory,
    scalerpc::{
        CallError, ClientConfig, CloseReason, ConnectError, Invitation, OpenError,
        config::ns,
        contact::Contact,
        link::{INLINE_BYTES, Link, Work, create_cq, draw_psn},
    },
};

/// Silence of a server that owes answers, after which it is probed.
const PROBE_NS: u64 = 50_000_000;

/// The arguments of a call, besides its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Number of the method.
    pub method: u16,
    /// The caller's name of the call: what [`Responses::response`] says.
    pub cookie: u64,
    /// From now on.
    pub timeout: Duration,
}

impl Default for Call {
    fn default() -> Self {
        Self { method: 0, cookie: 0, timeout: Duration::from_secs(1) }
    }
}

/// Callbacks of [`Client::poll`].
pub trait Responses {
    /// A call has ended. `body` is empty unless the handler sent some.
    fn response(&mut self, cookie: u64, status: Status, body: &[u8]);

    /// A call has ended without an answer. `was_sent`: it may have been executed.
    fn ended(&mut self, cookie: u64, status: Status, was_sent: bool) {
        let _ = was_sent;
        self.response(cookie, status, &[]);
    }

    /// The connection has ended. Its calls have, too.
    fn closed(&mut self, reason: CloseReason) {
        let _ = reason;
    }
}

/// Counts since the client was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientStats {
    /// Times that requests were announced, or the end of a turn acknowledged.
    pub entries: u64,
    /// Requests that were written.
    pub written: u64,
    /// Turns that ended.
    pub events: u64,
    /// Bytes of private memory that were cleared before an answer was copied there: those that no earlier one had.
    pub cleared_bytes: u64,
}

/// The peer, once it is known.
struct Server {
    contact: Contact,
    core: scalerpc::Client,
}

/// A connection to a server. See the [crate].
pub struct Client<N: Nic> {
    nic: N,
    config: ClientConfig,
    pd: N::Pd,
    link: Link<N>,
    send_cq: N::Cq,
    recv_cq: N::Cq,
    psn: verbs::Psn,
    /// Requests, then responses.
    blocks: N::Mr,
    server: Option<Server>,
    slots: u8,
    block_bytes: usize,
    /// Requests that could not be posted yet.
    deferred: Option<Action>,
    /// When the server was last heard, or probed.
    heard_ns: u64,
    now_ns: u64,
    closing: Option<CloseReason>,
    is_closed: bool,
    scratch: BodyMemory,
    stats: ClientStats,
}

impl<N: Nic> Client<N> {
    /// Opens a client for a server whose blocks have `block_bytes`, `slots` per client.
    ///
    /// # Errors
    ///
    /// [`OpenError`].
    pub fn open(
        nic: N,
        config: ClientConfig,
        slots: u8,
        block_bytes: u32,
        now_ns: u64,
    ) -> Result<Self, OpenError> {
        let server = crate::scalerpc::ServerConfig {
            slots,
            block_bytes,
            ..crate::scalerpc::ServerConfig::default()
        };
        server.core()?;
        let pd = nic.alloc_pd()?;
        let sends = 2 * u32::from(slots) + 8;
        let send_cq = create_cq(&nic, sends)?;
        let recv_cq = create_cq(&nic, sends)?;
        let mut link = Link::open(&nic, &pd, (&send_cq, &recv_cq), None, (sends, sends))?;
        link.receive(sends)?;
        let bytes = 2 * usize::from(slots) * block_bytes as usize;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let blocks = nic.alloc_mr(&pd, bytes, access)?;
        let psn = draw_psn(link.qpn());
        Ok(Self {
            nic,
            config,
            pd,
            link,
            send_cq,
            recv_cq,
            psn,
            blocks,
            server: None,
            slots,
            block_bytes: block_bytes as usize,
            deferred: None,
            heard_ns: now_ns,
            now_ns,
            closing: None,
            is_closed: false,
            scratch: BodyMemory::default(),
            stats: ClientStats::default(),
        })
    }

    /// The message for the server.
    #[must_use]
    pub fn invitation(&self) -> Invitation {
        let blocks = self.blocks.remote(0);
        Contact {
            endpoint: self.nic.endpoint(self.link.qp()),
            psn: self.psn,
            mtu: self.nic.port().mtu,
            reads_max: Link::reads_max(&self.nic),
            blocks,
            entry: blocks,
            block_bytes: u32::try_from(self.block_bytes).unwrap_or(u32::MAX),
            zones: 1,
            slots: self.slots,
            is_polling: false,
        }
        .invitation()
    }

    /// Connects to the server that accepted this client's invitation.
    ///
    /// # Errors
    ///
    /// [`ConnectError`].
    pub fn connect(&mut self, theirs: &Invitation) -> Result<(), ConnectError> {
        if self.server.is_some() || self.is_closed {
            return Err(ConnectError::NotNew);
        }
        let contact = Contact::peer(theirs, self.config.class)?;
        let theirs = contact.block_bytes;
        let max = self.config.block_bytes_max;
        if theirs > max || theirs as usize != self.block_bytes || contact.slots != self.slots {
            return Err(ConnectError::Block { theirs, max });
        }
        let started = self.link.start(&self.nic, self.psn, &contact);
        started.map_err(OpenError::from)?;
        let core = scalerpc::Client::new(self.slots.min(self.config.slots_max.max(1)));
        self.server = Some(Server { contact, core });
        Ok(())
    }

    /// Longest body of a call and of its answer.
    #[must_use]
    pub fn body_bytes_max(&self) -> usize {
        self.block_bytes - HEADER_BYTES
    }

    /// Counts since the client was opened.
    #[must_use]
    pub fn stats(&self) -> ClientStats {
        self.stats
    }

    /// Where it is in its life; `None`: not connected.
    #[must_use]
    pub fn state(&self) -> Option<State> {
        self.server.as_ref().map(|server| server.core.state())
    }

    /// Makes a call. It leaves by the next poll.
    ///
    /// # Errors
    ///
    /// [`CallError`]; nothing has changed.
    pub fn call(&mut self, call: &Call, body: &[u8]) -> Result<(), CallError> {
        let len_bytes = body.len();
        let max_bytes = self.body_bytes_max();
        if len_bytes > max_bytes {
            return Err(CallError::TooLong { len_bytes, max_bytes });
        }
        let server = self.server.as_mut().ok_or(CallError::NotConnected)?;
        let deadline_ns = self.now_ns.saturating_add(ns(call.timeout));
        let len = u32::try_from(len_bytes).unwrap_or(u32::MAX);
        let slot = server.core.call(call.cookie, call.method, len, deadline_ns)?;
        let end = (usize::from(slot) + 1) * self.block_bytes - HEADER_BYTES;
        self.blocks.write(end - len_bytes, body);
        Ok(())
    }

    /// Gives a call up. `false`: it has ended.
    pub fn cancel(&mut self, cookie: u64) -> bool {
        self.server.as_mut().is_some_and(|server| server.core.cancel(cookie))
    }

    /// Takes arrivals, calls back, and sends. Returns the number of messages.
    pub fn poll(&mut self, now_ns: u64, responses: &mut impl Responses) -> usize {
        self.now_ns = self.now_ns.max(now_ns);
        let work = self.receive(responses);
        self.reap();
        if let Some(AsyncEvent::PeerGone(lid)) = self.nic.poll_event()
            && self
                .server
                .as_ref()
                .is_some_and(|server| server.contact.endpoint.address.route == PortRoute::Lid(lid))
        {
            self.closing.get_or_insert(CloseReason::PeerGone(lid));
        }
        if let Some(server) = &mut self.server {
            server.core.handle_timeout(self.now_ns);
        }
        self.probe();
        self.send();
        if let Some(reason) = self.closing.take() {
            self.close(reason, responses);
        }
        self.tell_ended(responses);
        work
    }

    fn receive(&mut self, responses: &mut impl Responses) -> usize {
        let mut work = 0;
        for _ in 0..2 * u32::from(self.slots) + 8 {
            let Some(completion) = self.recv_cq.poll() else { break };
            self.link.retire(&completion);
            if let Some(failure) = completion.failure {
                self.closing.get_or_insert(CloseReason::Failed(failure));
                continue;
            }
            work += 1;
            self.heard_ns = self.now_ns;
            if let Err(_full) = self.link.receive(1) {
                self.closing.get_or_insert(CloseReason::Violation);
            }
            match completion.imm.and_then(Imm::decode) {
                Some(Imm::Response(slot)) if slot < self.slots => self.respond(slot, responses),
                Some(Imm::Event(generation)) => {
                    self.stats.events += 1;
                    if let Some(server) = &mut self.server {
                        server.core.handle_event(generation);
                    }
                }
                _ => {
                    self.closing.get_or_insert(CloseReason::Violation);
                }
            }
        }
        work
    }

    /// A response is in its block.
    fn respond(&mut self, slot: u8, responses: &mut impl Responses) {
        let room = self.body_bytes_max();
        let end = (usize::from(self.slots) + usize::from(slot) + 1) * self.block_bytes;
        let mut bytes = [0; HEADER_BYTES];
        self.blocks.read(end - HEADER_BYTES, &mut bytes);
        let room = u32::try_from(room).unwrap_or(u32::MAX);
        let Some(server) = &mut self.server else { return };
        let zones = server.contact.zones;
        let decoded = Trailer::decode(&bytes, room);
        let is_inside = |header: &Trailer| header.mapping.is_none_or(|at| at.zone < zones);
        let Some(header) = decoded.ok().filter(is_inside) else {
            self.closing.get_or_insert(CloseReason::Violation);
            return;
        };
        let Ok(answered) = server.core.receive(slot, &header) else { return };
        let mut body = core::mem::take(&mut self.scratch);
        let len_bytes = answered.len_bytes as usize;
        let place = body.place(0..len_bytes, &mut self.stats.cleared_bytes);
        self.blocks.read(end - HEADER_BYTES - len_bytes, place);
        let status = u8::try_from(answered.status).ok().and_then(Status::from_code);
        responses.response(answered.cookie, status.unwrap_or(Status::Unknown), body.body());
        self.scratch = body;
    }

    /// A server that is silent while calls wait may be dead. A WRITE of nothing fails if it is.
    fn probe(&mut self) {
        let Some(server) = &self.server else { return };
        let is_due = self.now_ns.saturating_sub(self.heard_ns) >= PROBE_NS
            && server.core.outstanding() > 0
            && self.link.has_room();
        if is_due {
            self.heard_ns = self.now_ns;
            if let Err(error) = self.link.write_inline(server.contact.entry, &[&[]], None) {
                self.closing.get_or_insert(CloseReason::Refused(error));
            }
        }
    }

    fn reap(&mut self) {
        while let Some(completion) = self.send_cq.poll() {
            self.link.finish(&completion, |_| {});
            if let Some(failure) = completion.failure {
                self.closing.get_or_insert(CloseReason::Failed(failure));
            }
        }
    }

    fn send(&mut self) {
        loop {
            let action = match (self.deferred.take(), &mut self.server) {
                (Some(action), _) => action,
                (None, Some(server)) => match server.core.poll_action() {
                    Some(action) => action,
                    None => break,
                },
                (None, None) => break,
            };
            if !self.link.has_room() {
                self.deferred = Some(action);
                break;
            }
            let posted = match action {
                Action::Announce(entry) => self.announce(entry),
                Action::Write { slot, mapping, header } => self.write(slot, mapping, &header),
            };
            match posted {
                Ok(()) => {}
                Err(PostSendError::QueueFull { .. }) => {
                    self.deferred = Some(action);
                    break;
                }
                Err(error) => {
                    self.closing.get_or_insert(CloseReason::Refused(error));
                    break;
                }
            }
        }
        self.link.ring();
    }

    /// Ends the announced blocks, then writes the entry.
    fn announce(&mut self, entry: Entry) -> Result<(), PostSendError> {
        let Some(server) = &self.server else { return Ok(()) };
        for slot in (0..self.slots).filter(|slot| entry.mask >> slot & 1 == 1) {
            if let Some(header) = server.core.staged(slot) {
                let end = (usize::from(slot) + 1) * self.block_bytes;
                self.blocks.write(end - HEADER_BYTES, &header.encode());
            }
        }
        let remote = server.contact.entry;
        self.stats.entries += 1;
        self.link.write_inline(remote, &[&entry.encode()], Some(Imm::Entry))
    }

    /// Writes a request to its slot of the zone.
    fn write(&mut self, slot: u8, mapping: Mapping, header: &Trailer) -> Result<(), PostSendError> {
        let Some(server) = &self.server else { return Ok(()) };
        let Contact { blocks, zones, is_polling, .. } = server.contact;
        let imm = (!is_polling).then_some(Imm::Request(slot));
        let len = header.len_bytes as usize + HEADER_BYTES;
        let zone = usize::from(mapping.pool) * usize::from(zones) + usize::from(mapping.zone);
        let at = (zone * usize::from(self.slots) + usize::from(slot) + 1) * self.block_bytes - len;
        let remote = RemoteSlice { addr: blocks.addr + at as u64, rkey: blocks.rkey };
        let own = (usize::from(slot) + 1) * self.block_bytes;
        self.stats.written += 1;
        if len <= INLINE_BYTES {
            let mut bytes = [0; INLINE_BYTES];
            let data = &mut bytes[..len - HEADER_BYTES];
            self.blocks.read(own - len, data);
            return self.link.write_inline(remote, &[data, &header.encode()], imm);
        }
        self.blocks.write(own - HEADER_BYTES, &header.encode());
        let from = self.blocks.sge(own - len, len);
        self.link.write(remote, from, imm, Work::Done)
    }

    fn tell_ended(&mut self, responses: &mut impl Responses) {
        while let Some(ended) = self.server.as_mut().and_then(|server| server.core.poll_ended()) {
            responses.ended(ended.cookie, ended.status, ended.was_sent);
        }
    }

    /// Ends the connection, and its calls.
    pub fn close(&mut self, reason: CloseReason, responses: &mut impl Responses) {
        if core::mem::replace(&mut self.is_closed, true) {
            return;
        }
        if let Some(server) = &mut self.server {
            server.core.close(reason.status());
        }
        self.tell_ended(responses);
        responses.closed(reason);
    }

    /// The protection domain that the client's queues and blocks are in.
    pub fn pd(&self) -> &N::Pd {
        &self.pd
    }
}
