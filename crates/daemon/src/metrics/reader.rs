//! The reading side: copies a file, checks it, and needs nobody's help.

use core::fmt;
use std::{
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use os::{
    lock::{self, LockState},
    plain_file,
    process::{Process, ProcessId},
};

use crate::metrics::{
    counters::{Counter, CounterKind, Timing},
    histogram::{BUCKETS, Histogram},
    layout::{
        self, HEADER_BYTES, HISTOGRAM_WORDS, HISTOGRAMS_AT, LAYOUT, Life, MAGIC, NAME_BYTES_MAX,
        SAMPLE_WORDS, SAMPLES, SAMPLES_AT, SECTION_WORDS, SECTIONS_MAX, VERSION, WORD_BYTES, word,
    },
};

/// Why a file tells nothing.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be opened or read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The file holds no counters of a daemon.
    #[error("{} holds no counters of a daemon", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// It was written by another version.
    #[error(
        "{} has version {theirs}, layout {their_layout:x}; this program reads version {VERSION}, layout \
         {LAYOUT:x}: use the one that came with the daemon", path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        theirs: u64,
        /// Its layout.
        their_layout: u64,
    },
    /// The file is shorter than its header says.
    #[error("{} is cut short", path.display())]
    Short {
        /// The file.
        path: PathBuf,
    },
}

/// The state of a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DaemonState {
    /// The process lives and is in this phase.
    Alive(Life),
    /// The process is gone, and its file says that it lives.
    Crashed,
    /// The process has ended, and its file says so.
    Stopped,
}

impl fmt::Display for DaemonState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Alive(Life::Starting) => "starting",
            Self::Alive(Life::Serving) => "serving",
            Self::Alive(Life::Draining) => "draining",
            Self::Alive(Life::Stopped) => "stopping",
            Self::Crashed => "crashed",
            Self::Stopped => "stopped",
        })
    }
}

/// All counters of one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricsSample {
    /// Number, from 1.
    pub number: u64,
    /// The time of the reading, in nanoseconds of the monotonic clock.
    pub time_ns: u64,
    /// Calls in flight, to other nodes and to processes that provide a service.
    pub outstanding: u64,
    /// Calls answered so far.
    pub done: u64,
    /// Batches posted so far.
    pub flushes: u64,
}

/// The counters of one thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    counters: Vec<u64>,
    histograms: Vec<Histogram>,
    /// The moments that are kept, oldest first.
    samples: Vec<MetricsSample>,
}

impl Section {
    fn parse(words: &[u64]) -> Self {
        let histogram = |index: usize| {
            let at = HISTOGRAMS_AT + index * HISTOGRAM_WORDS;
            Histogram::from_words(words[at], words[at + 1..at + 1 + BUCKETS].to_vec())
        };
        let sample = |index: usize| {
            let at = SAMPLES_AT + index * SAMPLE_WORDS;
            let values: [u64; SAMPLE_WORDS - 1] =
                words[at..at + SAMPLE_WORDS - 1].try_into().ok()?;
            let [number, time_ns, outstanding, done, flushes] = values;
            let is_whole = layout::sample_check(&values) == words[at + SAMPLE_WORDS - 1];
            is_whole.then_some(MetricsSample { number, time_ns, outstanding, done, flushes })
        };
        let mut samples: Vec<_> = (0..SAMPLES).filter_map(sample).collect();
        samples.sort_unstable_by_key(|sample| sample.number);
        Self {
            counters: words[..Counter::ALL.len()].to_vec(),
            histograms: (0..Timing::ALL.len()).map(histogram).collect(),
            samples,
        }
    }

    /// A number.
    #[must_use]
    pub fn counter(&self, counter: Counter) -> u64 {
        self.counters[counter as usize]
    }

    /// A distribution.
    #[must_use]
    pub fn histogram(&self, timing: Timing) -> &Histogram {
        &self.histograms[timing as usize]
    }

    /// Moments, oldest first.
    #[must_use]
    pub fn samples(&self) -> &[MetricsSample] {
        &self.samples
    }

    fn merge(&mut self, other: &Self) {
        for (ours, theirs) in self.counters.iter_mut().zip(&other.counters) {
            *ours = ours.wrapping_add(*theirs);
        }
        for (ours, theirs) in self.histograms.iter_mut().zip(&other.histograms) {
            ours.merge(theirs);
        }
    }

    /// The difference to an earlier copy; a gauge stays as it is.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let counters = Counter::ALL.iter().map(|&counter| match counter.kind() {
            CounterKind::Total => self.counter(counter).wrapping_sub(earlier.counter(counter)),
            CounterKind::Gauge => self.counter(counter),
        });
        let histograms = self.histograms.iter().zip(&earlier.histograms);
        Self {
            counters: counters.collect(),
            histograms: histograms.map(|(now, then)| now.since(then)).collect(),
            samples: self.samples.clone(),
        }
    }
}

/// A copy of a daemon's counters.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Name of the daemon.
    pub name: String,
    /// Its process, as the PID namespace of the daemon counts.
    pub process: ProcessId,
    /// The state of the daemon.
    pub state: DaemonState,
    /// The word of the file that tells it, where the process lives.
    life: u64,
    /// Its rank.
    pub rank: u64,
    /// The number of ranks.
    pub size: u64,
    /// The start time in seconds since 1970.
    pub started_at: u64,
    /// The start time in nanoseconds of the monotonic clock.
    pub started_ns: u64,
    /// One in so many turns of its loop is timed.
    pub sample_every: u64,
    /// The counters of each thread, by its number.
    pub sections: Vec<Section>,
}

impl Snapshot {
    /// Copies and checks a file.
    ///
    /// # Errors
    ///
    /// [`ReadError`].
    pub fn read(path: &Path) -> Result<Self, ReadError> {
        let io = |source| ReadError::Io { path: path.to_owned(), source };
        let file = plain_file::open(path).map_err(io)?;
        let mut bytes = Vec::new();
        let len_max = layout::file_bytes(SECTIONS_MAX) as u64 + (1 << 20);
        file.take(len_max).read_to_end(&mut bytes).map_err(io)?;
        let mut snapshot = Self::parse(path, &bytes)?;
        if let Some(is_alive) = holds_lock(path, snapshot.process) {
            snapshot.state = state_of(snapshot.life, is_alive);
        }
        Ok(snapshot)
    }

    /// Whether the process table of this PID namespace shows the daemon.
    #[must_use]
    pub fn is_seen(&self) -> bool {
        Process::open_same(self.process).is_ok()
    }

    /// Checks a copy.
    ///
    /// # Errors
    ///
    /// [`ReadError`].
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self, ReadError> {
        let (words, _) = bytes.as_chunks::<WORD_BYTES>();
        let words: Vec<_> = words.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        let path = || path.to_owned();
        let header = words.get(..HEADER_BYTES / WORD_BYTES);
        let header = header.filter(|header| header[word::MAGIC] == MAGIC);
        let header = header.ok_or_else(|| ReadError::Foreign { path: path() })?;
        if (header[word::VERSION], header[word::LAYOUT]) != (VERSION, LAYOUT) {
            let (theirs, their_layout) = (header[word::VERSION], header[word::LAYOUT]);
            return Err(ReadError::Version { path: path(), theirs, their_layout });
        }
        let count = usize::try_from(header[word::SECTIONS]).unwrap_or(usize::MAX);
        if !(1..=SECTIONS_MAX).contains(&count) || bytes.len() < layout::file_bytes(count) {
            return Err(ReadError::Short { path: path() });
        }
        Ok(Self::of_words(&words))
    }

    /// From words that are known to have this layout, and all that their header promises.
    pub(super) fn of_words(words: &[u64]) -> Self {
        let (header, sections) = words.split_at(HEADER_BYTES / WORD_BYTES);
        let count = usize::try_from(header[word::SECTIONS]).unwrap_or(usize::MAX);
        let sections = sections.chunks_exact(SECTION_WORDS).take(count);
        let pid = u32::try_from(header[word::PID]).unwrap_or(0);
        let process = ProcessId { pid, start_ticks: header[word::START_TICKS] };
        // Counters on the heap are read by the process that writes them.
        let is_alive = process.pid == 0 || !Process::is_gone(process);
        Self {
            name: name_of(header),
            process,
            state: state_of(header[word::LIFE], is_alive),
            life: header[word::LIFE],
            rank: header[word::RANK],
            size: header[word::SIZE],
            started_at: header[word::STARTED_AT],
            started_ns: header[word::STARTED_NS],
            sample_every: header[word::SAMPLE_EVERY],
            sections: sections.map(Section::parse).collect(),
        }
    }

    /// All threads together: for each moment of one, what all had said last.
    #[must_use]
    pub fn total(&self) -> Section {
        let mut sections = self.sections.iter();
        let mut total =
            sections.next().cloned().unwrap_or_else(|| Section::parse(&[0; SECTION_WORDS]));
        sections.for_each(|section| total.merge(section));
        if self.sections.len() > 1 {
            total.samples = samples_together(&self.sections);
        }
        total
    }
}

/// The latest moments of all threads, each with the sums of what all had said by then.
fn samples_together(sections: &[Section]) -> Vec<MetricsSample> {
    let moments = sections.iter().enumerate();
    let moments = moments
        .flat_map(|(thread, section)| section.samples.iter().map(move |sample| (thread, *sample)));
    let mut moments: Vec<_> = moments.collect();
    moments.sort_by_key(|(_, sample)| sample.time_ns);
    let mut latest = vec![[0; 3]; sections.len()];
    let mut sums = [0_u64; 3];
    let mut number = 0;
    let together = moments.into_iter().map(|(thread, sample)| {
        let values = [sample.outstanding, sample.done, sample.flushes];
        let before = std::mem::replace(&mut latest[thread], values);
        for ((sum, before), now) in sums.iter_mut().zip(before).zip(values) {
            *sum = sum.wrapping_sub(before).wrapping_add(now);
        }
        number += 1;
        let [outstanding, done, flushes] = sums;
        MetricsSample { number, time_ns: sample.time_ns, outstanding, done, flushes }
    });
    let mut together: Vec<_> = together.collect();
    together.drain(..together.len().saturating_sub(SAMPLES));
    together
}

fn name_of(header: &[u64]) -> String {
    let bytes: Vec<_> = header[word::NAME..].iter().flat_map(|word| word.to_le_bytes()).collect();
    let len = usize::try_from(header[word::NAME_BYTES]).unwrap_or(usize::MAX).min(NAME_BYTES_MAX);
    client::name::printable(&bytes[..len])
}

/// Whether the daemon that wrote the counters at `path` holds its lock, which lies beside them. `None`: that tells
/// nothing. The process table tells nothing of a daemon in another PID namespace.
fn holds_lock(path: &Path, process: ProcessId) -> Option<bool> {
    match lock::state_of(&path.with_extension("lock")).ok()? {
        LockState::Missing => None,
        LockState::Free => Some(false),
        // Another one that is about to start has counters of its own soon.
        LockState::Held { pid } => Some(pid.is_none_or(|pid| pid == process.pid)),
    }
}

fn state_of(life: u64, is_alive: bool) -> DaemonState {
    match Life::from_word(life) {
        Some(life) if is_alive => DaemonState::Alive(life),
        Some(Life::Stopped) => DaemonState::Stopped,
        _ => DaemonState::Crashed,
    }
}
