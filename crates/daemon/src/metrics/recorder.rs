//! The writing side.

use std::{
    fs::{self, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use memory::{
    MapError, Region,
    sync::{AtomicU64, Ordering},
};
use os::{clock, process::ProcessId};

use crate::metrics::{
    counters::{Counter, Phase, Timing},
    histogram::bucket_of,
    layout::{
        self, HEADER_BYTES, HISTOGRAM_WORDS, HISTOGRAMS_AT, LAYOUT, Life, MAGIC, NAME_BYTES_MAX,
        SAMPLE_WORDS, SAMPLES, SAMPLES_AT, SECTION_WORDS, SECTIONS_MAX, VERSION, WORD_BYTES, word,
    },
    reader::Snapshot,
};
use bootstrap::RankInfo;

/// Least time between two samples.
const SAMPLE_INTERVAL_NS: u64 = 10_000_000;

/// Why there are no counters.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// The file cannot be made.
    #[error("cannot {operation} {}: {source}", path.display())]
    File {
        /// The operation that failed.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The file cannot be mapped.
    #[error("cannot map {}: {source}", path.display())]
    Map {
        /// The file.
        path: PathBuf,
        /// Error of the mapping.
        source: MapError,
    },
}

/// The file of a daemon's counters. Dropping it removes the file; a daemon that is killed leaves it,
/// unless it has no name.
#[derive(Debug)]
pub struct MetricsFile {
    region: Arc<Region>,
    /// `None`: a memfd, or on the heap.
    path: Option<PathBuf>,
    threads: usize,
}

impl MetricsFile {
    /// Makes the file of daemon `name`, with a [`Recorder`] for each of its `threads`. It replaces
    /// that of a dead daemon whole, so that readers see the one or the other. Nobody else may be
    /// making it: a daemon has claimed its place before.
    ///
    /// # Errors
    ///
    /// [`MetricsError`].
    ///
    /// # Panics
    ///
    /// If there are no threads, or more than 256.
    pub fn create(
        path: &Path,
        name: &str,
        rank_info: RankInfo,
        threads: usize,
        sample_every: u32,
    ) -> Result<(Self, Vec<Recorder>), MetricsError> {
        assert!((1..=SECTIONS_MAX).contains(&threads), "{threads} threads");
        // One name: what a life that was killed left is in the way of the next, and goes with it.
        let temporary = path.with_extension("metrics-tmp");
        let fail = |operation, path: &Path| {
            let path = path.to_owned();
            move |source| MetricsError::File { operation, path, source }
        };
        let _ = fs::remove_file(&temporary);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = options.open(&temporary).map_err(fail("create", &temporary))?;
        let made = Region::file(file.into(), layout::file_bytes(threads))
            .map_err(|source| MetricsError::Map { path: path.to_owned(), source });
        let made = made.and_then(|region| {
            write_header(&region, name, rank_info, threads, sample_every, Start::now());
            fs::rename(&temporary, path).map_err(fail("rename", &temporary))?;
            Ok(region)
        });
        let region = made.inspect_err(|_| {
            let _ = fs::remove_file(&temporary);
        })?;
        Ok(Self::with_recorders(region, Some(path.to_owned()), threads))
    }

    /// Counters that only this process reads, by [`snapshot`](Self::snapshot); nothing is left of
    /// them, however it ends.
    ///
    /// # Errors
    ///
    /// [`MetricsError::Map`].
    ///
    /// # Panics
    ///
    /// As [`create`](Self::create) does.
    pub fn unnamed(
        name: &str,
        rank_info: RankInfo,
        threads: usize,
        sample_every: u32,
    ) -> Result<(Self, Vec<Recorder>), MetricsError> {
        assert!((1..=SECTIONS_MAX).contains(&threads), "{threads} threads");
        let region = Region::memfd("copyrpc-metrics", layout::file_bytes(threads))
            .map_err(|source| MetricsError::Map { path: "a memfd".into(), source })?;
        write_header(&region, name, rank_info, threads, sample_every, Start::now());
        Ok(Self::with_recorders(region, None, threads))
    }

    /// Counters on the heap of this process, which only this process reads: no kernel object is made, and
    /// neither the process nor the time of day is asked for. For daemons that run in virtual time, in which
    /// `started_ns` is their start.
    ///
    /// # Errors
    ///
    /// [`MetricsError::Map`].
    ///
    /// # Panics
    ///
    /// As [`create`](Self::create) does.
    pub fn embedded(
        name: &str,
        rank_info: RankInfo,
        threads: usize,
        sample_every: u32,
        started_ns: u64,
    ) -> Result<(Self, Vec<Recorder>), MetricsError> {
        assert!((1..=SECTIONS_MAX).contains(&threads), "{threads} threads");
        let region = Region::heap(layout::file_bytes(threads))
            .map_err(|source| MetricsError::Map { path: "the heap".into(), source })?;
        let start = Start { pid: 0, start_ticks: 0, started_ns, started_at: 0 };
        write_header(&region, name, rank_info, threads, sample_every, start);
        Ok(Self::with_recorders(region, None, threads))
    }

    fn with_recorders(
        region: Region,
        path: Option<PathBuf>,
        threads: usize,
    ) -> (Self, Vec<Recorder>) {
        let region = Arc::new(region);
        let recorders = (0..threads).map(|section| Recorder {
            region: Arc::clone(&region),
            at_bytes: layout::section_at_bytes(section),
            samples: 0,
            sampled_ns: None,
        });
        let recorders = recorders.collect();
        (Self { region, path, threads }, recorders)
    }

    /// A copy of what is counted so far.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let count = layout::file_bytes(self.threads) / WORD_BYTES;
        let words = words(&self.region, 0, count).iter();
        Snapshot::of_words(&words.map(|word| word.load(Ordering::Relaxed)).collect::<Vec<_>>())
    }

    /// Says how the daemon's life goes.
    pub fn set_life(&self, life: Life) {
        words(&self.region, 0, HEADER_BYTES / WORD_BYTES)[word::LIFE]
            .store(life.to_word(), Ordering::Relaxed);
    }
}

impl Drop for MetricsFile {
    fn drop(&mut self) {
        self.set_life(Life::Stopped);
        if let Some(path) = &self.path {
            // If it is gone already, that is what was wanted.
            let _ = fs::remove_file(path);
        }
    }
}

fn words(region: &Region, at_bytes: usize, count: usize) -> &[AtomicU64] {
    match region.shared_slice(at_bytes, count) {
        Ok(words) => words,
        Err(_) => unreachable!("the file was made with this length"),
    }
}

/// The beginning of a daemon's life.
struct Start {
    /// The process; 0: the one that reads the counters.
    pid: u32,
    start_ticks: u64,
    /// By the clock of all samples.
    started_ns: u64,
    /// Seconds since 1970.
    started_at: u64,
}

impl Start {
    /// This process, now.
    fn now() -> Self {
        let ProcessId { pid, start_ticks } = ProcessId::own();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { pid, start_ticks, started_ns: clock::now_ns(), started_at: now.as_secs() }
    }
}

fn write_header(
    region: &Region,
    name: &str,
    rank_info: RankInfo,
    threads: usize,
    sample_every: u32,
    start: Start,
) {
    let header = words(region, 0, HEADER_BYTES / WORD_BYTES);
    let store = |index: usize, value: u64| header[index].store(value, Ordering::Relaxed);
    store(word::VERSION, VERSION);
    store(word::LAYOUT, LAYOUT);
    store(word::SECTIONS, threads as u64);
    store(word::PID, start.pid.into());
    store(word::START_TICKS, start.start_ticks);
    store(word::STARTED_NS, start.started_ns);
    store(word::STARTED_AT, start.started_at);
    store(word::RANK, rank_info.rank().into());
    store(word::SIZE, rank_info.size().into());
    store(word::LIFE, Life::Starting.to_word());
    store(word::SAMPLE_EVERY, sample_every.into());
    let name = &name.as_bytes()[..name.len().min(NAME_BYTES_MAX)];
    store(word::NAME_BYTES, name.len() as u64);
    for (index, chunk) in name.chunks(WORD_BYTES).enumerate() {
        let mut bytes = [0; WORD_BYTES];
        bytes[..chunk.len()].copy_from_slice(chunk);
        store(word::NAME + index, u64::from_le_bytes(bytes));
    }
    store(word::MAGIC, MAGIC);
}

/// The only writer of one section.
#[derive(Debug)]
pub struct Recorder {
    region: Arc<Region>,
    at_bytes: usize,
    /// Samples ever written.
    samples: u64,
    sampled_ns: Option<u64>,
}

impl Recorder {
    #[inline]
    fn word(&mut self, index: usize) -> &AtomicU64 {
        &words(&self.region, self.at_bytes, SECTION_WORDS)[index]
    }

    /// What a counter shows.
    pub(super) fn total(&self, counter: Counter) -> u64 {
        let section = words(&self.region, self.at_bytes, SECTION_WORDS);
        section[counter as usize].load(Ordering::Relaxed)
    }

    /// The sum of the values of a distribution.
    pub(super) fn sum(&self, timing: Timing) -> u64 {
        let section = words(&self.region, self.at_bytes, SECTION_WORDS);
        section[HISTOGRAMS_AT + timing as usize * HISTOGRAM_WORDS].load(Ordering::Relaxed)
    }

    /// Counts `amount` more.
    #[inline]
    pub fn add(&mut self, counter: Counter, amount: u64) {
        increase(self.word(counter as usize), amount);
    }

    /// Says what a number is now.
    #[inline]
    pub fn set(&mut self, counter: Counter, value: u64) {
        self.word(counter as usize).store(value, Ordering::Relaxed);
    }

    /// Counts one value of a distribution.
    #[inline]
    pub fn record(&mut self, timing: Timing, value: u64) {
        self.record_all(timing, value, 1);
    }

    /// Counts a value of a distribution `count` times.
    #[inline]
    pub fn record_all(&mut self, timing: Timing, value: u64, count: u64) {
        let at = HISTOGRAMS_AT + timing as usize * HISTOGRAM_WORDS;
        let section = words(&self.region, self.at_bytes, SECTION_WORDS);
        increase(&section[at], value.wrapping_mul(count));
        increase(&section[at + 1 + bucket_of(value)], count);
    }

    /// Adds to the ring of samples, unless the last is younger than 10 ms: what is in flight, and
    /// what was done so far.
    pub fn sample(&mut self, now_ns: u64, outstanding: u64) {
        if self.sampled_ns.is_some_and(|then_ns| now_ns < then_ns + SAMPLE_INTERVAL_NS) {
            return;
        }
        self.sampled_ns = Some(now_ns);
        let index = usize::try_from(self.samples % SAMPLES as u64).unwrap_or(0);
        self.samples += 1;
        let number = self.samples;
        let at = SAMPLES_AT + index * SAMPLE_WORDS;
        let section = words(&self.region, self.at_bytes, SECTION_WORDS);
        let total = |counter: Counter| section[counter as usize].load(Ordering::Relaxed);
        let done = total(Counter::Replies) + total(Counter::Incoming);
        let values = [number, now_ns, outstanding, done, total(Counter::Flushes)];
        for (word, value) in section[at..].iter().zip(values) {
            word.store(value, Ordering::Relaxed);
        }
        section[at + SAMPLE_WORDS - 1].store(layout::sample_check(&values), Ordering::Relaxed);
    }
}

/// There is one writer, so nothing can come between the load and the store.
#[inline]
fn increase(word: &AtomicU64, amount: u64) {
    word.store(word.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
}

/// Decides which turns of a loop are timed: one in so many, the first included.
#[derive(Clone, Copy, Debug)]
pub struct LoopTimer {
    every: u32,
    left: u32,
}

impl LoopTimer {
    /// One in `every`; none if that is 0.
    #[must_use]
    pub fn new(every: u32) -> Self {
        Self { every, left: 1 }
    }

    /// Begins a turn. If it is to be timed, looks at the clock.
    #[inline]
    pub fn begin(&mut self, now_ns: impl FnOnce() -> u64) -> Option<Lap> {
        if self.every == 0 {
            return None;
        }
        self.left -= 1;
        if self.left > 0 {
            return None;
        }
        self.left = self.every;
        let now_ns = now_ns();
        Some(Lap { began_ns: now_ns, phase_ns: now_ns })
    }
}

/// A turn that is timed.
#[derive(Clone, Copy, Debug)]
pub struct Lap {
    began_ns: u64,
    phase_ns: u64,
}

impl Lap {
    /// A phase ended.
    #[inline]
    pub fn phase(&mut self, recorder: &mut Recorder, phase: Phase, now_ns: u64) {
        recorder.record(phase.timing(), now_ns.saturating_sub(self.phase_ns));
        self.phase_ns = now_ns;
    }

    /// The turn ended.
    #[inline]
    pub fn end(self, recorder: &mut Recorder) {
        recorder.record(Timing::Loop, self.phase_ns.saturating_sub(self.began_ns));
    }
}
