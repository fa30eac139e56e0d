//! Every number that the project started from, and what a model has beside it.
//!
//! `data/measurements.tsv` holds the numbers with their meaning. A number that no model has is a row as well.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Compared, Standing, bistability, dct, raw, two_rank};

const TEXT: &str = include_str!("../../data/measurements.tsv");

/// What a number is to the models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Class {
    /// A constant was chosen by it.
    Fitted,
    /// A model has it, and no constant was chosen by it.
    Predicted,
    /// A model has it, no constant was chosen by it, and the model is wrong by more than [`ERROR_MAX`](super::ERROR_MAX).
    Missed,
    /// A model is beside it that lacks it.
    Shown,
    /// No model has it.
    NotModelled,
}

impl Class {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Fitted, Self::Predicted, Self::Missed, Self::Shown, Self::NotModelled];

    /// What it is called in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fitted => "fitted",
            Self::Predicted => "predicted",
            Self::Missed => "missed",
            Self::Shown => "shown",
            Self::NotModelled => "not modelled",
        }
    }
}

impl From<Standing> for Class {
    fn from(standing: Standing) -> Self {
        match standing {
            Standing::Fitted => Self::Fitted,
            Standing::Predicted => Self::Predicted,
            Standing::Missed(_) => Self::Missed,
            Standing::Shown => Self::Shown,
        }
    }
}

/// A line of the file.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ReferenceNumber {
    /// The measurements that it belongs to.
    pub set: &'static str,
    /// Quantity and conditions.
    pub what: &'static str,
    /// Of what.
    pub unit: &'static str,
    /// As measured on hardware.
    pub reference: f64,
    /// The command that has a number of ours beside it.
    pub command: Option<&'static str>,
}

/// A line of the file that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the measurements is not `set, number, unit, value, command`: {text}")]
pub struct BadLine {
    line: usize,
    text: &'static str,
}

fn measurement(line: usize, text: &'static str) -> Result<ReferenceNumber, BadLine> {
    let bad = || BadLine { line, text };
    let mut fields = text.split('\t');
    let mut next = || fields.next().ok_or_else(bad);
    let (set, what, unit) = (next()?, next()?, next()?);
    let reference = next()?.parse().map_err(|_| bad())?;
    let command = Some(next()?).filter(|command| *command != "-");
    Ok(ReferenceNumber { set, what, unit, reference, command })
}

/// All lines of the file.
///
/// # Errors
///
/// If a line is none.
pub fn measurements() -> Result<Vec<ReferenceNumber>, BadLine> {
    let lines = TEXT.lines().zip(1..).filter(|(text, _)| !text.starts_with('#'));
    lines.map(|(text, line)| measurement(line, text)).collect()
}

/// A number of the file with what a model has beside it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The number.
    #[serde(flatten)]
    pub measurement: ReferenceNumber,
    /// As simulated.
    pub simulated: Option<f64>,
    /// How far that is from the reference, as a share of it.
    pub error: Option<f64>,
    /// What the number is to the models.
    pub class: Class,
    /// Whether what its class says of it does not hold: see [`Compared::is_missed`].
    pub is_missed: bool,
    /// What a table says of it.
    #[serde(skip)]
    pub verdict: &'static str,
}

impl Row {
    fn of(measurement: ReferenceNumber, compared: Option<&Compared>) -> Self {
        let class = compared.map_or(Class::NotModelled, |compared| compared.standing.into());
        let simulated = compared.map(|compared| compared.simulated);
        let error = simulated.map(|simulated| simulated / measurement.reference - 1.0);
        let is_missed = compared.is_some_and(Compared::is_missed);
        let verdict = compared.map_or(class.name(), Compared::verdict);
        Self { measurement, simulated, error, class, is_missed, verdict }
    }
}

/// All numbers of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Every number of the file.
    pub rows: Vec<Row>,
    /// Numbers of scenarios that are not in the file, or differ from it.
    pub strangers: Vec<String>,
}

/// The scenarios, by the set that they are compared with.
const SCENARIOS: usize = 4;

/// Of `count` seeds from `seed` on, of each number the simulation that is farthest from its reference. `progress` hears how many
/// scenarios of how many are done.
///
/// # Errors
///
/// If the file has a line that is none.
pub fn worst_of(
    seed: u64,
    count: u64,
    mut progress: impl FnMut(usize, usize),
) -> Result<Outcome, BadLine> {
    let scenarios = SCENARIOS * usize::try_from(count).unwrap_or(usize::MAX);
    let mut all = run(seed, |done, _| progress(done, scenarios))?;
    let distance = |row: &Row| row.error.map_or(0.0, f64::abs);
    for (number, seed) in (1..).zip(seed.saturating_add(1)..seed.saturating_add(count)) {
        let again = run(seed, |done, _| progress(number * SCENARIOS + done, scenarios))?;
        let rows = all.rows.iter_mut().zip(again.rows);
        rows.filter(|(row, again)| distance(again) > distance(row))
            .for_each(|(row, again)| *row = again);
    }
    Ok(all)
}

/// Simulates every number that a model has. `progress` hears how many scenarios of how many are done.
///
/// # Errors
///
/// If the file has a line that is none.
pub fn run(seed: u64, mut progress: impl FnMut(usize, usize)) -> Result<Outcome, BadLine> {
    let measurements = measurements()?;
    let mut simulated = BTreeMap::new();
    let mut add = |done, set: &'static str, rows: Vec<Compared>| {
        simulated.extend(rows.into_iter().map(|row| ((set, row.what.clone()), row)));
        progress(done, SCENARIOS);
    };
    add(1, "two ranks", two_rank::run(seed).rows);
    add(2, "layers", raw::run().rows.into_iter().chain(two_rank::two_nodes(seed)).collect());
    add(3, "delegation", bistability::run(seed, |_, _| {}).rows);
    add(4, "DC READs", dct::run(seed, |_, _| {}).rows);
    let rows = measurements.into_iter().map(|measurement| {
        let key = (measurement.set, measurement.what.to_owned());
        let same = |compared: &Compared| is_same(compared.reference, measurement.reference);
        let compared = simulated.get(&key).filter(|compared| same(compared)).cloned();
        if compared.is_some() {
            simulated.remove(&key);
        }
        Row::of(measurement, compared.as_ref())
    });
    let rows = rows.collect();
    let strangers = simulated.into_keys().map(|(set, what)| format!("{set}: {what}")).collect();
    Ok(Outcome { rows, strangers })
}

/// Whether two spellings of a number differ by no more than rounding.
fn is_same(one: f64, other: f64) -> bool {
    (one / other - 1.0).abs() < 0.01
}
