//! The processes that offer one service: each request goes to the one that has the fewest.

use client::message::{DAEMON, DESCRIPTION_BYTES_MAX, IS_SHARED, OfferHead, WANTS_CONTEXT};
use rpc::Status;
use zerocopy::FromBytes as _;

use crate::client_port::ClientPort;

/// Why a service is not offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OfferError {
    /// Number 0 is the daemon itself.
    #[error("service {DAEMON} is the daemon itself; choose another number")]
    Reserved,
    /// Somebody offers it already.
    #[error("service {0} is already offered on this node")]
    Taken(u16),
    /// Processes share its number, and call it otherwise or mean other types.
    #[error("service {0} is offered on this node by processes that mean another one")]
    Mismatch(u16),
    /// The rights say that this process may not.
    #[error("this process may not offer service {0}: see COPYRPC_RIGHTS")]
    Denied(u16),
    /// One client offers as many as it may.
    #[error("a client may offer {0} services; raise COPYRPC_SERVICES_PER_CLIENT")]
    TooMany(usize),
}

impl OfferError {
    /// What the process is told that offers the service.
    pub(super) fn status(self) -> Status {
        match self {
            Self::Reserved | Self::Taken(_) => Status::AlreadyExists,
            Self::Mismatch(_) => Status::FailedPrecondition,
            Self::Denied(_) => Status::PermissionDenied,
            Self::TooMany(_) => Status::ResourceExhausted,
        }
    }
}

/// What a process offers.
#[derive(Debug)]
pub(super) struct Offered {
    pub(super) service: u16,
    is_shared: bool,
    wants_context: bool,
    name_bytes: u16,
    /// Its name, and the table of its methods.
    description: Vec<u8>,
}

impl Offered {
    /// Reads what a process tells when it offers a service; `None` if that is nonsense.
    pub(super) fn read(payload: &[u8]) -> Option<Self> {
        if let Ok(service) = payload.try_into().map(u16::from_le_bytes) {
            let (is_shared, wants_context, description) = (false, false, Vec::new());
            return Some(Self { service, is_shared, wants_context, name_bytes: 0, description });
        }
        let (head, description) = OfferHead::read_from_prefix(payload).ok()?;
        let name_bytes = head.name_bytes.get();
        let fits = usize::from(name_bytes) <= description.len()
            && description.len() <= DESCRIPTION_BYTES_MAX;
        fits.then(|| Self {
            service: head.service.get(),
            is_shared: head.flags.get() & IS_SHARED != 0,
            wants_context: head.flags.get() & WANTS_CONTEXT != 0,
            name_bytes,
            description: description.to_vec(),
        })
    }

    /// Whether others may offer the service, too.
    pub(super) fn is_shared(&self) -> bool {
        self.is_shared
    }
}

/// A process that offers the service.
#[derive(Debug)]
struct Member<P: ClientPort> {
    client: P::Client,
    /// Its polls for a request that are not answered yet, oldest first. The newest one is answered: its memory was used
    /// last, and a process that is given few requests at a time uses the memory of few.
    polls: Vec<P::ReplyTo>,
    /// Requests that it was given and has not answered, also those that nobody waits for any more.
    given: u32,
    wants_context: bool,
    watch: Watch<P>,
}

/// Numbers of requests that a process is still to be told of, at most: it is not told of more.
const UNTOLD_MAX: usize = 4096;

/// What a process is told of requests that it has and that nobody waits for any more.
#[derive(Debug)]
struct Watch<P: ClientPort> {
    /// It asked ever: others are not told.
    is_wanted: bool,
    /// The call that is answered with the next.
    asks: Option<P::ReplyTo>,
    /// Requests that ended while it did not ask.
    untold: Vec<u64>,
}

/// What a process that watches is told, and where.
pub(super) type Told<P> = (<P as ClientPort>::ReplyTo, Vec<u64>);

impl<P: ClientPort> Watch<P> {
    fn new() -> Self {
        Self { is_wanted: false, asks: None, untold: Vec::new() }
    }

    /// As many as an answer has room for: the others are for the next question, which follows at once.
    fn take(&mut self, bytes_max: usize) -> Option<Told<P>> {
        if self.untold.is_empty() {
            return None;
        }
        let asks = self.asks.take()?;
        let count = (bytes_max / size_of::<u64>()).clamp(1, self.untold.len());
        Some((asks, self.untold.drain(..count).collect()))
    }
}

impl<P: ClientPort> Member<P> {
    fn new(client: P::Client, wants_context: bool) -> Self {
        Self { client, polls: Vec::new(), given: 0, wants_context, watch: Watch::new() }
    }
}

/// A poll that is to be answered with a request.
#[derive(Debug)]
pub(super) struct Poll<P: ClientPort> {
    pub(super) client: P::Client,
    pub(super) reply_to: P::ReplyTo,
    pub(super) wants_context: bool,
}

/// The processes that offer one service. There is at least one.
#[derive(Debug)]
pub(super) struct Members<P: ClientPort> {
    members: Vec<Member<P>>,
    /// Where the next look begins: members that have equally many take turns.
    next: usize,
    is_shared: bool,
    name_bytes: u16,
    description: Vec<u8>,
}

impl<P: ClientPort> Members<P> {
    pub(super) fn new(offered: Offered, client: P::Client) -> Self {
        let Offered { is_shared, wants_context, name_bytes, description, .. } = offered;
        let first = Member::new(client, wants_context);
        Self { members: vec![first], next: 0, is_shared, name_bytes, description }
    }

    /// One more process offers the service.
    pub(super) fn join(&mut self, offered: &Offered, client: P::Client) -> Result<(), OfferError> {
        if !self.is_shared || !offered.is_shared || self.has(client) {
            return Err(OfferError::Taken(offered.service));
        }
        let told = (offered.name_bytes, &offered.description);
        if told != (self.name_bytes, &self.description) {
            return Err(OfferError::Mismatch(offered.service));
        }
        self.members.push(Member::new(client, offered.wants_context));
        Ok(())
    }

    fn member(&mut self, client: P::Client) -> Option<&mut Member<P>> {
        self.members.iter_mut().find(|member| member.client == client)
    }

    pub(super) fn has(&self, client: P::Client) -> bool {
        self.members.iter().any(|member| member.client == client)
    }

    pub(super) fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Length of the name, name, and table, as a caller is told.
    pub(super) fn description(&self) -> (u16, &[u8]) {
        (self.name_bytes, &self.description)
    }

    /// How many there are, and how many requests they have not answered.
    pub(super) fn census(&self) -> (usize, u32) {
        (self.members.len(), self.members.iter().map(|member| member.given).sum())
    }

    /// A process asks for a request.
    pub(super) fn add_poll(&mut self, client: P::Client, reply_to: P::ReplyTo) {
        if let Some(member) = self.member(client) {
            member.polls.push(reply_to);
        }
    }

    /// A process has answered a request.
    pub(super) fn answered(&mut self, client: P::Client) {
        if let Some(member) = self.member(client) {
            member.given = member.given.saturating_sub(1);
        }
    }

    /// A process asks which of its requests nobody waits for. It asks once at a time: an earlier question is
    /// returned, to be answered with nothing. An answer has `bytes_max` bytes.
    pub(super) fn watch(
        &mut self,
        client: P::Client,
        asks: P::ReplyTo,
        bytes_max: usize,
    ) -> Option<Told<P>> {
        let member = self.member(client)?;
        member.watch.is_wanted = true;
        let earlier = member.watch.asks.replace(asks).map(|earlier| (earlier, Vec::new()));
        earlier.or_else(|| member.watch.take(bytes_max))
    }

    /// Nobody waits any more for a request that a process has. An answer has `bytes_max` bytes.
    pub(super) fn cancel(
        &mut self,
        client: P::Client,
        work: u64,
        bytes_max: usize,
    ) -> Option<Told<P>> {
        let watch = &mut self.member(client)?.watch;
        if watch.is_wanted && watch.untold.len() < UNTOLD_MAX {
            watch.untold.push(work);
        }
        watch.take(bytes_max)
    }

    /// Takes the newest poll of the process that has the fewest requests, of those that poll.
    #[inline]
    pub(super) fn take_poll(&mut self) -> Option<Poll<P>> {
        let (count, start) = (self.members.len(), self.next);
        let places = (0..count).map(|step| (start + step) % count);
        let polls = |place: &usize| !self.members[*place].polls.is_empty();
        let place = places.filter(polls).min_by_key(|place| self.members[*place].given)?;
        self.next = (place + 1) % count;
        let member = &mut self.members[place];
        let reply_to = member.polls.pop()?;
        member.given += 1;
        Some(Poll { client: member.client, reply_to, wants_context: member.wants_context })
    }

    /// A process was not given the request for which its poll was taken: it asks as before.
    pub(super) fn put_poll_back(&mut self, poll: &Poll<P>) {
        if let Some(member) = self.member(poll.client) {
            member.given = member.given.saturating_sub(1);
            member.polls.push(poll.reply_to);
        }
    }

    /// Whether somebody asks for a request.
    pub(super) fn is_polling(&self) -> bool {
        self.members.iter().any(|member| !member.polls.is_empty())
    }

    /// Whether this holds for all processes.
    pub(super) fn are_all(&self, holds: impl Fn(P::Client) -> bool) -> bool {
        self.members.iter().all(|member| holds(member.client))
    }

    /// Forgets processes that are gone; `false` if none is left.
    pub(super) fn retain<G>(
        &mut self,
        is_there: impl Fn(P::Client) -> bool,
        mut gone: impl FnMut(P::Client) -> G,
    ) -> bool {
        self.members.retain(|member| {
            let stays = is_there(member.client);
            if !stays {
                gone(member.client);
            }
            stays
        });
        self.next = 0;
        !self.members.is_empty()
    }
}
