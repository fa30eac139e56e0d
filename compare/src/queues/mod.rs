//! Queues between two threads.
//!
//! Both pause (`spin_loop`) when they find a queue full or empty.

#[cfg(has_boost)]
mod boost;
mod peers;
mod work;

use std::{collections::BTreeMap, time::Duration};

use copyrpc_bench::{board::Board, cores::Cores, pingpong, regime::Regime};
use peers::Peer;
use work::Numbered;

use crate::{
    Outcome,
    table::{self, Samples},
};

/// Queue slots everywhere.
const CAPACITY: usize = 1024;
/// What every ratio is to.
const REFERENCE: &str = "rtrb";
/// Duration of a probe, and of the warm-up before it.
const PROBE: Duration = Duration::from_millis(1);

/// One column of numbers: what was done, and how to read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cell {
    Single,
    Slices,
    RoundTrip,
}

impl Cell {
    fn title(self) -> &'static str {
        match self {
            Self::Single => "single push and pop, M items/s",
            Self::Slices => "slices of 32, M items/s",
            Self::RoundTrip => "round trip over two queues, ns",
        }
    }
}

type Run = fn(Cell, Cores) -> Option<f64>;
type Row = (&'static str, Run);

fn rows<T: Numbered>() -> Vec<Row> {
    macro_rules! rows {
        ($($peer:ident)*) => { vec![$((peers::$peer::NAME, work::sample::<peers::$peer, T> as Run)),*] };
    }
    #[cfg_attr(not(has_boost), expect(unused_mut, reason = "a row is added below"))]
    let mut rows = rows!(Rtrb OurLamport OurFastForward OurOnesided Ringbuf CrossbeamQueue
                         CrossbeamChannel StdMpsc Flume Kanal);
    #[cfg(has_boost)]
    rows.push((boost::Boost::NAME, work::sample::<boost::Boost, T> as Run));
    rows
}

/// Compares all peers whose names contain `filter` with [`REFERENCE`].
pub fn compare(cores: Cores, rounds: usize, filter: &str) -> Outcome<()> {
    println!("queues of {CAPACITY} slots");
    if cfg!(not(has_boost)) {
        println!(
            "boost::lockfree::spsc_queue: skipped, there was no C++ compiler or no Boost when this was \
             compiled: install g++ and libboost-dev, then `cargo clean -p copyrpc-compare`"
        );
    }
    for cell in [Cell::Single, Cell::Slices, Cell::RoundTrip] {
        measure(cores, rounds, filter, (cell, 8), &rows::<u64>())?;
        measure(cores, rounds, filter, (cell, 64), &rows::<[u64; 8]>())?;
    }
    Ok(())
}

fn measure(
    cores: Cores,
    rounds: usize,
    filter: &str,
    (cell, bytes): (Cell, usize),
    rows: &[Row],
) -> Outcome<()> {
    let board = Board::new()?;
    let probe = || pingpong::between_threads(cores, &board, PROBE);
    let mut samples: BTreeMap<&str, Samples> = BTreeMap::new();
    let chosen = |name: &str| name.contains(filter) || name == REFERENCE;
    for _ in 0..rounds {
        for (name, run) in rows.iter().filter(|(name, _)| chosen(name)) {
            let before_ns = probe()?;
            let Some(value) = run(cell, cores) else { continue };
            let regime = Regime::between(before_ns, probe()?);
            let sample = (regime != Regime::Mixed).then_some((regime, value));
            samples.entry(name).or_default().push(sample);
        }
    }
    table::heading(&format!("{bytes} B, {}", cell.title()), REFERENCE);
    for (name, _) in rows {
        if let Some(own) = samples.get(name) {
            table::row(name, own, &samples[REFERENCE]);
        }
    }
    Ok(())
}
