//! What is run, and the measurements that it is compared with.

pub mod bistability;
pub mod dct;
pub mod leave_one_out;
pub mod mutants;
pub mod phases;
pub mod prototypes;
pub mod raw;
pub mod scalerpc;
pub mod seeds;
pub mod sensitivity;
pub mod tried;
pub mod two_rank;

use serde::Serialize;

/// Largest error of a number that is claimed, as a share of its reference.
pub const ERROR_MAX: f64 = 0.15;

/// What a number of the reference was used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Standing {
    /// A parameter was chosen by it.
    Fitted,
    /// No parameter was.
    Predicted,
    /// It is shown. The model does not claim it, for a reason that the scenario's documentation gives.
    Shown,
}

impl Standing {
    /// What it is called in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fitted => "fitted",
            Self::Predicted => "predicted",
            Self::Shown => "shown",
        }
    }
}

/// A number of the reference beside the simulated one.
#[derive(Clone, Debug, Serialize)]
pub struct Compared {
    /// The quantity, and the load that it was measured under.
    pub what: String,
    /// Of what.
    pub unit: &'static str,
    /// As measured on hardware.
    pub reference: f64,
    /// As simulated.
    pub simulated: f64,
    /// What it was used for.
    pub standing: Standing,
}

impl Compared {
    /// How far the simulated number is from the reference, as a share of it.
    #[must_use]
    pub fn error(&self) -> f64 {
        self.simulated / self.reference - 1.0
    }

    /// Whether it is claimed, and off by more than [`ERROR_MAX`].
    #[must_use]
    pub fn is_missed(&self) -> bool {
        let is_claimed = matches!(self.standing, Standing::Fitted | Standing::Predicted);
        is_claimed && !self.is_near()
    }

    /// Whether it is off by no more than [`ERROR_MAX`].
    #[must_use]
    pub fn is_near(&self) -> bool {
        self.error().abs() <= ERROR_MAX
    }
}

/// Root mean square of the errors of claimed numbers; 0 without one.
#[must_use]
pub fn rms(rows: &[Compared]) -> f64 {
    let claimed = rows.iter().filter(|row| row.standing != Standing::Shown);
    let (count, squares) = claimed
        .fold((0.0, 0.0), |(count, squares), row| (count + 1.0, squares + row.error().powi(2)));
    (squares / f64::max(count, 1.0)).sqrt()
}
