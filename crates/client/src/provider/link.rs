//! A provider's connection to its daemon: requests that were asked for, their answers, and what else is told.

use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::Duration,
};

use ipc::{Filled, Filler};
use proto::Status;
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::{
    CallError, HERE, To, call_head,
    message::{
        CALL_HEAD_BYTES, CallHead, ContextHead, DAEMON, DirectRecord, HAS_CONTEXT, Known,
        SERVE_HEAD_BYTES, ServeHead, WORK_HEAD_BYTES, WorkHead, method,
    },
    provider::{
        asks::Asks,
        cancellation::{Cancellation, DaemonSession},
        clock::DaemonClock,
        inbound::{Context, Inbound},
        offer::{Offer, OfferedService, ProvideError},
        outbox::Work,
        place::DaemonConnection,
        process_clock::ProviderClock,
        stop_sign::StopSign,
        verdict::Verdict,
    },
};

/// What a body shares a message with, at most: so the longest answer is as long as the longest request.
const HEADS_BYTES_MAX: usize = WORK_HEAD_BYTES + size_of::<ContextHead>();
const _: () = assert!(HEADS_BYTES_MAX >= CALL_HEAD_BYTES + SERVE_HEAD_BYTES);

/// An answer to no request: the provider asks for one.
const ASKS: Verdict = Verdict { status: Status::Ok, origin: 0 };

/// How long the daemon may take to read the last answers.
const HAND_OVER_MAX: Duration = Duration::from_secs(1);

const TO_DAEMON: To = To { rank: HERE, service: DAEMON, method: method::SERVE };

/// What the daemon tells.
pub(super) enum Told<'a> {
    Request {
        work: Work,
        inbound: Inbound<'a>,
        /// All of it, for [`DaemonLink::parse`].
        message: &'a [u8],
    },
    /// Nobody waits for the answer to this request any more.
    Cancelled(Work),
}

/// A connection by which a service was offered, before the daemon has said how it took that.
#[derive(Debug)]
pub struct Registering<C> {
    ipc: C,
    service: OfferedService,
    /// When it was offered.
    before_ns: u64,
}

impl<C: DaemonConnection> Registering<C> {
    /// Offers a service.
    ///
    /// # Errors
    ///
    /// [`ProvideError`]: the service cannot be described, or the daemon is gone.
    pub fn begin(
        mut ipc: C,
        offer: &Offer,
        clock: &impl ProviderClock,
    ) -> Result<Self, ProvideError> {
        let service = offer.named_service();
        if !offer.description.fits() {
            return Err(ProvideError::TooLong(service));
        }
        let before_ns = clock.now_ns();
        ask(&mut ipc, method::REGISTER, &offer.message())?;
        Ok(Self { ipc, service, before_ns })
    }

    /// How the daemon took it; `None`: it has not said.
    pub fn poll(
        &mut self,
        clock: &impl ProviderClock,
    ) -> Option<Result<DaemonClock, ProvideError>> {
        let Self { ipc, service, before_ns } = self;
        let registered =
            poll_asked(ipc, |told| DaemonClock::read(told, *before_ns, clock.now_ns()))?;
        Some(registered.map_err(|error| ProvideError::refused(service.clone(), error)))
    }

    /// The connection.
    pub fn connection(&self) -> &C {
        &self.ipc
    }

    /// The same, for what a place does between two looks.
    pub fn connection_mut(&mut self) -> &mut C {
        &mut self.ipc
    }

    /// The connection, once the daemon has refused.
    pub fn into_connection(self) -> C {
        self.ipc
    }

    /// The connection, once the daemon has agreed.
    pub(super) fn into_link(self, clock: DaemonClock, stop_sign: &Arc<StopSign>) -> DaemonLink<C> {
        let Self { ipc, service, .. } = self;
        let stop_sign = Arc::clone(stop_sign);
        let session = Arc::new(DaemonSession { lifeline: ipc.lifeline(), stop_sign });
        DaemonLink {
            service: service.number,
            clock,
            cancellation: Cancellation::of_session(&session, None),
            session,
            answer_bytes_max: ipc.terms().request_bytes_max.saturating_sub(HEADS_BYTES_MAX),
            is_watching: false,
            ipc,
        }
    }
}

/// A connection by which a service is offered.
#[derive(Debug)]
pub(super) struct DaemonLink<C> {
    ipc: C,
    service: u16,
    clock: DaemonClock,
    /// The sign of the end, for handlers.
    session: Arc<DaemonSession>,
    /// Of the requests of this connection.
    cancellation: Cancellation,
    answer_bytes_max: usize,
    /// The daemon is asked which requests nobody waits for.
    is_watching: bool,
}

impl<C: DaemonConnection> DaemonLink<C> {
    pub(super) fn connection(&self) -> &C {
        &self.ipc
    }

    pub(super) fn connection_mut(&mut self) -> &mut C {
        &mut self.ipc
    }

    pub(super) fn session(&self) -> &Arc<DaemonSession> {
        &self.session
    }

    pub(super) fn terms(&self) -> ipc::Terms {
        self.ipc.terms()
    }

    /// Bytes of the longest answer.
    pub(super) fn answer_bytes_max(&self) -> usize {
        self.answer_bytes_max
    }

    /// Whether there is a call for counts, besides one for a request and one for requests that nobody waits for.
    pub(super) fn has_entry_for_counts(&self) -> bool {
        self.ipc.depth() > 2
    }

    /// Requests that this process can have at a time: one call is for those that nobody waits for any more, and one for
    /// counts of calls that went without the daemon.
    pub(super) fn room(&self) -> usize {
        self.ipc.depth().saturating_sub(2).max(1)
    }

    /// Asks the daemon to introduce clients over `channel`.
    pub(super) fn receive(&mut self, channel: BorrowedFd<'_>) -> Result<(), CallError> {
        self.ipc.send_descriptor(channel).map_err(CallError::not_sent)?;
        ask(&mut self.ipc, method::RECEIVE, &self.service.to_le_bytes())
    }

    /// The rank of this node, where the daemon introduces clients. `None`: it has not said.
    pub(super) fn poll_received(&mut self) -> Option<Option<u32>> {
        let received = poll_asked(&mut self.ipc, |told| told.first_chunk().copied())?;
        Some(received.ok().flatten().map(u32::from_le_bytes))
    }

    /// Asks for as many requests as may come at a time, and to be told of those that nobody waits for.
    pub(super) fn ask(&mut self, window: usize) -> Result<(), CallError> {
        let asked = self.ipc.in_flight();
        // Before the first request comes, which may be cancelled at once. Where there is one entry, it is for work.
        if self.is_watching && asked.max(window) < self.ipc.depth() {
            self.watch()?;
        }
        for _ in asked..window {
            self.answer(0, ASKS, &[])?;
        }
        self.ipc.flush();
        Ok(())
    }

    /// From the next [`ask`](Self::ask) on, the daemon is asked which requests nobody waits for.
    pub(super) fn begin_watching(&mut self) {
        self.is_watching = true;
    }

    pub(super) fn is_watching(&self) -> bool {
        self.is_watching
    }

    fn watch(&mut self) -> Result<(), CallError> {
        let (head, service) = (daemon_head(method::WATCH), self.service.to_le_bytes());
        self.submit(&[head.as_bytes(), &service], Asks::Watch)
    }

    /// Makes a call without a deadline.
    fn submit(&mut self, parts: &[&[u8]], asks: Asks) -> Result<(), CallError> {
        self.ipc.submit_endless(parts, asks).map_err(CallError::not_sent)
    }

    /// Reads what came.
    pub(super) fn read(&mut self, mut take: impl FnMut(Told<'_>)) -> Result<(), CallError> {
        let (mut failed, mut is_told) = (None, false);
        let Self { ipc, clock, cancellation, is_watching, .. } = self;
        ipc.poll_outcomes(|asks, outcome| match (asks, outcome) {
            (Asks::Work, Ok(message)) => match parse(message, *clock, cancellation) {
                Some((work, inbound)) => take(Told::Request { work, inbound, message }),
                None => failed = Some(CallError::Unanswered(Status::Internal)),
            },
            (Asks::Watch, Ok(works)) => {
                is_told = true;
                for work in works.as_chunks().0 {
                    take(Told::Cancelled(Work::Daemon(u64::from_le_bytes(*work))));
                }
            }
            (Asks::Sign, Ok(_)) => {}
            // What is told besides is not missed.
            (Asks::Sign, Err(error)) if !CallError::of(error, TO_DAEMON).is_daemon_gone() => {}
            (asks, Err(error)) => match (asks, CallError::of(error, TO_DAEMON)) {
                // A daemon of an earlier version, which never tells.
                (Asks::Watch, error) if error.status() == Status::Unimplemented => {
                    *is_watching = false;
                }
                (_, error) => failed = Some(error),
            },
        });
        if is_told {
            self.watch()?;
            self.ipc.flush();
        }
        failed.map_or(Ok(()), Err)
    }

    /// A request as the daemon gave it: its name, and what it is.
    pub(super) fn parse<'a>(&'a self, message: &'a [u8]) -> Option<(Work, Inbound<'a>)> {
        parse(message, self.clock, &self.cancellation)
    }

    /// Answers a request, with a body that fits, and asks for the next.
    pub(super) fn answer(
        &mut self,
        work: u64,
        verdict: Verdict,
        body: &[u8],
    ) -> Result<(), CallError> {
        let (call, head) = (daemon_head(method::SERVE), self.serve_head(work, verdict));
        self.submit(&[call.as_bytes(), head.as_bytes(), body], Asks::Work)
    }

    fn serve_head(&self, work: u64, verdict: Verdict) -> ServeHead {
        ServeHead {
            work: work.into(),
            service: self.service.into(),
            status: verdict.status.code(),
            origin: verdict.origin,
            reserved: [0; 4],
        }
    }

    /// What was submitted is on its way.
    pub(super) fn flush(&mut self) {
        self.ipc.flush();
    }

    /// Whether there is room for a call besides those for requests: entries of requests that are `unanswered` are for
    /// their answers.
    pub(super) fn has_room(&self, unanswered: usize) -> bool {
        self.ipc.free() > unanswered
    }

    /// Tells of calls that went without the daemon.
    pub(super) fn tell(&mut self, records: &[DirectRecord]) {
        if !records.is_empty() {
            let head = daemon_head(method::COUNTS);
            // It fails if the daemon is gone.
            let _ = self.submit(&[head.as_bytes(), records.as_bytes()], Asks::Sign);
            self.ipc.flush();
        }
    }

    /// Before a sleep; `false`: there is something to read.
    pub(super) fn arm(&mut self) -> bool {
        self.ipc.arm()
    }
}

impl DaemonLink<ipc::PipelinedClient<Asks>> {
    /// Answers a request, with a body that is put where the daemon reads it. `Ok(false)`: it was given up while it was filled.
    pub(super) fn answer_in_place(
        &mut self,
        work: u64,
        verdict: Verdict,
        len_bytes: usize,
        fill: impl FnOnce(&mut Filler<'_>),
    ) -> Result<bool, CallError> {
        let (call, head) = (daemon_head(method::SERVE), self.serve_head(work, verdict));
        let heads = [call.as_bytes(), head.as_bytes()];
        let message = Filled::behind(&heads, len_bytes, fill);
        let sent = self.ipc.submit_filled_within(&message, Duration::MAX, Asks::Work);
        match sent.map_err(|refused| refused.error) {
            Err(ipc::CallError::GivenUp) => Ok(false),
            sent => sent.map(|_| true).map_err(CallError::not_sent),
        }
    }

    /// Waits until the daemon has read the last answers: it reads nothing of a connection that has ended.
    pub(super) fn hand_over(&mut self) {
        let head = daemon_head(method::PING);
        let sent = self.ipc.submit_parts_within(&[head.as_bytes()], HAND_OVER_MAX, Asks::Sign);
        self.ipc.flush();
        // Where all entries are in use, there is no room to ask.
        let mut is_read = sent.is_err();
        while !is_read {
            self.ipc.poll_outcomes(|asks, _| is_read |= matches!(asks, Asks::Sign));
            if !is_read {
                self.ipc.rest();
            }
        }
    }

    /// After a look that found nothing.
    pub(super) fn rest(&mut self) {
        self.ipc.rest();
    }
}

impl AsFd for DaemonLink<ipc::PipelinedClient<Asks>> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ipc.as_fd()
    }
}

/// The header of a request to the daemon of this node.
fn daemon_head(of_method: u16) -> CallHead {
    call_head(To { method: of_method, ..TO_DAEMON }, Duration::MAX, 0, 0)
}

/// Asks the daemon for something.
fn ask(ipc: &mut impl DaemonConnection, of_method: u16, body: &[u8]) -> Result<(), CallError> {
    let head = daemon_head(of_method);
    let sent = ipc.submit_parts(&[head.as_bytes(), body], Asks::Sign);
    sent.map_err(CallError::not_sent)?;
    ipc.flush();
    Ok(())
}

/// What the daemon tells about the one thing that it was asked for; `None`: nothing so far.
fn poll_asked<T>(
    ipc: &mut impl DaemonConnection,
    read: impl Fn(&[u8]) -> T,
) -> Option<Result<T, CallError>> {
    let mut outcome = None;
    ipc.poll_outcomes(|_, told| {
        outcome = Some(told.map(&read).map_err(|failed| CallError::of(failed, TO_DAEMON)));
    });
    outcome
}

fn parse<'a>(
    bytes: &'a [u8],
    clock: DaemonClock,
    cancellation: &'a Cancellation,
) -> Option<(Work, Inbound<'a>)> {
    let (head, mut body) = WorkHead::read_from_prefix(bytes).ok()?;
    let mut context = None;
    if head.flags.get() & HAS_CONTEXT != 0 {
        let (told, rest) = ContextHead::read_from_prefix(body).ok()?;
        let caller = told.caller;
        let Known { uid, pid } = caller.known();
        context = Some(Context {
            deadline_ns: clock.here_ns(told.deadline_ns.get()),
            uid,
            pid,
            trace: caller.trace.get(),
        });
        body = rest;
    }
    let (rank, method) = (head.rank.get(), head.method.get());
    let inbound = Inbound { rank, method, body, context, cancellation: Some(cancellation) };
    Some((Work::Daemon(head.work.get()), inbound))
}
