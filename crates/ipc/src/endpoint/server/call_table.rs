//! The calls of one client at the server: private memory, against which every word that the client can
//! write is checked. No system call.

use core::ops::Range;

use memory::{Filler, LentBytes, sync::Ordering};

use crate::{
    ending::TakenWord,
    endpoint::{
        half::{Half, HalfShape},
        server::large::{LargeCopies, LargeRequest},
        status::{EvictReason, ResponseKind},
    },
    header::Header,
    ring::{self, Consumer, MessageBytes, Producer, SlotMemory},
    wakeup::{NapEpoch, PolledFlag},
};

/// A request that was taken and is to be answered once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The client's name of the call, below the depth.
    pub call: u16,
    /// Counts requests of this client from 1; tells this use of `call` from others.
    pub serial: u64,
    /// Length of the request.
    pub len_bytes: usize,
}

/// The request was answered already, or never taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotPending;

/// The response cannot be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unanswerable {
    /// The request was answered already, or never taken.
    NotPending,
    /// There is no memory for a response of this length. Nothing has changed.
    NoMemory,
    /// The program gave the response up while it filled it. Nothing has changed.
    GivenUp,
}

impl From<NotPending> for Unanswerable {
    fn from(NotPending: NotPending) -> Self {
        Self::NotPending
    }
}

/// A large response whose parts were [stored](CallTable::fill_part) before.
pub(crate) struct Stored {
    pub(crate) len_bytes: usize,
}

impl MessageBytes for Stored {
    fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    fn store(&self, _: &impl SlotMemory, _: usize, _: u16) {}
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// Zero while the call is the client's.
    serial: u64,
    generation: u16,
    /// Bytes of the call's large area in the down half whose pages were allocated.
    committed_bytes: u32,
}

/// The server's end of one client's rings.
#[derive(Debug)]
pub struct CallTable {
    up: Half,
    down: Half,
    requests: Consumer,
    responses: Producer,
    entries: Box<[Entry]>,
    /// Requests ever taken.
    taken: u64,
    /// The number of answered calls. It counts up, and only in `answer`: the compiler merges counters
    /// that change together into one wide load, which waits for narrower stores of elsewhere.
    answered: u64,
    told_epoch: u32,
    /// The large request that is being copied.
    large: Option<Box<LargeRequest>>,
    /// Whether pages of the up half stay when they are there; `None`: no request was large yet.
    keeps_pages: Option<bool>,
    /// Per call, once a request was large: bytes of its large area in the up half whose pages are there and
    /// stay.
    kept_bytes: Vec<u32>,
    /// The latest request was answered here, and its client is to be told.
    has_refused: bool,
}

impl CallTable {
    /// Prepares both halves for a client that begins at `position`.
    #[must_use]
    pub fn new(up: Half, down: Half, position: u64) -> Self {
        ring::reset(&up, position);
        ring::reset(&down, position);
        up.read_position().store(position, Ordering::Relaxed);
        down.read_position().store(position, Ordering::Relaxed);
        Self {
            requests: Consumer::new(position),
            responses: Producer::new(position),
            entries: vec![Entry::default(); up.shape().depth()].into(),
            taken: 0,
            answered: 0,
            told_epoch: 0,
            large: None,
            keeps_pages: None,
            kept_bytes: Vec::new(),
            has_refused: false,
            up,
            down,
        }
    }

    pub(crate) fn polled_flag(&self) -> PolledFlag<'_> {
        PolledFlag(self.down.control_word())
    }

    pub(crate) fn nap(&mut self) -> (NapEpoch<'_>, &mut u32) {
        (NapEpoch(self.up.control_word()), &mut self.told_epoch)
    }

    /// Writes why the client is evicted where the client can read it.
    pub(crate) fn write_eviction(&self, reason: EvictReason) {
        self.down.eviction().end(reason as u32);
    }

    /// Asks the client to leave, where it can read that.
    pub(crate) fn ask_to_leave(&self) {
        self.down.leave_word().ask();
    }

    /// Up to where the client says that it has read, and whether it left a response to each of its
    /// calls unread.
    pub(crate) fn reading(&self) -> (u64, bool) {
        let read = self.up.read_position().load(Ordering::Relaxed);
        (read, self.responses.position().wrapping_sub(read) >= self.depth() as u64)
    }

    /// Requests ever taken.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Requests taken and not answered.
    #[must_use]
    pub fn unanswered(&self) -> usize {
        usize::try_from(self.taken - self.answered).unwrap_or(usize::MAX)
    }

    /// The serial number of the request that has this entry and is not answered.
    pub(crate) fn pending(&self, call: u16) -> Option<u64> {
        let serial = self.entries.get(usize::from(call))?.serial;
        (serial != 0).then_some(serial)
    }

    /// Whether a request (or nonsense) waits.
    #[inline]
    #[must_use]
    pub fn has_request(&self) -> bool {
        !matches!(self.requests.peek(&self.up), Ok(None))
    }

    /// Forgets the large request that is being copied.
    pub(crate) fn end_copying(&mut self, copies: &mut LargeCopies) {
        if self.large.take().is_some() {
            copies.end();
        }
    }

    /// Takes the next request, if there is one, into a private copy: `copy`, which is as long as any
    /// request that is not [large](HalfShape::is_large). A large one is copied to `copies`, in pieces, one
    /// per call, and taken with the last.
    ///
    /// # Errors
    ///
    /// [`EvictReason`]: the client broke a rule. Nothing was taken.
    #[inline]
    pub fn take(
        &mut self,
        copy: &mut [u8],
        copies: &mut LargeCopies,
    ) -> Result<Option<Taken>, EvictReason> {
        self.take_or_lend::<false>(copy, copies)
    }

    /// Like [`take`](Self::take), and leaves a [bulk](HalfShape::is_bulk) request where it lies if `LENDS`:
    /// [`lend`](Self::lend) shows it. Then also large ones of which `copies` says so, for
    /// [`read_left`](Self::read_left).
    ///
    /// # Errors
    ///
    /// [`EvictReason`].
    #[inline(always)]
    pub(crate) fn take_or_lend<const LENDS: bool>(
        &mut self,
        copy: &mut [u8],
        copies: &mut LargeCopies,
    ) -> Result<Option<Taken>, EvictReason> {
        let Some(header) = self.requests.peek(&self.up).map_err(|_| EvictReason::BadTag)? else {
            return Ok(None);
        };
        let entry = self.entries.get_mut(usize::from(header.call)).ok_or(EvictReason::BadCall)?;
        if entry.serial != 0 {
            return Err(EvictReason::CallInUse);
        }
        if header.kind != 0 {
            return Err(EvictReason::BadKind);
        }
        if header.len_bytes > self.up.shape().message_bytes_max {
            return Err(EvictReason::BadLength);
        }
        let len_bytes = header.len_bytes as usize;
        if HalfShape::is_large(len_bytes) {
            return self.take_large::<LENDS>(header, copies);
        }
        if LENDS && HalfShape::is_bulk(len_bytes) {
            return self.skip(header).map(Some);
        }
        let message = copy.get_mut(..len_bytes).ok_or(EvictReason::BadLength)?;
        self.requests.take(&self.up, header, message);
        crate::pause::at("request.copied");
        note_taken(&self.down, &self.requests);
        self.taken += 1;
        (entry.serial, entry.generation) = (self.taken, header.generation);
        Ok(Some(Taken { call: header.call, serial: self.taken, len_bytes }))
    }

    /// Copies the next piece of a large request, whose header was checked.
    #[cold]
    fn take_large<const LENDS: bool>(
        &mut self,
        header: Header,
        copies: &mut LargeCopies,
    ) -> Result<Option<Taken>, EvictReason> {
        // A client that changes a header which it has published begins anew.
        if self.large.as_ref().is_some_and(|large| large.header() != header) {
            self.end_copying(copies);
        }
        if self.large.is_none() {
            let are_pages_kept = self.are_pages_kept(header);
            let is_left = LENDS
                && copies
                    .is_to_be_left(header, &self.up, are_pages_kept)
                    .map_err(|_| EvictReason::BadLength)?;
            if is_left {
                return self.skip(header).map(Some);
            }
            match copies.begin(header, are_pages_kept) {
                Ok(begun) => self.large = begun,
                Err(_) => {
                    self.refuse(header)?;
                    return Ok(None);
                }
            }
        }
        let Some(large) = &mut self.large else { return Ok(None) };
        if !large.copy_piece(&self.up).map_err(|_| EvictReason::BadLength)? {
            return Ok(None);
        }
        if let Some(large) = self.large.take() {
            copies.complete(*large);
        }
        self.skip(header).map(Some)
    }

    /// Whether the pages of a large request, whose header was checked, are there and stay: asked once per call
    /// and length. By its first large request a client has mapped its half, so that can be sealed.
    fn are_pages_kept(&mut self, header: Header) -> bool {
        let up = &self.up;
        if !*self.keeps_pages.get_or_insert_with(|| up.keep_pages()) {
            return false;
        }
        self.kept_bytes.resize(self.entries.len(), 0);
        let Some(kept_bytes) = self.kept_bytes.get_mut(usize::from(header.call)) else {
            return false;
        };
        let len_bytes = header.len_bytes;
        if len_bytes > *kept_bytes && up.is_present(header.call, len_bytes as usize) {
            *kept_bytes = len_bytes;
        }
        len_bytes <= *kept_bytes
    }

    /// A bulk request that was taken and not answered.
    #[inline]
    pub(crate) fn lend(&self, call: u16, len_bytes: usize) -> LentBytes<'_> {
        debug_assert!(HalfShape::is_bulk(len_bytes));
        self.up.lend(0, call, len_bytes)
    }

    /// Appends a copy of a part of a large request that was taken, left where it lies, and not answered.
    ///
    /// # Errors
    ///
    /// [`NotPending`]: it was answered, or its memory cannot be read.
    pub(crate) fn read_left(
        &self,
        (call, serial): (u16, u64),
        part: Range<usize>,
        to: &mut Vec<u8>,
    ) -> Result<(), NotPending> {
        let are_pages_kept = self.keeps_left((call, serial), &part).ok_or(NotPending)?;
        self.up
            .append_part(call, part.start, part.len(), are_pages_kept, to)
            .map_err(|_| NotPending)
    }

    /// Lends a part of such a request; `None`: it was answered, or its memory is not read by mapping.
    pub(crate) fn lend_left(
        &self,
        (call, serial): (u16, u64),
        part: Range<usize>,
    ) -> Option<LentBytes<'_>> {
        let are_pages_kept = self.keeps_left((call, serial), &part)?;
        are_pages_kept.then(|| self.up.lend_part(call, part.start, part.len()))
    }

    /// Whether the pages of a part of a request are there and stay; `None`: it was answered.
    fn keeps_left(&self, (call, serial): (u16, u64), part: &Range<usize>) -> Option<bool> {
        let entry = self.entries.get(usize::from(call))?;
        let kept_bytes = self.kept_bytes.get(usize::from(call)).copied().unwrap_or(0);
        (serial != 0 && entry.serial == serial).then_some(part.end <= kept_bytes as usize)
    }

    /// Whether the client has given up a call.
    #[inline]
    pub(crate) fn is_abandoned(&self, call: u16) -> bool {
        self.up.given_up().is_marked(call)
    }

    /// Takes the next request without its message.
    fn skip(&mut self, header: Header) -> Result<Taken, EvictReason> {
        self.requests.skip();
        note_taken(&self.down, &self.requests);
        self.taken += 1;
        let entry = self.entries.get_mut(usize::from(header.call)).ok_or(EvictReason::BadCall)?;
        (entry.serial, entry.generation) = (self.taken, header.generation);
        let len_bytes = header.len_bytes as usize;
        Ok(Taken { call: header.call, serial: self.taken, len_bytes })
    }

    /// Answers the next request, for whose message there is no memory.
    fn refuse(&mut self, header: Header) -> Result<(), EvictReason> {
        let Taken { call, serial, .. } = self.skip(header)?;
        let answered = self.answer(call, serial, ResponseKind::ResourceExhausted, b"".as_slice());
        self.has_refused = answered.is_ok();
        Ok(())
    }

    /// Whether a request was refused since the last question.
    #[inline]
    pub(crate) fn take_refusal(&mut self) -> bool {
        core::mem::take(&mut self.has_refused)
    }

    /// Whether a large request is being copied.
    #[inline]
    pub(crate) fn is_copying(&self) -> bool {
        self.large.is_some()
    }

    /// Answers a request that was taken.
    ///
    /// # Errors
    ///
    /// [`Unanswerable`].
    #[inline]
    pub(crate) fn answer<M: MessageBytes + ?Sized>(
        &mut self,
        call: u16,
        serial: u64,
        kind: ResponseKind,
        message: &M,
    ) -> Result<(), Unanswerable> {
        let entry = self.entries.get_mut(usize::from(call)).ok_or(NotPending)?;
        if serial == 0 || entry.serial != serial {
            return Err(Unanswerable::NotPending);
        }
        if HalfShape::is_large(message.len_bytes()) {
            commit(&self.down, call, entry, message.len_bytes())?;
        }
        if M::MAY_PANIC {
            self.responses.store(&self.down, call, message);
            if message.is_given_up() {
                return Err(Unanswerable::GivenUp);
            }
        }
        entry.serial = 0;
        self.answered += 1;
        let generation = entry.generation;
        let len_bytes = u32::try_from(message.len_bytes()).unwrap_or(u32::MAX);
        assert!(
            message.len_bytes() <= self.down.shape().message_bytes_max as usize
                || message.len_bytes() <= ResponseKind::CODE_BYTES
        );
        let header = Header { call, generation, len_bytes, kind: kind as u8 };
        if M::MAY_PANIC {
            self.responses.announce(&self.down, header);
        } else {
            self.responses.publish(&self.down, header, message);
        }
        Ok(())
    }

    /// Puts a part of a large response of `len_bytes` where the client will read it. It is answered with
    /// [`Stored`] once all parts are there, or with anything else at any time.
    ///
    /// # Errors
    ///
    /// [`Unanswerable`]; nothing was filled.
    pub(crate) fn fill_part(
        &mut self,
        (call, serial): (u16, u64),
        len_bytes: usize,
        part: Range<usize>,
        fill: impl FnOnce(&mut Filler<'_>),
    ) -> Result<(), Unanswerable> {
        let entry = self.entries.get_mut(usize::from(call)).ok_or(NotPending)?;
        if serial == 0 || entry.serial != serial {
            return Err(Unanswerable::NotPending);
        }
        let allocated_bytes = part.end.next_multiple_of(COMMIT_BYTES).min(len_bytes);
        commit(&self.down, call, entry, allocated_bytes)?;
        let mut filler = self.down.part_filler(call, part);
        fill(&mut filler);
        filler.finish();
        Ok(())
    }

    /// Answers with a message that fits.
    ///
    /// # Errors
    ///
    /// [`Unanswerable`].
    pub fn reply(&mut self, taken: Taken, message: &[u8]) -> Result<(), Unanswerable> {
        self.answer(taken.call, taken.serial, ResponseKind::Ok, message)
    }

    /// Number of calls.
    #[must_use]
    pub fn depth(&self) -> usize {
        1 << self.up.depth_log2()
    }
}

/// Says what was taken before anything is done about it: a client whose server dies knows what was not.
#[inline(always)]
fn note_taken(down: &Half, requests: &Consumer) {
    TakenWord(down.read_position()).note(requests.position());
}

/// What is allocated at a time for a large response in parts: a turn pays for the pages of a few parts, and not for
/// those of the longest message, and short parts share a system call.
const COMMIT_BYTES: usize = 128 << 10;

/// Allocates pages for the first bytes of a large response, if an earlier one of the call was not as long.
#[cold]
fn commit(down: &Half, call: u16, entry: &mut Entry, len_bytes: usize) -> Result<(), Unanswerable> {
    if len_bytes > entry.committed_bytes as usize {
        let range = entry.committed_bytes as usize..len_bytes;
        down.commit(call, range).map_err(|_| Unanswerable::NoMemory)?;
        entry.committed_bytes = u32::try_from(len_bytes).unwrap_or(u32::MAX);
    }
    Ok(())
}
