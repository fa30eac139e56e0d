//! A process that answers calls which carry slices.

use std::{
    collections::{HashMap, VecDeque},
    path::Path,
    thread,
    time::Duration,
};

use os::clock;
use proto::{Status, bulk::SLICES_MAX};
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::{
    CallError, ClientConfig, Context, OfferedService, ProvideError, Retry,
    bulk::{
        BulkError, BulkRegion, Connection, Move, Registrar, daemon_head,
        message::{
            BODY_BYTES_MAX, BulkServeHead, BulkWorkExtra, BulkWorkHead, HAS_EXTRA, IS_LATE,
            IS_WRITABLE, MoveHead, RegionHead, SliceInfo, TransferHead, WANTS_EXTRA, WANTS_NO_CALL,
            entries, method,
        },
        word, word_or_zero,
    },
    message::Known,
    name::{NAME_BYTES_MAX, service_number},
    patience,
};

/// The shortest wait between two looks for a daemon that is gone.
const RECONNECT_WAIT_MIN: Duration = Duration::from_millis(1);

/// How long the daemon may take to read the last answer.
const HAND_OVER_MAX: Duration = Duration::from_secs(1);

/// A slice that a call carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceLen {
    /// Its length.
    pub len_bytes: u64,
    /// Whether the provider may push to it.
    pub is_writable: bool,
}

/// A call that is to be answered by [`BulkProvider::answer`].
#[derive(Debug)]
pub struct BulkRequest {
    id: u64,
    connection: Connection,
    /// Rank of the caller's node.
    pub rank: u32,
    /// Number of the method.
    pub method: u16,
    /// Lengths and rights of the slices that came with the call, in order.
    pub slices: Vec<SliceLen>,
    /// Its body.
    pub body: Vec<u8>,
    /// Deadline and caller; `None`: the daemon is of an earlier build, and tells neither.
    pub context: Option<Context>,
}

impl BulkRequest {
    /// Whether the deadline of the caller has passed. [`BulkProvider::is_cancelled`] knows more, and asks the daemon.
    #[must_use]
    pub fn is_late(&self) -> bool {
        self.context.is_some_and(|context| context.time_left().is_zero())
    }
}

/// A transfer that was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    work: u64,
    number: u64,
}

/// What a call to the daemon is about.
#[derive(Clone, Copy, Debug)]
enum Asked {
    /// The next call to answer.
    Next,
    /// Nothing, or the next call if the daemon is of an earlier build.
    Answered,
    /// The end of a transfer.
    Transfer(u64),
    /// Something that this process waits for.
    Word,
}

/// Offers one service of calls that carry slices. One thread has any number of calls and transfers under way.
///
/// The daemon notices when this process dies: its calls end with [`Status::Unavailable`], as soon as nothing
/// of theirs is under way.
///
/// With [`ClientConfig::retry`] a daemon that is gone is looked for by [`next`](Self::next), with the waits of that retry
/// and for as long as it is called, and the service is offered there again. Calls of the old daemon have ended: their
/// transfers fail, and their answers are dropped. Regions are to be [renewed](Self::renew).
#[derive(Debug)]
pub struct BulkProvider {
    ipc: ipc::PipelinedClient<Asked>,
    connection: Connection,
    retry: Retry,
    /// Looks for the daemon that is gone, and when the next one is.
    attempts: u32,
    attempt_at_ns: u64,
    service: OfferedService,
    timeout: Duration,
    arrived: VecDeque<Result<BulkRequest, CallError>>,
    ended: HashMap<u64, Result<u64, CallError>>,
    word: Option<Result<u64, CallError>>,
    tickets: u64,
    /// Places of the connection that wait for a call.
    polls: usize,
    /// An answer was sent, and nothing tells yet that the daemon has read it.
    has_unread_answer: bool,
}

impl BulkProvider {
    /// Offers `service` at the daemon whose socket is at `path`. Its number is one of services of calls that
    /// carry slices, which are counted apart from others.
    ///
    /// # Errors
    ///
    /// [`ProvideError`].
    pub fn offer(path: &Path, service: u16, config: ClientConfig) -> Result<Self, ProvideError> {
        Self::offer_as(path, OfferedService { number: service, name: String::new() }, config)
    }

    /// Offers the service of this name: its [number](service_number) is that of the name.
    ///
    /// # Errors
    ///
    /// [`ProvideError`].
    pub fn offer_named(
        path: &Path,
        name: &str,
        config: ClientConfig,
    ) -> Result<Self, ProvideError> {
        let service = OfferedService { number: service_number(name), name: name.to_owned() };
        Self::offer_as(path, service, config)
    }

    fn offer_as(
        path: &Path,
        service: OfferedService,
        config: ClientConfig,
    ) -> Result<Self, ProvideError> {
        if service.name.len() > NAME_BYTES_MAX {
            return Err(ProvideError::TooLong(service));
        }
        let ipc = ipc::PipelinedClient::connect(path, crate::ipc_config(config)?)?;
        let mut provider = Self {
            ipc,
            connection: Connection::first(),
            retry: config.retry,
            attempts: 0,
            attempt_at_ns: 0,
            service,
            timeout: config.timeout,
            arrived: VecDeque::new(),
            ended: HashMap::new(),
            word: None,
            tickets: 0,
            polls: 0,
            has_unread_answer: false,
        };
        provider.offer_service()?;
        Ok(provider)
    }

    /// The deadline of what names none.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Makes memory for transfers, as [`Client::bulk`](crate::Client::bulk) does.
    ///
    /// # Errors
    ///
    /// [`BulkError`].
    pub fn bulk(&mut self, len_bytes: u64) -> Result<BulkRegion, BulkError> {
        self.make_region(len_bytes)
    }

    /// Makes a region of this provider anew if it has connected again since, as
    /// [`Client::renew`](crate::Client::renew) does.
    ///
    /// # Errors
    ///
    /// [`BulkError`]; the region stays as it was.
    pub fn renew(&mut self, region: &mut BulkRegion) -> Result<bool, BulkError> {
        self.renew_region(region)
    }

    /// The next call; `None`: there was none for `timeout`.
    ///
    /// # Errors
    ///
    /// [`CallError`]: the daemon is gone, and not looked for, or its successor does not let this process offer the
    /// service.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<BulkRequest>, CallError> {
        let deadline_ns = clock::deadline_ns(timeout);
        loop {
            match self.next_until(deadline_ns) {
                Err(error) if self.is_to_look(&error) => {
                    if !self.recover(deadline_ns)? {
                        return Ok(None);
                    }
                }
                ended => return ended,
            }
        }
    }

    /// Whether the daemon is gone, and is looked for.
    fn is_to_look(&self, error: &CallError) -> bool {
        error.is_daemon_gone() && self.retry.retries_max > 0
    }

    /// Looks for the daemon's successor; `false`: there was none before `deadline_ns`.
    #[cold]
    fn recover(&mut self, deadline_ns: u64) -> Result<bool, CallError> {
        loop {
            let until_ns = self.attempt_at_ns.min(deadline_ns);
            thread::sleep(Duration::from_nanos(until_ns.saturating_sub(clock::now_ns())));
            if self.attempt_at_ns > deadline_ns {
                return Ok(false);
            }
            match self.offer_again() {
                Ok(()) => {
                    (self.attempts, self.attempt_at_ns) = (0, 0);
                    return Ok(true);
                }
                Err(ProvideError::Call(error)) if error.is_handle_over() => return Err(error),
                Err(ProvideError::Mismatch(_)) => {
                    return Err(CallError::Unanswered(Status::FailedPrecondition));
                }
                Err(ProvideError::Denied(_)) => {
                    return Err(CallError::Unanswered(Status::PermissionDenied));
                }
                Err(error) if error.is_of_another_version() => {
                    return Err(CallError::Unanswered(Status::FailedPrecondition));
                }
                // There is no daemon yet, or another process has the service.
                Err(_) => {}
            }
            let wait = self.retry.wait(self.attempts, self.attempts.into());
            self.attempt_at_ns = clock::deadline_ns(wait.max(RECONNECT_WAIT_MIN));
            self.attempts = self.attempts.saturating_add(1);
        }
    }

    /// Connects to the daemon's successor, and offers the service there. What was under way has ended.
    fn offer_again(&mut self) -> Result<(), ProvideError> {
        let ended = &mut self.ended;
        self.ipc.reconnect(|asked, answer| {
            if let (Asked::Transfer(ticket), Err(failed)) = (asked, answer) {
                ended.insert(ticket, Err(failed.error.into()));
            }
        })?;
        self.connection.replace();
        self.arrived.clear();
        self.word = None;
        self.polls = 0;
        self.has_unread_answer = false;
        self.offer_service()
    }

    fn offer_service(&mut self) -> Result<(), ProvideError> {
        let OfferedService { number, name } = &self.service;
        let offered = [&number.to_le_bytes()[..], name.as_bytes()].concat();
        match self.ask(method::OFFER, &offered) {
            Ok(_) => Ok(()),
            Err(error) => Err(ProvideError::refused(self.service.clone(), error)),
        }
    }

    fn next_until(&mut self, deadline_ns: u64) -> Result<Option<BulkRequest>, CallError> {
        if self.polls == 0 && self.arrived.is_empty() {
            self.serve(0, Status::Ok, b"", 0)?;
        }
        loop {
            if let Some(work) = self.arrived.pop_front() {
                match work {
                    // It came while another call was answered: nothing is executed.
                    Ok(late) if late.is_late() => {
                        self.serve(late.id, Status::DeadlineExceeded, b"", IS_LATE)?;
                        continue;
                    }
                    work => return work.map(Some),
                }
            }
            if clock::now_ns() >= deadline_ns {
                return Ok(None);
            }
            self.poll_until(deadline_ns);
        }
    }

    /// Answers a call. Transfers for it that are under way come to an end first, and begin no more. An answer of more than
    /// 2048 bytes becomes [`Status::OutOfRange`], with words about that.
    ///
    /// # Errors
    ///
    /// [`CallError`]: the daemon is gone, and not looked for.
    pub fn answer(
        &mut self,
        work: BulkRequest,
        status: Status,
        body: &[u8],
    ) -> Result<(), CallError> {
        if work.connection != self.connection {
            return Ok(());
        }
        let words;
        let (status, body) = if body.len() > BODY_BYTES_MAX {
            words = too_long(body.len());
            (Status::OutOfRange, words.as_bytes())
        } else {
            (status, body)
        };
        self.has_unread_answer = true;
        let late = if status != Status::Ok && work.is_late() { IS_LATE } else { 0 };
        match self.serve(work.id, status, body, late) {
            Err(error) if self.is_to_look(&error) => {
                self.has_unread_answer = false;
                Ok(())
            }
            served => served,
        }
    }

    /// Whether nobody waits for the answer any more: the deadline has passed, the caller gave up or is gone, or the daemon
    /// that had the call is. Asks the daemon each time.
    pub fn is_cancelled(&mut self, work: &BulkRequest) -> bool {
        if work.is_late() || work.connection != self.connection {
            return true;
        }
        match self.ask(method::WORK, &work.id.to_le_bytes()) {
            Ok(_) => false,
            // A daemon of an earlier build does not know the question.
            Err(error) => error.status() != Status::Unimplemented,
        }
    }

    /// Begins to move ranges between slices of a call and own memory, all with one end. If one of them may
    /// not be moved, none is.
    ///
    /// # Errors
    ///
    /// [`CallError`]: nothing has begun. [`Status::Cancelled`]: the call ended with its daemon, or at its deadline. [`CallError::NotHeld`]: the
    /// region is to be [renewed](Self::renew). What the daemon refuses is told by [`wait`](Self::wait).
    pub fn begin(
        &mut self,
        work: &BulkRequest,
        region: &BulkRegion,
        moves: &[Move],
        timeout: Duration,
    ) -> Result<Ticket, CallError> {
        if moves.len() > SLICES_MAX {
            return Err(CallError::Unanswered(Status::OutOfRange));
        }
        if work.connection != self.connection || work.is_late() {
            return Err(CallError::Unanswered(Status::Cancelled));
        }
        if region.connection.is_before(self.connection) {
            return Err(CallError::NotHeld);
        }
        self.tickets += 1;
        let head = TransferHead {
            work: work.id.into(),
            ticket: self.tickets.into(),
            region: region.id.into(),
            timeout_us: u32::try_from(timeout.as_micros()).unwrap_or(u32::MAX).max(1).into(),
            moves: u16::try_from(moves.len()).unwrap_or(u16::MAX).into(),
            reserved: 0.into(),
        };
        let moves: Vec<MoveHead> = moves.iter().map(MoveHead::new).collect();
        let parts = [head.as_bytes(), moves.as_bytes()];
        self.submit(method::TRANSFER, &parts, timeout, Asked::Transfer(self.tickets))?;
        Ok(Ticket { work: work.id, number: self.tickets })
    }

    /// Looks whether a transfer has ended, and with how many bytes; `None`: it has not.
    pub fn look(&mut self, ticket: Ticket) -> Option<Result<u64, CallError>> {
        self.poll();
        self.ended.remove(&ticket.number)
    }

    /// Waits for the end of a transfer; returns how many bytes it moved.
    ///
    /// # Errors
    ///
    /// [`CallError`]: [`Status::OutOfRange`] if a range lies outside, [`Status::PermissionDenied`] for a
    /// slice that may only be read, [`Status::Cancelled`] if the call has ended,
    /// [`Status::DeadlineExceeded`], [`Status::Unavailable`] if the caller's node is gone.
    pub fn wait(&mut self, ticket: Ticket) -> Result<u64, CallError> {
        loop {
            if let Some(ended) = self.look(ticket) {
                return ended;
            }
        }
    }

    /// Bytes that a transfer has moved so far.
    ///
    /// # Errors
    ///
    /// [`CallError`]; [`Status::NotFound`]: it has ended.
    pub fn progress(&mut self, ticket: Ticket) -> Result<u64, CallError> {
        let words = [ticket.work.to_le_bytes(), ticket.number.to_le_bytes()];
        self.ask(method::PROGRESS, words.as_flattened())
    }

    /// Moves ranges, and waits for the end: [`begin`](Self::begin) and [`wait`](Self::wait).
    ///
    /// # Errors
    ///
    /// [`CallError`].
    pub fn transfer(
        &mut self,
        work: &BulkRequest,
        region: &BulkRegion,
        moves: &[Move],
        timeout: Duration,
    ) -> Result<u64, CallError> {
        let ticket = self.begin(work, region, moves, timeout)?;
        self.wait(ticket)
    }

    /// Answers a call, if there is one, and asks for the next.
    fn serve(&mut self, work: u64, status: Status, body: &[u8], late: u8) -> Result<(), CallError> {
        // The other half is for questions and answers.
        let is_enough = self.polls >= (self.ipc.depth() / 2).max(1);
        let (asked, no_call) =
            if is_enough { (Asked::Answered, WANTS_NO_CALL) } else { (Asked::Next, 0) };
        let head = BulkServeHead {
            work: work.into(),
            service: self.service.number.into(),
            status: status.code(),
            flags: WANTS_EXTRA | late | no_call,
            reserved: [0; 4],
        };
        self.submit(method::SERVE, &[head.as_bytes(), body], Duration::MAX, asked)?;
        self.polls += usize::from(!is_enough);
        Ok(())
    }

    /// Sends a request once there is a place for it.
    fn submit(
        &mut self,
        method: u16,
        body: &[&[u8]],
        timeout: Duration,
        asked: Asked,
    ) -> Result<(), CallError> {
        let head = daemon_head(method, timeout);
        let mut parts = vec![head.as_bytes()];
        parts.extend_from_slice(body);
        if self.ipc.free() == 0 {
            self.wait_for_place(timeout.min(self.timeout));
        }
        let submitted = self.ipc.submit_parts_within(&parts, patience(timeout), asked);
        submitted.map_err(|refused| refused.error)?;
        self.ipc.flush();
        Ok(())
    }

    /// Waits until the daemon has answered something, or is gone, or for `timeout`.
    #[cold]
    fn wait_for_place(&mut self, timeout: Duration) {
        let deadline_ns = clock::deadline_ns(timeout);
        while self.ipc.free() == 0 && self.ipc.gone().is_none() && clock::now_ns() < deadline_ns {
            self.poll_until(deadline_ns);
        }
    }

    /// Asks the daemon for a word, and waits for it.
    fn ask(&mut self, method: u16, body: &[u8]) -> Result<u64, CallError> {
        self.word = None;
        self.submit(method, &[body], self.timeout, Asked::Word)?;
        loop {
            self.poll();
            if let Some(word) = self.word.take() {
                return word;
            }
        }
    }

    /// Takes what the daemon has answered; rests if that is nothing.
    fn poll(&mut self) {
        self.poll_until(u64::MAX);
    }

    /// Like [`poll`](Self::poll), and rests at most until `deadline_ns`.
    fn poll_until(&mut self, deadline_ns: u64) {
        let connection = self.connection;
        let Self { ipc, arrived, ended, word: waited, polls, has_unread_answer, .. } = self;
        let taken = ipc.poll(|asked, answer| {
            let answer = answer.map_err(CallError::from);
            match asked {
                Asked::Answered if answer.as_ref().is_ok_and(|bytes| bytes.is_empty()) => {}
                Asked::Next | Asked::Answered => {
                    *polls -= usize::from(matches!(asked, Asked::Next));
                    arrived
                        .push_back(answer.and_then(|bytes| BulkRequest::parse(bytes, connection)));
                }
                Asked::Transfer(ticket) => {
                    ended.insert(ticket, answer.and_then(word));
                }
                Asked::Word => {
                    *waited = Some(answer.and_then(word_or_zero));
                    *has_unread_answer = false;
                }
            }
        });
        if taken == 0 {
            ipc.rest_until(deadline_ns);
        }
    }
}

impl Registrar for BulkProvider {
    fn connection(&self) -> Connection {
        self.connection
    }

    fn ask_region(&mut self, method: u16, len_bytes: u64) -> Result<u64, CallError> {
        self.ask(method, RegionHead { len_bytes: len_bytes.into() }.as_bytes())
    }

    fn send(&mut self, region: &BulkRegion) -> Result<(), CallError> {
        Ok(self.ipc.send_descriptor(region.fd()?)?)
    }
}

impl Drop for BulkProvider {
    /// Waits until the daemon has read the last answer: it reads nothing of a connection that has ended.
    fn drop(&mut self) {
        if !self.has_unread_answer {
            return;
        }
        self.word = None;
        // Of no transfer: whatever the daemon answers, it has read what was sent before.
        let none = [0; 16];
        let asked = self.submit(method::PROGRESS, &[&none], HAND_OVER_MAX, Asked::Word);
        while asked.is_ok() && self.word.is_none() {
            self.poll();
        }
    }
}

/// The words for a caller whose answer is longer than such a call carries.
fn too_long(len_bytes: usize) -> String {
    format!(
        "its answer of {len_bytes} B is longer than the {BODY_BYTES_MAX} B that a call which lends memory carries: push \
         it to a slice"
    )
}

impl BulkRequest {
    fn parse(bytes: &[u8], connection: Connection) -> Result<Self, CallError> {
        let broken = || CallError::Unanswered(Status::Internal);
        let (head, rest) = BulkWorkHead::read_from_prefix(bytes).map_err(|_| broken())?;
        let (slices, context, rest) = match head.slices.get() {
            slices if slices & HAS_EXTRA != 0 => {
                let (extra, rest) = BulkWorkExtra::read_from_prefix(rest).map_err(|_| broken())?;
                (slices & !HAS_EXTRA, Some(context(&extra)), rest)
            }
            slices => (slices, None, rest),
        };
        let (slices, body) = entries::<SliceInfo>(rest, slices).ok_or_else(broken)?;
        let slice = |info: &SliceInfo| SliceLen {
            len_bytes: info.len_bytes.get(),
            is_writable: info.flags.get() & IS_WRITABLE != 0,
        };
        Ok(Self {
            id: head.work.get(),
            connection,
            rank: head.rank.get(),
            method: head.method.get(),
            slices: slices.iter().map(slice).collect(),
            body: body.to_vec(),
            context,
        })
    }
}

/// What is told of the deadline and the caller.
fn context(extra: &BulkWorkExtra) -> Context {
    let Known { uid, pid } = Known::of(extra.uid, extra.pid);
    let left = Duration::from_micros(extra.left_us.get());
    Context { deadline_ns: clock::deadline_ns(left), uid, pid, trace: extra.trace.get() }
}
