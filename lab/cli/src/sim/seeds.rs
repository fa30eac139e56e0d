//! `copyrpc-lab sim seeds`: every measurement that the project started from, and what a model has beside it.

use clap::Args;
use sim::scenarios::{
    ERROR_MAX,
    seeds::{self, Class, Outcome, Row},
};

use super::{compared, progress::Progress};

pub(super) const HELP: &str = "\
Examples:
  copyrpc-lab sim seeds             every number beside ours
  copyrpc-lab sim seeds --json      one JSON object per number, with its command
  copyrpc-lab sim seeds --seeds 10  the worst of ten seeds, number by number

A number is fitted (a constant was chosen by it), predicted (a model has it without), missed (the same, and the model is \
wrong by more than 15 %), shown (a model is beside it that lacks it) or not modelled. Exit code 1 if a fitted or predicted \
number is off by more than 15 %, or a missed one is not, or by more than was known. `sim` commands \
simulate the machine of the numbers, `bench` commands measure the machine at hand.";

#[derive(Debug, Args)]
pub(crate) struct SeedsArgs {
    /// Seed of all random numbers.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Simulates so many seeds; of each number that one is shown which is farthest from its reference.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// Prints one JSON object per number.
    #[arg(long)]
    json: bool,
}

/// `copyrpc-lab sim seeds`.
pub(super) fn run(args: &SeedsArgs, progress: &Progress) -> anyhow::Result<()> {
    progress.begin("scenarios");
    let outcome = seeds::worst_of(args.seed, args.seeds, |done, of| progress.at(done, of))?;
    if args.json {
        progress.print_json(&outcome.rows)?;
    } else {
        progress.print(&text_of(&outcome.rows))?;
    }
    judge(&outcome)
}

fn text_of(rows: &[Row]) -> String {
    let same_place = |one: &Row, other: &Row| place(one) == place(other);
    let blocks = rows.chunk_by(same_place).map(|block| {
        let mut table = compared::numbers(&["number", "reference", "ours", "error", "class"]);
        for row in block {
            table.add_row([
                compared::named(row.measurement.what, row.measurement.unit),
                compared::number(row.measurement.reference),
                row.simulated.map_or_else(String::new, compared::number),
                row.error.map_or_else(String::new, |error| format!("{:+.1} %", 100.0 * error)),
                row.verdict.to_owned(),
            ]);
        }
        let (set, command) = place(&block[0]);
        let command =
            command.map_or_else(String::new, |command| format!(": copyrpc-lab {command}"));
        format!("{set}{command}\n\n{table}\n\n")
    });
    blocks.collect::<String>() + &summary(rows)
}

/// Rows of one set and command stand in one table.
fn place(row: &Row) -> (&'static str, Option<&'static str>) {
    (row.measurement.set, row.measurement.command)
}

fn summary(rows: &[Row]) -> String {
    let classes = Class::ALL.map(|class| {
        let count = rows.iter().filter(|row| row.class == class).count();
        format!("{count} {}", class.name())
    });
    format!("{} numbers: {}\n", rows.len(), classes.join(", "))
}

fn judge(outcome: &Outcome) -> anyhow::Result<()> {
    let missed = outcome.rows.iter().filter(|row| row.is_missed);
    let missed: Vec<_> = missed.map(|row| row.measurement.what).collect();
    anyhow::ensure!(
        missed.is_empty(),
        "{} of {} numbers are not as their class says, within {:.0} %: {}",
        missed.len(),
        outcome.rows.len(),
        100.0 * ERROR_MAX,
        missed.join("; ")
    );
    anyhow::ensure!(
        outcome.strangers.is_empty(),
        "simulated, and not among the measurements: {}",
        outcome.strangers.join("; ")
    );
    Ok(())
}
