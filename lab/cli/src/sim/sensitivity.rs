//! `copyrpc-lab sim sensitivity`: which numbers of a model move with which constant.

use clap::{Args, ValueEnum};
use sim::scenarios::sensitivity::{self, ConstantCombination, Effect, Model, Outcome};

use super::{compared, progress::Progress};
use crate::output;

pub(super) const HELP: &str = "\
Examples:
  copyrpc-lab sim sensitivity two-rank  each constant 20 % smaller and larger
  copyrpc-lab sim sensitivity bistability --by 10

Each constant is changed alone, both ways. Missed: claimed numbers that are off by more than 15 % then; states: starts that \
lead to another state. A combination that moves all claimed numbers together by less than 0.2 % for 1 % of itself is not \
determined by them. Nothing is checked: exit code 0.";

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ModelName {
    Bistability,
    TwoRank,
    Dct,
}

#[derive(Debug, Args)]
pub(crate) struct SensitivityArgs {
    /// The model.
    #[arg(value_enum)]
    model: ModelName,
    /// By how much each constant is changed, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 20.0, value_parser = parse_percent)]
    by: f64,
    /// Seed of all random numbers.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Prints one JSON object per constant.
    #[arg(long)]
    json: bool,
}

fn parse_percent(text: &str) -> Result<f64, String> {
    let percent = text.parse().map_err(|_| format!("`{text}` is no number"))?;
    if (0.1..=90.0).contains(&percent) {
        Ok(percent)
    } else {
        Err(format!("{percent} is not between 0.1 and 90"))
    }
}

/// `copyrpc-lab sim sensitivity`.
pub(super) fn run(args: &SensitivityArgs) -> anyhow::Result<()> {
    let model = match args.model {
        ModelName::Bistability => Model::Bistability,
        ModelName::TwoRank => Model::TwoRank,
        ModelName::Dct => Model::Dct,
    };
    let progress = Progress::new("constants");
    let outcome = sensitivity::run(model, args.by, args.seed, |done, of| progress.at(done, of))?;
    drop(progress);
    if args.json {
        return compared::print_json(&outcome.effects);
    }
    output::print(&text_of(&outcome, args))
}

fn text_of(outcome: &Outcome, args: &SensitivityArgs) -> String {
    let SensitivityArgs { by, seed, .. } = args;
    let mut effects = compared::numbers(&[
        "number that moves most",
        "power",
        "constant",
        "value",
        "missed",
        "states",
    ]);
    for Effect { constant, value, missed, states, most, power, .. } in &outcome.effects {
        effects.add_row([
            most.clone(),
            format!("{power:+.2}"),
            (*constant).to_owned(),
            compared::number(*value),
            format!("{}, {}", missed[0], missed[1]),
            format!("{}, {}", states[0], states[1]),
        ]);
    }
    let unnoticed = outcome.effects.iter().filter(|effect| !effect.is_noticed());
    let unnoticed: Vec<_> = unnoticed.map(|effect| effect.constant).collect();
    let mut directions = compared::numbers(&["combination", "strength", "determined"]);
    for ConstantCombination { strength, parts } in &outcome.directions {
        let parts: Vec<_> = parts.iter().map(|(name, part)| format!("{part:+.2} {name}")).collect();
        let is_determined = if *strength >= 0.2 { "yes" } else { "no" };
        directions.add_row([parts.join(" "), format!("{strength:.2}"), is_determined.to_owned()]);
    }
    format!(
        "{effects}\n\nmissed, states: with the constant {by} % smaller, and larger; seed {seed}\n\
         no check notices one of both of: {}\n\n{directions}\n\n\
         strength: by how much all claimed numbers move together for 1 % of a combination\n",
        unnoticed.join(", ")
    )
}
