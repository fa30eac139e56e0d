//! A provider's connection to its daemon: requests that were asked for, and their answers.

use std::{
    collections::VecDeque,
    mem,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use ipc::{Filled, Filler};
use os::{clock, idle::Idle};
use proto::Status;
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::{
    CallError, ClientConfig, To,
    message::{
        CALL_HEAD_BYTES, ContextHead, DAEMON, DETAIL_BYTES_MAX, HAS_CONTEXT, HERE, Known,
        SERVE_HEAD_BYTES, ServeHead, WORK_HEAD_BYTES, WorkHead, method,
    },
    provider::{
        asks::{Asks, daemon_head},
        cancellation::{Cancellation, DaemonSession},
        clock::DaemonClock,
        given::Given,
        in_place::InPlace,
        inbound::{Context, Inbound},
        offer::{Offer, ProvideError, WINDOW},
        outbox::{Answered, Outbox, Work},
        reception::Reception,
        request::ProviderStop,
        verdict::{TOO_LONG, Verdict, too_long},
    },
};

/// What a body shares a message with, at most: so the longest answer is as long as the longest request.
const HEADS_BYTES_MAX: usize = WORK_HEAD_BYTES + size_of::<ContextHead>();
const _: () = assert!(HEADS_BYTES_MAX >= CALL_HEAD_BYTES + SERVE_HEAD_BYTES);

/// An answer to no request: the provider asks for one.
const ASKS: Verdict = Verdict { status: Status::Ok, origin: 0 };

/// How long the daemon may take to read the last answers.
const HAND_OVER_MAX: Duration = Duration::from_secs(1);

/// Answers to requests of the daemon that were made while these were read.
#[derive(Debug, Default)]
struct Made {
    /// Which request, how it went, and where its answer ends in `bytes`.
    ends: Vec<(Work, Verdict, usize)>,
    bytes: Vec<u8>,
}

/// Is given a request by its number; says how it is told that nobody waits for it, if it can be.
pub(super) type Take<'a> = dyn FnMut(Work, &Inbound<'_>) -> Option<Arc<Cancellation>> + 'a;

#[derive(Debug)]
pub(super) struct Session {
    pub(super) path: PathBuf,
    pub(super) offer: Offer,
    pub(super) config: ClientConfig,
    pub(super) ipc: ipc::PipelinedClient<Asks>,
    /// `None`: the daemon introduces no clients.
    pub(super) reception: Option<Reception>,
    pub(super) outbox: Arc<Outbox>,
    /// Of the daemon of this connection.
    pub(super) clock: DaemonClock,
    /// Of the requests of this connection.
    pub(super) cancellation: Cancellation,
    /// Number of this connection.
    pub(super) epoch: u64,
    /// Requests that were given and not answered, if handlers of other threads or tasks have them.
    pub(super) given: Given,
    /// Requests that the daemon gave while there were as many as there may be.
    pub(super) backlog: VecDeque<Vec<u8>>,
    /// The daemon is asked which of them nobody waits for.
    pub(super) is_watching: bool,
    pub(super) window: usize,
    /// Requests of clients that this process has at a time: more than those of the daemon while it answers them where it
    /// reads them.
    pub(super) clients_window: usize,
    answer_bytes_max: usize,
    /// Turns of this thread.
    pub(super) looks: u32,
    made: Made,
    pub(super) idle: Idle,
    pub(super) attempts: u32,
}

/// The daemon does not want the service, or is gone.
pub(super) fn register(
    path: &Path,
    offer: &Offer,
    config: ClientConfig,
) -> Result<Connected, ProvideError> {
    if !offer.description.fits() {
        return Err(ProvideError::TooLong(offer.named_service()));
    }
    let mut ipc = ipc::PipelinedClient::connect(path, crate::ipc_config(config)?)?;
    let head = daemon_head(method::REGISTER);
    let message = offer.message();
    let before_ns = clock::now_ns();
    let sent = ipc.submit_parts(&[head.as_bytes(), &message], Asks::Work);
    sent.map_err(|refused| CallError::not_sent(refused.error))?;
    let mut outcome = None;
    while outcome.is_none() {
        ipc.poll_outcomes(|_, told| {
            let told = told.map(|body| DaemonClock::read(body, before_ns, clock::now_ns()));
            outcome = Some(told.map_err(|failed| CallError::of(failed, TO_DAEMON)));
        });
        if outcome.is_none() {
            ipc.rest();
        }
    }
    match outcome {
        Some(Err(error)) => Err(ProvideError::refused(offer.named_service(), error)),
        Some(Ok(clock)) => Ok(Connected { ipc, clock }),
        None => Ok(Connected { ipc, clock: DaemonClock::default() }),
    }
}

/// A connection whose service is offered.
pub(super) struct Connected {
    pub(super) ipc: ipc::PipelinedClient<Asks>,
    pub(super) clock: DaemonClock,
}

impl Session {
    pub(super) fn open(
        path: &Path,
        offer: &Offer,
        config: ClientConfig,
    ) -> Result<Self, ProvideError> {
        let Connected { ipc, clock } = register(path, offer, config)?;
        let outbox =
            Outbox::new().map_err(|error| ProvideError::Os(std::io::Error::other(error)))?;
        let mut session = Self {
            path: path.to_owned(),
            offer: offer.clone(),
            config,
            clock,
            cancellation: Cancellation::default(),
            epoch: outbox.epoch(),
            outbox: Arc::new(outbox),
            given: Given::default(),
            backlog: VecDeque::new(),
            reception: None,
            is_watching: false,
            window: offer.window.unwrap_or(WINDOW),
            clients_window: 0,
            answer_bytes_max: 0,
            looks: 0,
            made: Made::default(),
            idle: Idle::default(),
            attempts: 0,
            ipc,
        };
        session.begin();
        Ok(session)
    }

    /// There is a connection, by which the service is offered.
    pub(super) fn begin(&mut self) {
        self.measure();
        let (lifeline, stop_sign) = (self.ipc.lifeline(), Arc::clone(self.outbox.stop_sign()));
        let daemon = Arc::new(DaemonSession { lifeline, stop_sign });
        self.cancellation = Cancellation::of_session(&daemon, None);
        let service = self.offer.service;
        self.reception = Reception::open(&mut self.ipc, service, self.answer_bytes_max, daemon);
        self.clients_window = self.clients_window.max(self.window);
        if let Some(reception) = &mut self.reception {
            reception.set_window(self.clients_window);
        }
    }

    /// Learns what the connection allows.
    fn measure(&mut self) {
        let request_bytes_max = self.ipc.terms().request_bytes_max;
        self.answer_bytes_max = request_bytes_max.saturating_sub(HEADS_BYTES_MAX);
        self.window = self.window.min(self.room());
    }

    /// Requests that this process can have at a time: one call is for those that nobody waits for any more.
    fn room(&self) -> usize {
        (self.ipc.depth() - 1).max(1)
    }

    pub(super) fn outbox(&self) -> Arc<Outbox> {
        Arc::clone(&self.outbox)
    }

    pub(super) fn stop_handle(&self) -> ProviderStop {
        ProviderStop(self.outbox())
    }

    /// For so many threads, unless the offer says how many requests there may be.
    pub(super) fn window_at_least(&mut self, threads: usize) {
        self.window = self.offer.window.unwrap_or(threads.max(1)).min(self.room());
        self.take_clients(false);
    }

    /// From now on, the thread that reads requests of clients answers them, or leaves that to others. A look of the
    /// former finds more, unless the offer says how many requests there may be: each look costs both sides.
    pub(super) fn take_clients(&mut self, answers: bool) {
        let most = if answers && self.offer.window.is_none() { WINDOW } else { 0 };
        self.clients_window = self.window.max(most);
        if let Some(reception) = &mut self.reception {
            reception.set_window(self.clients_window);
        }
    }

    /// See [`Provider::serve`](crate::Provider::serve).
    pub(super) fn serve(
        &mut self,
        mut serve: impl FnMut(&Inbound<'_>, &mut Vec<u8>) -> Option<Status>,
    ) -> Result<(), ProvideError> {
        self.ask()?;
        while !self.outbox.is_stopped() {
            let mut is_over = false;
            let mut made = std::mem::take(&mut self.made);
            let read = self.read(&mut |work, inbound| {
                if is_over {
                    return None;
                }
                let start = made.bytes.len();
                let verdict = if is_late(inbound) {
                    Some(Verdict::TOO_LATE)
                } else {
                    let status = serve(inbound, &mut made.bytes);
                    status.map(|status| Verdict::of_service(status, inbound.context))
                };
                match verdict {
                    Some(verdict) => made.ends.push((work, verdict, made.bytes.len())),
                    None => {
                        made.bytes.truncate(start);
                        is_over = true;
                    }
                }
                None
            });
            let mut count = made.ends.len();
            let sent = read.and_then(|()| self.send_made(&mut made));
            if let Some(reception) = self.reception.as_mut().filter(|_| !is_over) {
                count += reception.serve(&mut made.bytes, &mut is_over, &mut serve);
            }
            self.made = made;
            match sent {
                Err(error) => self.recover(error, &mut || 0)?,
                Ok(()) if is_over => break,
                Ok(()) => {}
            }
            self.rest(count > 0);
        }
        self.hand_over();
        Ok(())
    }

    /// See [`Provider::serve_in_place`](crate::Provider::serve_in_place).
    pub(super) fn serve_in_place<F: FnOnce(&mut Filler<'_>)>(
        &mut self,
        mut serve: impl FnMut(&Inbound<'_>) -> Option<InPlace<F>>,
    ) -> Result<(), ProvideError> {
        self.ask()?;
        // As many as a poll finds, at most.
        let mut made = Vec::with_capacity(self.window);
        while !self.outbox.is_stopped() {
            let mut is_over = false;
            let read = self.read(&mut |work, inbound| {
                match () {
                    () if is_over => {}
                    () if is_late(inbound) => made.push((work, Verdict::TOO_LATE, None)),
                    () => match serve(inbound) {
                        Some(answer) => {
                            let verdict = Verdict::of_service(answer.status, inbound.context);
                            made.push((work, verdict, Some(answer)));
                        }
                        None => is_over = true,
                    },
                }
                None
            });
            let window = self.window;
            if let Some(reception) = self.reception.as_mut().filter(|_| !is_over) {
                reception.look(window, |id, inbound| {
                    let Some(answer) = serve(inbound) else {
                        is_over = true;
                        return false;
                    };
                    let verdict = Verdict::of_service(answer.status, inbound.context);
                    made.push((Work::Client(id), verdict, Some(answer)));
                    true
                });
            }
            let count = made.len();
            let sent = read.and_then(|()| {
                made.drain(..).try_for_each(|(work, verdict, answer)| match answer {
                    Some(answer) => self.end_in_place(work, verdict, answer),
                    None => self.answer(work, verdict, &[]),
                })
            });
            made.clear();
            self.ipc.flush();
            match sent {
                Err(error) => self.recover(error, &mut || 0)?,
                Ok(()) if is_over => break,
                Ok(()) => {}
            }
            self.rest(count > 0);
        }
        self.hand_over();
        Ok(())
    }

    /// Answers a request in place, and asks for the next.
    fn end_in_place<F: FnOnce(&mut Filler<'_>)>(
        &mut self,
        work: Work,
        verdict: Verdict,
        answer: InPlace<F>,
    ) -> Result<(), CallError> {
        let InPlace { len_bytes, fill, detail, .. } = answer;
        let Some(fill) = fill else {
            return self.end_request(work, verdict, &detail);
        };
        if len_bytes > self.answer_bytes_max {
            return self.refuse_long(work, len_bytes);
        }
        let is_given_up = match work {
            Work::Daemon(number) => {
                let (call, head) = (daemon_head(method::SERVE), self.serve_head(number, verdict));
                let head = [call.as_bytes(), head.as_bytes()];
                let message = Filled::behind(&head, len_bytes, fill);
                let sent = self.ipc.submit_filled_within(&message, Duration::MAX, Asks::Work);
                match sent.map_err(|refused| refused.error) {
                    Err(ipc::CallError::GivenUp) => true,
                    sent => return sent.map(drop).map_err(CallError::not_sent),
                }
            }
            Work::Client(id) => self
                .reception
                .as_mut()
                .is_some_and(|reception| reception.answer_in_place(id, len_bytes, fill)),
        };
        if !is_given_up {
            return Ok(());
        }
        let verdict = Verdict::of_service(Status::Internal, None);
        self.answer(work, verdict, b"the answer was given up while it was filled")
    }

    fn serve_head(&self, work: u64, verdict: Verdict) -> ServeHead {
        ServeHead {
            work: work.into(),
            service: self.offer.service.into(),
            status: verdict.status.code(),
            origin: verdict.origin,
            reserved: [0; 4],
        }
    }

    /// Reads requests that came, and which of them nobody waits for.
    pub(super) fn read(&mut self, take: &mut Take<'_>) -> Result<(), CallError> {
        let (mut failed, mut is_told) = (None, false);
        let Self { ipc, given, backlog, window, is_watching, clock, cancellation, .. } = self;
        ipc.poll_outcomes(|asks, outcome| match (asks, outcome) {
            (Asks::Work, Ok(bytes)) => match parse(bytes, *clock, cancellation) {
                // Without cancellation requests are answered before others are read.
                Some(_) if given.len() >= *window => backlog.push_back(bytes.to_vec()),
                Some((work, inbound)) => {
                    if let Some(cancellation) = take(work, &inbound) {
                        given.insert(work, cancellation);
                    }
                }
                None => failed = Some(CallError::Unanswered(Status::Internal)),
            },
            (Asks::Watch, Ok(works)) => {
                is_told = true;
                for work in works.as_chunks().0 {
                    if let Some(cancellation) = given.get(&Work::Daemon(u64::from_le_bytes(*work)))
                    {
                        cancellation.cancel();
                    }
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

    /// Asks for as many requests as may come.
    pub(super) fn ask(&mut self) -> Result<(), ProvideError> {
        for _ in self.ipc.in_flight()..self.window {
            self.answer_daemon(0, ASKS, &[])?;
        }
        // Where there is one entry, it is for work.
        if self.is_watching && self.ipc.in_flight() < self.ipc.depth() {
            self.watch()?;
        }
        self.ipc.flush();
        Ok(())
    }

    /// Asks to be told of requests that nobody waits for any more.
    fn watch(&mut self) -> Result<(), CallError> {
        let (call, service) = (daemon_head(method::WATCH), self.offer.service.to_le_bytes());
        let sent =
            self.ipc.submit_parts_within(&[call.as_bytes(), &service], Duration::MAX, Asks::Watch);
        sent.map(drop).map_err(|refused| CallError::not_sent(refused.error))
    }

    /// Waits until the daemon has read the last answers: it reads nothing of a connection that has ended.
    pub(super) fn hand_over(&mut self) {
        self.tell_counts(true);
        self.reception = None;
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

    fn send_made(&mut self, made: &mut Made) -> Result<(), CallError> {
        let mut start = 0;
        let mut sent = Ok(());
        for (work, verdict, end) in made.ends.drain(..) {
            if sent.is_ok() {
                sent = self.end_request(work, verdict, &made.bytes[start..end]);
            }
            start = end;
        }
        made.bytes.clear();
        self.ipc.flush();
        sent
    }

    /// Sends answers of other threads; returns how many.
    pub(super) fn send_answers(&mut self) -> Result<usize, CallError> {
        let mut count = 0;
        while count < self.window.max(1)
            && let Some(Answered { work, epoch, verdict, body }) = self.outbox.take_answer()
        {
            count += 1;
            // The daemon that gave the request is gone, and this one has others of the same names.
            if epoch == self.epoch {
                self.end_request(work, verdict, &body)?;
            }
        }
        self.ipc.flush();
        Ok(count)
    }

    pub(super) fn end_request(
        &mut self,
        work: Work,
        verdict: Verdict,
        body: &[u8],
    ) -> Result<(), CallError> {
        self.given.remove(&work);
        match verdict.status {
            Status::Ok if body.len() > self.answer_bytes_max => self.refuse_long(work, body.len()),
            Status::Ok => self.answer(work, verdict, body),
            _ if !verdict.is_of_service() => self.answer(work, verdict, &[]),
            _ => self.answer(work, verdict, &body[..body.len().min(DETAIL_BYTES_MAX)]),
        }
    }

    /// Answers a request whose answer is longer than a call carries.
    fn refuse_long(&mut self, work: Work, len_bytes: usize) -> Result<(), CallError> {
        let words = too_long(len_bytes, self.answer_bytes_max);
        self.answer(work, TOO_LONG, words.as_bytes())
    }

    /// Answers a request, with a body that fits.
    fn answer(&mut self, work: Work, verdict: Verdict, body: &[u8]) -> Result<(), CallError> {
        match work {
            Work::Daemon(work) => self.answer_daemon(work, verdict, body),
            Work::Client(id) => {
                if let Some(reception) = &mut self.reception {
                    reception.answer(id, verdict, body);
                }
                Ok(())
            }
        }
    }

    /// Answers a request of the daemon, or none, and asks for the next.
    fn answer_daemon(&mut self, work: u64, verdict: Verdict, body: &[u8]) -> Result<(), CallError> {
        let call = daemon_head(method::SERVE);
        let head = self.serve_head(work, verdict);
        // Without a deadline: work may be long in coming, and the kernel tells of the daemon's end.
        let parts = [call.as_bytes(), head.as_bytes(), body];
        let sent = self.ipc.submit_parts_within(&parts, Duration::MAX, Asks::Work);
        sent.map(drop).map_err(|refused| CallError::not_sent(refused.error))
    }

    /// Nobody waits for what this connection brought any more.
    pub(super) fn cancel_given(&mut self) {
        for cancellation in mem::take(&mut self.given).into_values() {
            cancellation.cancel();
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Before the daemon learns of the end: clients are told what was not taken.
        self.reception = None;
        self.cancel_given();
    }
}

const TO_DAEMON: To = To { rank: HERE, service: DAEMON, method: method::SERVE };

/// Whether nobody waits for the answer any more when the request is to be handed to the service.
fn is_late(inbound: &Inbound<'_>) -> bool {
    inbound.context.is_some_and(|context| context.time_left().is_zero())
}

/// A request as the daemon gives it: its name, and what it is.
pub(super) fn parse<'a>(
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
