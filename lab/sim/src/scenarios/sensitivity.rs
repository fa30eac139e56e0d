//! Which numbers move with which constant, and which combinations of constants the numbers determine.

use serde::Serialize;

use super::{Compared, bistability, dct, phases, two_rank};
use crate::{
    actors::reference_daemon::Mutant,
    machine::{BadConstant, CONNECT_IB, CONNECT_X7, Constants, TWO_RANK, with_constant},
};

/// A model whose constants are changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Model {
    /// Delegation, its numbers and its states.
    Bistability,
    /// One and two ranks.
    TwoRank,
    /// READs over DC transport.
    Dct,
}

/// Constants that may be a fifth smaller or larger without a check that notices it, and why that is right.
const UNNOTICED: [(Model, &str, &str); 27] = [
    (Model::Bistability, "wire", IN_NO_FORMULA),
    (Model::Bistability, "client", IN_NO_FORMULA),
    (Model::Bistability, "client_jitter", IN_NO_FORMULA),
    (Model::Bistability, "jitter", "it only keeps nodes from turning at one instant"),
    (Model::Bistability, "poll", "1 of some 17 µs of a turn with a budget"),
    (Model::Bistability, "completion", EASIER),
    (Model::Bistability, "flush", EASIER),
    (Model::TwoRank, "completion", SHORT),
    (Model::TwoRank, "serve", SHORT),
    (Model::TwoRank, "flush", SHORT),
    (Model::TwoRank, "doorbell", RIVAL),
    (Model::TwoRank, "pcie_read", RIVAL),
    (Model::TwoRank, "wqe", "1 % of a raw round trip, and of nothing else"),
    (Model::TwoRank, "program", "1 % of a raw round trip, and of nothing else"),
    (Model::TwoRank, "client_jitter", ASSUMED),
    (Model::TwoRank, "jitter", ASSUMED),
    (Model::Dct, "issue", "READs wait for units of responders, and not of initiators"),
    (Model::Dct, "complete", "READs wait for units of responders, and not of initiators"),
    (Model::Dct, "connect", RECONNECT),
    (Model::Dct, "disconnect_issue", RECONNECT),
    (Model::Dct, "disconnect_respond", RECONNECT),
    (Model::Dct, "payload_read", LATENCY),
    (Model::Dct, "doorbell", LATENCY),
    (Model::Dct, "completion", LATENCY),
    (Model::Dct, "refetch", "13 % of one latency, and of nothing else"),
    (Model::Dct, "context_miss", "rows with missing contexts are three, and move by half of it"),
    (Model::Dct, "wire", LATENCY),
];
const IN_NO_FORMULA: &str =
    "in no formula of the states: calls wait for the ring or the send queue";
const EASIER: &str = "a batch that takes the daemon longer makes an upper state easier to keep";
const SHORT: &str = "a turn in twenty has one, so that it is a small part of the mean turn";
const RIVAL: &str = "a time of a rival explanation, which is off";
const ASSUMED: &str = "assumed; a tenth of what it is added to";
const RECONNECT: &str = "a part of what a change of targets takes; without all of them checks fail";
const LATENCY: &str = "a fifth of one latency: 20 % of it are within the tolerance";

/// A constant that was made smaller and larger.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Effect {
    /// The model.
    pub model: Model,
    /// Its name.
    pub constant: &'static str,
    /// As the profile has it.
    pub value: f64,
    /// Claimed numbers that are missed with the smaller and with the larger one.
    pub missed: [usize; 2],
    /// Starts that lead to another state.
    pub states: [usize; 2],
    /// Root mean square of the errors of claimed numbers.
    pub rms: [f64; 2],
    /// What it is claimed to be at most.
    pub rms_max: f64,
    /// The claimed number that moves most.
    pub most: String,
    /// By how much it moves, as a power of the constant.
    pub power: f64,
    /// By how much each claimed number moves.
    #[serde(skip)]
    pub(super) powers: Vec<f64>,
}

impl Effect {
    /// Whether a check fails either way.
    #[must_use]
    pub fn is_noticed(&self) -> bool {
        let is_noticed =
            |way: usize| self.missed[way] + self.states[way] > 0 || self.rms[way] > self.rms_max;
        (0..2).all(is_noticed)
    }

    /// Why it is right that no check notices a fifth of it, if that is known.
    #[must_use]
    pub fn reason(&self) -> Option<&'static str> {
        self.model.unnoticed(self.constant)
    }
}

impl Model {
    /// Why it is right that no check notices a fifth of a constant; `None`: a check has to notice it.
    #[must_use]
    pub fn unnoticed(self, constant: &str) -> Option<&'static str> {
        let of_it = |entry: &&(Self, &str, &str)| entry.0 == self && entry.1 == constant;
        UNNOTICED.iter().find(of_it).map(|(.., why)| *why)
    }

    /// Largest root mean square of the errors of claimed numbers. Seeds differ by 0.002.
    #[must_use]
    pub const fn rms_max(self) -> f64 {
        match self {
            Self::Bistability | Self::Dct => 0.06,
            Self::TwoRank => 0.065,
        }
    }
}

/// A combination of constants.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ConstantCombination {
    /// How far all claimed numbers move together if it changes by 1 %, in percent.
    pub strength: f64,
    /// Its largest parts.
    pub parts: Vec<(&'static str, f64)>,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// By constant.
    pub effects: Vec<Effect>,
    /// From the best determined combination to the worst one.
    pub directions: Vec<ConstantCombination>,
}

/// Numbers of a run, and starts that lead to another state than was expected.
struct Sample {
    rows: Vec<Compared>,
    states: usize,
}

impl Sample {
    fn claimed(&self) -> impl Iterator<Item = &Compared> {
        self.rows.iter().filter(|row| row.standing.is_claimed())
    }

    fn rms(&self) -> f64 {
        super::rms(&self.rows)
    }

    fn missed(&self) -> usize {
        self.claimed().filter(|row| row.is_missed()).count()
    }
}

/// A factor beyond which a number has changed its state and has no power.
const JUMP: f64 = 1.6;

/// Changes each constant of a model by `percent`, both ways. `progress` hears how many constants of how many are done.
///
/// # Errors
///
/// If `percent` leads to a value that a constant cannot have.
pub fn run(
    model: Model,
    percent: f64,
    seed: u64,
    progress: impl FnMut(usize, usize),
) -> Result<Outcome, BadConstant> {
    match model {
        Model::Bistability => change(model, &CONNECT_X7, percent, progress, |profile| Sample {
            rows: bistability::run_on(profile, seed, |_, _| {}).rows,
            states: phases::diagram(profile, Mutant::None, seed, |_, _| {})
                .iter()
                .filter(|found| !found.is_as_expected())
                .count(),
        }),
        Model::TwoRank => change(model, &TWO_RANK, percent, progress, |profile| Sample {
            rows: two_rank::run_on(profile, seed).rows,
            states: 0,
        }),
        Model::Dct => change(model, &CONNECT_IB, percent, progress, |profile| Sample {
            rows: dct::run_on(profile, seed, |_, _| {}).rows,
            states: 0,
        }),
    }
}

fn change<P: Constants>(
    model: Model,
    profile: &P,
    percent: f64,
    mut progress: impl FnMut(usize, usize),
    sample: impl Fn(&P) -> Sample,
) -> Result<Outcome, BadConstant> {
    let constants = profile.constants();
    let mut effects = Vec::new();
    for (constant, value) in constants.iter().copied() {
        let factors = [1.0 - percent / 100.0, 1.0 + percent / 100.0];
        let less = sample(&with_constant(profile, constant, value * factors[0])?);
        let more = sample(&with_constant(profile, constant, value * factors[1])?);
        let powers: Vec<_> = less
            .claimed()
            .zip(more.claimed())
            .map(|(less, more)| power(less.simulated, more.simulated, factors))
            .collect();
        let named = powers.iter().copied().zip(less.claimed());
        let most = named.max_by(|one, other| one.0.abs().total_cmp(&other.0.abs()));
        effects.push(Effect {
            model,
            rms_max: model.rms_max(),
            constant,
            value,
            missed: [less.missed(), more.missed()],
            states: [less.states, more.states],
            rms: [less.rms(), more.rms()],
            most: most.map_or_else(String::new, |(_, row)| row.what.clone()),
            power: most.map_or(0.0, |(power, _)| power),
            powers,
        });
        progress(effects.len(), constants.len());
    }
    let directions = directions(&effects);
    Ok(Outcome { effects, directions })
}

fn power(less: f64, more: f64, factors: [f64; 2]) -> f64 {
    let ratio = more / less;
    if !ratio.is_finite() || !(1.0 / JUMP..=JUMP).contains(&ratio) {
        return 0.0;
    }
    libm::log(ratio) / libm::log(factors[1] / factors[0])
}

/// Combinations that move numbers independently of each other: eigenvectors of JᵀJ, where J has a power for each
/// number and constant.
fn directions(effects: &[Effect]) -> Vec<ConstantCombination> {
    let product = |one: &Effect, other: &Effect| {
        one.powers.iter().zip(&other.powers).map(|(one, other)| one * other).sum::<f64>()
    };
    let matrix: Vec<Vec<f64>> = effects
        .iter()
        .map(|one| effects.iter().map(|other| product(one, other)).collect())
        .collect();
    let (values, vectors) = eigen(matrix);
    let mut directions: Vec<_> = values
        .into_iter()
        .zip(vectors)
        .map(|(value, vector)| {
            let mut parts: Vec<_> =
                effects.iter().map(|effect| effect.constant).zip(vector).collect();
            parts.sort_by(|one, other| other.1.abs().total_cmp(&one.1.abs()));
            parts.truncate(4);
            parts.retain(|(_, part)| part.abs() >= 0.15);
            ConstantCombination { strength: value.max(0.0).sqrt(), parts }
        })
        .collect();
    directions.sort_by(|one, other| other.strength.total_cmp(&one.strength));
    directions
}

/// Rotations of all pairs; a matrix of some 20 rows needs fewer than ten rounds.
const ROUNDS: usize = 30;

/// Eigenvalues of a symmetric matrix and a vector for each, by Jacobi's rotations.
fn eigen(mut matrix: Vec<Vec<f64>>) -> (Vec<f64>, Vec<Vec<f64>>) {
    let size = matrix.len();
    let unit = |row: usize| (0..size).map(|column| f64::from(u8::from(row == column))).collect();
    let mut vectors: Vec<Vec<f64>> = (0..size).map(unit).collect();
    for _ in 0..ROUNDS {
        for one in 0..size {
            for other in one + 1..size {
                rotate(&mut matrix, &mut vectors, one, other);
            }
        }
    }
    ((0..size).map(|at| matrix[at][at]).collect(), vectors)
}

/// Makes the entry of two rows zero. Rows of `vectors` turn with it.
fn rotate(matrix: &mut [Vec<f64>], vectors: &mut [Vec<f64>], one: usize, other: usize) {
    let entry = matrix[one][other];
    if entry.abs() < 1e-15 {
        return;
    }
    let half = (matrix[other][other] - matrix[one][one]) / (2.0 * entry);
    let tangent = half.signum() / (half.abs() + half.mul_add(half, 1.0).sqrt());
    let cosine = 1.0 / tangent.mul_add(tangent, 1.0).sqrt();
    let sine = tangent * cosine;
    for row in matrix.iter_mut() {
        let (left, right) = (row[one], row[other]);
        row[one] = cosine * left - sine * right;
        row[other] = sine * left + cosine * right;
    }
    for rows in [matrix, vectors] {
        let (before, after) = rows.split_at_mut(other);
        for (upper, lower) in before[one].iter_mut().zip(&mut after[0]) {
            let old = *upper;
            *upper = cosine * old - sine * *lower;
            *lower = sine * old + cosine * *lower;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eigenvalues_and_vectors_are_those_of_the_matrix() {
        let matrix = vec![vec![4.0, 1.0, 0.5], vec![1.0, 3.0, 0.2], vec![0.5, 0.2, 1.0]];
        let (values, vectors) = eigen(matrix.clone());
        for (value, vector) in values.iter().zip(&vectors) {
            for (row, own) in matrix.iter().zip(vector) {
                let product: f64 = row.iter().zip(vector).map(|(entry, part)| entry * part).sum();
                assert!((product - value * own).abs() < 1e-9, "{values:?} {vectors:?}");
            }
        }
        assert!((values.iter().sum::<f64>() - 8.0).abs() < 1e-9);
    }

    #[test]
    fn constants_that_move_the_same_numbers_are_one_combination() {
        let effect = |constant, powers: [f64; 3]| Effect {
            model: Model::Dct,
            rms_max: 1.0,
            constant,
            value: 1.0,
            missed: [0; 2],
            states: [0; 2],
            rms: [0.0; 2],
            most: String::new(),
            power: 0.0,
            powers: powers.to_vec(),
        };
        let found = directions(&[effect("a", [1.0, 2.0, 0.0]), effect("b", [1.0, 2.0, 0.0])]);
        assert!((found[0].strength - 10.0_f64.sqrt()).abs() < 1e-9, "{found:?}");
        assert!(found[1].strength < 1e-9, "{found:?}");
        assert!(found[1].parts[0].1 * found[1].parts[1].1 < 0.0, "{found:?}");
    }
}
