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

/// What a number of the reference was used for, and whether the model has it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Standing {
    /// A parameter was chosen by it.
    Fitted,
    /// No parameter was.
    Predicted,
    /// The model has it and is wrong, by at most so much with any seed that was tried, as a share of the reference.
    Missed(f64),
    /// The model lacks it, for a reason that the scenario's documentation gives.
    Shown,
}

impl Standing {
    /// What it is called in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fitted => "fitted",
            Self::Predicted => "predicted",
            Self::Missed(_) => "missed",
            Self::Shown => "shown",
        }
    }

    /// Whether a number is claimed to be near its reference.
    #[must_use]
    pub const fn is_claimed(self) -> bool {
        matches!(self, Self::Fitted | Self::Predicted)
    }
}

impl Serialize for Standing {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(match self {
            Self::Fitted => "Fitted",
            Self::Predicted => "Predicted",
            Self::Missed(_) => "Missed",
            Self::Shown => "Shown",
        })
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

    /// Whether what its class says of it does not hold: a fitted or a predicted number is off by more than [`ERROR_MAX`]; a missed
    /// one is not, or is off by more than was known, by [`ERROR_MAX`] of that error, or of the reference if that is more.
    #[must_use]
    pub fn is_missed(&self) -> bool {
        match self.standing {
            Standing::Fitted | Standing::Predicted => !self.is_near(),
            Standing::Missed(known) => {
                self.is_near() || self.error().abs() > known + ERROR_MAX * known.max(1.0)
            }
            Standing::Shown => false,
        }
    }

    /// What a table says of it: its class, or that what the class says does not hold.
    #[must_use]
    pub fn verdict(&self) -> &'static str {
        match (self.is_missed(), self.standing) {
            (false, standing) => standing.name(),
            (true, Standing::Missed(_)) => "CHANGED",
            (true, _) => "MISSED",
        }
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
    let claimed = rows.iter().filter(|row| row.standing.is_claimed());
    let (count, squares) = claimed
        .fold((0.0, 0.0), |(count, squares), row| (count + 1.0, squares + row.error().powi(2)));
    (squares / f64::max(count, 1.0)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(simulated: f64, standing: Standing) -> Compared {
        Compared { what: String::new(), unit: "", reference: 10.0, simulated, standing }
    }

    #[test]
    fn a_known_miss_is_noticed_when_it_begins_to_hold_and_when_it_grows() {
        let missed = |simulated| row(simulated, Standing::Missed(0.5)).verdict();
        assert_eq!([4.0, 5.0, 8.0, 15.0].map(missed), ["missed"; 4]);
        assert_eq!([9.0, 10.0, 3.0, 0.0, 20.0].map(missed), ["CHANGED"; 5]);
        assert_eq!(row(8.0, Standing::Predicted).verdict(), "MISSED");
        assert_eq!(row(9.0, Standing::Fitted).verdict(), "fitted");
        assert_eq!(row(0.0, Standing::Shown).verdict(), "shown");
    }

    #[test]
    fn a_known_miss_is_in_no_mean_of_claimed_errors() {
        let rows = [row(11.0, Standing::Predicted), row(5.0, Standing::Missed(0.5))];
        assert!((rms(&rows) - 0.1).abs() < 1e-9);
    }
}
