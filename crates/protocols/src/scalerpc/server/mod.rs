//! The server.

mod connect;
mod post;

use std::{
    cell::Cell,
    collections::{HashMap, VecDeque},
    rc::Rc,
};

use proto::{
    Status,
    scalerpc::{
        self, Entry, Exchange, HEADER_BYTES, Imm, Mapping, Trailer,
        server::{Action, ClientId, Counters, RequestId, RequestOrigin},
    },
};
use verbs::{
    AsyncEvent, CompletionQueue as _, MemoryRegion as _, Nic, PortRoute, Qpn,
    SharedReceiveQueue as _,
};

use crate::{
    bodies::BodyMemory,
    scalerpc::{
        CloseReason, Detection, ReplyError, ServerConfig,
        contact::Contact,
        link::{Link, Work},
    },
};

/// Names a request that waits for an answer. Dropping it leaves the caller to its deadline.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a request without an answer occupies its slot until the client is gone"]
pub struct Token(RequestId);

impl Token {
    /// The client that asks.
    #[must_use]
    pub fn client(&self) -> ClientId {
        self.0.client
    }
}

/// A request as it arrived.
#[derive(Debug)]
pub struct Request<'a> {
    /// To be answered, now or later.
    pub token: Token,
    /// Number of the method.
    pub method: u16,
    /// Its body: a private copy, valid during the callback.
    pub body: &'a [u8],
}

/// Callbacks of [`Server::poll`].
pub trait Handler<N: Nic> {
    /// A client asks. To answer later, keep the token.
    fn request(&mut self, server: &mut Server<N>, request: Request<'_>);

    /// A client is gone.
    fn closed(&mut self, server: &mut Server<N>, client: ClientId, reason: CloseReason) {
        let _ = (server, client, reason);
    }
}

/// A client as the driver sees it.
struct Peer<N: Nic> {
    link: Link<N>,
    contact: Contact,
    deferred: VecDeque<Deferred>,
    is_unrung: bool,
}

/// Posts that did not find room yet.
enum Deferred {
    Act(Action),
    Respond { slot: u8, header: Trailer, body: Vec<u8> },
}

/// One thread's clients. See the [crate].
pub struct Server<N: Nic> {
    nic: N,
    config: ServerConfig,
    core: scalerpc::Server,
    pd: N::Pd,
    send_cq: N::Cq,
    recv_cq: N::Cq,
    srq: N::Srq,
    /// Both pools: zones of blocks.
    pools: N::Mr,
    /// An entry per client.
    entries: N::Mr,
    /// Responses that are too long to go inline.
    staging: N::Mr,
    staging_free: Vec<u32>,
    peers: Vec<Option<(ClientId, Peer<N>)>>,
    by_qpn: HashMap<Qpn, ClientId>,
    /// Clients that have something to be posted.
    waiting: Vec<ClientId>,
    unrung: Vec<ClientId>,
    doomed: Vec<(ClientId, CloseReason)>,
    unreturned: u32,
    now_ns: u64,
    scratch: BodyMemory,
    cleared_bytes: u64,
    /// Blocks whose end was looked at ([`Detection::Polling`]).
    looks: u64,
    is_polling: Rc<Cell<bool>>,
}

impl<N: Nic> Server<N> {
    /// Counts since the server was opened.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.core.counters()
    }

    /// Bytes of private memory that were cleared before a request was copied there: those that no earlier one had.
    #[must_use]
    pub fn cleared_bytes(&self) -> u64 {
        self.cleared_bytes
    }

    /// How often the end of a block was looked at without a completion that named it.
    #[must_use]
    pub fn looks(&self) -> u64 {
        self.looks
    }

    /// Clients.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.by_qpn.len()
    }

    /// Sizes of the groups.
    #[must_use]
    pub fn groups(&self) -> Vec<usize> {
        self.core.groups().collect()
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &ServerConfig {
        &self.config
    }

    /// Longest body of a call and of its answer.
    #[must_use]
    pub fn body_bytes_max(&self) -> usize {
        self.config.block_bytes as usize - HEADER_BYTES
    }

    /// When the present turn is over, by the clock of [`poll`](Self::poll). For servers in step:
    /// what a leader answers to one that follows it.
    #[must_use]
    pub fn next_switch_ns(&self) -> u64 {
        self.core.next_switch_ns()
    }

    /// From now on turns end at this time, and a slice after and before each such time: what a leader does once.
    pub fn keep_step(&mut self, switch_ns: u64) {
        self.core.keep_step(switch_ns);
    }

    /// Keeps step with the server of an exchange, whose answer has just arrived. `false`: it took longer than
    /// a slice and says too little.
    pub fn follow(&mut self, exchange: &Exchange) -> bool {
        self.core.follow(exchange)
    }

    fn peer(&mut self, client: ClientId) -> Option<&mut Peer<N>> {
        let entry = self.peers.get_mut(usize::from(client.index()))?.as_mut()?;
        (entry.0 == client).then_some(&mut entry.1)
    }

    /// Takes arrivals, calls back, ends turns, and sends. Returns the number of messages. From inside a callback it
    /// does nothing and returns 0.
    pub fn poll(&mut self, now_ns: u64, handler: &mut impl Handler<N>) -> usize {
        if self.is_polling.replace(true) {
            return 0;
        }
        let _guard = Guard(Rc::clone(&self.is_polling));
        self.now_ns = self.now_ns.max(now_ns);
        let mut work = self.receive(handler);
        work += self.reap(handler);
        if self.config.detection == Detection::Polling {
            work += self.look_at_blocks(handler);
        }
        self.core.handle_timeout(self.now_ns);
        self.act(handler);
        self.take_event();
        self.retry();
        self.ring();
        self.close_doomed(handler);
        work
    }

    fn receive(&mut self, handler: &mut impl Handler<N>) -> usize {
        let mut work = 0;
        while work < self.config.burst as usize {
            let Some(completion) = self.recv_cq.poll() else { break };
            work += 1;
            let client = self.by_qpn.get(&completion.qpn).copied();
            self.srq.retire(&completion);
            self.unreturned += u32::from(self.srq.post(&[]).is_ok());
            let Some(client) = client else { continue };
            if let Some(failure) = completion.failure {
                self.doomed.push((client, CloseReason::Failed(failure)));
                continue;
            }
            match completion.imm.and_then(Imm::decode) {
                Some(Imm::Request(slot)) => {
                    self.take(client, slot, RequestOrigin::Written, handler);
                }
                Some(Imm::Entry) => self.take_entry(client, handler),
                _ => self.doomed.push((client, CloseReason::Violation)),
            }
        }
        if self.unreturned >= 16 || work == 0 && self.unreturned > 0 {
            self.unreturned = 0;
            self.srq.ring();
        }
        work
    }

    fn take_entry(&mut self, client: ClientId, handler: &mut impl Handler<N>) {
        if self.config.detection == Detection::Polling {
            // Whatever was written before the entry is in the zone: it must be taken before that is given away.
            self.look_at_zone(client, handler);
        }
        let mut bytes = [0; Entry::BYTES];
        self.entries.read(usize::from(client.index()) * ENTRY_STRIDE, &mut bytes);
        self.core.handle_entry(client, Entry::decode(&bytes));
    }

    /// Looks at every block of every client that may write.
    fn look_at_blocks(&mut self, handler: &mut impl Handler<N>) -> usize {
        let mut work = 0;
        for index in 0..self.peers.len() {
            if let Some((client, _)) = &self.peers[index] {
                work += self.look_at_zone(*client, handler);
            }
        }
        work
    }

    fn look_at_zone(&mut self, client: ClientId, handler: &mut impl Handler<N>) -> usize {
        let Some(place) = self.core.place(client) else { return 0 };
        let mut work = 0;
        for slot in 0..self.config.slots {
            self.looks += 1;
            let end = self.block_end(place.mapping, slot);
            let valid = self.pools.load_u64(end - 8);
            // Taken blocks are cleared, so each is looked at once.
            if valid >> 32 == u64::from(place.generation) && valid & 0xffff_ffff != 0 {
                work += 1;
                self.take(client, slot, RequestOrigin::Written, handler);
                self.pools.write(end - 8, &[0; 8]);
            }
        }
        work
    }

    /// Offset behind a block of the pools.
    fn block_end(&self, mapping: Mapping, slot: u8) -> usize {
        let zones = usize::from(self.core.config().zones());
        let zone = usize::from(mapping.pool) * zones + usize::from(mapping.zone);
        let block = zone * usize::from(self.config.slots) + usize::from(slot);
        (block + 1) * self.config.block_bytes as usize
    }

    /// Takes a request out of its block, and serves it unless it was served before.
    fn take(
        &mut self,
        client: ClientId,
        slot: u8,
        origin: RequestOrigin,
        handler: &mut impl Handler<N>,
    ) {
        let Some(place) = self.core.place(client).filter(|_| slot < self.config.slots) else {
            return self.doomed.push((client, CloseReason::Violation));
        };
        let end = self.block_end(place.mapping, slot) - HEADER_BYTES;
        let mut bytes = [0; HEADER_BYTES];
        self.pools.read(end, &mut bytes);
        let room = u32::try_from(self.body_bytes_max()).unwrap_or(u32::MAX);
        let Ok(header) = Trailer::decode(&bytes, room) else {
            // An announced slot that was answered in between is empty or old; a written one is not.
            if origin == RequestOrigin::Written {
                self.doomed.push((client, CloseReason::Violation));
            }
            return;
        };
        let Ok(request) = self.core.handle_block(client, slot, &header, origin) else { return };
        let mut body = core::mem::take(&mut self.scratch);
        let len_bytes = header.len_bytes as usize;
        self.pools.read(end - len_bytes, body.place(0..len_bytes, &mut self.cleared_bytes));
        let token = Token(request);
        handler.request(self, Request { token, method: header.method, body: body.body() });
        self.scratch = body;
    }

    /// Answers a request.
    ///
    /// # Errors
    ///
    /// [`ReplyError`]; the request counts as answered.
    pub fn reply(&mut self, token: Token, status: Status, body: &[u8]) -> Result<(), ReplyError> {
        let Token(request) = token;
        let max_bytes = self.body_bytes_max();
        let len_bytes = body.len();
        let is_too_long = len_bytes > max_bytes;
        let (status, body) = match is_too_long {
            true => (Status::OutOfRange, &[][..]),
            false => (status, body),
        };
        let len = u32::try_from(body.len()).unwrap_or(u32::MAX);
        let header = self.core.respond(request, status.code().into(), len);
        let header = header.ok_or(ReplyError::Gone)?;
        self.respond(request.client, request.slot, header, body);
        match is_too_long {
            true => Err(ReplyError::TooLong { len_bytes, max_bytes }),
            false => Ok(()),
        }
    }

    /// Does what the core asks for.
    fn act(&mut self, handler: &mut impl Handler<N>) {
        while let Some(action) = self.core.poll_action() {
            match action {
                Action::Take { client, mask, .. } => {
                    for slot in (0..self.config.slots).filter(|slot| mask >> slot & 1 == 1) {
                        self.take(client, slot, RequestOrigin::Read, handler);
                    }
                }
                Action::Drop(client) => self.doomed.push((client, CloseReason::Silent)),
                Action::Read { client, .. } | Action::Event { client, .. } => {
                    self.post_action(client, action);
                }
            }
        }
    }

    fn take_event(&mut self) {
        if let Some(AsyncEvent::PeerGone(lid)) = self.nic.poll_event() {
            for (client, peer) in self.peers.iter().flatten() {
                if peer.contact.endpoint.address.route == PortRoute::Lid(lid) {
                    self.doomed.push((*client, CloseReason::PeerGone(lid)));
                }
            }
        }
    }

    /// Destroys queue pairs, then gives zones away (rule S4.4).
    fn close_doomed(&mut self, handler: &mut impl Handler<N>) {
        for (client, reason) in core::mem::take(&mut self.doomed) {
            self.close(client, reason, handler);
        }
    }

    /// Ends the connection to a client. It learns of that by an error of its NIC.
    pub fn close(&mut self, client: ClientId, reason: CloseReason, handler: &mut impl Handler<N>) {
        if self.peer(client).is_none() {
            return;
        }
        let index = usize::from(client.index());
        if let Some((_, peer)) = self.peers[index].take() {
            self.by_qpn.remove(&peer.link.qpn());
            let staged = peer.link.unfinished().filter_map(Work::staged).collect::<Vec<_>>();
            // From here on the NIC reads no staged response of the client, and places nothing for it.
            drop(peer);
            self.staging_free.extend(staged);
        }
        self.core.disconnect(client);
        handler.closed(self, client, reason);
    }
}

/// Bytes from one entry to the next: a cache line each.
const ENTRY_STRIDE: usize = 64;

/// A poll has ended, also by a panic of a callback.
struct Guard(Rc<Cell<bool>>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.set(false);
    }
}
