//! The source of requests of this node's processes: shared memory, or a test.

use core::ops::Range;
use std::{fmt::Debug, hash::Hash, os::fd::OwnedFd};

use client::{
    Filler, LentBytes,
    message::{
        CALL_HEAD_BYTES, CallHead, DAEMON, HAS_EXTRA, HERE, SERVE_HEAD_BYTES, ServeHead, method,
    },
};
use ipc::TakenBytes;
use rpc::Status;
use zerocopy::FromBytes as _;

/// A request of a client, and where its answer goes.
pub struct ClientRequest<'a, P: ClientPort + ?Sized> {
    /// The client that made it.
    pub client: P::Client,
    /// The address of the answer.
    pub reply_to: P::ReplyTo,
    /// The message, valid until the next request is taken.
    pub payload: TakenBytes<'a>,
    /// Answers this request and those before it, while the payload is in use.
    pub replies: &'a mut P::Replies,
}

/// A part of a message was not copied: its client is gone, or there is no memory for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotCopied;

/// Answers requests of clients by their addresses.
pub trait Replies {
    /// The address of an answer.
    type ReplyTo;

    /// Answers with a body that is gathered from `parts`. A client that is gone needs no answer, and one
    /// that cannot take so long a body is told so.
    fn reply(&mut self, to: Self::ReplyTo, status: Status, parts: &[&[u8]]);

    /// Answers with a body that begins with `head`, and whose rest others may change meanwhile: whoever gets it
    /// gets one copy of it, and nobody here looks at it.
    fn pass_on(&mut self, to: Self::ReplyTo, head: &[&[u8]], rest: LentBytes<'_>) {
        let mut body = head.concat();
        rest.append_to(&mut body);
        self.reply(to, Status::Ok, &[&body]);
    }

    /// Whether a response of this length may be put in parts.
    fn takes_parts(&self, len_bytes: usize) -> bool {
        let _ = len_bytes;
        false
    }

    /// Puts a part of an answer of `len_bytes` that [takes parts](Self::takes_parts) where the client will read it.
    /// The answer is still to be given.
    ///
    /// # Errors
    ///
    /// [`NotCopied`]: there is no memory for it, or the client is gone.
    fn put_part(
        &mut self,
        to: Self::ReplyTo,
        len_bytes: usize,
        part: Range<usize>,
        fill: impl FnOnce(&mut Filler<'_>),
    ) -> Result<(), NotCopied> {
        let _ = (to, len_bytes, part, fill);
        Err(NotCopied)
    }

    /// Answers with a body all of whose parts were put.
    fn reply_stored(&mut self, to: Self::ReplyTo, len_bytes: usize);

    /// Appends a copy of a part of a request that was [left](TakenBytes::Left) with its client and is not answered.
    ///
    /// # Errors
    ///
    /// [`NotCopied`]: the client is gone.
    fn read_left(
        &mut self,
        from: Self::ReplyTo,
        part: Range<usize>,
        to: &mut Vec<u8>,
    ) -> Result<(), NotCopied> {
        let _ = (from, part, to);
        Err(NotCopied)
    }

    /// Lends such a part; `None`: it is to be [read](Self::read_left).
    fn lend_left(&mut self, from: Self::ReplyTo, part: Range<usize>) -> Option<LentBytes<'_>> {
        let _ = (from, part);
        None
    }

    /// All clients, in no order.
    fn clients(&self) -> Vec<ClientEntry> {
        Vec::new()
    }

    /// The call of the client that made `of` which has this number at the client, if it is not answered.
    fn pending_of(&self, of: Self::ReplyTo, call: u16) -> Option<Self::ReplyTo> {
        let _ = (of, call);
        None
    }

    /// The process that waits for an answer, and its user; `None` if that is not known.
    fn process_of(&self, to: Self::ReplyTo) -> Option<ipc::ClientProcess> {
        let _ = to;
        None
    }
}

/// Names a client among all that a daemon ever had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientTag {
    /// A small number that no other client has at the same time.
    pub slot: u32,
    /// Tells clients apart that have the number one after the other.
    pub life: u32,
}

impl ClientTag {
    /// As one number.
    pub(crate) fn number(self) -> u64 {
        u64::from(self.life) << 32 | u64::from(self.slot)
    }
}

/// A client, as its port knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientEntry {
    /// Tag of the client at its port.
    pub tag: ClientTag,
    /// Its process; `None`: nobody knows.
    pub process: Option<ipc::ClientProcess>,
    /// Requests that it ever made.
    pub requests: u64,
    /// Its requests that are not answered yet.
    pub in_flight: usize,
}

/// The clients of a daemon. No method waits. Each request is answered once, by its address.
pub trait ClientPort {
    /// The address of the answer to one request.
    type ReplyTo: Copy + Eq + Hash + Debug;
    /// Names a client among all that there ever were.
    type Client: Copy + Eq + Debug;
    /// Answers requests.
    type Replies: Replies<ReplyTo = Self::ReplyTo>;

    /// The next request of this turn; `None`: the turn is over.
    fn take(&mut self) -> Option<ClientRequest<'_, Self>>;

    /// Most requests to take of one client in a turn, from now on.
    fn set_turn_budget(&mut self, requests: u32);

    /// From now on these requests may be [left](TakenBytes::Left) with their clients if they are long.
    fn leave_requests(&mut self, requests: LeftRequests) {
        let _ = requests;
    }

    /// Answers requests that were taken earlier.
    fn replies(&mut self) -> &mut Self::Replies;

    /// Names a client by numbers.
    fn tag(client: Self::Client) -> ClientTag;

    /// The client that waits for an answer.
    fn client_of(to: Self::ReplyTo) -> Self::Client;

    /// The descriptor that a client sent before the request which asks for it.
    fn take_descriptor(&mut self, client: Self::Client) -> Option<OwnedFd> {
        let _ = client;
        None
    }

    /// Whether a client is still connected. It costs the same, however many there are.
    fn is_there(&self, client: Self::Client) -> bool;

    /// Counts departures: while it stays the same, no client has left.
    fn departures(&self) -> u64;

    /// Clients that are connected, that ever connected, and that were evicted.
    fn census(&self) -> (u64, u64, u64);

    /// Connections that did not become clients, by cause.
    fn rejections(&self) -> ipc::Rejections {
        ipc::Rejections::default()
    }
}

/// Processes that call through shared memory.
#[derive(Debug)]
pub struct IpcPort {
    pub(super) server: ipc::Server,
}

impl IpcPort {
    /// The clients of a server.
    #[must_use]
    pub fn new(mut server: ipc::Server) -> Self {
        server.leave_large(is_answer);
        Self { server }
    }
}

/// Whether a message whose first bytes are `head` is the successful answer of a process to a request that it was
/// given.
fn is_answer(head: &[u8]) -> bool {
    AnswerHead::read(head).is_some()
}

/// Requests that a daemon copies itself, where they are to go: those to other nodes, and those for services of this
/// node that processes or other threads answer.
#[derive(Clone, Debug)]
pub struct LeftRequests {
    pub(crate) own: u32,
    pub(crate) size: u32,
    /// Services that functions of the thread answer, which get a request as a whole.
    pub(crate) functions: Vec<u16>,
}

impl LeftRequests {
    /// Whether a message whose first bytes are `head` is one of them.
    #[must_use]
    pub fn has(&self, head: &[u8]) -> bool {
        let Ok((head, _)) = CallHead::read_from_prefix(head) else { return false };
        let (rank, service) = (head.rank.get(), head.service.get());
        if [HERE, self.own].contains(&rank) {
            service != DAEMON && !self.functions.contains(&service)
        } else {
            rank < self.size
        }
    }
}

/// The heads of such an answer: what it is about.
pub(crate) struct AnswerHead(pub(crate) ServeHead);

impl AnswerHead {
    pub(crate) const BYTES: usize = CALL_HEAD_BYTES + SERVE_HEAD_BYTES;

    pub(crate) fn read(head: &[u8]) -> Option<Self> {
        let (call, rest) = CallHead::read_from_prefix(head).ok()?;
        let (serve, _) = ServeHead::read_from_prefix(rest).ok()?;
        let is_plain = call.rank.get() == HERE && call.response_bytes.get() & HAS_EXTRA == 0;
        let is_to_daemon = call.service.get() == DAEMON && call.method.get() == method::SERVE;
        let is_answer = serve.work.get() != 0 && serve.status == Status::Ok.code();
        (is_plain && is_to_daemon && is_answer).then_some(Self(serve))
    }
}

impl From<ipc::ClientId> for ClientTag {
    /// The low bits of the generation tell apart any two of 2³² clients that have a slot one after the other.
    #[expect(clippy::cast_possible_truncation, reason = "takes the low bits")]
    #[inline]
    fn from(client: ipc::ClientId) -> Self {
        Self { slot: client.slot().into(), life: client.generation() as u32 }
    }
}

impl Replies for ipc::Replies {
    type ReplyTo = ipc::RequestId;

    #[inline]
    fn reply(&mut self, to: ipc::RequestId, status: Status, parts: &[&[u8]]) {
        // It fails if the client is gone, or if the response is too long, which the client is told.
        let _ = match status {
            Status::Ok => self.reply_parts(to, parts),
            status => {
                // Who says so, and what about it.
                let said = parts.concat();
                match said.split_first() {
                    Some((origin, detail)) => {
                        let code = u32::from_le_bytes([status.code(), *origin, 0, 0]);
                        self.reply_error_detail(to, code, detail)
                    }
                    None if status == Status::ResourceExhausted => self.reply_exhausted(to),
                    None => self.reply_error(to, status.code().into()),
                }
            }
        };
    }

    fn pass_on(&mut self, to: ipc::RequestId, head: &[&[u8]], rest: LentBytes<'_>) {
        let head_bytes: usize = head.iter().map(|part| part.len()).sum();
        // It fails as above.
        let _ = self.reply_with(to, head_bytes + rest.len(), |answer| {
            // There is room: the lengths were added up.
            let put = head.iter().try_for_each(|part| answer.put(part));
            let _ = put.and_then(|()| answer.put_lent(rest));
        });
    }

    fn takes_parts(&self, len_bytes: usize) -> bool {
        Self::takes_parts(self, len_bytes)
    }

    fn put_part(
        &mut self,
        to: ipc::RequestId,
        len_bytes: usize,
        part: Range<usize>,
        fill: impl FnOnce(&mut Filler<'_>),
    ) -> Result<(), NotCopied> {
        Self::put_part(self, to, len_bytes, part, fill).map_err(|_| NotCopied)
    }

    fn reply_stored(&mut self, to: ipc::RequestId, len_bytes: usize) {
        // It fails if the client is gone.
        let _ = Self::reply_stored(self, to, len_bytes);
    }

    fn read_left(
        &mut self,
        from: ipc::RequestId,
        part: Range<usize>,
        to: &mut Vec<u8>,
    ) -> Result<(), NotCopied> {
        Self::read_left(self, from, part, to).map_err(|_| NotCopied)
    }

    fn lend_left(&mut self, from: ipc::RequestId, part: Range<usize>) -> Option<LentBytes<'_>> {
        Self::lend_left(self, from, part)
    }

    fn clients(&self) -> Vec<ClientEntry> {
        let entry = |census: ipc::ClientCensus| {
            let ipc::ClientCensus { client, process, requests, in_flight, .. } = census;
            ClientEntry { tag: client.into(), process, requests, in_flight }
        };
        Self::clients(self).map(entry).collect()
    }

    fn pending_of(&self, of: ipc::RequestId, call: u16) -> Option<ipc::RequestId> {
        Self::pending_of(self, of, call)
    }

    fn process_of(&self, to: ipc::RequestId) -> Option<ipc::ClientProcess> {
        Self::process_of(self, to)
    }
}

impl ClientPort for IpcPort {
    type ReplyTo = ipc::RequestId;
    type Client = ipc::ClientId;
    type Replies = ipc::Replies;

    #[inline]
    fn take(&mut self) -> Option<ClientRequest<'_, Self>> {
        let ipc::TakenRequest { id, payload, replies } = self.server.take_lent()?;
        Some(ClientRequest { client: id.client(), reply_to: id, payload, replies })
    }

    #[inline]
    fn replies(&mut self) -> &mut ipc::Replies {
        self.server.replies()
    }

    fn leave_requests(&mut self, requests: LeftRequests) {
        self.server.leave_large(move |head| is_answer(head) || requests.has(head));
    }

    fn set_turn_budget(&mut self, requests: u32) {
        self.server.set_turn_budget(requests);
    }

    fn take_descriptor(&mut self, client: ipc::ClientId) -> Option<OwnedFd> {
        self.server.take_descriptor(client)
    }

    #[inline]
    fn tag(client: ipc::ClientId) -> ClientTag {
        client.into()
    }

    #[inline]
    fn client_of(to: ipc::RequestId) -> ipc::ClientId {
        to.client()
    }

    fn is_there(&self, client: ipc::ClientId) -> bool {
        self.server.is_connected(client)
    }

    fn departures(&self) -> u64 {
        let stats = self.server.stats();
        stats.departed + stats.evicted
    }

    fn census(&self) -> (u64, u64, u64) {
        let stats = self.server.stats();
        (stats.clients as u64, stats.welcomed, stats.evicted)
    }

    fn rejections(&self) -> ipc::Rejections {
        self.server.stats().rejections
    }
}
