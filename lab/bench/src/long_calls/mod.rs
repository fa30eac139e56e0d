//! What a call costs whose request and answer are long: counts, and times on two cores.
//!
//! ```text
//! rpc       caller ═════════════════════════════════════════▶ worker that echoes
//! daemons   client ── shared memory ──▶ daemon 0 ═══════════▶ daemon 1, whose function echoes
//! process   client ── shared memory ──▶ daemon 0 ═══════════▶ daemon 1 ── shared memory ──▶ process that echoes
//! ```
//!
//! Counts are taken with all of them on one thread, which steps one after the other: they do not depend on what else the
//! machine does. Only the process that echoes has a thread of its own, so there turns are as many as it takes. Times are taken with the last one on a core of its own; both sides poll, so nobody sleeps or is woken.
//! Every byte of every answer is compared.

use std::{
    cell::RefCell,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use measure::cores::{self, Cores};
use memory::sync::{AtomicBool, Ordering};
use nics::{OpenError, Opener, Selection, Visitor};
use rpc::BodyStats;

use crate::{
    calls::NumberedMessage, delegated::ANSWER_BYTES_MAX, error::Error, shared_words::PATIENCE,
};

mod daemons;
mod rows;
mod stream;
mod workers;

use daemons::{DaemonCaller, Echo};
pub use rows::{LongCallRow, STREAM, long_call_rows};
use workers::{WorkerCaller, WorkerEcho};

/// Lengths of a request and of its answer.
pub const LONG_CALL_BYTES: [usize; 8] =
    [4 << 10, 8 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];

/// Of a batch: to its memory, to the mirror of the ring, to private memory of the receiver.
const COPIES_IN_THE_RING: u64 = 3;

/// Calls that are neither counted nor timed: they make regions and pages.
const WARM_UP: u32 = 8;

/// The way of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LongCallWay {
    /// Between two workers.
    Rpc,
    /// From a client of one daemon to a function of another one.
    Daemons,
    /// From a client of one daemon to a process of another one.
    Process,
}

impl LongCallWay {
    /// Its name in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rpc => "rpc",
            Self::Daemons => "daemons",
            Self::Process => "process",
        }
    }

    /// Whether its calls are timed. Where a process answers, there are two cores for three parties.
    #[must_use]
    pub fn is_timed(self) -> bool {
        self != Self::Process
    }

    /// Whether such a call can have bodies of this length.
    #[must_use]
    pub fn carries(self, len_bytes: usize) -> bool {
        self == Self::Rpc || len_bytes <= ANSWER_BYTES_MAX
    }
}

/// What one call costs, both directions and all parties together; means over the calls that were counted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LongCallCosts {
    /// Bytes that processors copied between the memory of the caller and that of the service, beside the two copies of a
    /// client, those of a process that answers, and beside one of the caller's daemon for answers of up to 16 KiB.
    pub copied_bytes: f64,
    /// Bytes that were cleared before.
    pub cleared_bytes: f64,
    /// Bytes that the NIC moved by READ.
    pub read_bytes: f64,
    /// READs.
    pub reads: f64,
    /// Most READs that were outstanding at a time.
    pub reads_at_once: u64,
    /// Polls that found no end of a READ while some were outstanding.
    pub polls_in_vain: f64,
    /// Turns of both sides.
    pub turns: f64,
    /// Page faults.
    pub page_faults: f64,
}

/// Counts what calls of one length cost.
///
/// # Errors
///
/// [`OpenError`] of the NIC; [`Error`]: the peer did not answer rightly and in time.
pub fn long_call_costs(
    nic: &Selection,
    way: LongCallWay,
    len_bytes: usize,
    calls: u32,
) -> Result<Result<LongCallCosts, Error>, OpenError> {
    with_pair(nic, way, Counting { len_bytes, calls })
}

/// Times of calls of one length with each side on its core, in ns.
///
/// # Errors
///
/// As of [`long_call_costs`].
pub fn long_call_times_ns(
    nic: &Selection,
    way: LongCallWay,
    len_bytes: usize,
    work: (u32, Cores),
) -> Result<Result<Vec<u64>, Error>, OpenError> {
    with_pair(nic, way, Timing { len_bytes, work })
}

/// What is measured of two sides.
trait Measurement {
    type Output;

    fn of(self, caller: impl LongCaller, other: impl MakeEcho) -> Result<Self::Output, Error>;
}

struct Counting {
    len_bytes: usize,
    calls: u32,
}

impl Measurement for Counting {
    type Output = LongCallCosts;

    fn of(self, caller: impl LongCaller, other: impl MakeEcho) -> Result<LongCallCosts, Error> {
        counted(caller, other, self.len_bytes, self.calls)
    }
}

struct Timing {
    len_bytes: usize,
    work: (u32, Cores),
}

impl Measurement for Timing {
    type Output = Vec<u64>;

    fn of(self, caller: impl LongCaller, other: impl MakeEcho) -> Result<Vec<u64>, Error> {
        times_ns(caller, other, self.len_bytes, self.work)
    }
}

/// Opens both sides of a way.
fn with_pair<M: Measurement>(
    nic: &Selection,
    way: LongCallWay,
    measurement: M,
) -> Result<Result<M::Output, Error>, OpenError> {
    struct OverRpc<M>(M);

    impl<M: Measurement> Visitor for OverRpc<M> {
        type Output = Result<M::Output, Error>;

        fn visit<O: Opener>(self, opener: O) -> Self::Output {
            let open = || opener.open().map_err(Error::refused("cannot open the NIC"));
            self.0.of(WorkerCaller::new(open()?)?, WorkerEcho(open))
        }
    }

    let answers = match way {
        LongCallWay::Rpc => return nic.with(OverRpc(measurement)),
        LongCallWay::Daemons => Echo::Function,
        LongCallWay::Process => Echo::Process,
    };
    let pair = DaemonCaller::pair(nic, answers);
    Ok(pair.and_then(|(caller, other)| measurement.of(caller, other)))
}

/// Bytes and READs so far, of one side.
#[derive(Clone, Copy, Default)]
struct Spent {
    bodies: BodyStats,
    /// Of bodies in the ring, and by a daemon.
    copied_bytes: u64,
}

impl Spent {
    /// By a worker, and by its daemon.
    fn of(worker: &rpc::Stats, daemon_bytes: u64) -> Self {
        let in_the_ring = COPIES_IN_THE_RING * worker.mirrored_bytes;
        Self { bodies: worker.bodies, copied_bytes: in_the_ring + daemon_bytes }
    }
}

/// One side, which is stepped.
trait Stepped {
    /// Returns once it has looked at everything once.
    fn step(&mut self) -> Result<(), Error>;

    fn spent(&self) -> Spent;
}

/// The side that calls.
trait LongCaller: Stepped {
    /// What the other side is told before it is made.
    fn contact(&mut self) -> Vec<u8>;

    /// Learns what the other side told; then both sides are stepped until [`is_ready`](Self::is_ready).
    fn meet(&mut self, contact: &[u8]) -> Result<(), Error>;

    fn is_ready(&mut self) -> Result<bool, Error>;

    /// Begins the next call.
    fn begin(&mut self, body: &[u8]) -> Result<(), Error>;

    /// Whether the answer is there, and is right.
    fn is_answered(&mut self, number: u64, message: &NumberedMessage) -> Result<bool, Error>;
}

/// Makes the other side, on the thread that steps it.
trait MakeEcho: Send {
    fn make(self, contact: &[u8]) -> Result<(Box<dyn Stepped>, Vec<u8>), Error>;
}

fn late() -> Error {
    Error::OutOfTurn("a peer does not answer".to_owned())
}

/// One call after the other, while `others` lets the other side do its part.
struct Series<'a, C> {
    caller: C,
    message: NumberedMessage,
    number: u64,
    others: &'a mut dyn FnMut() -> Result<(), Error>,
    turns: u64,
}

impl<C: LongCaller> Series<'_, C> {
    fn turn(&mut self) -> Result<(), Error> {
        self.turns += 1;
        self.caller.step()?;
        (self.others)()
    }

    fn ready(&mut self) -> Result<(), Error> {
        let begin = Instant::now();
        while !self.caller.is_ready()? {
            if begin.elapsed() > PATIENCE {
                return Err(late());
            }
            self.turn()?;
        }
        Ok(())
    }

    fn call(&mut self) -> Result<Duration, Error> {
        self.number += 1;
        let (number, begin) = (self.number, Instant::now());
        self.caller.begin(self.message.stamp(number))?;
        loop {
            self.turn()?;
            if self.caller.is_answered(number, &self.message)? {
                return Ok(begin.elapsed());
            }
            if begin.elapsed() > PATIENCE {
                return Err(late());
            }
        }
    }
}

/// Counts what calls cost, on one thread.
fn counted(
    mut caller: impl LongCaller,
    other: impl MakeEcho,
    len_bytes: usize,
    calls: u32,
) -> Result<LongCallCosts, Error> {
    let (other, told) = other.make(&caller.contact())?;
    caller.meet(&told)?;
    let other = RefCell::new(other);
    let mut others = || other.borrow_mut().step();
    let message = NumberedMessage::new(len_bytes);
    let mut series = Series { caller, message, number: 0, others: &mut others, turns: 0 };
    series.ready()?;
    for _ in 0..WARM_UP {
        series.call()?;
    }
    let before = [series.caller.spent(), other.borrow().spent()];
    let (turns, faults) = (series.turns, page_faults()?);
    for _ in 0..calls {
        series.call()?;
    }
    let faults = page_faults()? - faults;
    let after = [series.caller.spent(), other.borrow().spent()];
    let each = |of: fn(&Spent) -> u64| {
        let sum = |spent: &[Spent; 2]| spent.iter().map(of).sum::<u64>();
        (sum(&after) - sum(&before)) as f64 / f64::from(calls)
    };
    let most = |spent: &Spent| spent.bodies.outstanding_max;
    Ok(LongCallCosts {
        copied_bytes: each(|spent| spent.bodies.copied_bytes + spent.copied_bytes),
        cleared_bytes: each(|spent| spent.bodies.cleared_bytes),
        read_bytes: each(|spent| spent.bodies.moved_bytes),
        reads: each(|spent| spent.bodies.pieces),
        reads_at_once: after.iter().map(most).max().unwrap_or(0),
        polls_in_vain: each(|spent| spent.bodies.polls_in_vain),
        turns: 2.0 * (series.turns - turns) as f64 / f64::from(calls),
        page_faults: faults as f64 / f64::from(calls),
    })
}

/// What calls take with each side on its core.
fn times_ns(
    mut caller: impl LongCaller,
    other: impl MakeEcho,
    len_bytes: usize,
    (calls, cores): (u32, Cores),
) -> Result<Vec<u64>, Error> {
    let (contact, is_over) = (caller.contact(), AtomicBool::new(false));
    let (tell, told) = mpsc::channel();
    thread::scope(|scope| {
        let echo = scope.spawn(|| -> Result<(), Error> {
            cores::pin(cores.responder).map_err(Error::refused("cannot pin a thread"))?;
            let (mut other, mine) = other.make(&contact)?;
            // The other end ends with the measurement, as this does.
            let _ = tell.send(mine);
            // Relaxed: the flag is all there is to see.
            while !is_over.load(Ordering::Relaxed) {
                other.step()?;
            }
            Ok(())
        });
        let run = || -> Result<Vec<u64>, Error> {
            cores::pin(cores.initiator).map_err(Error::refused("cannot pin a thread"))?;
            caller.meet(&told.recv_timeout(PATIENCE).map_err(|_| late())?)?;
            let mut others = || Ok(());
            let message = NumberedMessage::new(len_bytes);
            let mut series = Series { caller, message, number: 0, others: &mut others, turns: 0 };
            series.ready()?;
            for _ in 0..WARM_UP {
                series.call()?;
            }
            let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            (0..calls).map(|_| series.call().map(nanoseconds)).collect()
        };
        let times = run();
        is_over.store(true, Ordering::Relaxed);
        let panicked = |_| Err(Error::OutOfTurn("a thread panicked".to_owned()));
        echo.join().unwrap_or_else(panicked)?;
        times
    })
}

/// The tenth percentile, and the median; `None`: there are no times.
fn percentiles(times: &mut [u64]) -> Option<[u64; 2]> {
    times.sort_unstable();
    let at = |tenths: usize| times.get(times.len() * tenths / 10).copied();
    Some([at(1)?, at(5)?])
}

/// Page faults of this thread so far that needed no device.
fn page_faults() -> Result<u64, Error> {
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_THREAD);
    let faults = usage.map_err(Error::refused("no counts of page faults"))?.minor_page_faults();
    Ok(u64::try_from(faults).unwrap_or(0))
}

/// Of each worker.
fn config() -> rpc::Config {
    rpc::Config { peers_max: 1, ..rpc::Config::default() }
}

fn right(
    number: u64,
    message: &NumberedMessage,
    is_success: bool,
    answer: &[u8],
) -> Result<bool, Error> {
    if is_success && message.is(number, answer) {
        return Ok(true);
    }
    Err(Error::Call { index: number, what: "its answer is wrong".to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bodies are READ once in each direction, in pieces of 128 KiB; after some calls nothing is cleared and no page is
    /// new. The copies are those of docs/performance.md.
    #[test]
    fn a_long_call_costs_what_the_documentation_says() {
        let nic = Selection::with_settings("soft", std::collections::BTreeMap::new());
        let ways = [LongCallWay::Rpc, LongCallWay::Daemons, LongCallWay::Process];
        for (way, copies) in ways.into_iter().zip([4.0; 3]) {
            let len_bytes = 300_000;
            let costs = long_call_costs(&nic, way, len_bytes, 20).unwrap().unwrap();
            let bodies = |bytes: f64| bytes / len_bytes as f64;
            // A message has some bytes of heads beside its body.
            assert!((bodies(costs.copied_bytes) - copies).abs() < 0.01, "{way:?}: {costs:?}");
            assert!((bodies(costs.read_bytes) - 2.0).abs() < 0.01, "{way:?}: {costs:?}");
            assert_eq!((costs.reads, costs.cleared_bytes), (6.0, 0.0), "{way:?}: {costs:?}");
            assert!(costs.page_faults < 1.0, "{way:?}: {costs:?}");
        }
    }

    /// Bodies of up to 16 KiB fit the ring behind their heads, and daemons add no copy of their own. Answers of daemons
    /// come ahead, though the caller said nothing of their length: as few turns as between workers, of which the caller
    /// said it.
    #[test]
    fn a_call_whose_bodies_the_ring_takes_needs_no_read() {
        let nic = Selection::with_settings("soft", std::collections::BTreeMap::new());
        let ways = [LongCallWay::Rpc, LongCallWay::Daemons, LongCallWay::Process];
        for len_bytes in [4 << 10, 8 << 10, 16 << 10] {
            for way in ways {
                let costs = long_call_costs(&nic, way, len_bytes, 20).unwrap().unwrap();
                assert_eq!((costs.reads, costs.read_bytes), (0.0, 0.0), "{way:?}: {costs:?}");
                let copied = costs.copied_bytes / len_bytes as f64;
                assert!((copied - 6.0).abs() < 0.1, "{way:?}, {len_bytes} B: {costs:?}");
                assert_eq!(costs.cleared_bytes, 0.0, "{way:?}: {costs:?}");
                if way != LongCallWay::Process {
                    assert!(costs.turns <= 4.0, "{way:?}: {costs:?}");
                    assert!(costs.page_faults < 1.0, "{way:?}: {costs:?}");
                }
            }
        }
    }
}
