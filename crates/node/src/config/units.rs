//! Numbers with units, as people write them: `4MiB`, `200us`.
//!
//! `4MB` is 4,000,000 bytes and `4MiB` is 4,194,304: whoever mistakes one for the other should find
//! out at start, so nothing here guesses. `4M` and a duration without unit are refused.

/// Bytes per unit: decimal and binary are told apart by the `i`.
const BYTE_UNITS: [(&str, u64); 9] = [
    ("B", 1),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

/// Nanoseconds per unit.
const TIME_UNITS: [(&str, u64); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// A number that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// It does not begin with digits.
    #[error("is no whole number; write for example {example}")]
    NotANumber {
        /// How it could look.
        example: &'static str,
    },
    /// What follows the digits is no unit.
    #[error("has no known unit `{unit}`; use one of {known}{hint}")]
    Unit {
        /// What follows the digits.
        unit: String,
        /// Units there are.
        known: &'static str,
        /// What was probably meant.
        hint: String,
    },
    /// There is no unit where one is needed.
    #[error("needs a unit: {known}")]
    NoUnit {
        /// Units there are.
        known: &'static str,
    },
    /// It does not fit in 64 bits.
    #[error("is too large")]
    TooLarge,
}

/// Reads a length in bytes; without a unit the number is in bytes.
///
/// # Errors
///
/// [`UnitError`].
pub fn parse_bytes(text: &str) -> Result<u64, UnitError> {
    let (number, unit) = split(text, "4096 or 4MiB")?;
    if unit.is_empty() {
        return Ok(number);
    }
    scale(number, unit, &BYTE_UNITS).unwrap_or_else(|| {
        let hint = byte_hint(number, unit);
        Err(UnitError::Unit { unit: unit.to_owned(), known: "B, kB, MB, GB, KiB, MiB, GiB", hint })
    })
}

/// Reads a duration, in nanoseconds.
///
/// # Errors
///
/// [`UnitError`].
pub fn parse_duration_ns(text: &str) -> Result<u64, UnitError> {
    const KNOWN: &str = "ns, us, ms, s, min, h";
    let (number, unit) = split(text, "200us or 5s")?;
    if unit.is_empty() && number == 0 {
        return Ok(0);
    }
    if unit.is_empty() {
        return Err(UnitError::NoUnit { known: KNOWN });
    }
    scale(number, unit, &TIME_UNITS).unwrap_or_else(|| {
        let hint = String::new();
        Err(UnitError::Unit { unit: unit.to_owned(), known: KNOWN, hint })
    })
}

/// Digits, and the unit behind them; one space may lie between.
fn split<'a>(text: &'a str, example: &'static str) -> Result<(u64, &'a str), UnitError> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    if digits.is_empty() || unit.starts_with(['.', ',']) {
        return Err(UnitError::NotANumber { example });
    }
    let number = digits.parse().map_err(|_| UnitError::TooLarge)?;
    Ok((number, unit.strip_prefix(' ').unwrap_or(unit)))
}

fn scale(number: u64, unit: &str, units: &[(&str, u64)]) -> Option<Result<u64, UnitError>> {
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    Some(number.checked_mul(*factor).ok_or(UnitError::TooLarge))
}

/// `4M`, `4mb` and `4Mib` could be either.
fn byte_hint(number: u64, unit: &str) -> String {
    let letter = unit.chars().next().unwrap_or(' ').to_ascii_uppercase();
    if !"KMGT".contains(letter) {
        return String::new();
    }
    let decimal = if letter == 'K' { 'k' } else { letter };
    format!("; `{number}{decimal}B` counts in thousands, `{number}{letter}iB` in 1024s")
}

/// Writes a duration with the largest unit that leaves it whole.
#[must_use]
pub fn show_duration_ns(ns: u64) -> String {
    let units = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)];
    match units.iter().find(|(_, factor)| ns >= *factor && ns.is_multiple_of(*factor)) {
        Some((unit, factor)) => format!("{}{unit}", ns / factor),
        None => format!("{ns}ns"),
    }
}

/// Writes a length with the largest binary unit that leaves it whole.
#[must_use]
pub fn show_bytes(bytes: u64) -> String {
    let units = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match units.iter().find(|(_, factor)| bytes >= *factor && bytes.is_multiple_of(*factor)) {
        Some((unit, factor)) => format!("{}{unit}", bytes / factor),
        None => format!("{bytes}B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_and_binary_units_are_told_apart() {
        assert_eq!(parse_bytes("4MB"), Ok(4_000_000));
        assert_eq!(parse_bytes("4MiB"), Ok(4 << 20));
        assert_eq!(parse_bytes("4 MiB"), Ok(4 << 20));
        assert_eq!(parse_bytes("512"), Ok(512));
        assert_eq!(parse_bytes("1kB"), Ok(1000));
    }

    #[test]
    fn ambiguous_units_are_answered_with_both_readings() {
        for text in ["4M", "4mb", "4Mib", "4  MiB"] {
            let error = parse_bytes(text).unwrap_err().to_string();
            assert!(error.contains("no known unit"), "{text}: {error}");
        }
        let error = parse_bytes("4M").unwrap_err().to_string();
        assert!(error.contains("`4MB`") && error.contains("`4MiB`"), "{error}");
        let error = parse_bytes("8K").unwrap_err().to_string();
        assert!(error.contains("`8kB`") && error.contains("`8KiB`"), "{error}");
    }

    #[test]
    fn durations_need_a_unit_and_whole_numbers() {
        assert_eq!(parse_duration_ns("200us"), Ok(200_000));
        assert_eq!(parse_duration_ns("200µs"), Ok(200_000));
        assert_eq!(parse_duration_ns("2 min"), Ok(120_000_000_000));
        assert_eq!(parse_duration_ns("0"), Ok(0));
        assert!(matches!(parse_duration_ns("5"), Err(UnitError::NoUnit { .. })));
        assert!(matches!(parse_duration_ns("1.5s"), Err(UnitError::NotANumber { .. })));
        assert!(matches!(parse_duration_ns("-1s"), Err(UnitError::NotANumber { .. })));
        assert!(matches!(parse_duration_ns("5 sec"), Err(UnitError::Unit { .. })));
    }

    #[test]
    fn what_exceeds_64_bits_is_an_error_and_not_a_small_number() {
        assert_eq!(parse_bytes("18446744073709551616"), Err(UnitError::TooLarge));
        assert_eq!(parse_bytes("18446744TiB"), Err(UnitError::TooLarge));
        assert_eq!(parse_duration_ns("6000000h"), Err(UnitError::TooLarge));
    }

    #[test]
    fn what_is_shown_can_be_read_again() {
        for ns in [0, 1, 1500, 2_000_000, 5_000_000_000, 61_000_000_000] {
            assert_eq!(parse_duration_ns(&show_duration_ns(ns)), Ok(ns));
        }
        for bytes in [0, 1, 1000, 4096, 3 << 20, 1 << 33] {
            assert_eq!(parse_bytes(&show_bytes(bytes)), Ok(bytes));
        }
    }
}
