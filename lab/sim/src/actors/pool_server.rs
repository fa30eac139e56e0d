//! A server whose clients write their requests to its memory over reliable connections: to a pool of their own
//! each, or, by the cores of ScaleRPC, to one that groups of clients use in turn.
//!
//! ```text
//! client           server's NIC                        server
//! request ──────▶  unit, context of the connection ──▶ thread of the client: handles it
//!         ◀──────  unit, context of the connection ◀── answer
//! ```
//!
//! Only the server's NIC and threads have queues: clients have a core each and NICs that are not busy.

use std::collections::HashMap;

use proto::scalerpc::{
    Client, Entry, Mapping, Server, Trailer, client,
    server::{self, ClientId, RequestId, RequestOrigin, ServerConfig, ZoneLease},
};

use crate::{
    machine::Profile,
    nic::{NicContext, NicModel},
    world::{RandomStream, Time, World},
};

/// Where requests are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// To a pool per client.
    Pool,
    /// To zones that groups of clients use in turn.
    ScaleRpc {
        /// Clients of a group; it may have half of that to one and a half times as many.
        group: u16,
        /// Turn of a group.
        slice: Time,
    },
}

/// Writes of clients, and what is read of them, that take longer than they should; those that the client sends
/// afterwards stay behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Late {
    /// Of a thousand.
    pub permille: u64,
    /// How much longer at most.
    pub longest: Time,
}

/// What runs, and for how long.
#[derive(Clone, Debug)]
pub struct Load {
    /// Where requests are written.
    pub way: Way,
    /// Clients, each with a connection.
    pub clients: u16,
    /// Calls in flight of each client: 1 to 64.
    pub depth: u8,
    /// Threads of the server. They share its state for nothing.
    pub threads: usize,
    /// What arrives late from clients, if anything does.
    pub late: Option<Late>,
    /// What happens before is not counted.
    pub warm_up: Time,
    /// The end.
    pub end: Time,
}

/// What was measured between warm-up and end.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Calls per second that were answered, in millions.
    pub mops: f64,
    /// Contexts that were not on the server's NIC, per call.
    pub misses_per_call: f64,
    /// Median latency, in microseconds.
    pub p50_us: f64,
    /// Latency that 99 of 100 calls do not exceed, in microseconds.
    pub p99_us: f64,
    /// Longest latency, in microseconds.
    pub longest_us: f64,
    /// Turns that ended since the start.
    pub switches: u64,
    /// Calls of each client that were answered since the start.
    pub answered: Vec<u64>,
    /// Requests that the server of ScaleRPC has executed since the start.
    pub executed: u64,
    /// Requests that clients of ScaleRPC wrote and that arrived when it was not their turn.
    pub outside: u64,
    /// Events that happened.
    pub events: u64,
    /// See [`World::trace`].
    pub trace: u64,
}

/// A block: the header that ends it, and the number of the call as its data.
type Block = (Trailer, u64);

#[derive(Clone, Debug)]
enum ToServer {
    Request {
        slot: u8,
        block: Block,
    },
    Entry(Entry),
    /// What a READ has brought, for a zone.
    Blocks {
        place: ZoneLease,
        blocks: Vec<(u8, Block)>,
    },
}

#[derive(Clone, Copy, Debug)]
enum ToClient {
    Response {
        slot: u8,
        block: Block,
    },
    TurnEnd {
        generation: u32,
    },
    /// Served by the client's NIC alone.
    Read {
        mask: u64,
        place: ZoneLease,
    },
}

#[derive(Clone, Debug)]
enum Event {
    /// A client begins.
    Begin { client: usize },
    /// Something arrives at the server's NIC.
    Arrived { client: usize, message: ToServer },
    /// A thread of the server can see it.
    Visible { client: usize, message: ToServer },
    /// … and has come to it.
    Handled { client: usize, message: ToServer },
    /// A thread has come to a request that was read before.
    Served { request: RequestId, block: Block },
    /// The server's NIC has a WQE.
    Posted { client: usize, message: ToClient },
    /// A client's NIC reads blocks.
    Fetched { client: usize, mask: u64, place: ZoneLease },
    /// A client's program has come to a message.
    Told { client: usize, message: ToClient },
    /// A turn may be over.
    SliceEnd,
}

/// A client's program.
struct Caller {
    /// Of ScaleRPC.
    core: Option<Client>,
    id: Option<ClientId>,
    /// Number of the call whose request lies in each own block.
    blocks: Vec<u64>,
    made: u64,
    /// By slot.
    made_at: Vec<Time>,
    free_at: Time,
    answered: u64,
    /// When what it has sent last arrives.
    arrives_at: Time,
}

struct Cluster<'p> {
    profile: &'p Profile,
    load: Load,
    world: World<Event>,
    nic: NicModel,
    callers: Vec<Caller>,
    /// Of ScaleRPC.
    server: Option<Server>,
    /// When each thread of the server has come to what is before it.
    threads: Vec<Time>,
    /// Requests that were read and not taken yet.
    zones: HashMap<(Mapping, u8), Block>,
    is_slice_scheduled: bool,
    latencies: Vec<Time>,
    random: RandomStream,
    outside: u64,
    misses_before: Option<u64>,
}

/// Runs `load` on a server of `profile`.
///
/// # Panics
///
/// If a client gets an answer of another call, or the server takes one for dead.
#[must_use]
pub fn run(profile: &Profile, load: &Load, seed: u64) -> Measured {
    let mut cluster = Cluster::new(profile, load.clone(), seed);
    while let Some(event) = cluster.world.next(load.end) {
        if cluster.world.now() >= load.warm_up {
            cluster.misses_before.get_or_insert(cluster.nic.misses());
        }
        cluster.happen(event);
    }
    cluster.measured()
}

fn header(number: u64) -> Trailer {
    let number = u32::try_from(number).expect("fewer calls than 2³²");
    Trailer { len_bytes: 32, method: 0, mapping: None, generation: 0, number }
}

fn context(client: usize) -> NicContext {
    NicContext::Connection(u32::try_from(client).expect("queue pair numbers have 24 bits"))
}

fn slots_of(mask: u64) -> impl Iterator<Item = u8> {
    (0..64).filter(move |slot| mask >> slot & 1 == 1)
}

impl<'p> Cluster<'p> {
    fn new(profile: &'p Profile, load: Load, seed: u64) -> Self {
        let mut server = match load.way {
            Way::Pool => None,
            Way::ScaleRpc { group, slice } => Some(Server::new(
                ServerConfig {
                    group,
                    slice_ns: slice.whole_ns(),
                    slots: load.depth,
                    clients_max: load.clients,
                    regroup_rotations: 0,
                    ..ServerConfig::default()
                },
                0,
            )),
        };
        let depth = usize::from(load.depth);
        let callers = (0..load.clients).map(|_| Caller {
            core: server.is_some().then(|| Client::new(load.depth)),
            id: server.as_mut().and_then(Server::connect),
            blocks: vec![0; depth],
            made: 0,
            made_at: vec![Time::ZERO; depth],
            free_at: Time::ZERO,
            answered: 0,
            arrives_at: Time::ZERO,
        });
        let callers: Vec<_> = callers.collect();
        let mut world = World::default();
        for client in 0..callers.len() {
            // Clients do not begin at one instant.
            world.schedule(Time::from_ns(3 * client as u64), Event::Begin { client });
        }
        Self {
            profile,
            world,
            nic: NicModel::new(&profile.nic, seed, 0),
            callers,
            server,
            threads: vec![Time::ZERO; load.threads.max(1)],
            zones: HashMap::new(),
            is_slice_scheduled: false,
            latencies: Vec::new(),
            random: RandomStream::new(seed, "late"),
            outside: 0,
            misses_before: None,
            load,
        }
    }

    fn happen(&mut self, event: Event) {
        let nic = &self.profile.nic;
        match event {
            Event::Begin { client } => {
                (0..self.load.depth).for_each(|slot| self.call(client, slot));
                self.act_as_client(client);
            }
            Event::Arrived { client, message } => {
                let is_read = matches!(message, ToServer::Blocks { .. });
                let mean = if is_read { nic.complete } else { nic.respond };
                let at = self.serve(client, mean) + nic.completion;
                self.world.schedule(at, Event::Visible { client, message });
            }
            Event::Visible { client, message } => {
                let at = self.turn_of_thread(client);
                self.world.schedule(at, Event::Handled { client, message });
            }
            Event::Handled { client, message } => self.handle(client, message),
            Event::Served { request, block } => self.answer(request, block),
            Event::Posted { client, message } => {
                let at = self.serve(client, nic.issue) + self.profile.wire + nic.respond;
                match message {
                    ToClient::Read { mask, place } => {
                        let at = at + nic.payload_read;
                        self.world.schedule(at, Event::Fetched { client, mask, place });
                    }
                    message => {
                        let caller = &mut self.callers[client];
                        caller.free_at =
                            caller.free_at.max(at + nic.completion) + self.profile.cpu.turn;
                        self.world.schedule(caller.free_at, Event::Told { client, message });
                    }
                }
            }
            Event::Fetched { client, mask, place } => self.fetched(client, mask, place),
            Event::Told { client, message } => self.told(client, message),
            Event::SliceEnd => self.slice_end(),
        }
    }

    /// Gives work for a connection to its unit of the server's NIC. Returns when it is done.
    fn serve(&mut self, client: usize, mean: Time) -> Time {
        let wait = self.nic.need(context(client));
        self.nic.serve(client, self.world.now(), mean + wait)
    }

    /// When the thread of a client has done one thing more.
    fn turn_of_thread(&mut self, client: usize) -> Time {
        let thread = client % self.threads.len();
        let free_at = &mut self.threads[thread];
        *free_at = (*free_at).max(self.world.now()) + self.profile.cpu.turn;
        *free_at
    }

    /// Makes the next call; without ScaleRPC, in this slot.
    fn call(&mut self, client: usize, slot: u8) {
        let now = self.world.now();
        let caller = &mut self.callers[client];
        caller.made += 1;
        let number = caller.made;
        let slot = match &mut caller.core {
            Some(core) => core.call(number, 0, 32, u64::MAX).expect("a slot is free"),
            None => slot,
        };
        caller.blocks[usize::from(slot)] = number;
        caller.made_at[usize::from(slot)] = now;
        if caller.core.is_none() {
            let block = (header(number), number);
            self.write(client, ToServer::Request { slot, block });
        }
    }

    /// Posts what the core of a client asks for.
    fn act_as_client(&mut self, client: usize) {
        while let Some(action) = self.callers[client].core.as_mut().and_then(Client::poll_action) {
            match action {
                client::Action::Announce(entry) => self.write(client, ToServer::Entry(entry)),
                client::Action::Write { slot, header, .. } => {
                    let block = (header, self.callers[client].blocks[usize::from(slot)]);
                    self.write(client, ToServer::Request { slot, block });
                }
            }
        }
    }

    /// A client writes to the server's memory.
    fn write(&mut self, client: usize, message: ToServer) {
        let nic = &self.profile.nic;
        let at = self.world.now() + nic.doorbell + nic.issue + self.profile.wire;
        self.arrive(at, client, message);
    }

    /// What a client has sent arrives, at `at` or later.
    fn arrive(&mut self, at: Time, client: usize, message: ToServer) {
        let mut at = at;
        if let Some(Late { permille, longest }) = self.load.late {
            if self.random.happens(permille) {
                at += Time::from_ns(self.random.number(longest.whole_ns().max(1)));
            }
            let last = &mut self.callers[client].arrives_at;
            *last = at.max(*last);
            at = *last;
        }
        self.world.schedule(at, Event::Arrived { client, message });
    }

    fn post(&mut self, at: Time, client: usize, message: ToClient) {
        self.world.schedule(at + self.profile.nic.doorbell, Event::Posted { client, message });
    }

    fn handle(&mut self, client: usize, message: ToServer) {
        let now = self.world.now();
        let Some((server, id)) = self.server.as_mut().zip(self.callers[client].id) else {
            let ToServer::Request { slot, block } = message else { return };
            return self.post(now, client, ToClient::Response { slot, block });
        };
        match message {
            ToServer::Request { slot, block } => {
                let is_turn = matches!(server.stage(id), Some(server::Stage::Active { .. }));
                self.outside += u64::from(!is_turn);
                // It is written wherever the client believes its zone to be.
                let place = block.0.mapping.map(|mapping| (mapping, slot));
                if let Some(there) = place.and_then(|place| self.zones.get_mut(&place)) {
                    *there = block;
                }
                if let Ok(request) = server.handle_block(id, slot, &block.0, RequestOrigin::Written)
                {
                    self.answer(request, block);
                }
            }
            ToServer::Entry(entry) => server.handle_entry(id, entry),
            ToServer::Blocks { place, blocks } => {
                let blocks = blocks.into_iter();
                self.zones.extend(blocks.map(|(slot, block)| ((place.mapping, slot), block)));
                server.handle_read(id);
            }
        }
        self.act_as_server();
    }

    fn answer(&mut self, request: RequestId, (_, number): Block) {
        let Some(server) = &mut self.server else { return };
        if let Some(header) = server.respond(request, 0, 32) {
            let (now, client) = (self.world.now(), usize::from(request.client.index()));
            let response = ToClient::Response { slot: request.slot, block: (header, number) };
            self.post(now, client, response);
        }
    }

    /// Does what the server's core asks for, and asks it again when the turn may be over.
    fn act_as_server(&mut self) {
        while let Some(action) = self.server.as_mut().and_then(Server::poll_action) {
            match action {
                server::Action::Read { client, mask, place } => {
                    let client = usize::from(client.index());
                    let at = self.turn_of_thread(client);
                    self.post(at, client, ToClient::Read { mask, place });
                }
                server::Action::Take { client, mask, place } => self.take(client, mask, place),
                server::Action::Event { client, generation } => {
                    let client = usize::from(client.index());
                    let at = self.turn_of_thread(client);
                    self.post(at, client, ToClient::TurnEnd { generation });
                }
                server::Action::Drop(client) => panic!("{client:?} is taken for dead"),
            }
        }
        if let Some(server) = &self.server
            && !core::mem::replace(&mut self.is_slice_scheduled, true)
        {
            self.world.schedule(Time::from_ns(server.next_switch_ns()), Event::SliceEnd);
        }
    }

    fn slice_end(&mut self) {
        self.is_slice_scheduled = false;
        let now_ns = self.world.now().whole_ns();
        if let Some(server) = &mut self.server {
            server.handle_timeout(now_ns);
        }
        self.act_as_server();
    }

    /// Hands requests that were read to the thread of their client.
    fn take(&mut self, id: ClientId, mask: u64, place: ZoneLease) {
        let client = usize::from(id.index());
        for slot in slots_of(mask) {
            let Some(block) = self.zones.remove(&(place.mapping, slot)) else { continue };
            let Some(server) = &mut self.server else { return };
            if let Ok(request) = server.handle_block(id, slot, &block.0, RequestOrigin::Read) {
                let at = self.turn_of_thread(client);
                self.world.schedule(at, Event::Served { request, block });
            }
        }
    }

    fn fetched(&mut self, client: usize, mask: u64, place: ZoneLease) {
        let caller = &self.callers[client];
        let blocks = slots_of(mask).filter_map(|slot| {
            let header = caller.core.as_ref()?.staged(slot)?;
            Some((slot, (header, caller.blocks[usize::from(slot)])))
        });
        let message = ToServer::Blocks { place, blocks: blocks.collect() };
        self.arrive(self.world.now() + self.profile.wire, client, message);
    }

    fn told(&mut self, client: usize, message: ToClient) {
        let caller = &mut self.callers[client];
        match message {
            ToClient::Response { slot, block: (header, number) } => {
                let expected = match &mut caller.core {
                    Some(core) => core.receive(slot, &header).ok().map(|done| done.cookie),
                    None => Some(caller.blocks[usize::from(slot)]),
                };
                assert_eq!(expected, Some(number), "client {client} got another call's answer");
                let now = self.world.now();
                caller.answered += 1;
                if now >= self.load.warm_up {
                    self.latencies.push(now.since(caller.made_at[usize::from(slot)]));
                }
                self.call(client, slot);
            }
            ToClient::TurnEnd { generation } => {
                caller.core.iter_mut().for_each(|core| core.handle_event(generation));
            }
            ToClient::Read { .. } => {}
        }
        self.act_as_client(client);
    }

    #[expect(clippy::cast_precision_loss, reason = "counts far below 2⁵³")]
    fn measured(mut self) -> Measured {
        self.latencies.sort_unstable();
        let calls = self.latencies.len();
        let us = |share: usize| {
            let at = (calls * share / 1000).min(calls.saturating_sub(1));
            self.latencies.get(at).map_or(0.0, |latency| latency.as_ns() / 1000.0)
        };
        let span_us = self.load.end.since(self.load.warm_up).as_ns() / 1000.0;
        let misses = self.nic.misses() - self.misses_before.unwrap_or_default();
        Measured {
            mops: calls as f64 / span_us,
            misses_per_call: misses as f64 / calls.max(1) as f64,
            p50_us: us(500),
            p99_us: us(990),
            longest_us: us(1000),
            switches: self.server.as_ref().map_or(0, |server| server.counters().switches),
            answered: self.callers.iter().map(|caller| caller.answered).collect(),
            executed: self.server.as_ref().map_or(0, |server| server.counters().executed),
            outside: self.outside,
            events: self.world.happened(),
            trace: self.world.trace(),
        }
    }
}
