//! What a knob is, and which values it takes.

use core::fmt;

use crate::config::units::{self, UnitError};

/// Every variable that belongs to this program starts like this.
pub(crate) const PREFIX: &str = "COPYRPC_";

/// One setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Knob {
    /// Environment variable, from which [`key`](Self::key) and [`flag`](Self::flag) follow.
    pub env: &'static str,
    /// Which values it takes.
    pub kind: Kind,
    /// Value if nothing sets it; empty if it then has none.
    pub default: &'static str,
    /// What it does.
    pub meaning: &'static str,
}

impl Knob {
    /// Its key in a file: `call_timeout`.
    #[must_use]
    pub fn key(&self) -> String {
        self.env.strip_prefix(PREFIX).unwrap_or(self.env).to_ascii_lowercase()
    }

    /// Its flag on a command line: `--call-timeout`.
    #[must_use]
    pub fn flag(&self) -> String {
        format!("--{}", self.key().replace('_', "-"))
    }
}

/// Which values a knob takes; bounds are inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Anything; whoever uses it checks it.
    Text,
    /// A whole number.
    Count {
        /// Least.
        min: u64,
        /// Most.
        max: u64,
    },
    /// A length in bytes: `4096`, `4MiB`, `4MB`.
    Bytes {
        /// Least.
        min: u64,
        /// Most.
        max: u64,
    },
    /// A duration: `200us`, `5s`. Bounds are in nanoseconds.
    Duration {
        /// Least.
        min_ns: u64,
        /// Most.
        max_ns: u64,
    },
    /// One of these words.
    Choice(&'static [&'static str]),
}

/// A value that was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// There is none, and need not be.
    Unset,
    /// Of a text or a choice.
    Text(String),
    /// A count, bytes or nanoseconds.
    Number(u64),
}

/// Why a text is no value of a knob.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// A number or its unit cannot be read.
    #[error(transparent)]
    Unit(#[from] UnitError),
    /// A number that the knob does not take.
    #[error("is not between {min} and {max}")]
    Range {
        /// Least, as one would write it.
        min: String,
        /// Most, as one would write it.
        max: String,
    },
    /// A word that the knob does not take.
    #[error("is not one of {}{}", choices.join(", "), hint(*nearest))]
    Choice {
        /// Words it takes.
        choices: &'static [&'static str],
        /// The most similar.
        nearest: Option<&'static str>,
    },
    /// There must be a value.
    #[error("is empty")]
    Empty,
}

fn hint(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |nearest| format!("; did you mean {nearest}?"))
}

impl Kind {
    /// Reads and checks a value.
    ///
    /// # Errors
    ///
    /// [`ValueError`].
    pub fn check(self, text: &str) -> Result<Value, ValueError> {
        let (number, (min, max)) = match self {
            Self::Text => return Ok(Value::Text(text.to_owned())),
            Self::Choice(choices) => {
                return match choices.iter().find(|choice| **choice == text) {
                    Some(choice) => Ok(Value::Text((*choice).to_owned())),
                    None => {
                        let nearest = nearest(text, choices.iter().copied());
                        Err(ValueError::Choice { choices, nearest })
                    }
                };
            }
            Self::Count { min, max } => {
                let number = text.trim().parse();
                let number = number.map_err(|_| UnitError::NotANumber { example: "4" })?;
                (number, (min, max))
            }
            Self::Bytes { min, max } => (units::parse_bytes(text)?, (min, max)),
            Self::Duration { min_ns, max_ns } => {
                (units::parse_duration_ns(text)?, (min_ns, max_ns))
            }
        };
        if (min..=max).contains(&number) {
            Ok(Value::Number(number))
        } else {
            Err(ValueError::Range { min: self.show(min), max: self.show(max) })
        }
    }

    fn show(self, number: u64) -> String {
        match self {
            Self::Bytes { .. } => units::show_bytes(number),
            Self::Duration { .. } => units::show_duration_ns(number),
            _ => number.to_string(),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Text => f.write_str("text"),
            Self::Choice(choices) => f.write_str(&choices.join(" | ")),
            Self::Count { min, max } | Self::Bytes { min, max } => {
                write!(f, "{} to {}", self.show(min), self.show(max))
            }
            Self::Duration { min_ns, max_ns } => {
                write!(f, "{} to {}", self.show(min_ns), self.show(max_ns))
            }
        }
    }
}

/// Edits that a typing error may have.
const DISTANCE_MAX: usize = 4;

/// The name that `word` is most like, if it is like any.
pub(crate) fn nearest<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // Short words are never like each other.
    let distance_max = DISTANCE_MAX.min(word.len() / 2);
    names
        .map(|name| (strsim::damerau_levenshtein(word, name), name))
        .min()
        .filter(|&(distance, _)| distance <= distance_max)
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Knob = Knob {
        env: "COPYRPC_CALL_TIMEOUT",
        kind: Kind::Duration { min_ns: 1_000_000, max_ns: 60_000_000_000 },
        default: "5s",
        meaning: "how long",
    };

    #[test]
    fn key_and_flag_follow_from_the_variable() {
        assert_eq!(
            (TIMEOUT.key().as_str(), TIMEOUT.flag().as_str()),
            ("call_timeout", "--call-timeout")
        );
    }

    #[test]
    fn bounds_are_inclusive_and_told_in_the_units_of_the_knob() {
        assert_eq!(TIMEOUT.kind.check("1ms"), Ok(Value::Number(1_000_000)));
        assert_eq!(TIMEOUT.kind.check("60s"), Ok(Value::Number(60_000_000_000)));
        let error = TIMEOUT.kind.check("61s").unwrap_err().to_string();
        assert_eq!(error, "is not between 1ms and 60s");
        assert_eq!(TIMEOUT.kind.to_string(), "1ms to 60s");
    }

    #[test]
    fn a_wrong_word_is_answered_with_the_nearest() {
        let kind = Kind::Choice(&["busy", "adaptive", "block"]);
        let error = kind.check("adaptve").unwrap_err().to_string();
        assert_eq!(error, "is not one of busy, adaptive, block; did you mean adaptive?");
        assert!(!kind.check("x").unwrap_err().to_string().contains("did you mean"));
    }
}
