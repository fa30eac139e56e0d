//! `copyrpc-lab sim mutants`: whether checks of the models notice models that are wrong.

use clap::Args;
use sim::scenarios::{
    mutants::{Judged, WRONG_MODELS},
    sensitivity::Model,
};

use super::{progress::Progress, sensitivity::ModelName};

pub(super) const HELP: &str = "\
Examples:
  copyrpc-lab sim mutants          what is noticed of each
  copyrpc-lab sim mutants --model two-rank
  copyrpc-lab sim mutants --json   one JSON object per mutant

Each mutant of a model lacks a mechanism, or has it elsewhere. It is simulated until a claimed number is off by more than 15 % \
or a measured start ends in another state. Exit code 1 if one survives of which that is not known.";

#[derive(Debug, Args)]
pub(crate) struct MutantsArgs {
    /// Judges the mutants of one model [default: of all].
    #[arg(long, value_enum)]
    model: Option<ModelName>,
    /// Seed of all random numbers.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Prints one JSON object per mutant.
    #[arg(long)]
    json: bool,
}

/// `copyrpc-lab sim mutants`.
pub(super) fn run(args: &MutantsArgs, progress: &Progress) -> anyhow::Result<()> {
    progress.begin("mutants");
    let asked = args.model.map(Model::from);
    let wrong =
        WRONG_MODELS.iter().filter(|wrong| asked.is_none_or(|model| wrong.model() == model));
    progress.at(0, wrong.clone().count());
    let judged = wrong.map(|wrong| {
        let judged = wrong.judge(args.seed);
        progress.step();
        judged
    });
    let judged = judged.collect::<Result<Vec<_>, _>>()?;
    if args.json {
        progress.print_json(&judged)?;
    } else {
        progress.print(&text_of(&judged))?;
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
