//! Numbers as people read them.

/// Formats a number.
pub type Show = fn(f64) -> String;

/// A number for a table: two digits or more, so that a small number does not read as nothing.
#[must_use]
pub fn number(value: f64) -> String {
    match value {
        v if v > 0.0 && v < 0.1 => format!("{v:.4}"),
        v if v < 10.0 => format!("{v:.2}"),
        v if v < 1000.0 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

/// A ratio for a table; empty if there is none.
#[must_use]
pub fn ratio(ratio: Option<f64>) -> String {
    ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"))
}

/// At most three digits, with a prefix of the unit that follows.
#[must_use]
pub fn short(value: f64) -> String {
    let (scaled, prefix) = match value.abs() {
        v if v >= 1e9 => (value / 1e9, " G"),
        v if v >= 1e6 => (value / 1e6, " M"),
        v if v >= 1e3 => (value / 1e3, " k"),
        _ => (value, ""),
    };
    let digits = match scaled.abs() {
        v if v >= 100.0 || (v - v.round()).abs() < 1e-9 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    let text = format!("{scaled:.digits$}");
    let text = if digits > 0 { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{prefix}")
}

/// A time in ns, with its unit.
#[must_use]
pub fn time(ns: f64) -> String {
    match ns {
        ns if ns >= 1e9 => format!("{} s", short(ns / 1e9)),
        ns if ns >= 1e6 => format!("{} ms", short(ns / 1e6)),
        ns if ns >= 1e3 => format!("{} µs", short(ns / 1e3)),
        ns => format!("{} ns", short(ns)),
    }
}

/// Events per second.
#[must_use]
pub fn rate(per_second: f64) -> String {
    format!("{}/s", short(per_second))
}

/// A share of 100.
#[must_use]
pub fn percent(value: f64) -> String {
    format!("{} %", short(value))
}

/// A share of 1 as a percentile.
#[must_use]
pub fn percentile(share: f64) -> String {
    let percent = format!("{:.3}", share * 100.0);
    format!("p{}", percent.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_numbers_do_not_read_as_nothing() {
        let shown = [0.0, 0.0042, 0.0999, 0.1, 9.99, 10.0, 1234.5].map(number);
        assert_eq!(shown, ["0.00", "0.0042", "0.0999", "0.10", "9.99", "10.0", "1234"]);
    }

    #[test]
    fn numbers_are_short() {
        for (value, text) in
            [(0.0, "0"), (1234.0, "1.23 k"), (250_000.0, "250 k"), (12.5, "12.5"), (2e6, "2 M")]
        {
            assert_eq!(short(value), text);
        }
        assert_eq!((time(1_500.0), time(2e9)), ("1.5 µs".into(), "2 s".into()));
        assert_eq!((percentile(0.999), percentile(0.5)), ("p99.9".into(), "p50".into()));
        assert_eq!((rate(2e6), percent(12.5)), ("2 M/s".into(), "12.5 %".into()));
    }
}
