//! A knob, and the values that it takes.

use core::fmt;

use crate::units::{self, UnitError};

/// The beginning of every variable that belongs to this program.
pub(crate) const PREFIX: &str = "COPYRPC_";

/// One entry of a table of settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Knob {
    /// Environment variable, from which [`key`](Self::key) and [`flag`](Self::flag) follow.
    pub env: &'static str,
    /// The values that it takes.
    pub kind: KnobKind,
    /// The value if no layer sets it; empty if it then has none.
    pub default: &'static str,
    /// Its effect, as a help text says it.
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

/// The values that a knob takes; bounds are inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnobKind {
    /// Any text; the code that uses it checks it.
    Text,
    /// A name of 1 to `bytes_max` ASCII letters, digits and `marks`.
    Name {
        /// The longest value, in bytes.
        bytes_max: usize,
        /// Characters besides letters and digits.
        marks: &'static str,
    },
    /// A count: `200`, `50k`.
    Count {
        /// The least value that is allowed.
        min: u64,
        /// The greatest value that is allowed.
        max: u64,
    },
    /// `off`, or any count.
    CountOrOff,
    /// A length in bytes: `4096`, `4MiB`, `4MB`.
    Bytes {
        /// The least value that is allowed.
        min: u64,
        /// The greatest value that is allowed.
        max: u64,
    },
    /// A duration: `200us`, `5s`. Bounds are in nanoseconds.
    Duration {
        /// The least value that is allowed.
        min_ns: u64,
        /// The greatest value that is allowed.
        max_ns: u64,
    },
    /// One of these words.
    Choice(&'static [&'static str]),
}

/// A value that was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// There is none, and need not be; or `off`.
    Unset,
    /// The value of a text, a name or a choice.
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
    /// A name that the knob does not take.
    #[error("is not 1 to {bytes_max} of A-Z a-z 0-9 {}", spaced(marks))]
    Name {
        /// The longest value, in bytes.
        bytes_max: usize,
        /// Characters besides letters and digits.
        marks: &'static str,
    },
    /// There must be a value.
    #[error("is empty")]
    Empty,
}

fn spaced(marks: &str) -> String {
    marks.chars().map(String::from).collect::<Vec<_>>().join(" ")
}

fn hint(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |nearest| format!("; did you mean {nearest}?"))
}

impl KnobKind {
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
            Self::Name { bytes_max, marks } => {
                let is_legal = |c: char| c.is_ascii_alphanumeric() || marks.contains(c);
                let fits = (1..=bytes_max).contains(&text.len()) && text.chars().all(is_legal);
                return match fits {
                    true => Ok(Value::Text(text.to_owned())),
                    false => Err(ValueError::Name { bytes_max, marks }),
                };
            }
            Self::CountOrOff if text == "off" => return Ok(Value::Unset),
            Self::CountOrOff => (units::parse_count(text)?, (0, u64::MAX)),
            Self::Count { min, max } => (units::parse_count(text)?, (min, max)),
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

impl fmt::Display for KnobKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Text => f.write_str("text"),
            Self::Name { bytes_max, marks } => {
                write!(f, "1 to {bytes_max} of A-Z a-z 0-9 {}", spaced(marks))
            }
            Self::CountOrOff => f.write_str("off | a number"),
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

/// Most edits between a word and the name that it is taken for.
const DISTANCE_MAX: usize = 4;

/// The name that is most similar to `word`, if any is.
pub(crate) fn nearest<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // No two short words are similar.
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
        kind: KnobKind::Duration { min_ns: 1_000_000, max_ns: 60_000_000_000 },
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
    fn names_and_counts_are_refused_with_what_they_may_be() {
        let name = KnobKind::Name { bytes_max: 3, marks: "-_" };
        assert_eq!(name.check("a-1"), Ok(Value::Text("a-1".to_owned())));
        for bad in ["", "a/b", "abcd", "ä"] {
            let error = name.check(bad).unwrap_err().to_string();
            assert_eq!(error, "is not 1 to 3 of A-Z a-z 0-9 - _");
        }
        let seed = KnobKind::CountOrOff;
        assert_eq!((seed.check("off"), seed.check("7")), (Ok(Value::Unset), Ok(Value::Number(7))));
        assert!(seed.check("on").unwrap_err().to_string().starts_with("is no number"));
        let count = KnobKind::Count { min: 1, max: 50_000 };
        assert_eq!(count.check("50k"), Ok(Value::Number(50_000)));
        assert!(matches!(count.check("51k"), Err(ValueError::Range { .. })));
    }

    #[test]
    fn a_wrong_word_is_answered_with_the_nearest() {
        let kind = KnobKind::Choice(&["busy", "adaptive", "block"]);
        let error = kind.check("adaptve").unwrap_err().to_string();
        assert_eq!(error, "is not one of busy, adaptive, block; did you mean adaptive?");
        assert!(!kind.check("x").unwrap_err().to_string().contains("did you mean"));
    }
}
