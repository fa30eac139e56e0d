//! Words of the command line.

use std::{fmt, str::FromStr};

use config::units::{parse_bytes, parse_count};

use super::{Mix, Pace, Popularity, ValueSize};

/// A word that means nothing here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{word}` is not {expected}")]
pub struct ParseError {
    word: String,
    expected: &'static str,
}

fn error(word: &str, expected: &'static str) -> ParseError {
    ParseError { word: word.to_owned(), expected }
}

impl FromStr for Popularity {
    type Err = ParseError;

    fn from_str(word: &str) -> Result<Self, ParseError> {
        let expected = "`uniform`, or `zipf:` and an exponent such as 0.99";
        match word.split_once(':') {
            None if word == "uniform" => Ok(Self::Uniform),
            None if word == "zipf" => Ok(Self::Zipf(0.99)),
            Some(("zipf", exponent)) => {
                exponent.parse().map(Self::Zipf).map_err(|_| error(word, expected))
            }
            _ => Err(error(word, expected)),
        }
    }
}

impl fmt::Display for Popularity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uniform => f.write_str("uniform"),
            Self::Zipf(exponent) => write!(f, "zipf:{exponent}"),
        }
    }
}

impl FromStr for ValueSize {
    type Err = ParseError;

    fn from_str(word: &str) -> Result<Self, ParseError> {
        let expected = "a length such as 64 or 4KiB, or a range of lengths such as 32-1KiB";
        let number = |text: &str| {
            let bytes = parse_bytes(text).ok().and_then(|bytes| usize::try_from(bytes).ok());
            bytes.ok_or_else(|| error(word, expected))
        };
        let (min, max) = word.split_once('-').unwrap_or((word, word));
        Ok(Self { min_bytes: number(min)?, max_bytes: number(max)? })
    }
}

impl fmt::Display for ValueSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.min_bytes == self.max_bytes {
            write!(f, "{}", self.max_bytes)
        } else {
            write!(f, "{}-{}", self.min_bytes, self.max_bytes)
        }
    }
}

impl FromStr for Pace {
    type Err = ParseError;

    fn from_str(word: &str) -> Result<Self, ParseError> {
        let expected =
            "`closed`, or `open:` and the calls per second of all clients, such as open:50k";
        match word.split_once(':') {
            None if word == "closed" => Ok(Self::Closed),
            Some(("open", rate)) => {
                parse_count(rate).map(Self::Open).map_err(|_| error(word, expected))
            }
            _ => Err(error(word, expected)),
        }
    }
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("closed"),
            Self::Open(rate) => write!(f, "open:{rate}"),
        }
    }
}

impl FromStr for Mix {
    type Err = ParseError;

    /// `95` (per cent of GETs, the rest PUTs), or `GET:DELETE:CAS` such as `50:5:10`.
    fn from_str(word: &str) -> Result<Self, ParseError> {
        let expected = "the per cent of GETs such as 95, or GET:DELETE:CAS such as 50:5:10";
        let numbers = word.split(':').map(str::parse::<u8>).collect::<Result<Vec<_>, _>>();
        match numbers.as_deref() {
            Ok(&[get]) if get <= 100 => Ok(Self { get, delete: 0, cas: 0 }),
            Ok(&[get, delete, cas]) if get.max(delete).max(cas) <= 100 => {
                Ok(Self { get, delete, cas })
            }
            _ => Err(error(word, expected)),
        }
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self { get, delete: 0, cas: 0 } => write!(f, "{get}"),
            Self { get, delete, cas } => write!(f, "{get}:{delete}:{cas}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{ClientKind, Locality, Verify};

    #[track_caller]
    fn round_trips<T: FromStr<Err: fmt::Debug> + fmt::Display>(words: &[&str]) {
        for word in words {
            assert_eq!(word.parse::<T>().unwrap().to_string(), *word);
        }
        for bad in ["", "x", "1-x", "open:", "zipf:x", "1:2", "101", "-1"] {
            assert!(bad.parse::<T>().is_err(), "{bad}");
        }
    }

    #[test]
    fn words_mean_what_they_say() {
        round_trips::<Locality>(&["natural", "local", "remote"]);
        round_trips::<Popularity>(&["uniform", "zipf:0.99"]);
        round_trips::<Pace>(&["closed", "open:5000"]);
        round_trips::<Mix>(&["95", "50:5:10"]);
        for word in ["64", "32-1024"] {
            assert_eq!(word.parse::<ValueSize>().unwrap().to_string(), word);
        }
        assert_eq!("32B-1KiB".parse(), "32-1024".parse::<ValueSize>());
        assert_eq!("open:50k".parse(), Ok(Pace::Open(50_000)));
        assert!("".parse::<ValueSize>().is_err());
        assert_eq!("full".parse(), Ok(Verify::Full));
        assert_eq!("thread".parse(), Ok(ClientKind::Thread));
    }
}
