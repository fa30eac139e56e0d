//! The log of a daemon: written by a thread of its own, so that a standard error that nobody reads stops
//! nobody, and with a bound on the lines of each kind, so that no client fills a disk.

use std::{
    collections::HashMap,
    io::{self, Write},
    sync::{
        Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, channel, sync_channel},
    },
    time::{Duration, Instant},
};

use memory::sync::{Arc, AtomicU64, Ordering, thread};
use os::clock;
use tracing::{Level, Metadata, callsite::Identifier};
use tracing_subscriber::fmt::MakeWriter;

use crate::{args::LogFormat, logs::note};

/// Lines of one kind that are written in a second; the others are counted.
const LINES_PER_SECOND: u32 = 20;

const SECOND_NS: u64 = 1_000_000_000;

/// Lines that may wait for the thread that writes; others are lost, and counted.
const LINES_MAX: usize = 1024;

/// How long the end of the program waits for what is still to be written.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(200);

/// How often a flush looks for room among the lines that wait.
const FLUSH_INTERVAL: Duration = Duration::from_millis(1);

/// For the thread that writes.
enum Message {
    Line(Vec<u8>),
    /// Lines were suppressed: their count is due in a second.
    Suppressed,
    /// To be answered when all before it is written.
    Flush(std::sync::mpsc::Sender<()>),
}

/// Lines of one kind in the present second.
#[derive(Debug, Default)]
struct Window {
    began_ns: u64,
    lines: u32,
    suppressed: u64,
}

/// Which lines are written.
#[derive(Debug, Default)]
struct Limiter {
    kinds: HashMap<Identifier, Window>,
}

/// What becomes of a line.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    /// It is written, after so many others of its kind that were not.
    Write { suppressed: u64 },
    /// It is counted. The first in its second.
    First,
    /// It is counted.
    Suppress,
}

impl Limiter {
    fn judge(&mut self, kind: Identifier, now_ns: u64) -> Fate {
        let window = self.kinds.entry(kind).or_default();
        if now_ns.saturating_sub(window.began_ns) >= SECOND_NS {
            let suppressed = core::mem::take(&mut window.suppressed);
            *window = Window { began_ns: now_ns, lines: 1, suppressed: 0 };
            return Fate::Write { suppressed };
        }
        if window.lines < LINES_PER_SECOND {
            window.lines += 1;
            return Fate::Write { suppressed: 0 };
        }
        window.suppressed += 1;
        if window.suppressed == 1 { Fate::First } else { Fate::Suppress }
    }

    /// Lines that were suppressed and not told of.
    fn take_suppressed(&mut self) -> u64 {
        self.kinds.values_mut().map(|window| core::mem::take(&mut window.suppressed)).sum()
    }
}

/// Takes lines, and never waits.
#[derive(Clone)]
pub(crate) struct Log {
    lines: SyncSender<Message>,
    limiter: Arc<Mutex<Limiter>>,
    /// Lines that found no room.
    lost: Arc<AtomicU64>,
    format: LogFormat,
}

impl Log {
    /// That writes to `into`, on a thread of its own.
    ///
    /// # Errors
    ///
    /// The kernel gives no thread.
    pub(crate) fn start(into: impl Write + Send + 'static, format: LogFormat) -> io::Result<Self> {
        let (lines, receiver) = sync_channel(LINES_MAX);
        let lost = Arc::new(AtomicU64::new(0));
        let log = Self { lines, limiter: Arc::default(), lost, format };
        let (limiter, lost) = (Arc::clone(&log.limiter), Arc::clone(&log.lost));
        let body = move || write_all(&receiver, into, &limiter, &lost, format);
        thread::Builder::new().name("copyrpc-log".to_owned()).stack_size(128 << 10).spawn(body)?;
        Ok(log)
    }

    fn limiter(&self) -> MutexGuard<'_, Limiter> {
        // Nothing in here panics halfway.
        self.limiter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, message: Message) {
        // The thread that writes ends with the program.
        if let Err(TrySendError::Full(_)) = self.lines.try_send(message) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until all that was logged is written, for `FLUSH_TIMEOUT` at most.
    pub(crate) fn flush(&self) {
        let deadline = Instant::now() + FLUSH_TIMEOUT;
        let (done, is_done) = channel();
        let mut message = Message::Flush(done);
        // A full queue is when most is still to be written: the flush waits for room too.
        while let Err(TrySendError::Full(unsent)) = self.lines.try_send(message) {
            if Instant::now() >= deadline {
                return;
            }
            message = unsent;
            thread::sleep(FLUSH_INTERVAL);
        }
        let _ = is_done.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    }
}

/// Writes lines until the program ends. An error of the writer costs its line.
fn write_all(
    lines: &Receiver<Message>,
    mut into: impl Write,
    limiter: &Mutex<Limiter>,
    lost: &AtomicU64,
    format: LogFormat,
) {
    let mut is_counting = false;
    loop {
        let message = match is_counting {
            true => lines.recv_timeout(Duration::from_nanos(SECOND_NS)),
            false => lines.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        let missed = lost.swap(0, Ordering::Relaxed);
        if missed > 0 {
            let told = format!("{missed} lines were lost: no process read the log");
            let _ = into.write_all(note(format, Level::WARN, &told).as_bytes());
        }
        match message {
            Ok(Message::Line(line)) => drop(into.write_all(&line)),
            Ok(Message::Suppressed) => is_counting = true,
            Ok(Message::Flush(done)) => drop((into.flush(), done.send(()))),
            Err(RecvTimeoutError::Timeout) => {
                is_counting = false;
                let limiter = limiter.lock();
                let count = limiter.unwrap_or_else(PoisonError::into_inner).take_suppressed();
                if count > 0 {
                    let told = format!("{count} lines like those before were suppressed");
                    let _ = into.write_all(note(format, Level::WARN, &told).as_bytes());
                }
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// A line that is being made; it is sent when it is complete. `None`: it is not written.
pub(crate) struct Line {
    bytes: Vec<u8>,
    log: Option<Log>,
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.log.is_some() {
            self.bytes.extend_from_slice(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if let Some(log) = self.log.take() {
            log.send(Message::Line(core::mem::take(&mut self.bytes)));
        }
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line { bytes: Vec::new(), log: Some(self.clone()) }
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Line {
        let fate = self.limiter().judge(metadata.callsite(), clock::now_ns());
        let mut bytes = Vec::new();
        match fate {
            Fate::Write { suppressed: 0 } => {}
            Fate::Write { suppressed } => {
                let told = format!("{suppressed} lines like the next were suppressed");
                bytes = note(self.format, Level::WARN, &told).into();
            }
            Fate::First => self.send(Message::Suppressed),
            Fate::Suppress => {}
        }
        let log = matches!(fate, Fate::Write { .. }).then(|| self.clone());
        Line { bytes, log }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// A writer that blocks until it may go on, once.
    struct Pipe {
        written: Arc<Mutex<Vec<u8>>>,
        may_go_on: Option<Receiver<()>>,
    }

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if let Some(may_go_on) = self.may_go_on.take() {
                let _ = may_go_on.recv();
            }
            self.written.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn pipe() -> (Log, Arc<Mutex<Vec<u8>>>, Sender<()>) {
        let (go_on, may_go_on) = channel();
        let written = Arc::new(Mutex::new(Vec::new()));
        let pipe = Pipe { written: Arc::clone(&written), may_go_on: Some(may_go_on) };
        (Log::start(pipe, LogFormat::Text).unwrap(), written, go_on)
    }

    fn text(written: &Mutex<Vec<u8>>) -> String {
        String::from_utf8(written.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn fault_i6_a_log_that_nobody_reads_stops_nobody_and_says_what_it_lost() {
        let (log, written, go_on) = pipe();
        for number in 0..5000 {
            writeln!(log.make_writer(), "line {number}").unwrap();
        }
        assert_eq!(text(&written), "", "all of it was taken while nothing was written");
        go_on.send(()).unwrap();
        // Those that were lost are told of at any line: the writer may have begun late.
        let is_complete =
            |text: &str| text.contains("lines were lost") && text.contains("line 1000\n");
        let mut flushes = 0;
        while !is_complete(&text(&written)) && flushes < 100 {
            log.flush();
            flushes += 1;
        }
        let text = text(&written);
        assert!(text.contains("lines were lost"), "{text}");
        assert!(text.contains("line 0\n") && text.contains("line 1000\n"), "{text}");
        assert!(!text.contains("line 4999\n"));
    }

    #[test]
    fn fault_i6_lines_of_one_kind_are_limited_and_those_that_were_suppressed_counted() {
        let (log, written, go_on) = pipe();
        go_on.send(()).unwrap();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(log.clone())
            .with_ansi(false)
            .without_time()
            .with_target(false)
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            for number in 0..1000 {
                tracing::info!(number, "the same again and again");
            }
            tracing::info!("another kind");
        });
        log.flush();
        let lines = text(&written);
        // A slow machine may take more than a second for a thousand lines.
        let count = lines.lines().filter(|line| line.contains("again and again")).count();
        assert!((20..200).contains(&count), "{count} lines");
        assert!(lines.contains("another kind"), "{lines}");
        // Their count comes a second later, though nothing is logged any more.
        while !text(&written).contains("were suppressed") {
            thread::yield_now();
        }
    }

    #[test]
    fn a_second_later_lines_are_written_again() {
        struct Callsite;
        impl tracing::callsite::Callsite for Callsite {
            fn set_interest(&self, _: tracing::subscriber::Interest) {}
            fn metadata(&self) -> &Metadata<'_> {
                unreachable!("only its address counts")
            }
        }
        static KIND: Callsite = Callsite;
        let kind = || tracing::callsite::Identifier(&KIND);
        let mut limiter = Limiter::default();
        for _ in 0..LINES_PER_SECOND {
            assert_eq!(limiter.judge(kind(), 5_000_000_000), Fate::Write { suppressed: 0 });
        }
        assert_eq!(limiter.judge(kind(), 5_000_000_000), Fate::First);
        assert_eq!(limiter.judge(kind(), 5_999_999_999), Fate::Suppress);
        assert_eq!(limiter.judge(kind(), 6_000_000_000), Fate::Write { suppressed: 2 });
        assert_eq!(limiter.take_suppressed(), 0);
    }
}
