//! The calls of one client: private memory, two positions, and no system call.

use memory::{LentBytes, sync::Ordering};

use crate::{
    ending::TakenWord,
    endpoint::{
        half::{EAGER_BYTES_MAX, Half, HalfShape},
        status::{CallError, CallOutcome, LentOutcome, ResponseKind, lend},
    },
    header::Header,
    ring::{Consumer, MessageBytes, Producer},
    wakeup::{NapEpoch, PolledFlag},
};

/// Names one call among all that a client ever made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallId {
    call: u16,
    generation: u64,
}

impl CallId {
    /// The entry of the call, below the depth. A later call gets it only after the response to this one.
    #[must_use]
    pub fn call(self) -> u16 {
        self.call
    }

    /// Counts calls of a client that had this entry, from the client's
    /// [first generation](crate::ClientConfig::first_generation).
    #[must_use]
    pub fn generation(self) -> u64 {
        self.generation
    }
}

/// The server wrote what the protocol does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    InFlight,
    /// The caller gave up, but the slot and the bulk area are the server's until it responds.
    Abandoned,
}

#[derive(Debug)]
struct Call<C> {
    state: State,
    /// Counts uses of this entry.
    generation: u64,
    timeout_ns: u64,
    /// Zero until [`ClientCalls::stamp`] looked at the clock.
    deadline_ns: u64,
    /// Of its request in the ring.
    position: u64,
    /// Bytes of the call's large area in the up half whose pages were allocated.
    committed_bytes: u32,
    context: Option<C>,
}

/// The calls of one client and both of its rings.
#[derive(Debug)]
pub(crate) struct ClientCalls<C> {
    up: Half,
    down: Half,
    requests: Producer,
    responses: Consumer,
    calls: Box<[Call<C>]>,
    free: Vec<u16>,
    /// Request position up to which calls have a deadline.
    stamped: u64,
    /// No call has a deadline before this.
    earliest_ns: u64,
    in_flight: usize,
    /// Deadline of the call that ended last with [`CallError::NotTaken`]; 0: none looked at the clock.
    untaken_deadline_ns: u64,
    /// Private copy of the latest response. It grows with the longest that came.
    copy: Vec<u8>,
    /// Slot, call and length of the response that was lent last.
    lent: (usize, u16, usize),
}

impl<C> ClientCalls<C> {
    /// # Panics
    ///
    /// If the halves differ in depth: [`crate::endpoint::handshake`] has only one.
    pub(crate) fn new(up: Half, down: Half, position: u64, first_generation: u64) -> Self {
        let depth = up.shape().depth();
        assert_eq!(depth, down.shape().depth(), "both halves have one depth");
        let call = |_| Call {
            state: State::Free,
            generation: first_generation,
            timeout_ns: 0,
            deadline_ns: 0,
            position,
            committed_bytes: 0,
            context: None,
        };
        let last = u16::try_from(depth - 1).expect("the depth is at most DEPTH_MAX");
        Self {
            requests: Producer::new(position),
            responses: Consumer::new(position),
            calls: (0..depth).map(call).collect(),
            free: (0..=last).rev().collect(),
            stamped: position,
            earliest_ns: u64::MAX,
            in_flight: 0,
            untaken_deadline_ns: 0,
            // An error code arrives also where responses are shorter than that.
            copy: vec![
                0;
                (down.shape().message_bytes_max as usize)
                    .clamp(ResponseKind::CODE_BYTES, EAGER_BYTES_MAX)
            ],
            lent: (0, 0, 0),
            up,
            down,
        }
    }

    pub(crate) fn depth(&self) -> usize {
        self.calls.len()
    }

    /// Whether a request could be submitted.
    pub(crate) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Requests that could be submitted now.
    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    /// Calls that were not given up.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub(crate) fn request_bytes_max(&self) -> usize {
        self.up.shape().message_bytes_max as usize
    }

    pub(crate) fn response_bytes_max(&self) -> usize {
        self.down.shape().message_bytes_max as usize
    }

    /// The response that [`receive`](Self::receive) copied last.
    pub(crate) fn copied(&self, len_bytes: usize) -> &[u8] {
        &self.copy[..len_bytes]
    }

    /// What the handler says about the error that [`receive`](Self::receive) copied last.
    pub(crate) fn copied_detail(&self, len_bytes: usize) -> &[u8] {
        &self.copy[ResponseKind::CODE_BYTES..][..len_bytes]
    }

    pub(crate) fn polled_flag(&self) -> PolledFlag<'_> {
        PolledFlag(self.down.control_word())
    }

    pub(crate) fn nap(&self) -> NapEpoch<'_> {
        NapEpoch(self.up.control_word())
    }

    /// The word that says why the client was evicted.
    pub(crate) fn eviction_word(&self) -> u32 {
        self.down.eviction().reason()
    }

    /// Whether the server asks this client to leave.
    #[inline(always)]
    pub(crate) fn is_asked_to_leave(&self) -> bool {
        self.down.leave_word().is_asked()
    }

    /// Whether a response (or nonsense) waits.
    pub(crate) fn has_response(&self) -> bool {
        !matches!(self.responses.peek(&self.down), Ok(None))
    }

    /// No call has a deadline before this; `u64::MAX` if none has one.
    pub(crate) fn earliest_deadline_ns(&self) -> u64 {
        // The bound outlives the calls that it was taken of until somebody polls, and nobody polls an idle session.
        if self.in_flight == 0 { u64::MAX } else { self.earliest_ns }
    }

    /// Publishes a request, or hands the context back.
    #[inline]
    pub(crate) fn submit<M: MessageBytes + ?Sized>(
        &mut self,
        request: &M,
        timeout_ns: u64,
        context: C,
    ) -> Result<CallId, (CallError, C)> {
        let max_bytes = self.request_bytes_max();
        let len_bytes = match u32::try_from(request.len_bytes()) {
            Ok(len_bytes) if request.len_bytes() <= max_bytes => len_bytes,
            _ => {
                return Err((
                    CallError::TooLarge { len_bytes: request.len_bytes(), max_bytes },
                    context,
                ));
            }
        };
        let Some(index) = self.free.pop() else {
            return Err((CallError::Full { depth: self.depth() }, context));
        };
        let call = &mut self.calls[usize::from(index)];
        if HalfShape::is_large(request.len_bytes())
            && !allocate(&self.up, index, len_bytes, &mut call.committed_bytes)
        {
            self.free.push(index);
            return Err((CallError::NoMemory { len_bytes: request.len_bytes() }, context));
        }
        if M::MAY_PANIC {
            self.free.push(index);
            self.requests.store(&self.up, index, request);
            if request.is_given_up() {
                return Err((CallError::GivenUp, context));
            }
            self.free.pop();
        }
        call.generation = call.generation.wrapping_add(1);
        call.state = State::InFlight;
        call.timeout_ns = timeout_ns;
        call.deadline_ns = 0;
        call.position = self.requests.position();
        call.context = Some(context);
        let generation = call.generation;
        let header = Header {
            call: index,
            generation: Header::generation_of(generation),
            len_bytes,
            kind: 0,
        };
        if M::MAY_PANIC {
            self.requests.announce(&self.up, header);
        } else {
            self.requests.publish(&self.up, header, request);
        }
        self.in_flight += 1;
        Ok(CallId { call: index, generation })
    }

    /// Consumes responses up to the first whose call was not given up, and reports that.
    #[inline(always)]
    pub(crate) fn receive(
        &mut self,
        done: &mut impl FnMut(C, CallOutcome<'_>),
    ) -> Result<bool, Broken> {
        // At most one response per call can be there.
        for _ in 0..self.calls.len() {
            let Some(header) = self.responses.peek(&self.down).map_err(|_| Broken)? else {
                return Ok(false);
            };
            let len_bytes = header.len_bytes as usize;
            let call = expected(&mut self.calls, header)?;
            if len_bytes > self.copy.len() {
                grow(&mut self.copy, len_bytes, self.down.shape())?;
            }
            // Of requests the server has the next line in time; this side waits for all of a window.
            self.responses.prefetch(&self.down);
            // The response of a call that was given up is nobody's, and leaves the copy of the one before it.
            let copied_bytes = if call.state == State::InFlight { len_bytes } else { 0 };
            let message = &mut self.copy[..copied_bytes];
            self.responses.take(&self.down, header, message);
            // For the server's rare look whether this client is stopped.
            self.up.read_position().store(self.responses.position(), Ordering::Relaxed);
            crate::pause::at("response.copied");
            if call.state == State::Abandoned {
                self.up.given_up().mark(header.call, false);
            }
            call.state = State::Free;
            self.free.push(header.call);
            if let Some(context) = call.context.take() {
                self.in_flight -= 1;
                done(context, ResponseKind::outcome(header.kind, message));
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Like [`receive`](Self::receive), and lends a response of the handler where it lies. What comes instead of
    /// one is short, and copied.
    #[inline]
    pub(crate) fn receive_lent(
        &mut self,
        done: &mut impl FnMut(C, LentOutcome<'_>),
    ) -> Result<bool, Broken> {
        for _ in 0..self.calls.len() {
            let Some(header) = self.responses.peek(&self.down).map_err(|_| Broken)? else {
                return Ok(false);
            };
            let call = expected(&mut self.calls, header)?;
            let is_awaited = call.state == State::InFlight;
            if is_awaited && header.kind != ResponseKind::Ok as u8 {
                return self.receive(&mut |context, outcome| done(context, lend(outcome)));
            }
            if is_awaited && header.len_bytes > self.down.shape().message_bytes_max {
                return Err(Broken);
            }
            let slot = self.responses.slot(&self.down);
            self.responses.skip();
            self.up.read_position().store(self.responses.position(), Ordering::Relaxed);
            if !is_awaited {
                self.up.given_up().mark(header.call, false);
            }
            call.state = State::Free;
            self.free.push(header.call);
            if let Some(context) = call.context.take() {
                self.in_flight -= 1;
                self.lent = (slot, header.call, header.len_bytes as usize);
                done(context, Ok(self.lent()));
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The response that [`receive_lent`](Self::receive_lent) lent last. It stays until a request is published:
    /// before that the server has no place for another response there.
    #[inline]
    pub(crate) fn lent(&self) -> LentBytes<'_> {
        let (slot, call, len_bytes) = self.lent;
        self.down.lend(slot, call, len_bytes)
    }

    /// Gives a deadline to each call that has none: it counts from the first look at the clock
    /// after the call, so that a call that is answered at once costs no look.
    pub(crate) fn stamp(&mut self, now_ns: u64) {
        let end = self.requests.position();
        if self.stamped == end {
            return;
        }
        for call in self.calls.iter_mut().filter(|call| call.state == State::InFlight) {
            if call.deadline_ns == 0 {
                call.deadline_ns = now_ns.saturating_add(call.timeout_ns).max(1);
                self.earliest_ns = self.earliest_ns.min(call.deadline_ns);
            }
        }
        self.stamped = end;
    }

    /// Ends the calls whose deadline has passed.
    pub(crate) fn expire(
        &mut self,
        now_ns: u64,
        done: &mut impl FnMut(C, CallOutcome<'_>),
    ) -> usize {
        if now_ns < self.earliest_ns {
            return 0;
        }
        let before = self.in_flight;
        self.earliest_ns = u64::MAX;
        let calls = (0..).zip(&mut self.calls);
        for (index, call) in calls.filter(|(_, call)| call.state == State::InFlight) {
            if call.deadline_ns == 0 || call.deadline_ns > now_ns {
                let deadline_ns = if call.deadline_ns == 0 { u64::MAX } else { call.deadline_ns };
                self.earliest_ns = self.earliest_ns.min(deadline_ns);
            } else {
                call.state = State::Abandoned;
                self.in_flight -= 1;
                self.up.given_up().mark(index, true);
                if let Some(context) = call.context.take() {
                    done(context, Err(CallError::Deadline.into()));
                }
            }
        }
        before - self.in_flight
    }

    /// Deadline of the call that ended last with [`CallError::NotTaken`]; 0: nobody looked at the clock since it was
    /// made.
    pub(crate) fn untaken_deadline_ns(&self) -> u64 {
        self.untaken_deadline_ns
    }

    /// Position up to which the server says that it has taken requests.
    pub(crate) fn taken_position(&self) -> u64 {
        TakenWord(self.down.read_position()).read()
    }

    /// Ends all calls: those behind the position `taken`, if there is one, with [`CallError::NotTaken`].
    pub(crate) fn fail_all(
        &mut self,
        error: CallError,
        taken: Option<u64>,
        done: &mut impl FnMut(C, CallOutcome<'_>),
    ) -> usize {
        let depth = self.calls.len() as u64;
        for call in &mut self.calls {
            if let Some(context) = call.context.take() {
                call.state = State::Abandoned;
                let is_untaken = taken.is_some_and(|it| call.position.wrapping_sub(it) < depth);
                let error = if is_untaken { CallError::NotTaken } else { error };
                self.untaken_deadline_ns = call.deadline_ns;
                done(context, Err(error.into()));
            }
        }
        core::mem::take(&mut self.in_flight)
    }

    /// Whether a call was given up, and the server has not responded.
    pub(crate) fn is_abandoned(&self, id: CallId) -> bool {
        let call = &self.calls[usize::from(id.call)];
        call.state == State::Abandoned && call.generation == id.generation
    }

    /// Stops waiting for a call, unless it has ended. A late response will be discarded.
    pub(crate) fn abandon(&mut self, id: CallId) -> Option<C> {
        let call = &mut self.calls[usize::from(id.call)];
        if call.state != State::InFlight || call.generation != id.generation {
            return None;
        }
        call.state = State::Abandoned;
        self.in_flight -= 1;
        self.up.given_up().mark(id.call, true);
        call.context.take()
    }
}

/// The call that a response names, if it waits for one.
#[inline(always)]
fn expected<C>(calls: &mut [Call<C>], header: Header) -> Result<&mut Call<C>, Broken> {
    let call = calls.get_mut(usize::from(header.call)).ok_or(Broken)?;
    let is_expected =
        call.state != State::Free && Header::generation_of(call.generation) == header.generation;
    if is_expected { Ok(call) } else { Err(Broken) }
}

/// Allocates pages for a large request, once per call and length.
#[cold]
fn allocate(up: &Half, call: u16, len_bytes: u32, committed_bytes: &mut u32) -> bool {
    let range = *committed_bytes as usize..len_bytes as usize;
    if !range.is_empty() {
        if up.commit(call, range).is_err() {
            return false;
        }
        *committed_bytes = len_bytes;
    }
    true
}

/// Makes room for the copy of a long response.
#[cold]
fn grow(copy: &mut Vec<u8>, len_bytes: usize, shape: HalfShape) -> Result<(), Broken> {
    if len_bytes > shape.message_bytes_max as usize {
        return Err(Broken);
    }
    copy.resize(len_bytes, 0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use memory::Region;

    use super::*;
    use crate::endpoint::half::HalfShape;

    fn core(depth_log2: u32) -> ClientCalls<u32> {
        let shape = HalfShape::new(depth_log2, 8).unwrap();
        let half = || Half::new(Arc::new(Region::heap(shape.len_bytes()).unwrap()), shape);
        ClientCalls::new(half(), half(), 0, 0)
    }

    fn expired(core: &mut ClientCalls<u32>, now_ns: u64) -> Vec<u32> {
        let mut expired = Vec::new();
        core.expire(now_ns, &mut |context, outcome| {
            assert_eq!(outcome, Err(CallError::Deadline.into()));
            expired.push(context);
        });
        expired
    }

    #[test]
    fn fault_g3_a_clock_that_steps_back_expires_nothing_early_and_nothing_twice() {
        let mut core = core(2);
        core.submit(b"", 100, 1).unwrap();
        core.stamp(1000);
        core.submit(b"", 100, 2).unwrap();
        core.stamp(400);
        assert_eq!(core.earliest_deadline_ns(), 500);
        assert!(expired(&mut core, 10).is_empty());
        assert!(expired(&mut core, 499).is_empty());
        assert_eq!(expired(&mut core, 500), [2]);
        assert!(expired(&mut core, 5).is_empty());
        assert_eq!(expired(&mut core, 1100), [1]);
        assert!(expired(&mut core, u64::MAX).is_empty());
    }

    #[test]
    fn a_session_without_calls_has_no_deadline() {
        let mut core = core(1);
        let id = core.submit(b"", 100, 1).unwrap();
        core.stamp(1000);
        assert_eq!(core.earliest_deadline_ns(), 1100);
        assert_eq!(core.abandon(id), Some(1));
        assert_eq!(core.earliest_deadline_ns(), u64::MAX);
    }

    #[test]
    fn a_late_response_leaves_the_copy_of_the_one_before_it() {
        use crate::{
            ServerConfig,
            sans_os::{OpenRequest, ServerCore},
        };
        let mut server = ServerCore::on_heap(ServerConfig::default()).unwrap();
        let (_, welcome, memory) = server.admit_on_heap().unwrap().unwrap();
        let mut client = crate::sans_os::ClientCore::new(&welcome, memory, 0);
        let late = client.submit(b"late", u64::MAX, ()).unwrap();
        let ids: Vec<_> = [b"late", b"next"]
            .into_iter()
            .map(|request| {
                if request == b"next" {
                    assert!(client.abandon(late).is_some());
                    client.submit(request, u64::MAX, ()).unwrap();
                }
                let _ = client.flush();
                let taken = server.take().map(|OpenRequest { id, payload, .. }| {
                    assert_eq!(payload, request);
                    id
                });
                assert!(server.take().is_none());
                taken.unwrap()
            })
            .collect();
        server.replies().reply(ids[1], b"response").unwrap();
        server.replies().reply(ids[0], b"too late").unwrap();
        let mut len_bytes = 0;
        client.poll(&mut |(), outcome| len_bytes = outcome.unwrap().len());
        assert_eq!(client.calls().copied(len_bytes), b"response");
    }

    #[test]
    fn fault_g3_a_deadline_beyond_the_end_of_time_does_not_wrap() {
        let mut core = core(0);
        core.submit(b"", u64::MAX, 7).unwrap();
        core.stamp(u64::MAX - 1);
        assert!(expired(&mut core, u64::MAX - 1).is_empty());
        assert_eq!(expired(&mut core, u64::MAX), [7]);
    }
}
