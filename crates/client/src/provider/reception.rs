//! Clients of this node that call a provider without the daemon in between: the daemon introduces them.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use ipc::{ClientId, Filler, OpenRequest, RequestId};
use proto::Status;
use zerocopy::FromBytes as _;

use crate::{
    message::{CallExtra, DETAIL_BYTES_MAX, DirectHead, DirectRecord, HAS_TRACE, origin},
    provider::{
        cancellation::{Cancellation, DaemonSession},
        direct_counts::DirectCounts,
        inbound::{Context, Inbound},
        link::DaemonLink,
        place::{IntroducedClients, ProviderPlace},
        process_clock::ProviderClock,
        verdict::{TOO_LONG, Verdict, too_long},
    },
};

/// Clients at a time: more call through the daemon.
const CLIENTS_MAX: u16 = 64;

/// Calls in flight per client: more go through the daemon. No more than a client can say that it gave up.
const DEPTH: u16 = 32;

/// Time between two looks at what clients say, if there are any: one that clears another's bit delays that so long.
const LOOK_MAX: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Reception<P: ProviderPlace> {
    server: P::Clients,
    clock: P::Clock,
    /// Rank of this node.
    rank: u32,
    answer_bytes_max: usize,
    counts: DirectCounts,
    daemon: Arc<DaemonSession>,
    /// The latest client of each slot, and what its requests are cancelled by.
    callers: Vec<Option<(ClientId, Cancellation)>>,
}

impl<P: ProviderPlace> Reception<P> {
    /// What receives clients once the daemon introduces them, which is asked to; `None`: it is not.
    pub(super) fn begin(place: &mut P, link: &mut DaemonLink<P::Daemon>) -> Option<Self> {
        if !link.has_entry_for_counts() {
            return None;
        }
        let terms = link.terms();
        let message_max = |bytes| u32::try_from(bytes).unwrap_or(u32::MAX);
        let config = ipc::ServerConfig {
            depth: DEPTH,
            request_bytes_max: message_max(terms.request_bytes_max),
            response_bytes_max: message_max(terms.response_bytes_max),
            clients_max: CLIENTS_MAX,
            turn_budget: DEPTH.into(),
            ..ipc::ServerConfig::default()
        };
        let (server, channel): (_, OwnedFd) = place.serve_clients(config)?;
        link.receive(channel.as_fd()).ok()?;
        Some(Self {
            server,
            clock: place.clock().clone(),
            rank: u32::MAX,
            answer_bytes_max: link.answer_bytes_max(),
            counts: DirectCounts::new(P::COUNTS_INTERVAL),
            daemon: Arc::clone(link.session()),
            callers: Vec::new(),
        })
    }

    /// The daemon introduces clients from now on; this node has this rank.
    pub(super) fn set_rank(&mut self, rank: u32) {
        self.rank = rank;
    }

    pub(super) fn server(&mut self) -> &mut P::Clients {
        &mut self.server
    }

    /// Before a sleep; `false`: there is something to do.
    pub(super) fn arm(&mut self) -> bool {
        self.server.arm()
    }

    /// After a sleep.
    pub(super) fn wake_up(&mut self) {
        self.server.wake_up();
    }

    /// Takes so many requests of a client in a turn, at most.
    pub(super) fn set_window(&mut self, window: usize) {
        self.server.set_turn_budget(u32::try_from(window).unwrap_or(u32::MAX));
    }

    /// How long this thread may sleep.
    pub(super) fn sleep_max(&self, sleep_max: Duration) -> Duration {
        let sleep_max = if self.server.has_clients() { LOOK_MAX } else { sleep_max };
        // Where the daemon has no room now, a while later.
        let wait_max = self
            .counts
            .wait_max(&self.clock)
            .map(|wait_max| wait_max.max(Duration::from_millis(1)));
        wait_max.map_or(sleep_max, |wait_max| sleep_max.min(wait_max))
    }

    /// What the daemon is to be told of calls that went without it, if it is time to, or at once.
    pub(super) fn take_counts(&mut self, at_once: bool) -> Vec<DirectRecord> {
        self.counts.take(&self.clock, at_once)
    }

    /// A client got an answer.
    #[inline]
    fn count(&mut self, id: RequestId, verdict: Verdict) {
        let Self { counts, server, .. } = self;
        let client = id.client();
        counts.add(client, verdict, || server.replies().tag_of(client).unwrap_or(0));
    }

    /// Hands the next request of this turn to `take`; `false`: the turn is over.
    #[inline]
    pub(super) fn take(&mut self, take: impl FnOnce(Taken<'_>)) -> bool {
        let Some(request) = self.server.take() else { return false };
        let OpenRequest { id, payload, replies } = request;
        let cancellation = cancellation_of(&mut self.callers, &self.daemon, id, replies);
        let process = replies.process_of(id);
        match read(payload, self.rank, process, cancellation, &self.clock) {
            _ if replies.is_abandoned(id) => {
                refuse(replies, id, Verdict::GIVEN_UP, &[]);
                self.count(id, Verdict::GIVEN_UP);
            }
            Some(inbound) => take(Taken { id, inbound, replies }),
            None => {
                // A client that is gone needs no answer.
                let _ = replies.reply_error(id, Status::InvalidArgument.code().into());
            }
        }
        true
    }

    /// Serves the requests of a turn, one after the other; `answer` is empty, before and after. Returns how many there
    /// were. `serve` says `None`, and `is_over` is set: it was the last one, and is not answered.
    #[inline]
    pub(super) fn serve(
        &mut self,
        answer: &mut Vec<u8>,
        is_over: &mut bool,
        mut serve: impl FnMut(&Inbound<'_>, &mut Vec<u8>) -> Option<Status>,
    ) -> usize {
        let (mut count, answer_bytes_max) = (0, self.answer_bytes_max);
        let clock = self.clock.clone();
        let mut answered = None;
        while !*is_over
            && self.take(|Taken { id, inbound, replies }| match serve(&inbound, answer) {
                Some(Status::Ok) if answer.len() > answer_bytes_max => {
                    let words = too_long(answer.len(), answer_bytes_max);
                    refuse(replies, id, TOO_LONG, words.as_bytes());
                    answered = Some((id, TOO_LONG));
                }
                Some(status) => {
                    let verdict = Verdict::of_service(status, inbound.context, &clock);
                    reply(replies, id, verdict, answer);
                    answered = Some((id, verdict));
                }
                None => *is_over = true,
            })
        {
            if let Some((id, verdict)) = answered.take() {
                self.count(id, verdict);
            }
            answer.clear();
            count += 1;
        }
        answer.clear();
        count
    }

    /// Hands requests of a turn to `take`, at most so many, until it says that it was the last one.
    pub(super) fn look(
        &mut self,
        max: usize,
        mut take: impl FnMut(RequestId, &Inbound<'_>) -> bool,
    ) {
        let mut is_over = false;
        for _ in 0..max {
            if is_over || !self.take(|taken| is_over = !take(taken.id, &taken.inbound)) {
                return;
            }
        }
        self.server.pause();
    }

    /// A turn in which nothing more is taken.
    pub(super) fn pause(&mut self) {
        self.server.pause();
    }

    /// Whether nobody waits for the answer to a request.
    pub(super) fn is_abandoned(&mut self, id: RequestId) -> bool {
        self.server.replies().is_abandoned(id)
    }

    /// Answers a request, with a body that fits.
    #[inline]
    pub(super) fn answer(&mut self, id: RequestId, verdict: Verdict, body: &[u8]) {
        reply(self.server.replies(), id, verdict, body);
        self.count(id, verdict);
    }

    /// Answers a request in place. `false`: the answer was given up while it was filled.
    pub(super) fn answer_in_place(
        &mut self,
        id: RequestId,
        len_bytes: usize,
        fill: impl FnOnce(&mut Filler<'_>),
    ) -> bool {
        let filled = self.server.replies().reply_unless_given_up(id, len_bytes, fill);
        let is_filled = filled != Err(ipc::ReplyError::GivenUp);
        if is_filled {
            self.count(id, Verdict::of_service(Status::Ok, None, &self.clock));
        }
        is_filled
    }
}

impl<P: ProviderPlace<Clients = ipc::Server>> AsFd for Reception<P> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.server.as_fd()
    }
}

/// A request of a client, and where its answer goes.
pub(super) struct Taken<'a> {
    pub(super) id: RequestId,
    pub(super) inbound: Inbound<'a>,
    pub(super) replies: &'a mut ipc::Replies,
}

/// Answers a request, with a body that fits.
#[inline]
fn reply(replies: &mut ipc::Replies, id: RequestId, verdict: Verdict, body: &[u8]) {
    if verdict.status == Status::Ok {
        // A client that is gone needs no answer, and one for whose answer there is no memory was told so.
        let _ = replies.reply(id, body);
    } else {
        refuse(replies, id, verdict, body);
    }
}

/// Answers a request that was no success.
#[cold]
fn refuse(replies: &mut ipc::Replies, id: RequestId, verdict: Verdict, detail: &[u8]) {
    let Verdict { status, origin } = verdict;
    let origin = if origin == origin::ENDED { 0 } else { origin };
    let code = u32::from_le_bytes([status.code(), origin, 0, 0]);
    let detail = &detail[..detail.len().min(DETAIL_BYTES_MAX)];
    let detail = if verdict.is_of_service() { detail } else { &[] };
    // A client that is gone needs no answer.
    let _ = replies.reply_error_detail(id, code, detail);
}

/// What a client asks for; `None`: it makes no sense.
#[inline]
fn read<'a>(
    payload: &'a [u8],
    rank: u32,
    process: Option<ipc::ClientProcess>,
    cancellation: &'a Cancellation,
    clock: &impl ProviderClock,
) -> Option<Inbound<'a>> {
    let (head, mut body) = DirectHead::read_from_prefix(payload).ok()?;
    let mut trace = 0;
    if head.flags.get() & HAS_TRACE != 0 {
        let (extra, rest) = CallExtra::read_from_prefix(body).ok()?;
        (trace, body) = (extra.trace.get(), rest);
    }
    let timeout_ns = u64::from(head.timeout_us.get()) * 1000;
    let context = Context {
        deadline_ns: clock.now_ns().saturating_add(timeout_ns),
        uid: process.map(|process| process.uid),
        pid: process.map(|process| process.pid).filter(|pid| *pid != 0),
        trace,
    };
    let context = Some(context);
    let cancellation = Some(cancellation);
    Some(Inbound { rank, method: head.method.get(), body, context, cancellation })
}

/// What requests of the client that made this one are cancelled by.
#[inline]
fn cancellation_of<'a>(
    callers: &'a mut Vec<Option<(ClientId, Cancellation)>>,
    daemon: &Arc<DaemonSession>,
    id: RequestId,
    replies: &ipc::Replies,
) -> &'a Cancellation {
    let (client, slot) = (id.client(), usize::from(id.client().slot()));
    if callers.len() <= slot {
        callers.resize_with(slot + 1, || None);
    }
    let caller = &mut callers[slot];
    if caller.as_ref().is_some_and(|(known, _)| *known != client) {
        *caller = None;
    }
    let made = || (client, Cancellation::of_session(daemon, replies.lifeline_of(id)));
    &caller.get_or_insert_with(made).1
}
