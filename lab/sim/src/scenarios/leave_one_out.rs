//! What each row of READs over DC transport adds to the fit: constants are fitted again without it, and it is simulated with
//! them.
//!
//! Fitted are powers of constants, by least squares on logarithms of claimed numbers, one step from the profile: `x` is the
//! solution of `(JᵀJ + λ) x = Jᵀ r`, where `J` has the power of each number and constant, and `r` how far numbers are from
//! their references. `λ` keeps constants that no number moves where they are. Numbers of one simulation are left out
//! together, because Little's law ties them to each other.
//!
//! A row that alone determines a combination of constants cannot be predicted by the others: its *share* of the fit is
//! above a half.

use serde::Serialize;

use super::{
    Compared, dct,
    sensitivity::{self, Effect, Model},
};
use crate::machine::{BadConstant, CONNECT_IB, Constants, Profile, with_constant};

/// A number that was left out.
#[derive(Clone, Debug, Serialize)]
pub struct LeftOut {
    /// The number, as the profile has it.
    #[serde(flatten)]
    pub row: Compared,
    /// As constants have it that were fitted to the others.
    pub without: f64,
    /// How much of what the fit says of it comes from itself, from 0 to 1.
    pub share: f64,
}

impl LeftOut {
    /// How far the number is from its reference with constants that were fitted without it.
    #[must_use]
    pub fn error(&self) -> f64 {
        self.without / self.row.reference - 1.0
    }

    /// Whether the other numbers say anything of it.
    #[must_use]
    pub fn is_determined_by_others(&self) -> bool {
        self.share <= 0.5
    }
}

/// A number is known to 5 %, and a constant is within 50 % of what it is: the square of their quotient.
const RIDGE: f64 = 0.01;
/// By how much constants are changed to see what numbers do, in percent.
const STEP_PERCENT: f64 = 20.0;

/// Leaves out one simulation after the other. `progress` hears how many steps of how many are done.
///
/// # Errors
///
/// If a constant would be changed to what it cannot be.
pub fn run(seed: u64, mut progress: impl FnMut(usize, usize)) -> Result<Vec<LeftOut>, BadConstant> {
    let sizes = dct::cell_sizes();
    let steps = CONNECT_IB.constants().len() + sizes.len();
    let effects =
        sensitivity::run(Model::Dct, STEP_PERCENT, seed, |done, _| progress(done, steps))?;
    let effects = effects.effects;
    let mut rows = dct::run(seed, |_, _| {}).rows.into_iter();
    let (mut claimed, mut cells) = (Vec::new(), Vec::new());
    for (cell, size) in sizes.into_iter().enumerate() {
        let own: Vec<_> = rows.by_ref().take(size).collect();
        if own.iter().all(|row| row.standing.is_claimed()) {
            cells.push((cell, claimed.len()..claimed.len() + size));
            claimed.extend(own);
        }
    }
    let mut all = Vec::new();
    for (cell, own) in cells {
        let fit = Fit::without(&effects, &claimed, own.clone());
        let again = dct::run_cell(&fit.profile(&effects)?, cell, seed);
        all.extend(own.zip(again).map(|(index, again)| LeftOut {
            row: claimed[index].clone(),
            without: again.simulated,
            share: fit.share(&power_of(&effects, index)),
        }));
        progress(effects.len() + cell + 1, steps);
    }
    Ok(all)
}

/// Powers of all constants in one claimed number.
fn power_of(effects: &[Effect], row: usize) -> Vec<f64> {
    effects.iter().map(|effect| effect.powers[row]).collect()
}

/// Constants that were fitted to some numbers.
struct Fit {
    /// Logarithms of factors of the profile's constants.
    change: Vec<f64>,
    matrix: Vec<Vec<f64>>,
}

impl Fit {
    fn without(effects: &[Effect], rows: &[Compared], left_out: std::ops::Range<usize>) -> Self {
        let size = effects.len();
        let mut matrix = vec![vec![0.0; size]; size];
        let mut right = vec![0.0; size];
        (0..size).for_each(|at| matrix[at][at] = RIDGE);
        for row in (0..rows.len()).filter(|row| !left_out.contains(row)) {
            let powers = power_of(effects, row);
            let error = libm::log(rows[row].reference / rows[row].simulated);
            for (one, power) in powers.iter().enumerate() {
                right[one] += power * error;
                for (other, again) in powers.iter().enumerate() {
                    matrix[one][other] += power * again;
                }
            }
        }
        Self { change: solve(matrix.clone(), right), matrix }
    }

    fn profile(&self, effects: &[Effect]) -> Result<Profile, BadConstant> {
        let changes = effects.iter().zip(&self.change);
        changes.clone().try_fold(CONNECT_IB.clone(), |profile, (effect, change)| {
            with_constant(&profile, effect.constant, effect.value * libm::exp(*change))
        })
    }

    /// A number with these powers has this share in a fit that has it, too.
    fn share(&self, powers: &[f64]) -> f64 {
        let by = solve(self.matrix.clone(), powers.to_vec());
        let product: f64 = powers.iter().zip(by).map(|(power, by)| power * by).sum();
        product / (1.0 + product)
    }
}

/// Solves linear equations with a symmetric, positive matrix.
fn solve(mut matrix: Vec<Vec<f64>>, mut right: Vec<f64>) -> Vec<f64> {
    let size = right.len();
    for pivot in 0..size {
        let (upper, lower) = matrix.split_at_mut(pivot + 1);
        let own = &upper[pivot];
        for (row, below) in lower.iter_mut().zip(pivot + 1..) {
            let factor = row[pivot] / own[pivot];
            row.iter_mut().zip(own).skip(pivot).for_each(|(entry, of)| *entry -= factor * of);
            right[below] -= factor * right[pivot];
        }
    }
    for row in (0..size).rev() {
        let known: f64 = (row + 1..size).map(|other| matrix[row][other] * right[other]).sum();
        right[row] = (right[row] - known) / matrix[row][row];
    }
    right
}

#[cfg(test)]
mod tests {
    use super::{super::Standing, *};

    fn effect(constant: &'static str, powers: &[f64]) -> Effect {
        let (most, power) = (String::new(), 0.0);
        let (missed, states, powers) = ([0; 2], [0; 2], powers.to_vec());
        Effect {
            model: Model::Dct,
            constant,
            value: 1.0,
            missed,
            states,
            rms: [0.0; 2],
            rms_max: 1.0,
            most,
            power,
            powers,
        }
    }

    fn row(simulated: f64) -> Compared {
        let (what, unit, standing) = (String::new(), "", Standing::Fitted);
        Compared { what, unit, reference: 1.0, simulated, standing }
    }

    #[test]
    fn equations_are_solved() {
        let solved = solve(vec![vec![4.0, 1.0], vec![1.0, 3.0]], vec![1.0, 2.0]);
        assert!((solved[0] - 1.0 / 11.0).abs() < 1e-12 && (solved[1] - 7.0 / 11.0).abs() < 1e-12);
    }

    /// Two numbers of one constant predict each other; a number with a constant of its own is predicted by none.
    #[test]
    fn what_others_say_of_a_number_depends_on_the_constants_that_they_share() {
        let effects = [effect("a", &[1.0, 1.0, 0.0]), effect("b", &[0.0, 0.0, 1.0])];
        let rows = [row(1.0), row(0.8), row(0.8)];
        let first = Fit::without(&effects, &rows, 0..1);
        // The second number, too small by a fifth, pulls the constant up.
        assert!((first.change[0] - libm::log(1.25)).abs() < 0.01, "{:?}", first.change);
        assert!(first.share(&power_of(&effects, 0)) < 0.51);
        let last = Fit::without(&effects, &rows, 2..3);
        assert!(last.change[1].abs() < 1e-9, "{:?}", last.change);
        assert!(last.share(&power_of(&effects, 2)) > 0.98);
    }
}
