//! The client without an operating system: calls, announcements and deadlines. Memory and time are
//! given to it.

use memory::sync::{AtomicU32, AtomicU64};

use crate::{
    endpoint::{
        client::calls::{Broken, CallId, ClientCalls},
        half::Half,
        handshake::Welcome,
        memory::{ClientMemory, ServerMemory},
        status::{CallError, CallOutcome, EvictReason, LentOutcome, lend},
    },
    ring::MessageBytes,
    wakeup::{self, SleepFlag, WakeupBits},
};

/// Empty polls between two looks at the clock.
const CLOCK_POLLS: u32 = 64;

/// Polls after which requests are announced with a barrier: longer than a server that polls takes.
const FLUSH_POLLS: u32 = 8;

/// The result of a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Polled {
    /// Calls that ended.
    pub ended: usize,
    /// The client is to [`tick`](ClientCore::tick).
    pub is_clock_due: bool,
}

/// Makes calls of one client, over any memory and in any time.
///
/// The driver calls [`announce`](Self::announce) and then [`poll`](Self::poll), and
/// [`tick`](Self::tick) when that says so.
#[derive(Debug)]
pub struct ClientCore<C> {
    calls: ClientCalls<C>,
    memory: ServerMemory,
    slot: u16,
    /// Requests were published that the server was not told of.
    is_unannounced: bool,
    /// Polls since then.
    unannounced_polls: u32,
    empty_polls: u32,
    /// The server was told that this client sleeps.
    is_armed: bool,
    epoch: u32,
    /// Why no call will ever be answered again.
    gone: Option<CallError>,
    /// Position of the first request that the server did not take and never will, if that is known.
    taken: Option<u64>,
    /// It is known whether the server, which is gone, takes what it has not taken.
    is_judged: bool,
}

impl<C> ClientCore<C> {
    /// A client that was admitted with this welcome. Calls count from `first_generation`.
    ///
    /// # Panics
    ///
    /// If a part of the memory is shorter than the welcome says.
    #[must_use]
    pub fn new(welcome: &Welcome, memory: ClientMemory, first_generation: u64) -> Self {
        let ClientMemory { up, down, server } = memory;
        server.check(welcome.slot + 1);
        let (up, down) = (Half::new(up, welcome.up), Half::new(down, welcome.down));
        Self {
            calls: ClientCalls::new(up, down, welcome.position, first_generation),
            memory: server,
            slot: welcome.slot,
            is_unannounced: false,
            unannounced_polls: 0,
            empty_polls: 0,
            is_armed: false,
            epoch: 0,
            gone: None,
            taken: None,
            is_judged: false,
        }
    }

    /// After a look, of a client that was introduced: where the server is gone, requests that it did not take end as such,
    /// if it said that it takes nothing more, or its process has ended. While that lives, it may still take them.
    pub fn note_untaken(&mut self, is_server_dead: impl FnOnce() -> bool) {
        let Some(gone) = self.gone else { return };
        if core::mem::replace(&mut self.is_judged, true) {
            return;
        }
        let has_ended = matches!(gone, CallError::Evicted(_));
        if has_ended || self.in_flight() > 0 && is_server_dead() {
            self.taken = Some(self.calls.taken_position());
        }
    }

    /// Whether the introducer asked this client to make no more calls here.
    #[must_use]
    pub fn is_asked_to_leave(&self) -> bool {
        self.calls.is_asked_to_leave()
    }

    pub(crate) fn calls(&self) -> &ClientCalls<C> {
        &self.calls
    }

    /// Calls that were submitted and have not ended.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.calls.in_flight()
    }

    /// Whether a response is there that [`poll`](Self::poll) would report.
    #[must_use]
    pub fn has_response(&self) -> bool {
        self.calls.has_response()
    }

    /// No call has a deadline before this; `u64::MAX` if none has one.
    #[must_use]
    pub fn earliest_deadline_ns(&self) -> u64 {
        self.calls.earliest_deadline_ns()
    }

    /// Why no call will ever be answered again.
    #[must_use]
    pub fn gone(&self) -> Option<CallError> {
        self.gone
    }

    /// Publishes a request, or hands the context back.
    ///
    /// # Errors
    ///
    /// [`CallError`], in particular [`CallError::Full`].
    pub fn submit(
        &mut self,
        request: &[u8],
        timeout_ns: u64,
        context: C,
    ) -> Result<CallId, (CallError, C)> {
        self.publish(request, timeout_ns, context)
    }

    /// Like [`submit`](Self::submit), of a request in parts.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    pub fn submit_parts(
        &mut self,
        request: &[&[u8]],
        timeout_ns: u64,
        context: C,
    ) -> Result<CallId, (CallError, C)> {
        self.publish(request, timeout_ns, context)
    }

    #[inline]
    pub(crate) fn publish<M: MessageBytes + ?Sized>(
        &mut self,
        request: &M,
        timeout_ns: u64,
        context: C,
    ) -> Result<CallId, (CallError, C)> {
        if let Some(error) = self.gone {
            return Err((error, context));
        }
        let id = self.calls.submit(request, timeout_ns, context)?;
        self.is_unannounced = true;
        Ok(id)
    }

    /// Stops waiting for a call, unless it has ended. A late response will be discarded.
    pub fn abandon(&mut self, id: CallId) -> Option<C> {
        let abandoned = self.calls.abandon(id);
        // A server that sleeps is to look whether somebody waits.
        self.is_unannounced |= abandoned.is_some();
        abandoned
    }

    /// Sees to it that the server notices what was published. Returns whether the server sleeps: then
    /// the driver sends it a wakeup.
    #[inline]
    #[must_use]
    pub fn flush(&mut self) -> bool {
        self.unannounced_polls = 0;
        core::mem::take(&mut self.is_unannounced)
            && wakeup::must_wake(self.calls.polled_flag())
            && self.set_bit()
    }

    /// Before a poll: as [`flush`](Self::flush), at once if the server is known not to look, and with a
    /// barrier a few polls later.
    #[inline(always)]
    #[must_use]
    pub fn announce(&mut self) -> bool {
        self.is_unannounced && self.flush_soon()
    }

    #[inline]
    fn flush_soon(&mut self) -> bool {
        self.unannounced_polls += 1;
        (self.unannounced_polls >= FLUSH_POLLS || self.calls.polled_flag().is_unattended())
            && self.flush()
    }

    /// Sets this client's wakeup bit; `true` if the server sleeps.
    #[cold]
    fn set_bit(&self) -> bool {
        let bits =
            self.memory.wakeup_bits.shared::<AtomicU64>(wakeup::bits_offset_bytes(self.slot));
        // SAFETY: used for a load only.
        let asleep = unsafe { self.memory.sleep_flag.shared_for_loads::<AtomicU32>(0) };
        let (Ok(bits), Ok(asleep)) = (bits, asleep) else {
            unreachable!("the lengths were checked");
        };
        wakeup::signal(WakeupBits(bits), wakeup::bit_of(self.slot), SleepFlag(asleep))
    }

    /// Reports calls that ended, at most one per call entry.
    #[inline]
    pub fn poll(&mut self, done: &mut impl FnMut(C, CallOutcome<'_>)) -> Polled {
        let ended = self.receive_all(|calls| calls.receive(done));
        self.polled(ended)
    }

    /// Like [`poll`](Self::poll), with responses where they lie.
    #[inline]
    pub(crate) fn poll_lent(&mut self, done: &mut impl FnMut(C, LentOutcome<'_>)) -> Polled {
        let ended = self.receive_all(|calls| calls.receive_lent(done));
        self.polled(ended)
    }

    #[inline(always)]
    fn polled(&mut self, ended: usize) -> Polled {
        if ended > 0 {
            self.empty_polls = 0;
            return Polled { ended, is_clock_due: false };
        }
        self.empty_polls = self.empty_polls.wrapping_add(1);
        let is_clock_due = self.empty_polls.is_multiple_of(CLOCK_POLLS) || self.gone.is_some();
        Polled { ended, is_clock_due }
    }

    #[inline]
    fn receive_all(
        &mut self,
        mut receive: impl FnMut(&mut ClientCalls<C>) -> Result<bool, Broken>,
    ) -> usize {
        for count in 0..self.calls.depth() {
            match receive(&mut self.calls) {
                Ok(true) => {}
                Ok(false) => return count,
                Err(Broken) => {
                    self.gone = Some(CallError::ServerBroken);
                    return count;
                }
            }
        }
        self.calls.depth()
    }

    /// Time may have passed: the next empty poll makes the clock due.
    #[inline]
    pub fn hurry_clock(&mut self) {
        self.empty_polls = CLOCK_POLLS - 1;
    }

    /// Gives deadlines to new calls, and ends those whose deadline has passed; returns how many.
    pub fn tick(&mut self, now_ns: u64, done: &mut impl FnMut(C, CallOutcome<'_>)) -> usize {
        self.calls.stamp(now_ns);
        let expired = self.calls.expire(now_ns, done);
        self.is_unannounced |= expired > 0;
        expired
    }

    /// The driver looked after the server: whether that is gone. An eviction is noticed here, too.
    pub fn looked(&mut self, is_server_gone: bool) {
        let evicted = EvictReason::from_word(self.calls.eviction_word()).map(CallError::Evicted);
        if is_server_gone || evicted.is_some() {
            self.gone = self.gone.or(evicted).or(Some(CallError::ServerGone));
        }
    }

    /// Once the server is gone: reports what was answered before, and ends all other calls; returns how
    /// many calls ended. Nothing otherwise.
    pub fn end_if_gone(&mut self, done: &mut impl FnMut(C, CallOutcome<'_>)) -> usize {
        let Some(error) = self.gone else { return 0 };
        self.receive_all(|calls| calls.receive(done)) + self.calls.fail_all(error, self.taken, done)
    }

    /// Like [`end_if_gone`](Self::end_if_gone), with responses where they lie.
    pub(crate) fn end_if_gone_lent(&mut self, done: &mut impl FnMut(C, LentOutcome<'_>)) -> usize {
        let Some(error) = self.gone else { return 0 };
        let ended = self.receive_all(|calls| calls.receive_lent(done));
        let mut fail = |context, outcome: CallOutcome<'_>| done(context, lend(outcome));
        ended + self.calls.fail_all(error, self.taken, &mut fail)
    }

    /// Ends all calls.
    pub(crate) fn fail_all(
        &mut self,
        error: CallError,
        done: &mut impl FnMut(C, CallOutcome<'_>),
    ) -> usize {
        self.calls.fail_all(error, None, done)
    }

    /// Announces that this client sleeps; `false` if there is something to do instead. Call
    /// [`flush`](Self::flush) first.
    #[must_use]
    pub fn arm(&mut self, now_ns: u64) -> bool {
        self.calls.stamp(now_ns);
        self.calls.nap().arm(&mut self.epoch);
        self.is_armed = true;
        !self.calls.has_response() && self.calls.eviction_word() == 0 && self.gone.is_none()
    }

    /// Whether the client sleeps.
    #[inline(always)]
    #[must_use]
    pub fn is_armed(&self) -> bool {
        self.is_armed
    }

    /// Ends the nap that [`arm`](Self::arm) began, if there is one.
    pub fn disarm(&mut self) {
        if core::mem::take(&mut self.is_armed) {
            self.calls.nap().disarm(&mut self.epoch);
            self.hurry_clock();
        }
    }
}
