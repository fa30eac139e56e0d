//! Numbers with units, as people write them: `4MiB`, `1.5s`, `50k`.
//!
//! `4MB` is 4,000,000 bytes and `4MiB` is 4,194,304: a mistake between the two should be found when a program
//! starts, so nothing here guesses. A length of `4M` and a duration without unit are refused. Counts have no
//! binary units, so `50k` is 50,000.

use core::fmt;

/// Bytes per unit: the `i` separates binary from decimal.
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
const TIME_UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("min", 60_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Multiples of a count.
const COUNT_UNITS: [(&str, u64); 3] = [("k", 1_000), ("M", 1_000_000), ("G", 1_000_000_000)];

/// Most digits of a fraction, and the largest exponent: no number of 64 bits needs more.
const FRACTION_DIGITS_MAX: usize = 18;
const EXPONENT_MAX: u32 = 19;

/// Why a text is no number, as the end of a sentence that begins with the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// It does not begin with a number.
    #[error("is no number; write for example {example}")]
    NotANumber {
        /// An example of a valid value.
        example: &'static str,
    },
    /// It has a fraction that is less than one byte, nanosecond or thing.
    #[error("is no whole number of {what}; write for example {example}")]
    NotWhole {
        /// The quantity's name.
        what: &'static str,
        /// An example of a valid value.
        example: &'static str,
    },
    /// The text behind the number is no unit.
    #[error("has no known unit `{unit}`; use one of {known}{hint}")]
    Unit {
        /// The text behind the number.
        unit: String,
        /// The units there are.
        known: &'static str,
        /// The unit that was probably meant.
        hint: String,
    },
    /// There is no unit where one is needed.
    #[error("needs a unit: {known}")]
    NoUnit {
        /// The units there are.
        known: &'static str,
    },
    /// It does not fit in 64 bits.
    #[error("is too large")]
    TooLarge,
}

/// A quantity: its name, an example, and its units.
struct Quantity {
    what: &'static str,
    example: &'static str,
    known: &'static str,
    units: &'static [(&'static str, u64)],
}

const BYTES: Quantity = Quantity {
    what: "bytes",
    example: "4096 or 4MiB",
    known: "B, kB, MB, GB, KiB, MiB, GiB",
    units: &BYTE_UNITS,
};
const TIME: Quantity = Quantity {
    what: "nanoseconds",
    example: "200us or 1.5s",
    known: "ns, us, ms, s, min, h",
    units: &TIME_UNITS,
};
const COUNT: Quantity =
    Quantity { what: "things", example: "4 or 50k", known: "k, M, G", units: &COUNT_UNITS };

/// Reads a length in bytes; without a unit the number is in bytes.
///
/// # Errors
///
/// [`UnitError`].
pub fn parse_bytes(text: &str) -> Result<u64, UnitError> {
    let (number, unit) = split(text, &BYTES)?;
    if unit.is_empty() {
        return number.times(1, &BYTES);
    }
    number.in_unit(unit, &BYTES).map_err(|error| match error {
        UnitError::Unit { unit, known, .. } => {
            UnitError::Unit { hint: byte_hint(&number, &unit), unit, known }
        }
        error => error,
    })
}

/// Reads a duration, in nanoseconds. Only 0 needs no unit.
///
/// # Errors
///
/// [`UnitError`].
pub fn parse_duration_ns(text: &str) -> Result<u64, UnitError> {
    let (number, unit) = split(text, &TIME)?;
    match unit {
        "" if number.times(1, &TIME) == Ok(0) => Ok(0),
        "" => Err(UnitError::NoUnit { known: TIME.known }),
        unit => number.in_unit(unit, &TIME),
    }
}

/// Reads a count: `200`, `50k`, `1.5M`, `1e6`.
///
/// # Errors
///
/// [`UnitError`].
pub fn parse_count(text: &str) -> Result<u64, UnitError> {
    let (number, unit) = split(text, &COUNT)?;
    if unit.is_empty() { number.times(1, &COUNT) } else { number.in_unit(unit, &COUNT) }
}

/// A decimal number: `digits` with the point before the last `places` of them, times a power of ten.
struct Decimal<'a> {
    digits: u128,
    places: u32,
    exponent: u32,
    text: &'a str,
}

impl Decimal<'_> {
    fn in_unit(&self, unit: &str, quantity: &Quantity) -> Result<u64, UnitError> {
        match quantity.units.iter().find(|(name, _)| *name == unit) {
            Some((_, factor)) => self.times(*factor, quantity),
            None => {
                let unit = unit.to_owned();
                let hint = String::new();
                Err(UnitError::Unit { unit, known: quantity.known, hint })
            }
        }
    }

    fn times(&self, factor: u64, quantity: &Quantity) -> Result<u64, UnitError> {
        // Common powers of ten are left out, so that no product is larger than necessary.
        let common = self.places.min(self.exponent);
        let up = self.exponent - common;
        let down = self.places - common;
        let product = self.digits.checked_mul(u128::from(factor));
        let product = product.and_then(|product| product.checked_mul(10_u128.pow(up)));
        let product = product.ok_or(UnitError::TooLarge)?;
        let divisor = 10_u128.pow(down);
        if !product.is_multiple_of(divisor) {
            return Err(UnitError::NotWhole { what: quantity.what, example: quantity.example });
        }
        u64::try_from(product / divisor).map_err(|_| UnitError::TooLarge)
    }
}

impl fmt::Display for Decimal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text)
    }
}

/// The number at the beginning of a text, and the unit behind it; one space may lie between.
fn split<'a>(text: &'a str, quantity: &Quantity) -> Result<(Decimal<'a>, &'a str), UnitError> {
    let not_a_number = || UnitError::NotANumber { example: quantity.example };
    let text = text.trim();
    let (whole, rest) = digits(text);
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(behind) => match digits(behind) {
            ("", _) => return Err(not_a_number()),
            parts => parts,
        },
        None => ("", rest),
    };
    if whole.is_empty() || rest.starts_with(['.', ',']) {
        return Err(not_a_number());
    }
    let (exponent, rest) = match rest.strip_prefix(['e', 'E']).map(digits) {
        Some(("", _)) => return Err(not_a_number()),
        Some((exponent, behind)) => {
            let exponent = exponent.parse().ok().filter(|exponent| *exponent <= EXPONENT_MAX);
            (exponent.ok_or(UnitError::TooLarge)?, behind)
        }
        None => (0, rest),
    };
    let fraction = fraction.trim_end_matches('0');
    if fraction.len() > FRACTION_DIGITS_MAX {
        return Err(UnitError::NotWhole { what: quantity.what, example: quantity.example });
    }
    let digits = format!("{whole}{fraction}").parse().map_err(|_| UnitError::TooLarge)?;
    let places = u32::try_from(fraction.len()).map_err(|_| UnitError::TooLarge)?;
    let number = Decimal { digits, places, exponent, text: &text[..text.len() - rest.len()] };
    Ok((number, rest.strip_prefix(' ').unwrap_or(rest)))
}

/// The digits at the beginning of a text, and what follows them.
fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

/// `4M`, `4mb` and `4Mib` could be either.
fn byte_hint(number: &Decimal<'_>, unit: &str) -> String {
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
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn decimal_and_binary_units_are_told_apart() {
        assert_eq!(parse_bytes("4MB"), Ok(4_000_000));
        assert_eq!(parse_bytes("4MiB"), Ok(4 << 20));
        assert_eq!(parse_bytes("4 MiB"), Ok(4 << 20));
        assert_eq!(parse_bytes("1.5GiB"), Ok(3 << 29));
        assert_eq!(parse_bytes("512"), Ok(512));
        assert_eq!(parse_bytes("1e6"), Ok(1_000_000));
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
        let error = parse_bytes("1.5K").unwrap_err().to_string();
        assert!(error.contains("`1.5kB`") && error.contains("`1.5KiB`"), "{error}");
    }

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(parse_duration_ns("200us"), Ok(200_000));
        assert_eq!(parse_duration_ns("200µs"), Ok(200_000));
        assert_eq!(parse_duration_ns("1.5s"), Ok(1_500_000_000));
        assert_eq!(parse_duration_ns("2 min"), Ok(120_000_000_000));
        assert_eq!(parse_duration_ns("5m"), parse_duration_ns("5min"));
        assert_eq!(parse_duration_ns("0"), Ok(0));
        assert!(matches!(parse_duration_ns("5"), Err(UnitError::NoUnit { .. })));
        assert!(matches!(parse_duration_ns("-1s"), Err(UnitError::NotANumber { .. })));
        assert!(matches!(parse_duration_ns("5 sec"), Err(UnitError::Unit { .. })));
    }

    #[test]
    fn counts_have_decimal_multiples() {
        let read = ["200", "50k", "1.5M", "1e6", "2 G"].map(parse_count);
        assert_eq!(read, [Ok(200), Ok(50_000), Ok(1_500_000), Ok(1_000_000), Ok(2_000_000_000)]);
        assert!(matches!(parse_count("50K"), Err(UnitError::Unit { .. })));
        assert!(matches!(parse_count("1.0005k"), Err(UnitError::NotWhole { .. })));
    }

    #[test]
    fn what_is_no_number_is_answered_with_an_example() {
        for text in ["", "s", "1.", ".5s", "1.2.3s", "1,5s", "1es", "1e-3s", "+1s", "0x10"] {
            let error = parse_duration_ns(text).unwrap_err();
            let is_named = matches!(error, UnitError::NotANumber { .. } | UnitError::Unit { .. });
            assert!(is_named, "{text}: {error}");
        }
        let error = parse_duration_ns("1.5ns").unwrap_err().to_string();
        assert_eq!(error, "is no whole number of nanoseconds; write for example 200us or 1.5s");
    }

    #[test]
    fn what_exceeds_64_bits_is_an_error_and_not_a_small_number() {
        assert_eq!(parse_bytes("18446744073709551616"), Err(UnitError::TooLarge));
        assert_eq!(parse_bytes("18446744TiB"), Err(UnitError::TooLarge));
        assert_eq!(parse_duration_ns("6000000h"), Err(UnitError::TooLarge));
        assert_eq!(parse_count("1e20"), Err(UnitError::TooLarge));
        assert_eq!(parse_count(&"9".repeat(60)), Err(UnitError::TooLarge));
        assert_eq!(parse_count("18446744073709551615"), Ok(u64::MAX));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn what_is_shown_can_be_read_again(number: u64, shift in 0_u32..64) {
            let number = number >> shift;
            prop_assert_eq!(parse_duration_ns(&show_duration_ns(number)), Ok(number));
            prop_assert_eq!(parse_bytes(&show_bytes(number)), Ok(number));
            prop_assert_eq!(parse_count(&number.to_string()), Ok(number));
        }

        /// Against the rational number `whole.fraction × factor × 10^exponent`.
        #[test]
        fn a_number_with_a_unit_is_exact_or_refused(
            whole in 0_u64..1 << 40,
            fraction in "[0-9]{1,6}",
            exponent in 0_u32..4,
            unit in prop::sample::select(&TIME_UNITS[..]),
        ) {
            let (name, factor) = unit;
            let scale = 10_u128.pow(u32::try_from(fraction.len()).unwrap());
            let digits = u128::from(whole) * scale + fraction.parse::<u128>().unwrap();
            let exact = digits * u128::from(factor) * 10_u128.pow(exponent);
            let read = parse_duration_ns(&format!("{whole}.{fraction}e{exponent}{name}"));
            match (exact % scale, u64::try_from(exact / scale)) {
                (0, Ok(ns)) => prop_assert_eq!(read, Ok(ns)),
                (0, Err(_)) => prop_assert_eq!(read, Err(UnitError::TooLarge)),
                _ => prop_assert!(matches!(read, Err(UnitError::NotWhole { .. })), "{:?}", read),
            }
        }

        #[test]
        fn no_text_makes_a_parser_panic(text in "[0-9.eE+ kKMGiBsmnuµh,-]{0,12}|\\PC{0,12}") {
            for parse in [parse_bytes, parse_duration_ns, parse_count] {
                if let Err(error) = parse(&text) {
                    prop_assert!(!error.to_string().is_empty());
                }
            }
        }
    }
}
