//! A server and its clients above reliable connections: what a side posts takes effect in order, each after a
//! delay. Zones are memory: a WRITE lands where it was aimed, in the zone of any client.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use copyrpc_proto::{
    Status,
    scalerpc::{
        Client, Entry, Mapping, Server, Trailer,
        client::{self, State},
        server::{self, ClientId, RequestId, RequestOrigin, ServerConfig, ZoneLease},
    },
};

pub(crate) const STEP_NS: u64 = 1_000;

/// A small generator, so that a case is a function of its seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end.max(1)
    }
}

/// A message to the server.
enum ToServer {
    Entry(Entry),
    /// A WRITE into a zone, and who wrote.
    Block {
        mapping: Mapping,
        slot: u8,
        block: Block,
    },
}

/// A message to a client.
enum ToClient {
    Response { slot: u8, header: Trailer, payload: u64 },
    Event(u32),
}

/// The end of a block, and the bytes in front of it, as a number.
#[derive(Clone, Copy, Debug)]
struct Block {
    writer: usize,
    header: Trailer,
    payload: u64,
}

pub(crate) struct Peer {
    pub(crate) core: Client,
    pub(crate) id: Option<ClientId>,
    /// Own request blocks: what the NIC reads when it reads.
    blocks: Vec<u64>,
    to_server: VecDeque<(u64, ToServer)>,
    to_client: VecDeque<(u64, ToClient)>,
    pub(crate) is_dead: bool,
    /// Calls by cookie: how each ended.
    pub(crate) ended: BTreeMap<u64, Result<u64, Status>>,
    pub(crate) made: u64,
    pub(crate) made_at_ns: BTreeMap<u64, u64>,
    pub(crate) latencies_ns: Vec<u64>,
    /// It may have something to say.
    is_awake: bool,
    /// In a long world: every call below this one has ended, and so have these.
    ended_below: u64,
    ended_above: BTreeSet<u64>,
}

impl Peer {
    /// In a long world, a call has ended: only that is remembered.
    fn forget(&mut self, cookie: u64) {
        let was_new = cookie >= self.ended_below && self.ended_above.insert(cookie);
        assert!(was_new, "a call ended twice");
        while self.ended_above.remove(&self.ended_below) {
            self.ended_below += 1;
        }
        self.made_at_ns.remove(&cookie);
    }

    fn has_forgotten(&self, cookie: u64) -> bool {
        cookie < self.ended_below || self.ended_above.contains(&cookie)
    }

    /// In a long world: calls that were answered.
    pub(crate) fn answered(&self) -> u64 {
        self.ended_below + self.ended_above.len() as u64
    }
}

pub(crate) struct World {
    pub(crate) server: Server,
    pub(crate) peers: Vec<Peer>,
    pub(crate) now_ns: u64,
    pub(crate) random: Random,
    pub(crate) delay_steps: u64,
    /// Longest time that a handler takes, in steps.
    pub(crate) handler_steps: u64,
    zones: HashMap<(Mapping, u8), Block>,
    reads: VecDeque<(u64, ClientId, u64, ZoneLease)>,
    running: Vec<(u64, RequestId, u64)>,
    /// By client and payload: how often it was executed.
    pub(crate) executed: HashMap<(usize, u64), u32>,
    /// Forgets calls that have ended, but for the fact: for many calls.
    pub(crate) is_long: bool,
}

impl World {
    pub(crate) fn new(config: ServerConfig, clients: usize, seed: u64) -> Self {
        let mut world = Self {
            server: Server::new(config, 0),
            peers: Vec::new(),
            now_ns: 0,
            random: Random(seed),
            delay_steps: 2,
            handler_steps: 0,
            zones: HashMap::new(),
            reads: VecDeque::new(),
            running: Vec::new(),
            executed: HashMap::new(),
            is_long: false,
        };
        for _ in 0..clients {
            world.join();
        }
        world
    }

    /// Another client.
    pub(crate) fn join(&mut self) -> usize {
        let slots = self.server.config().slots;
        self.peers.push(Peer {
            core: Client::new(slots),
            id: Some(self.server.connect().expect("room")),
            blocks: vec![0; usize::from(slots)],
            to_server: VecDeque::new(),
            to_client: VecDeque::new(),
            is_dead: false,
            ended: BTreeMap::new(),
            made: 0,
            made_at_ns: BTreeMap::new(),
            latencies_ns: Vec::new(),
            is_awake: true,
            ended_below: 0,
            ended_above: BTreeSet::new(),
        });
        self.peers.len() - 1
    }

    /// The process of a client dies: its posts are placed or not; nothing more comes.
    pub(crate) fn kill(&mut self, at: usize) {
        let keep = self.random.below(self.peers[at].to_server.len() as u64 + 1);
        let peer = &mut self.peers[at];
        peer.to_server.truncate(keep as usize);
        peer.is_dead = true;
        peer.core.close(Status::Unavailable);
    }

    /// The server's NIC reports that a dead client's queue pair is in error; it is destroyed.
    pub(crate) fn notice(&mut self, at: usize) {
        assert!(self.peers[at].is_dead);
        self.peers[at].to_server.clear();
        if let Some(id) = self.peers[at].id.take() {
            self.server.disconnect(id);
            self.reads.retain(|(_, client, _, _)| *client != id);
        }
    }

    pub(crate) fn call(&mut self, at: usize, deadline_ns: u64) -> bool {
        let peer = &mut self.peers[at];
        let cookie = peer.made;
        let Ok(slot) = peer.core.call(cookie, 1, 8, deadline_ns) else { return false };
        peer.blocks[usize::from(slot)] = cookie;
        peer.is_awake = true;
        peer.made += 1;
        peer.made_at_ns.insert(cookie, self.now_ns);
        true
    }

    fn delay(&mut self) -> u64 {
        self.now_ns + STEP_NS * (1 + self.random.below(self.delay_steps))
    }

    pub(crate) fn step(&mut self) {
        self.now_ns += STEP_NS;
        for at in 0..self.peers.len() {
            self.client_turn(at);
        }
        for at in 0..self.peers.len() {
            self.arrive_at_server(at);
        }
        self.finish_reads();
        self.run_handlers();
        self.server.handle_timeout(self.now_ns);
        while let Some(action) = self.server.poll_action() {
            self.act(action);
        }
    }

    fn client_turn(&mut self, at: usize) {
        let has_message =
            self.peers[at].to_client.front().is_some_and(|(due, _)| *due <= self.now_ns);
        // Calls of a long world have no deadlines.
        let sleeps = self.is_long && !has_message && !self.peers[at].is_awake;
        if self.peers[at].is_dead || sleeps {
            return;
        }
        self.peers[at].is_awake = false;
        while self.peers[at].to_client.front().is_some_and(|(due, _)| *due <= self.now_ns) {
            let Some((_, message)) = self.peers[at].to_client.pop_front() else { break };
            let now_ns = self.now_ns;
            let peer = &mut self.peers[at];
            match message {
                ToClient::Event(generation) => peer.core.handle_event(generation),
                ToClient::Response { slot, header, payload } => {
                    if let Ok(answered) = peer.core.receive(slot, &header) {
                        assert_eq!(answered.cookie, payload, "the answer of another call");
                        assert_eq!(answered.len_bytes, 8);
                        if self.is_long {
                            let times = self.executed.remove(&(at, payload));
                            assert_eq!(times, Some(1), "call {payload} of client {at}");
                            peer.forget(payload);
                            continue;
                        }
                        peer.latencies_ns.push(now_ns - peer.made_at_ns[&answered.cookie]);
                        let before = peer.ended.insert(answered.cookie, Ok(payload));
                        assert!(before.is_none(), "a call ended twice");
                    }
                }
            }
        }
        self.peers[at].core.handle_timeout(self.now_ns);
        self.take_ended(at);
        while let Some(action) = self.peers[at].core.poll_action() {
            let due = self.delay();
            let peer = &mut self.peers[at];
            let after = peer.to_server.back().map_or(0, |(due, _)| *due);
            let message = match action {
                client::Action::Announce(entry) => ToServer::Entry(entry),
                client::Action::Write { slot, mapping, header } => {
                    let payload = peer.blocks[usize::from(slot)];
                    let block = Block { writer: at, header, payload };
                    ToServer::Block { mapping, slot, block }
                }
            };
            peer.to_server.push_back((due.max(after), message));
        }
    }

    pub(crate) fn take_ended(&mut self, at: usize) {
        let peer = &mut self.peers[at];
        while let Some(ended) = peer.core.poll_ended() {
            let before = peer.ended.insert(ended.cookie, Err(ended.status));
            assert!(before.is_none(), "a call ended twice");
        }
    }

    fn arrive_at_server(&mut self, at: usize) {
        while self.peers[at].to_server.front().is_some_and(|(due, _)| *due <= self.now_ns) {
            let Some((_, message)) = self.peers[at].to_server.pop_front() else { break };
            let Some(id) = self.peers[at].id else { break };
            match message {
                ToServer::Entry(entry) => self.server.handle_entry(id, entry),
                ToServer::Block { mapping, slot, block } => {
                    // Rule S4.1: a writer has the zone.
                    let place = self.server.place(id).expect("a WRITE without a zone");
                    assert_eq!(place.mapping, mapping, "a WRITE into the zone of another client");
                    self.zones.insert((mapping, slot), block);
                    self.take(id, slot, mapping, RequestOrigin::Written);
                }
            }
        }
    }

    /// Takes the present content of a slot of a zone, of any writer.
    fn take(&mut self, id: ClientId, slot: u8, mapping: Mapping, origin: RequestOrigin) {
        let block = self.zones[&(mapping, slot)];
        let Ok(request) = self.server.handle_block(id, slot, &block.header, origin) else {
            return;
        };
        let writer = &self.peers[block.writer];
        assert_eq!(writer.id, Some(id), "a request of another client");
        assert!(!writer.has_forgotten(block.payload), "a call ran after it had ended");
        *self.executed.entry((block.writer, block.payload)).or_default() += 1;
        let takes = self.random.below(self.handler_steps + 1) * STEP_NS;
        self.running.push((self.now_ns + takes, request, block.payload));
    }

    /// The owner of the name. A client that was not replaced has the number of its place.
    fn at(&self, id: ClientId) -> Option<usize> {
        let is_it = |at: &usize| self.peers.get(*at).is_some_and(|peer| peer.id == Some(id));
        let guess = Some(usize::from(id.index())).filter(is_it);
        guess.or_else(|| (0..self.peers.len()).find(is_it))
    }

    fn finish_reads(&mut self) {
        while self.reads.front().is_some_and(|(due, ..)| *due <= self.now_ns) {
            let Some((_, id, mask, place)) = self.reads.pop_front() else { break };
            let Some(at) = self.at(id) else { continue };
            for slot in (0..64).filter(|slot| mask >> slot & 1 == 1) {
                let peer = &self.peers[at];
                // A slot that was answered meanwhile was announced by mistake.
                let Some(header) = peer.core.staged(slot) else { continue };
                let payload = peer.blocks[usize::from(slot)];
                let block = Block { writer: at, header, payload };
                self.zones.insert((place.mapping, slot), block);
            }
            self.server.handle_read(id);
        }
    }

    fn run_handlers(&mut self) {
        let now_ns = self.now_ns;
        let (done, running) = core::mem::take(&mut self.running)
            .into_iter()
            .partition::<Vec<_>, _>(|(due, ..)| *due <= now_ns);
        self.running = running;
        for (_, request, payload) in done {
            let at = self.at(request.client);
            let answer = self.server.respond(request, 0, 8);
            if let (Some(at), Some(header)) = (at, answer) {
                let slot = request.slot;
                self.send(at, ToClient::Response { slot, header, payload });
            }
        }
    }

    fn send(&mut self, at: usize, message: ToClient) {
        let due = self.delay();
        let peer = &mut self.peers[at];
        let after = peer.to_client.back().map_or(0, |(due, _)| *due);
        peer.to_client.push_back((due.max(after), message));
    }

    fn act(&mut self, action: server::Action) {
        match action {
            server::Action::Read { client, mask, place } => {
                let due = self.delay();
                let after = self.reads.back().map_or(0, |(due, ..)| *due);
                self.reads.push_back((due.max(after), client, mask, place));
            }
            server::Action::Take { client, mask, place } => {
                for slot in (0..64).filter(|slot| mask >> slot & 1 == 1) {
                    if self.zones.contains_key(&(place.mapping, slot)) {
                        self.take(client, slot, place.mapping, RequestOrigin::Read);
                    }
                }
            }
            server::Action::Event { client, generation } => {
                if let Some(at) = self.at(client) {
                    self.send(at, ToClient::Event(generation));
                }
            }
            server::Action::Drop(client) => {
                if let Some(at) = self.at(client) {
                    self.peers[at].is_dead = true;
                    self.notice(at);
                }
            }
        }
    }

    /// Runs until every call of a living client has ended.
    pub(crate) fn settle(&mut self, steps_max: u64) {
        let is_settled = |peer: &Peer| peer.is_dead || peer.ended.len() as u64 == peer.made;
        for _ in 0..steps_max {
            if self.peers.iter().all(is_settled) {
                return;
            }
            self.step();
        }
        let stuck: Vec<_> =
            (0..self.peers.len()).filter(|at| !is_settled(&self.peers[*at])).collect();
        let at = stuck[0];
        let id = self.peers[at].id;
        let stage = id.and_then(|id| self.server.stage(id));
        let state: State = self.peers[at].core.state();
        panic!("clients {stuck:?} are stuck; client {at} is {state:?}, its server says {stage:?}");
    }
}
