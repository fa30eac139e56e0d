//! The same work on copyrpc's rings and on their peers: one command, one table per cell.
//!
//! ```console
//! $ cargo run --release [ROUNDS [ITEMS_FILTER]]
//! ```
//!
//! Two threads, pinned to the first two cores allowed, which pause (`spin_loop`) when they find a
//! queue full or empty. In each round every queue takes its turn, so what the machine does to one it
//! does to all, and ratios are taken within a round. Each sample is bracketed by a line ping-pong: it
//! counts as *near* or *far* only if both probes say so (on a virtual machine the two cores may share
//! a cache in one minute and not in the next).

mod peers;
mod probe;
mod work;

use std::{collections::BTreeMap, env};

use peers::Peer;
use probe::Regime;

/// Queue slots everywhere.
const CAPACITY: usize = 1024;
const ROUNDS: usize = 9;

/// One column of numbers: what was done, and how to read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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

type Run = fn(Cell) -> Option<f64>;

/// Samples of one queue: per round, what the probes said and the value.
type Samples = Vec<Option<(Regime, f64)>>;

fn rows<T: work::Item>() -> Vec<(&'static str, Run)> {
    macro_rules! rows {
        ($($peer:ident)*) => { vec![$((peers::$peer::NAME, work::sample::<peers::$peer, T> as Run)),*] };
    }
    rows!(Rtrb OurLamport OurFastForward OurOnesided Ringbuf CrossbeamQueue CrossbeamChannel StdMpsc
          Flume Kanal)
}

fn measure(rounds: usize, filter: &str, cell: Cell, bytes: usize, rows: &[(&'static str, Run)]) {
    let mut samples: BTreeMap<&str, Samples> = BTreeMap::new();
    for _ in 0..rounds {
        for (name, run) in rows.iter().filter(|(name, _)| name.contains(filter) || *name == "rtrb")
        {
            let before = probe::regime();
            let Some(value) = run(cell) else { continue };
            let sample = before.filter(|before| probe::regime() == Some(*before));
            samples.entry(name).or_default().push(sample.map(|regime| (regime, value)));
        }
    }
    println!("\n{bytes} B, {}", cell.title());
    println!("{:<26} {:>34} {:>34}", "", "near: median (min-max; n) x rtrb", "far");
    for (name, _) in rows {
        let Some(own) = samples.get(name) else { continue };
        let column = |regime| column(own, &samples["rtrb"], regime);
        println!("{name:<26} {:>34} {:>34}", column(Regime::Near), column(Regime::Far));
    }
}

/// Median with spread, and the median ratio to the same round's sample of the reference.
fn column(own: &Samples, reference: &Samples, regime: Regime) -> String {
    let of = |sample: &Option<(Regime, f64)>| sample.filter(|(r, _)| *r == regime).map(|(_, v)| v);
    let mut values: Vec<f64> = own.iter().filter_map(of).collect();
    if values.is_empty() {
        return "-".into();
    }
    let pairs = own.iter().zip(reference);
    let mut ratios: Vec<f64> =
        pairs.filter_map(|(own, reference)| Some(of(own)? / of(reference)?)).collect();
    let (low, middle, high) = spread(&mut values);
    let ratio = if ratios.is_empty() { f64::NAN } else { spread(&mut ratios).1 };
    format!("{middle:.1} ({low:.1}-{high:.1}; {}) {ratio:.2}x", values.len())
}

fn spread(values: &mut [f64]) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[0], values[values.len() / 2], values[values.len() - 1])
}

fn main() {
    let mut args = env::args().skip(1);
    let rounds = args.next().and_then(|arg| arg.parse().ok()).unwrap_or(ROUNDS);
    let filter = args.next().unwrap_or_default();
    let cores = copyrpc_os::affinity::allowed_cores().unwrap_or_default();
    if cores.len() < 2 {
        eprintln!(
            "two cores are needed, {} allowed: nothing measured here would mean anything",
            cores.len()
        );
        std::process::exit(1);
    }
    println!("capacity {CAPACITY}, cores {} and {}, {rounds} rounds", cores[0], cores[1]);
    for cell in [Cell::Single, Cell::Slices, Cell::RoundTrip] {
        measure(rounds, &filter, cell, 8, &rows::<u64>());
        measure(rounds, &filter, cell, 64, &rows::<[u64; 8]>());
    }
}
