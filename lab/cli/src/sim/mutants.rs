//! `copyrpc-lab sim mutants`: whether checks of the models notice models that are wrong.

use clap::Args;
use sim::scenarios::{
    mutants::{Judged, WRONG_MODELS},
    sensitivity::Model,
};

use super::{compared, progress::Progress};
use crate::output;

pub(super) const HELP: &str = "\
Examples:
  copyrpc-lab sim mutants          what is noticed of each
  copyrpc-lab sim mutants --json   one JSON object per mutant

Each mutant of a model lacks a mechanism, or has it elsewhere. It is simulated until a claimed number is off by more than 15 % \
or a measured start ends in another state. Exit code 1 if one survives of which that is not known.";

#[derive(Debug, Args)]
pub(crate) struct MutantsArgs {
    /// Seed of all random numbers.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Prints one JSON object per mutant.
    #[arg(long)]
    json: bool,
}

/// `copyrpc-lab sim mutants`.
pub(super) fn run(args: &MutantsArgs) -> anyhow::Result<()> {
    let progress = Progress::new("mutants");
    let of = WRONG_MODELS.len();
    let judged = WRONG_MODELS.iter().enumerate().map(|(index, wrong)| {
        let judged = wrong.judge(args.seed);
        progress.at(index + 1, of);
        judged
    });
    let judged: Vec<_> = judged.collect();
    drop(progress);
    if args.json {
        compared::print_json(&judged)?;
    } else {
        output::print(&text_of(&judged))?;
    }
    let others = judged.iter().filter(|judged| !judged.is_as_expected());
    let others: Vec<_> = others.map(|judged| judged.name).collect();
    anyhow::ensure!(others.is_empty(), "not as expected: {}", others.join("; "));
    Ok(())
}

const fn command(model: Model) -> &'static str {
    match model {
        Model::Bistability => "bistability",
        Model::TwoRank => "two-rank",
        Model::Dct => "dct",
    }
}

fn text_of(judged: &[Judged]) -> String {
    let mut text = String::new();
    for Judged { model, name, noticed, survives } in judged {
        let verdict = match (noticed, survives) {
            (Some(noticed), _) => format!("noticed: {noticed}"),
            (None, Some(why)) => format!("SURVIVES: {why}"),
            (None, None) => "SURVIVES".to_owned(),
        };
        text.push_str(&format!("{}: {name}\n    {verdict}\n", command(*model)));
    }
    let survive = judged.iter().filter(|judged| judged.noticed.is_none()).count();
    text + &format!("\n{} mutants, {survive} survive\n", judged.len())
}
