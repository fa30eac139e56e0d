//! `copyrpc-lab bench long`.

use std::time::Instant;

use bench::long_calls::{LONG_CALL_BYTES, LongCallRow, long_call_rows};
use clap::Args as ClapArgs;
use command::{
    flags::{KnobFlags, NicKnobs},
    nic,
    output::print,
    table::table,
};
use measure::{cores::Cores, paired::Ratio, progress::StepProgress, table::Table};

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
    /// Calls of each row, twice; fewer of long ones. Those that are timed are made in six rounds.
    #[arg(long, value_name = "N", default_value_t = 400, value_parser = clap::value_parser!(u32).range(1..))]
    calls: u32,
    /// Bodies of this length alone.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(16..=16 << 20))]
    bytes: Option<u32>,
    /// Print JSON lines instead of a table. What was not taken is null.
    #[arg(long)]
    json: bool,
    /// Print CSV instead of a table. What was not taken is empty.
    #[arg(long, conflicts_with = "json")]
    csv: bool,
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

    fn lengths(&self) -> Vec<usize> {
        let asked = self.bytes.map(|bytes| vec![bytes as usize]);
        let is_short = |len: &usize| !self.quick || *len <= QUICK_BYTES_MAX;
        asked.unwrap_or_else(|| LONG_CALL_BYTES.into_iter().filter(is_short).collect())
    }
}

const HEADER: [&str; 13] = [
    "way",
    "bytes",
    "p10 us",
    "p50 us",
    "of stream",
    "copies",
    "cleared",
    "by NIC",
    "READs",
    "at once",
    "in vain",
    "turns",
    "faults",
];

const CSV_HEADER: [&str; 15] = [
    "way",
    "bytes",
    "p10_ns",
    "p50_ns",
    "of_stream",
    "of_stream_low",
    "of_stream_high",
    "copied_bytes",
    "cleared_bytes",
    "read_bytes",
    "reads",
    "reads_at_once",
    "polls_in_vain",
    "turns",
    "page_faults",
];

/// Measures each length by each way.
pub(crate) fn run(args: &LongArgs) -> anyhow::Result<()> {
    let nic = nic::selected(&args.nic.load()?);
    let cores = args.cpus.map_or_else(Cores::choose, Ok)?;
    let (lengths, mut rows) = (args.lengths(), Vec::new());
    let mut progress = StepProgress::new("lengths", lengths.len());
    let begin = Instant::now();
    for len_bytes in lengths {
        progress.step(format!("{len_bytes} B"));
        let work = (args.calls(len_bytes), cores);
        rows.extend(long_call_rows(&nic, len_bytes, work)??);
    }
    drop(progress);
    if args.json {
        return print(&rows.iter().map(|row| format!("{}\n", json(row))).collect::<String>());
    }
    if args.csv {
        return print(&csv(&rows)?);
    }
    let mut shown = table(&HEADER);
    shown.add_rows(rows.iter().map(fields));
    let seconds = begin.elapsed().as_secs_f64();
    print(&format!(
        "{}\n\nNIC {}, cores {cores}, {seconds:.0} s; each call and its answer have these bytes, and every byte was \
         compared\nof stream: median time over that of a bare TCP stream in the same round, with the interval of its \
         median; NIC tcp alone\ncopies, cleared, by NIC: bytes relative to the body, both directions; beside them a \
         client copies its request and its answer once each; a body of up to 16 KiB goes in the ring\n",
        shown.trim_fmt(),
        nic.name(),
    ))
}

/// A value as text; nothing if it was not taken.
fn text<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map(text).unwrap_or_default()
}

/// A ratio with its interval.
fn ratio(ratio: Ratio) -> String {
    let interval = text(ratio.interval, |(low, high)| format!(" ({low:.1}–{high:.1})"));
    format!("{:.1}{interval}", ratio.median)
}

fn fields(row: &LongCallRow) -> Vec<String> {
    let LongCallRow { name, len_bytes, costs, time_ns, of_stream } = row;
    let bodies = |bytes: f64| format!("{:.2}", bytes / *len_bytes as f64);
    let us = |ns: u64| format!("{:.1}", ns as f64 / 1e3);
    vec![
        (*name).to_owned(),
        len_bytes.to_string(),
        text(*time_ns, |[low, _]| us(low)),
        text(*time_ns, |[_, median]| us(median)),
        text(*of_stream, ratio),
        text(*costs, |costs| bodies(costs.copied_bytes)),
        text(*costs, |costs| bodies(costs.cleared_bytes)),
        text(*costs, |costs| bodies(costs.read_bytes)),
        text(*costs, |costs| format!("{:.1}", costs.reads)),
        text(*costs, |costs| costs.reads_at_once.to_string()),
        text(*costs, |costs| format!("{:.1}", costs.polls_in_vain)),
        text(*costs, |costs| format!("{:.1}", costs.turns)),
        text(*costs, |costs| format!("{:.2}", costs.page_faults)),
    ]
}

fn csv(rows: &[LongCallRow]) -> anyhow::Result<String> {
    let mut csv = Table::new(1, CSV_HEADER);
    for LongCallRow { name, len_bytes, costs, time_ns, of_stream } in rows {
        let interval = of_stream.and_then(|ratio| ratio.interval);
        csv.push([
            (*name).to_owned(),
            len_bytes.to_string(),
            text(*time_ns, |[low, _]| low.to_string()),
            text(*time_ns, |[_, median]| median.to_string()),
            text(*of_stream, |ratio| ratio.median.to_string()),
            text(interval, |(low, _)| low.to_string()),
            text(interval, |(_, high)| high.to_string()),
            text(*costs, |costs| costs.copied_bytes.to_string()),
            text(*costs, |costs| costs.cleared_bytes.to_string()),
            text(*costs, |costs| costs.read_bytes.to_string()),
            text(*costs, |costs| costs.reads.to_string()),
            text(*costs, |costs| costs.reads_at_once.to_string()),
            text(*costs, |costs| costs.polls_in_vain.to_string()),
            text(*costs, |costs| costs.turns.to_string()),
            text(*costs, |costs| costs.page_faults.to_string()),
        ]);
    }
    let mut bytes = Vec::new();
    csv.write_csv(&mut bytes)?;
    Ok(String::from_utf8(bytes)?)
}

fn json(row: &LongCallRow) -> serde_json::Value {
    let LongCallRow { name, len_bytes, costs, time_ns, of_stream } = row;
    serde_json::json!({
        "benchmark": "long calls", "way": name, "bytes": len_bytes,
        "p10_ns": time_ns.map(|[low, _]| low), "p50_ns": time_ns.map(|[_, median]| median),
        "of_stream": of_stream.map(|ratio| ratio.median),
        "of_stream_interval": of_stream.and_then(|ratio| ratio.interval),
        "copied_bytes": costs.map(|costs| costs.copied_bytes),
        "cleared_bytes": costs.map(|costs| costs.cleared_bytes),
        "read_bytes": costs.map(|costs| costs.read_bytes),
        "reads": costs.map(|costs| costs.reads),
        "reads_at_once": costs.map(|costs| costs.reads_at_once),
        "polls_in_vain": costs.map(|costs| costs.polls_in_vain),
        "turns": costs.map(|costs| costs.turns),
        "page_faults": costs.map(|costs| costs.page_faults),
    })
}
