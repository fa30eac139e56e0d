//! `copyrpc-lab sim sensitivity`: which numbers of a model move with which constant.

use clap::{Args, ValueEnum};
use sim::scenarios::sensitivity::{self, ConstantCombination, Effect, Model, Outcome};

use super::{compared, progress::Progress};

pub(super) const HELP: &str = "\
Examples:
  copyrpc-lab sim sensitivity two-rank  each constant 20 % smaller and larger
  copyrpc-lab sim sensitivity bistability --by 10

Each constant is changed alone, both ways. Missed: claimed numbers that are off by more than 15 % then; states: starts that \
lead to another state; rms: root mean square of the errors of claimed numbers, with a star beyond what is claimed. \
A combination that moves all claimed numbers together by less than 0.2 % for 1 % of itself is not determined by them. \
Exit code 1 if nothing notices 20 % of a constant and nobody has said why that is right.";

/// So large a change of a constant has to be noticed.
const NOTICED_PERCENT: f64 = 20.0;

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum ModelName {
    Bistability,
    TwoRank,
    Dct,
}

impl From<ModelName> for Model {
    fn from(name: ModelName) -> Self {
        match name {
            ModelName::Bistability => Self::Bistability,
            ModelName::TwoRank => Self::TwoRank,
            ModelName::Dct => Self::Dct,
        }
    }
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
pub(super) fn run(args: &SensitivityArgs, progress: &Progress) -> anyhow::Result<()> {
    let model = args.model.into();
    progress.begin("constants");
    let outcome = sensitivity::run(model, args.by, args.seed, |done, of| progress.at(done, of))?;
    if args.json {
        progress.print_json(&outcome.effects)?;
    } else {
        progress.print(&text_of(&outcome, args))?;
    }
    judge(&outcome, args.by)
}

fn text_of(outcome: &Outcome, args: &SensitivityArgs) -> String {
    let SensitivityArgs { by, seed, .. } = args;
    let header = ["number that moves most", "power", "constant", "missed", "states", "rms, %"];
    let mut effects = compared::numbers(&header);
    for effect in &outcome.effects {
        let Effect { constant, missed, states, rms, rms_max, most, power, .. } = effect;
        let rms = rms.map(|rms| {
            let star = if rms > *rms_max { "*" } else { "" };
            format!("{:.1}{star}", 100.0 * rms)
        });
        effects.add_row([
            most.clone(),
            format!("{power:+.2}"),
            (*constant).to_owned(),
            format!("{}, {}", missed[0], missed[1]),
            format!("{}, {}", states[0], states[1]),
            rms.join(", "),
        ]);
    }
    let mut unnoticed = compared::numbers(&["why that is right", "constant"]);
    for effect in outcome.effects.iter().filter(|effect| !effect.is_noticed()) {
        unnoticed.add_row([effect.reason().unwrap_or("NOT KNOWN"), effect.constant]);
    }
    let mut directions = compared::numbers(&["combination", "strength", "determined"]);
    for ConstantCombination { strength, parts } in &outcome.directions {
        let parts: Vec<_> = parts.iter().map(|(name, part)| format!("{part:+.2} {name}")).collect();
        let is_determined = if *strength >= 0.2 { "yes" } else { "no" };
        directions.add_row([parts.join(" "), format!("{strength:.2}"), is_determined.to_owned()]);
    }
    format!(
        "{effects}\n\nmissed, states, rms: with the constant {by} % smaller, and larger; seed {seed}\n\n\
         no check notices one of both of these\n{unnoticed}\n\n{directions}\n\n\
         strength: by how much all claimed numbers move together for 1 % of a combination\n"
    )
}

/// An error that names constants whose change nothing notices for no known reason.
fn judge(outcome: &Outcome, by: f64) -> anyhow::Result<()> {
    let unknown =
        outcome.effects.iter().filter(|effect| !effect.is_noticed() && effect.reason().is_none());
    let unknown: Vec<_> = unknown.map(|effect| effect.constant).collect();
    anyhow::ensure!(
        by < NOTICED_PERCENT || unknown.is_empty(),
        "no check notices {by} % of {}",
        unknown.join(", ")
    );
    Ok(())
}
