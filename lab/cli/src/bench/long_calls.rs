//! `copyrpc-lab bench long`.

use std::time::Instant;

use bench::long_calls::{LONG_CALL_BYTES, LongCallCosts, LongCallWay, long_call_costs};
use clap::Args as ClapArgs;
use command::{
    flags::{KnobFlags, NicKnobs},
    nic,
    output::print,
    table::table,
};
use measure::{cores::Cores, progress::StepProgress};

/// Longest bodies with `--quick`.
const QUICK_BYTES_MAX: usize = 1 << 20;
/// All requests of a row together have so many bytes at most, unless one is longer.
const ROW_BYTES: usize = 256 << 20;
/// Fewest calls of a row.
const CALLS_MIN: usize = 8;

#[derive(Debug, ClapArgs)]
pub(crate) struct LongArgs {
    /// Bodies of up to 1 MiB, and fewer calls.
    #[arg(long)]
    quick: bool,
    /// Calls of each row, twice; fewer of long ones.
    #[arg(long, value_name = "N", default_value_t = 400, value_parser = clap::value_parser!(u32).range(1..))]
    calls: u32,
    /// Print JSON lines instead of a table.
    #[arg(long)]
    json: bool,
    /// The two cores, as `INITIATOR,RESPONDER` [default: two that are
    /// allowed, of different physical cores if there are such].
    #[arg(long, value_name = "A,B")]
    cpus: Option<Cores>,
    #[command(flatten)]
    nic: KnobFlags<NicKnobs>,
}

impl LongArgs {
    fn calls(&self, len_bytes: usize) -> u32 {
        let most = u32::try_from((ROW_BYTES / len_bytes).max(CALLS_MIN)).unwrap_or(u32::MAX);
        let quick = if self.quick { 8 } else { 1 };
        (self.calls / quick).clamp(1, most)
    }
}

const HEADER: [&str; 12] = [
    "way", "bytes", "p10 us", "p50 us", "copies", "cleared", "by NIC", "READs", "at once",
    "in vain", "turns", "faults",
];

/// Measures each length by each way.
pub(crate) fn run(args: &LongArgs) -> anyhow::Result<()> {
    let nic = nic::selected(&args.nic.load()?);
    let cores = args.cpus.map_or_else(Cores::choose, Ok)?;
    let lengths = LONG_CALL_BYTES.into_iter().filter(|len| !args.quick || *len <= QUICK_BYTES_MAX);
    let ways = [LongCallWay::Rpc, LongCallWay::Daemons, LongCallWay::Process];
    let cells: Vec<_> = ways
        .into_iter()
        .flat_map(|way| lengths.clone().map(move |len_bytes| (way, len_bytes)))
        .filter(|(way, len_bytes)| way.carries(*len_bytes))
        .collect();
    let mut progress = StepProgress::new("cells", cells.len());
    let (mut shown, mut lines) = (table(&HEADER), String::new());
    let begin = Instant::now();
    for (way, len_bytes) in cells {
        progress.step(format!("{} {len_bytes} B", way.name()));
        let costs = long_call_costs(&nic, way, len_bytes, args.calls(len_bytes), Some(cores))??;
        shown.add_row(row(way, len_bytes, &costs));
        lines += &format!("{}\n", json(way, len_bytes, &costs));
    }
    drop(progress);
    if args.json {
        return print(&lines);
    }
    let seconds = begin.elapsed().as_secs_f64();
    print(&format!(
        "{}\n\nNIC {}, cores {cores}, {seconds:.0} s; each call and its answer have these bytes, and every byte was \
         compared\ncopies, cleared, by NIC: bytes relative to the body, both directions; beside them a client copies its \
         request and its answer once each; a body of up to 16 KiB goes in the ring\n",
        shown.trim_fmt(),
        nic.name(),
    ))
}

fn row(way: LongCallWay, len_bytes: usize, costs: &LongCallCosts) -> Vec<String> {
    let bodies = |bytes: f64| format!("{:.2}", bytes / len_bytes as f64);
    let us = |ns: u64| format!("{:.1}", ns as f64 / 1e3);
    let [low, median] = costs.time_ns;
    vec![
        way.name().to_owned(),
        len_bytes.to_string(),
        us(low),
        us(median),
        bodies(costs.copied_bytes),
        bodies(costs.cleared_bytes),
        bodies(costs.read_bytes),
        format!("{:.1}", costs.reads),
        costs.reads_at_once.to_string(),
        format!("{:.1}", costs.polls_in_vain),
        format!("{:.1}", costs.turns),
        format!("{:.2}", costs.page_faults),
    ]
}

fn json(way: LongCallWay, len_bytes: usize, costs: &LongCallCosts) -> serde_json::Value {
    let [low, median] = costs.time_ns;
    serde_json::json!({
        "benchmark": "long calls", "way": way.name(), "bytes": len_bytes, "p10_ns": low, "p50_ns": median,
        "copied_bytes": costs.copied_bytes, "cleared_bytes": costs.cleared_bytes,
        "read_bytes": costs.read_bytes, "reads": costs.reads, "reads_at_once": costs.reads_at_once,
        "polls_in_vain": costs.polls_in_vain, "turns": costs.turns, "page_faults": costs.page_faults,
    })
}
