//! The log of many seeds: which were run, and what came of them. Several processes share one, also over a file system
//! of several hosts that has locks.
//!
//! ```text
//! {"run": …}                              what is run with each seed; the first line
//! {"begun": {"worker": 1, "first": 0, "count": 128}}
//! {"begun": {"worker": 2, "first": 128, "count": 128}}
//! {"done": {"worker": 2, "first": 128, "count": 128, "events": …}}
//! ```
//!
//! A line is read and added under the lock of the log. A worker holds the lock of a file of its own, `LOG.worker-N`, for
//! as long as it lives, so what a dead one has begun is free again. Seeds are counted from the first one of the run.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs::{self, File, TryLockError},
    io::{Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};
use sim::cluster::{Setup, Swarm};

use crate::version::VERSION;

/// What is run with each seed, so that no log has two things.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Run {
    /// The command line of the first seed.
    setup: String,
    twice: bool,
    /// Of what runs, with the commit that `--version` prints: another build may do other things with the same seed.
    version: String,
}

impl Run {
    pub(super) fn new(setup: &Setup, twice: bool) -> Self {
        let version = VERSION.to_owned();
        Self { setup: setup.to_string(), twice, version }
    }
}

/// Seeds that one worker has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Begun {
    worker: u32,
    pub(super) first: u64,
    pub(super) count: u64,
}

/// What came of them, none having failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Done {
    #[serde(flatten)]
    begun: Begun,
    events: u64,
    calls: u64,
    /// A number of 64 bits, as text: readers of JSON may have 53.
    trace: String,
    seconds: f64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Run(Run),
    Begun(Begun),
    Done(Done),
}

/// What the lines of a log say.
#[derive(Debug, Default)]
struct Known {
    run: Option<Run>,
    /// What is done, as first seed and the seed behind the last; none of them touch.
    done: BTreeMap<u64, u64>,
    /// What each worker has begun and not ended.
    begun: BTreeMap<u32, Begun>,
    sum: Swarm,
    seconds: f64,
}

impl Known {
    fn add(&mut self, line: Line) -> anyhow::Result<()> {
        match line {
            Line::Run(run) => self.run = Some(run),
            Line::Begun(begun) => drop(self.begun.insert(begun.worker, begun)),
            Line::Done(done) => {
                let Begun { worker, first, count } = done.begun;
                ensure!(self.is_free(first, count), "seeds {first} to {count} are done twice");
                self.begun.remove(&worker);
                self.cover(first, first + count);
                let trace = u64::from_str_radix(&done.trace, 16).context("`trace` is no number")?;
                let Done { events, calls, seconds, .. } = done;
                self.sum.merge(Swarm { seeds: count, events, calls, trace, failure: None });
                self.seconds += seconds;
            }
        }
        Ok(())
    }

    fn is_free(&self, first: u64, count: u64) -> bool {
        let before = self.done.range(..first + count).next_back();
        before.is_none_or(|(_, end)| *end <= first)
    }

    fn cover(&mut self, mut first: u64, mut end: u64) {
        if let Some((before, touched)) = self.done.range(..first).next_back()
            && *touched == first
        {
            first = *before;
        }
        if let Some(behind) = self.done.remove(&end) {
            end = behind;
        }
        self.done.insert(first, end);
    }

    /// The first seeds, at most `count` and below `end`, that nobody has done and no worker of `alive` has begun.
    fn next(&self, count: u64, end: u64, alive: &BTreeSet<u32>) -> Option<(u64, u64)> {
        let begun = self.begun.values().filter(|begun| alive.contains(&begun.worker));
        let begun = begun.map(|begun| (begun.first, begun.first + begun.count));
        let mut taken = self.done.iter().map(|(a, b)| (*a, *b)).chain(begun).collect::<Vec<_>>();
        taken.sort_unstable();
        let mut first = 0;
        for (from, to) in taken {
            if from > first {
                return (first < end).then(|| (first, (from.min(end) - first).min(count)));
            }
            first = first.max(to);
        }
        (first < end).then(|| (first, (end - first).min(count)))
    }
}

/// A log, and the place of this process among those that share it.
pub(super) struct SeedLog {
    path: PathBuf,
    file: File,
    /// Bytes of whole lines that [`Self::known`] has.
    read: u64,
    known: Known,
    worker: u32,
    /// Locked as long as this process works.
    _place: File,
}

impl SeedLog {
    /// Opens the log, or begins it.
    pub(super) fn open(path: &Path, run: &Run) -> anyhow::Result<Self> {
        let cannot = || format!("cannot open {}", path.display());
        let opened = File::options().read(true).append(true).create(true).open(path);
        let mut file = opened.with_context(cannot)?;
        file.lock().with_context(cannot)?;
        let (mut read, mut known) = (0, Known::default());
        read_lines(path, &mut file, &mut read, &mut known)?;
        if let Some(kept) = &known.run {
            ensure!(
                kept == run,
                "{} keeps another run, of version {}: {}{}; name another file",
                path.display(),
                kept.version,
                kept.setup,
                if kept.twice { " --twice" } else { "" },
            );
        } else {
            add_line(path, &mut file, &Line::Run(run.clone()))?;
        }
        let (worker, place) = take_place(path)?;
        file.unlock().with_context(cannot)?;
        Ok(Self { path: path.to_owned(), file, read, known, worker, _place: place })
    }

    /// The next seeds below `end` that this process is to run; `None`: others have the rest, or all is done.
    pub(super) fn begin(&mut self, count: u64, end: u64) -> anyhow::Result<Option<Begun>> {
        self.locked(|log| {
            let alive = log.known.begun.keys().copied().filter(|other| log.is_alive(*other));
            let alive = alive.collect();
            let Some((first, count)) = log.known.next(count, end, &alive) else { return Ok(None) };
            let begun = Begun { worker: log.worker, first, count };
            add_line(&log.path, &mut log.file, &Line::Begun(begun))?;
            Ok(Some(begun))
        })
    }

    /// What came of seeds, none of which failed.
    pub(super) fn end(&mut self, begun: Begun, swarm: &Swarm, seconds: f64) -> anyhow::Result<()> {
        let Swarm { events, calls, .. } = *swarm;
        let trace = format!("{:016x}", swarm.trace);
        let done = Done { begun, events, calls, trace, seconds };
        self.locked(|log| add_line(&log.path, &mut log.file, &Line::Done(done)))
    }

    /// What all processes have done, and their time together.
    pub(super) fn sum(&mut self) -> anyhow::Result<(Swarm, f64)> {
        self.locked(|_| Ok(()))?;
        Ok((self.known.sum.clone(), self.known.seconds))
    }

    /// Which seeds are done, of a run that begins with seed `from`; and with whom the others are.
    pub(super) fn coverage(&self, from: u64) -> String {
        let span = |(first, end): (&u64, &u64)| {
            format!("{} to {}", from.wrapping_add(*first), from.wrapping_add(end - 1))
        };
        let spans = self.known.done.iter().map(span).collect::<Vec<_>>();
        let mut text = match spans.len() {
            0 => "no seed is done".to_owned(),
            1..=8 => format!("done: {}", spans.join(", ")),
            more => format!("done: {}, … in {more} pieces", spans[..8].join(", ")),
        };
        let others = self.known.begun.iter().filter(|(worker, _)| **worker != self.worker);
        let others = others.filter(|(worker, _)| self.is_alive(**worker));
        let (processes, seeds) =
            others.fold((0_u64, 0_u64), |(n, seeds), (_, begun)| (n + 1, seeds + begun.count));
        if processes > 0 {
            let _ = write!(text, "; {seeds} are with {processes} other processes");
        }
        text
    }

    /// Whether a worker lives: then its lock cannot be had.
    fn is_alive(&self, worker: u32) -> bool {
        let is_ours = worker == self.worker;
        let opened = File::open(place_of(&self.path, worker));
        !is_ours
            && opened.is_ok_and(|file| matches!(file.try_lock(), Err(TryLockError::WouldBlock)))
    }

    /// Does `act` while no other process reads or adds, with what they have added.
    fn locked<T>(&mut self, act: impl FnOnce(&mut Self) -> anyhow::Result<T>) -> anyhow::Result<T> {
        let cannot = |path: &Path| format!("cannot lock {}", path.display());
        self.file.lock().with_context(|| cannot(&self.path))?;
        let read = read_lines(&self.path, &mut self.file, &mut self.read, &mut self.known);
        let done = read.and_then(|()| act(self));
        let read = done.and_then(|done| {
            read_lines(&self.path, &mut self.file, &mut self.read, &mut self.known).map(|()| done)
        });
        self.file.unlock().with_context(|| cannot(&self.path))?;
        read
    }
}

impl Drop for SeedLog {
    /// Its place is free. Whoever opens that file does so under the lock of the log.
    fn drop(&mut self) {
        if self.file.lock().is_ok() {
            let _ = fs::remove_file(place_of(&self.path, self.worker));
        }
    }
}

fn place_of(log: &Path, worker: u32) -> PathBuf {
    let mut name = log.as_os_str().to_owned();
    name.push(format!(".worker-{worker}"));
    name.into()
}

/// The first place that no living process has.
fn take_place(log: &Path) -> anyhow::Result<(u32, File)> {
    for worker in 1.. {
        let path = place_of(log, worker);
        let cannot = || format!("cannot lock {}", path.display());
        let file = File::options().append(true).create(true).open(&path).with_context(cannot)?;
        match file.try_lock() {
            Ok(()) => return Ok((worker, file)),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(error).with_context(cannot),
        }
    }
    unreachable!("fewer than 2³² processes run")
}

/// Reads what was added. A line without its end is of a writer that was killed: it is cut off.
fn read_lines(
    path: &Path,
    file: &mut File,
    read: &mut u64,
    known: &mut Known,
) -> anyhow::Result<()> {
    let cannot = || format!("cannot read {}", path.display());
    let mut text = String::new();
    file.seek(SeekFrom::Start(*read)).with_context(cannot)?;
    file.read_to_string(&mut text).with_context(cannot)?;
    for line in text.split_inclusive('\n') {
        if !line.ends_with('\n') {
            file.set_len(*read).with_context(cannot)?;
            break;
        }
        let parsed = serde_json::from_str(line).map_err(anyhow::Error::from);
        let is_first = *read == 0;
        parsed
            .and_then(|line| {
                let is_run = matches!(line, Line::Run(_));
                ensure!(is_run == is_first, "the first line, and no other, says what is run");
                known.add(line)
            })
            .with_context(|| format!("{} is no log of seeds; name another file", path.display()))?;
        *read += line.len() as u64;
    }
    Ok(())
}

fn add_line(path: &Path, file: &mut File, line: &Line) -> anyhow::Result<()> {
    let text = serde_json::to_string(line).context("cannot write JSON")? + "\n";
    file.write_all(text.as_bytes()).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let folder = format!("copyrpc-seed-log-{name}-{}", std::process::id());
            let folder = std::env::temp_dir().join(folder);
            fs::create_dir(&folder).unwrap();
            Self(folder)
        }

        fn log(&self) -> PathBuf {
            self.0.join("seeds.log")
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn run_named(setup: &str) -> Run {
        Run { setup: setup.into(), twice: false, version: "1".into() }
    }

    fn open(folder: &Folder) -> SeedLog {
        SeedLog::open(&folder.log(), &run_named("a")).unwrap()
    }

    fn done(count: u64) -> Swarm {
        Swarm { seeds: count, events: 10 * count, calls: count, trace: u64::MAX, failure: None }
    }

    #[test]
    fn what_a_dead_worker_has_begun_is_begun_again_and_what_a_living_one_has_is_not() {
        let folder = Folder::new("dead");
        let (mut one, mut two) = (open(&folder), open(&folder));
        let first = one.begin(10, 25).unwrap().unwrap();
        let second = two.begin(10, 25).unwrap().unwrap();
        assert_eq!([(first.first, first.count), (second.first, second.count)], [(0, 10), (10, 10)]);
        two.end(second, &done(10), 1.0).unwrap();
        assert_eq!(two.coverage(100), "done: 110 to 119; 10 are with 1 other processes");
        let third = two.begin(10, 25).unwrap().unwrap();
        assert_eq!((third.first, third.count), (20, 5));
        two.end(third, &done(5), 1.0).unwrap();
        assert!(two.begin(10, 25).unwrap().is_none(), "the rest is with the other one");
        drop(one);
        let again = two.begin(10, 25).unwrap().unwrap();
        assert_eq!((again.first, again.count), (0, 10));
        two.end(again, &done(10), 1.0).unwrap();
        let (sum, seconds) = two.sum().unwrap();
        assert_eq!((sum.seeds, sum.events, seconds), (25, 250, 3.0));
        assert_eq!(two.coverage(100), "done: 100 to 124");
        drop(two);
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1, "places are gone");
    }

    #[test]
    fn a_line_without_its_end_is_cut_off_and_a_seed_is_never_done_twice() {
        let folder = Folder::new("torn");
        let mut log = open(&folder);
        let begun = log.begin(4, 8).unwrap().unwrap();
        log.end(begun, &done(4), 1.0).unwrap();
        drop(log);
        let whole = fs::read_to_string(folder.log()).unwrap();
        fs::write(folder.log(), format!("{whole}{{\"begun\":{{\"wor")).unwrap();
        let mut log = open(&folder);
        assert_eq!(log.sum().unwrap().0.seeds, 4);
        assert_eq!(log.begin(4, 8).unwrap().unwrap().first, 4);
        drop(log);
        let last = whole.lines().last().unwrap();
        fs::write(folder.log(), format!("{whole}{last}\n")).unwrap();
        let twice = SeedLog::open(&folder.log(), &run_named("a")).map(drop).unwrap_err();
        assert!(format!("{twice:#}").contains("done twice"), "{twice:#}");
        fs::write(folder.log(), "{}\n").unwrap();
        let foreign = SeedLog::open(&folder.log(), &run_named("a")).map(drop).unwrap_err();
        assert!(foreign.to_string().contains("is no log of seeds"), "{foreign}");
    }
}
