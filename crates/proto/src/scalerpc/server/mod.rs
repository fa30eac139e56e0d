//! The server: whose turn it is, and which zone is whose.

mod groups;
mod members;
mod turns;

use alloc::{collections::VecDeque, vec::Vec};

use super::{Entry, GENERATION_MAX, Ignored, Mapping, SLOTS_MAX, Trailer};
use groups::Groups;
use members::Member;
pub use members::Stage;

/// Sizes and times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerConfig {
    /// Clients of a group; a group may have half of that to one and a half times as many.
    pub group: u16,
    /// Turn of a group of the middle class.
    pub slice_ns: u64,
    /// Calls that a client can have in flight.
    pub slots: u8,
    /// Clients at a time.
    pub clients_max: u16,
    /// Time in which a client acknowledges the end of its turn.
    pub ack_timeout_ns: u64,
    /// Rotations after which clients are grouped anew by priority; 0: never.
    pub regroup_rotations: u32,
}

impl Default for ServerConfig {
    /// Values of the paper: groups of 40, turns of 100 µs.
    fn default() -> Self {
        Self {
            group: 40,
            slice_ns: 100_000,
            slots: 8,
            clients_max: 1024,
            ack_timeout_ns: 1_000_000_000,
            regroup_rotations: 100,
        }
    }
}

impl ServerConfig {
    /// Zones of each pool: as many as the largest group has clients.
    #[must_use]
    pub fn zones(&self) -> u16 {
        self.group_max()
    }

    pub(super) fn group_max(&self) -> u16 {
        (self.group + self.group / 2).max(1)
    }

    pub(super) fn group_min(&self) -> u16 {
        self.group / 2
    }
}

/// Names a client; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId {
    pub(super) index: u16,
    life: u32,
}

impl ClientId {
    /// Its place, below `clients_max`: that of its entry.
    #[must_use]
    pub const fn index(self) -> u16 {
        self.index
    }
}

/// A zone and the generation in which its client has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ZoneLease {
    /// The zone.
    pub mapping: Mapping,
    /// Unique among zones in use.
    pub generation: u32,
}

/// The next action of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Read these slots of the client's memory into the zone; then [`Server::handle_read`].
    Read {
        /// Whose.
        client: ClientId,
        /// Slots, a bit each.
        mask: u64,
        /// Destination of the READ.
        place: ZoneLease,
    },
    /// The requests of these slots, which were read, are to be taken now ([`Server::handle_block`]).
    Take {
        /// Whose.
        client: ClientId,
        /// Slots, a bit each.
        mask: u64,
        /// Place of the slots.
        place: ZoneLease,
    },
    /// Tell the client that its turn is over.
    Event {
        /// Whom.
        client: ClientId,
        /// Of its zone.
        generation: u32,
    },
    /// The client does not answer: destroy its queue pair, then [`Server::disconnect`].
    Drop(ClientId),
}

/// How a request came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOrigin {
    /// The server read it from the client's memory.
    Read,
    /// The client wrote it.
    Written,
}

/// A request to be executed, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId {
    /// The client that asks.
    pub client: ClientId,
    /// Slot of the request and of its response.
    pub slot: u8,
    /// Of the call.
    pub number: u32,
}

/// Counts since the server began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Turns that ended.
    pub switches: u64,
    /// Times that every group had its turn.
    pub rotations: u64,
    /// Requests that were executed.
    pub executed: u64,
    /// Of these, the ones that the server had read.
    pub warmed: u64,
    /// Messages that changed nothing.
    pub ignored: u64,
    /// Clients that did not acknowledge in time.
    pub dropped: u64,
}

/// The server's end of all its clients.
#[derive(Debug)]
pub struct Server {
    config: ServerConfig,
    members: Vec<Option<Member>>,
    free: Vec<u16>,
    life: u32,
    groups: Groups,
    /// Free zones, by pool.
    zones: [Vec<u16>; 2],
    generation: u32,
    /// Pool of the group whose turn it is.
    pool: u8,
    slice_end_ns: u64,
    /// Turns end at this time and at all that are slices apart from it, below a slice; `None`: each a slice
    /// after it began.
    phase_ns: Option<u64>,
    /// When silent clients are looked for.
    look_ns: u64,
    /// Clients whose turn it is.
    active: Vec<ClientId>,
    actions: VecDeque<Action>,
    now_ns: u64,
    counters: Counters,
}

impl Server {
    /// A server without clients.
    #[must_use]
    pub fn new(config: ServerConfig, now_ns: u64) -> Self {
        let zones = || (0..config.zones()).rev().collect();
        Self {
            members: (0..config.clients_max).map(|_| None).collect(),
            free: (0..config.clients_max).rev().collect(),
            life: 0,
            groups: Groups::default(),
            zones: [zones(), zones()],
            generation: 0,
            pool: 0,
            slice_end_ns: now_ns + config.slice_ns,
            phase_ns: None,
            look_ns: now_ns,
            active: Vec::new(),
            actions: VecDeque::new(),
            now_ns,
            counters: Counters::default(),
            config,
        }
    }

    /// Sizes and times.
    #[must_use]
    pub fn config(&self) -> &ServerConfig {
        &self.config
    }

    /// Counts since the server began.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Sizes of the groups, in the order of their turns.
    pub fn groups(&self) -> impl Iterator<Item = usize> {
        self.groups.sizes()
    }

    /// Where a client is.
    #[must_use]
    pub fn stage(&self, client: ClientId) -> Option<Stage> {
        self.member(client).map(|member| member.stage)
    }

    /// Longest time until every group that has something to do has its turn: rule S5.1.
    #[must_use]
    pub fn rotation_ns_max(&self) -> u64 {
        self.groups.sizes().count() as u64 * (self.config.slice_ns * 3 / 2)
    }

    fn member(&self, client: ClientId) -> Option<&Member> {
        let member = self.members.get(usize::from(client.index))?.as_ref()?;
        (member.life == client.life).then_some(member)
    }

    fn member_mut(&mut self, client: ClientId) -> Option<&mut Member> {
        let member = self.members.get_mut(usize::from(client.index))?.as_mut()?;
        (member.life == client.life).then_some(member)
    }

    fn id(&self, index: u16) -> Option<ClientId> {
        let member = self.members.get(usize::from(index))?.as_ref()?;
        Some(ClientId { index, life: member.life })
    }

    /// A client has connected. `None`: there are `clients_max`.
    pub fn connect(&mut self) -> Option<ClientId> {
        let index = self.free.pop()?;
        self.life = self.life.wrapping_add(1);
        let member = Member::new(self.life, self.config.slots);
        self.members[usize::from(index)] = Some(member);
        self.groups.add(index, self.config.group_max());
        self.id(index)
    }

    /// A client is gone, and its queue pair is destroyed: its zone can be another one's.
    pub fn disconnect(&mut self, client: ClientId) {
        if self.member(client).is_none() {
            return;
        }
        let Some(member) = self.members[usize::from(client.index)].take() else { return };
        if let Some(place) = member.place() {
            self.give_back(place);
        }
        self.groups.remove(client.index, self.config.group_min(), self.config.group_max());
        self.free.push(client.index);
        self.active.retain(|other| *other != client);
        self.actions.retain(|action| action.client() != client);
    }

    fn give_back(&mut self, place: ZoneLease) {
        self.zones[usize::from(place.mapping.pool & 1)].push(place.mapping.zone);
    }

    fn take_zone(&mut self, pool: u8) -> Option<ZoneLease> {
        let zone = self.zones[usize::from(pool & 1)].pop()?;
        self.generation = if self.generation == GENERATION_MAX { 1 } else { self.generation + 1 };
        Some(ZoneLease { mapping: Mapping { pool, zone }, generation: self.generation })
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// A client has written its entry.
    pub fn handle_entry(&mut self, client: ClientId, entry: Entry) {
        let slots = self.config.slots;
        let Some(member) = self.member_mut(client) else { return };
        let mut freed = None;
        if let Stage::Retiring { place, .. } = member.stage
            && place.generation == entry.ack
        {
            member.stage = Stage::Idle;
            freed = Some(place);
        }
        let mask = entry.mask & (u64::MAX >> (SLOTS_MAX - slots));
        if entry.warm != member.warm && mask != 0 {
            (member.warm, member.mask, member.is_announced) = (entry.warm, mask, true);
        }
        if let Some(place) = freed {
            self.give_back(place);
        }
        self.load();
    }

    /// The announcement of a client has been read.
    pub fn handle_read(&mut self, client: ClientId) {
        let is_turn = self.groups.is_current(client.index);
        let Some(member) = self.member_mut(client) else { return };
        let Stage::Reading { place } = member.stage else { return };
        member.stage = Stage::Warm { place };
        if is_turn {
            self.activate(client);
        }
    }

    /// Judges the end of a block of the client's zone.
    ///
    /// # Errors
    ///
    /// [`Ignored`]: it is not to be executed.
    pub fn handle_block(
        &mut self,
        client: ClientId,
        slot: u8,
        header: &Trailer,
        origin: RequestOrigin,
    ) -> Result<RequestId, Ignored> {
        let accepted = self.member_mut(client).ok_or(Ignored::Late);
        let accepted = accepted.and_then(|member| member.accept(slot, header, origin));
        match accepted {
            Ok(()) => {
                self.counters.executed += 1;
                self.counters.warmed += u64::from(origin == RequestOrigin::Read);
                Ok(RequestId { client, slot, number: header.number })
            }
            Err(ignored) => {
                self.counters.ignored += 1;
                Err(ignored)
            }
        }
    }

    /// Answers a request with `len_bytes` of data and a status: what ends the block of the response. `None`:
    /// no client waits for it.
    pub fn respond(&mut self, request: RequestId, status: u16, len_bytes: u32) -> Option<Trailer> {
        let member = self.member_mut(request.client)?;
        if !member.answer(request.slot, request.number, len_bytes) {
            return None;
        }
        let place = match member.stage {
            Stage::Active { place } => Some(place),
            _ => None,
        };
        member.is_mapped |= place.is_some();
        Some(Trailer {
            len_bytes,
            method: status,
            mapping: place.map(|place| place.mapping),
            generation: place.map_or(0, |place| place.generation),
            number: request.number,
        })
    }

    /// Where the client's zone is, if it has one into which it may write or have written.
    #[must_use]
    pub fn place(&self, client: ClientId) -> Option<ZoneLease> {
        match self.member(client)?.stage {
            Stage::Active { place } | Stage::Retiring { place, .. } => Some(place),
            _ => None,
        }
    }
}

impl Action {
    fn client(&self) -> ClientId {
        match *self {
            Self::Read { client, .. }
            | Self::Take { client, .. }
            | Self::Event { client, .. }
            | Self::Drop(client) => client,
        }
    }
}
