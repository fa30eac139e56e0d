//! The words that the two processes of a measurement share: one cache line each.
//!
//! ```text
//! line 0  Ping           initiator → responder, a count
//! line 1  Pong           responder → initiator, a count
//! line 2  Received       responder → initiator, messages consumed so far: flow control
//! line 3  InitiatorDone  number of the sample that this side has finished
//! line 4  ResponderDone  the same of the other side
//! line 5  Failed         not 0: one side gave up, the other need not wait for its deadline
//! 4096 …  stream of 64-byte slots
//! ```

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
    thread,
    time::{Duration, Instant},
};

use memory::{
    Line, MapError, Protection, Region, ViewError,
    sync::{AtomicU64, Ordering, hint},
};

/// Offset of the stream.
const STREAM_OFFSET_BYTES: usize = 4096;
/// 64-byte slots of the stream.
pub const STREAM_SLOTS: usize = 4096;
/// Words of a slot.
pub const SLOT_WORDS: usize = 8;
/// Bytes of the shared mapping.
const SHARED_BYTES: usize = STREAM_OFFSET_BYTES + STREAM_SLOTS * SLOT_WORDS * size_of::<u64>();
/// Longest silence of another process or thread that is part of a measurement. Its death ends every wait at once, so this
/// is for those that hang alone, and longer than a process waits for a core of a machine that forty others use.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// Empty polls between two looks at the clock.
const POLLS_PER_CLOCK: u32 = 1 << 12;
/// The same, where each poll offers the core: others may have had it in between.
const OFFERS_PER_CLOCK: u32 = 64;
/// Longer between two looks at the clock is time in which the thread did not run.
const GAP_MAX: Duration = Duration::from_millis(20);

/// A word with a purpose.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
pub enum SharedWord {
    /// Initiator's turn in a ping-pong.
    Ping,
    /// Responder's turn.
    Pong,
    /// Messages that the responder has consumed.
    Received,
    /// Sample that the initiator has finished.
    InitiatorDone,
    /// Sample that the responder has finished.
    ResponderDone,
    /// One side gave up.
    Failed,
}

const WORDS: usize = SharedWord::Failed as usize + 1;
const _: () = assert!(WORDS * memory::line::LINE_BYTES <= STREAM_OFFSET_BYTES);

/// Why there is no shared.
#[derive(Debug, thiserror::Error)]
pub enum SharedWordsError {
    /// No memory, or a descriptor that is no sealed memfd of the right size.
    #[error("cannot map the shared words: {0}")]
    Map(#[from] MapError),
    /// The mapping is too small.
    #[error("the shared words do not fit their mapping: {0}")]
    View(#[from] ViewError),
    /// The descriptor cannot be duplicated.
    #[error("cannot duplicate the descriptor of the shared words: {0}")]
    Descriptor(#[from] io::Error),
}

/// A wait ended without its event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    /// The other side is stuck, or the machine is far slower than expected.
    #[error("no progress for {0:?}: the other process hangs or does not get its core")]
    TimedOut(Duration),
    /// The other side said so.
    #[error("the other process gave up")]
    PeerFailed,
}

/// The shared words.
#[derive(Debug)]
pub struct SharedWords {
    region: Region,
}

impl SharedWords {
    /// New words, all zero.
    ///
    /// # Errors
    ///
    /// [`SharedWordsError`].
    pub fn new() -> Result<Self, SharedWordsError> {
        Self::checked(Region::memfd("copyrpc-bench", SHARED_BYTES)?)
    }

    /// The words behind a descriptor that another process's [`SharedWords::descriptor`] gave.
    ///
    /// # Errors
    ///
    /// [`SharedWordsError`].
    pub fn open(descriptor: OwnedFd) -> Result<Self, SharedWordsError> {
        Self::checked(Region::map(descriptor, SHARED_BYTES, Protection::ReadWrite)?)
    }

    /// Proves once that every word is in bounds and writable, which the getters rely on.
    fn checked(region: Region) -> Result<Self, SharedWordsError> {
        region.shared_slice::<Line<AtomicU64>>(0, WORDS)?;
        region.shared_slice::<[AtomicU64; SLOT_WORDS]>(STREAM_OFFSET_BYTES, STREAM_SLOTS)?;
        Ok(Self { region })
    }

    /// The descriptor that another process opens.
    ///
    /// # Errors
    ///
    /// [`SharedWordsError::Descriptor`].
    ///
    /// # Panics
    ///
    /// Never: boards are always backed by a memfd.
    pub fn descriptor(&self) -> Result<OwnedFd, SharedWordsError> {
        let descriptor = self.region.fd().expect("a shared is a memfd");
        Ok(descriptor.as_fd().try_clone_to_owned()?)
    }

    /// One word.
    ///
    /// # Panics
    ///
    /// Never: the constructor proved it to be in bounds.
    #[inline]
    #[must_use]
    pub fn word(&self, word: SharedWord) -> &AtomicU64 {
        let offset_bytes = word as usize * memory::line::LINE_BYTES;
        let line: &Line<AtomicU64> = self.region.shared(offset_bytes).expect("checked by new");
        line
    }

    /// The slots of the stream.
    ///
    /// # Panics
    ///
    /// Never: the constructor proved them to be in bounds.
    #[must_use]
    pub fn stream(&self) -> &[[AtomicU64; SLOT_WORDS]] {
        self.region.shared_slice(STREAM_OFFSET_BYTES, STREAM_SLOTS).expect("checked by new")
    }

    /// Zeroes the words of the next sample. Only between samples, when the other side rests.
    pub fn reset(&self) {
        for word in [SharedWord::Ping, SharedWord::Pong, SharedWord::Received, SharedWord::Failed] {
            self.word(word).store(0, Ordering::Relaxed);
        }
        for slot in self.stream() {
            slot[0].store(0, Ordering::Relaxed);
        }
    }

    /// Tells the other side not to wait any longer.
    pub fn fail(&self) {
        self.word(SharedWord::Failed).store(1, Ordering::Relaxed);
    }

    /// Patience for a wait that begins now.
    #[must_use]
    pub fn patience(&self, limit: Duration) -> Patience<'_> {
        Patience { shared: self, limit, polls: 0, looked: None, waited: Duration::ZERO }
    }
}

/// Bounds a polling loop: looks at the clock, and whether the other side gave up, now and then. Time in
/// which this thread did not run does not count: others had its core, or it was stopped.
#[derive(Debug)]
pub struct Patience<'a> {
    shared: &'a SharedWords,
    limit: Duration,
    polls: u32,
    looked: Option<Instant>,
    waited: Duration,
}

impl Patience<'_> {
    /// Call after every poll that found nothing.
    ///
    /// # Errors
    ///
    /// [`WaitError`].
    #[inline]
    pub fn wait(&mut self) -> Result<(), WaitError> {
        self.polls += 1;
        if self.polls < POLLS_PER_CLOCK { Ok(()) } else { self.look() }
    }

    /// [`wait`](Self::wait) with a pause. A thread that polls more often takes the line that is being written away
    /// from its writer, and hears later.
    ///
    /// # Errors
    ///
    /// [`WaitError`].
    #[inline]
    pub fn pause(&mut self) -> Result<(), WaitError> {
        hint::spin_loop();
        self.wait()
    }

    /// [`wait`](Self::wait) that offers the core to other threads.
    ///
    /// # Errors
    ///
    /// [`WaitError`].
    #[inline]
    pub fn offer_core(&mut self) -> Result<(), WaitError> {
        thread::yield_now();
        self.polls += POLLS_PER_CLOCK / OFFERS_PER_CLOCK - 1;
        self.wait()
    }

    /// Call when something was found: the deadline moves.
    #[inline]
    pub fn progress(&mut self) {
        self.polls = 0;
        self.looked = None;
        self.waited = Duration::ZERO;
    }

    #[cold]
    fn look(&mut self) -> Result<(), WaitError> {
        self.polls = 0;
        if self.shared.word(SharedWord::Failed).load(Ordering::Relaxed) != 0 {
            return Err(WaitError::PeerFailed);
        }
        let now = Instant::now();
        if let Some(before) = self.looked.replace(now) {
            self.waited += (now - before).min(GAP_MAX);
        }
        if self.waited > self.limit {
            return Err(WaitError::TimedOut(self.limit));
        }
        hint::spin_loop();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_show_the_same_words() {
        let shared = SharedWords::new().unwrap();
        let other = SharedWords::open(shared.descriptor().unwrap()).unwrap();
        shared.word(SharedWord::Ping).store(7, Ordering::Relaxed);
        other.stream()[STREAM_SLOTS - 1][7].store(9, Ordering::Relaxed);
        assert_eq!(other.word(SharedWord::Ping).load(Ordering::Relaxed), 7);
        assert_eq!(other.word(SharedWord::Pong).load(Ordering::Relaxed), 0);
        assert_eq!(shared.stream()[STREAM_SLOTS - 1][7].load(Ordering::Relaxed), 9);
        shared.reset();
        assert_eq!(other.word(SharedWord::Ping).load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_failure_of_one_side_ends_the_wait_of_the_other() {
        let shared = SharedWords::new().unwrap();
        let mut patience = shared.patience(Duration::from_secs(3600));
        shared.fail();
        let error = (0..=POLLS_PER_CLOCK).find_map(|_| patience.wait().err());
        assert_eq!(error, Some(WaitError::PeerFailed));
    }

    #[test]
    fn time_in_which_the_thread_did_not_run_is_no_silence_of_the_other_side() {
        let shared = SharedWords::new().unwrap();
        let mut patience = shared.patience(2 * GAP_MAX);
        assert_eq!(patience.look(), Ok(()));
        std::thread::sleep(3 * GAP_MAX);
        assert_eq!(patience.look(), Ok(()));
    }

    #[test]
    fn a_wait_without_progress_ends() {
        let shared = SharedWords::new().unwrap();
        let mut patience = shared.patience(Duration::ZERO);
        let error = (0..3 * POLLS_PER_CLOCK).find_map(|_| patience.wait().err());
        assert_eq!(error, Some(WaitError::TimedOut(Duration::ZERO)));
    }
}
