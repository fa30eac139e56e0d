//! `copyrpc sim bistability`: throughput of another daemon, beside what was measured.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use sim::scenarios::bistability::{self, ERROR_MAX, Outcome};

use super::compared;
use crate::{output, table::table};

pub(super) const HELP: &str = "\
Examples:
  copyrpc sim bistability           every number beside its reference
  copyrpc sim bistability --json    one JSON object per number

The reference was measured on ConnectX-7 with a daemon of another design, which is simulated here: one ring for \
all clients of a node, one batch per endpoint and turn. Parameters were fitted to the throughputs, so this says \
what suffices to explain them, not what they are made of; the time per work queue entry (0.609 µs) is fitted, and \
does not follow from the model of the NIC. Throughputs are claimed within 15 %: exit code 1 if one is not. \
Turns and responses per turn are shown and not claimed.";

#[derive(Debug, Args)]
pub(crate) struct BistabilityArgs {
    /// Seed of all random numbers.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Prints one JSON object per number.
    #[arg(long)]
    json: bool,
    /// Writes a page with pictures of reference and simulation to PATH.
    #[arg(long, value_name = "PATH")]
    page: Option<PathBuf>,
}

/// `copyrpc sim bistability`.
pub(super) fn run(args: &BistabilityArgs) -> anyhow::Result<()> {
    let outcome = bistability::run(args.seed, |_, _| {});
    if let Some(path) = &args.page {
        let rows = outcome.rows.iter();
        let pairs = rows.map(|row| (row.what.as_str(), row.unit, row.reference, row.simulated));
        compared::write_page(path, "bistability", pairs)?;
    }
    if args.json {
        let lines: Result<Vec<_>, _> = outcome.rows.iter().map(serde_json::to_string).collect();
        output::print(&(lines.context("cannot write JSON")?.join("\n") + "\n"))?;
    } else {
        output::print(&text_of(&outcome))?;
    }
    let misses: Vec<_> = outcome.misses().map(|row| row.what.as_str()).collect();
    anyhow::ensure!(
        misses.is_empty(),
        "{} throughputs are off by more than {:.0} %: {}",
        misses.len(),
        100.0 * ERROR_MAX,
        misses.join("; ")
    );
    Ok(())
}

fn text_of(outcome: &Outcome) -> String {
    let mut rows = table(&["number", "unit", "reference", "simulated", "error", "claimed"]);
    for row in &outcome.rows {
        rows.add_row([
            row.what.clone(),
            row.unit.into(),
            format!("{:.2}", row.reference),
            format!("{:.2}", row.simulated),
            format!("{:+.1} %", 100.0 * row.error()),
            if row.is_claimed { format!("{:.0} %", 100.0 * ERROR_MAX) } else { "no".into() },
        ]);
    }
    let mut states = table(&["nodes", "start", "seed", "M/s", "messages per entry"]);
    for state in &outcome.attractors {
        states.add_row([
            state.nodes.to_string(),
            format!("{:?}", state.start).to_lowercase(),
            state.seed.to_string(),
            format!("{:.1}", state.total_mops),
            format!("{:.1}", state.messages_per_wqe),
        ]);
    }
    format!(
        "{rows}\n\nwhere starts lead to, with 32 calls per client\n{states}\n\nseed {}, {} turns, trace {:016x}\n",
        outcome.seed, outcome.events, outcome.trace
    )
}
