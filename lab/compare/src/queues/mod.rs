//! Queues between two threads, as `copyrpc-lab bench inproc` measures its own.

#[cfg(has_boost)]
mod boost;
mod peers;

use std::time::{Duration, Instant};

use copyrpc_bench::threads::{
    CAPACITY_ITEMS, Item, Shape, ThreadSetup,
    spsc_ring::{self, Queue},
};
use copyrpc_inproc::spsc;
use measure::{
    ping_pong, regime::Probes, results::Metric, schedule::shuffled, shared_words::SharedWords,
};

use crate::{Fallible, plan::ComparisonPlan, table::Measurements};

/// What every ratio is to.
const REFERENCE: &str = "rtrb";
/// Duration of a probe, and of the warm-up before it.
const PROBE: Duration = Duration::from_millis(1);
/// Duration of a sample on an otherwise idle machine, in ns.
const SAMPLE_NS: f64 = 3e7;
/// Items to find out how many fit a sample.
const TRIAL_ITEMS: u64 = 20_000;

/// M items/s, or ns per round trip; none if the queue has no such interface.
type Run = fn(Shape, ThreadSetup<'_>) -> Fallible<Option<f64>>;

fn sample<T: Item, Q: Queue>(shape: Shape, stage: ThreadSetup<'_>) -> Fallible<Option<f64>> {
    if shape == Shape::Batched && !Q::HAS_SLICES {
        return Ok(None);
    }
    let trial = spsc_ring::run::<T, Q>(shape, stage, TRIAL_ITEMS)?;
    let item_ns = if shape == Shape::RoundTrip { trial } else { 1e3 / trial };
    Ok(Some(spsc_ring::run::<T, Q>(shape, stage, (SAMPLE_NS / item_ns) as u64)?))
}

fn rows<T: Item>() -> Vec<(&'static str, Run)> {
    macro_rules! rows {
        ($($peer:ident)*) => { vec![$((peers::$peer::NAME, sample::<T, peers::$peer> as Run)),*] };
    }
    let mut rows = rows!(Rtrb Ringbuf CrossbeamQueue CrossbeamChannel StdMpsc Flume Kanal);
    rows.push(("copyrpc lamport", sample::<T, spsc::Lamport>));
    rows.push(("copyrpc fastforward", sample::<T, spsc::FastForward>));
    rows.push(("copyrpc onesided", sample::<T, spsc::Onesided>));
    #[cfg(has_boost)]
    rows.push((boost::Boost::NAME, sample::<T, boost::Boost>));
    rows
}

/// Compares all peers whose names the plan names with [`REFERENCE`].
pub fn compare(plan: &ComparisonPlan, comparison: &mut Measurements) -> Fallible<()> {
    comparison.note(format!("queues of {CAPACITY_ITEMS} slots"));
    if cfg!(not(has_boost)) {
        comparison.note(
            "boost::lockfree::spsc_queue: skipped, there was no C++ compiler or no Boost when this was \
             compiled: install g++ and libboost-dev, then `cargo clean -p copyrpc-compare`"
                .into(),
        );
    }
    let (begin, first) = (Instant::now(), comparison.len());
    let shared = SharedWords::new()?;
    let cores = plan.cores;
    let stage = ThreadSetup { pool: &[cores.responder, cores.initiator], shared: &shared };
    let probe = || ping_pong::between_threads(cores, &shared, PROBE);
    let shapes = [
        (Shape::Single, "single", Metric::Rate),
        (Shape::Batched, "slices-of-32", Metric::Rate),
        (Shape::RoundTrip, "round-trip", Metric::RoundTrip),
    ];
    let mut works = Vec::new();
    let mut rows_of_works = Vec::new();
    for (shape, name, metric) in shapes {
        for (bytes, mut rows) in [(8, rows::<u64>()), (64, rows::<[u64; 8]>())] {
            let work = format!("queues/{name}/{bytes}B");
            rows.retain(|(name, _)| plan.has(name, REFERENCE));
            comparison.declare((&work, REFERENCE), metric, rows.iter().map(|(name, _)| *name));
            works.push(work);
            rows_of_works.push((shape, rows));
        }
    }
    comparison.take_rounds((plan, begin), &works, first, |index, round, comparison| {
        let ((shape, rows), work) = (&rows_of_works[index], &works[index]);
        for index in shuffled(rows.len(), round) {
            let (peer, run) = rows[index];
            let before_ns = probe()?;
            let Some(value) = run(*shape, stage)? else { continue };
            let probes = Probes { before_ns, after_ns: probe()? };
            comparison.add(work, peer, probes, value);
        }
        Ok(())
    })
}
