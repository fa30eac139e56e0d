//! From numbers to places: scales and their ticks.

/// How numbers spread over an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Scale {
    /// From 0 to this.
    Linear(f64),
    /// Powers of ten between these positive numbers.
    Log(f64, f64),
    /// Shares from 0 to 1 - 10⁻ⁿ: 0, 0.9, 0.99, … are equally far apart.
    Nines(f64),
}

impl Scale {
    /// A linear scale that holds `values`.
    pub(super) fn linear(values: impl IntoIterator<Item = f64>) -> Self {
        let max = values.into_iter().filter(|value| value.is_finite()).fold(0.0, f64::max);
        let step = nice_step(max);
        // A sum of shares may be a bit more than the whole.
        Self::Linear(if max > 0.0 { (max / step - 1e-6).ceil() * step } else { 1.0 })
    }

    /// A logarithmic scale that holds the positive ones of `values`, rounded to 1, 2 or 5.
    pub(super) fn log(values: impl IntoIterator<Item = f64>) -> Self {
        let positive = values.into_iter().filter(|value| value.is_finite() && *value > 0.0);
        let (min, max) = positive
            .fold((f64::INFINITY, 0.0_f64), |(min, max), value| (min.min(value), max.max(value)));
        if max <= 0.0 {
            return Self::Log(1.0, 10.0);
        }
        let low = log_marks(min / 10.0, min).last().unwrap_or(min);
        let high = log_marks(max, max * 10.0).next().unwrap_or(max);
        Self::Log(low, if high > low { high } else { low * 10.0 })
    }

    /// Where `value` lies between the ends, from 0 to 1.
    pub(super) fn place(self, value: f64) -> f64 {
        let place = match self {
            Self::Linear(max) => value / max,
            Self::Log(low, high) => (value.max(low) / low).ln() / (high / low).ln(),
            Self::Nines(count) => -(1.0 - value).max(10_f64.powf(-count)).log10() / count,
        };
        place.clamp(0.0, 1.0)
    }

    /// Values worth a line.
    pub(super) fn ticks(self) -> Vec<f64> {
        match self {
            Self::Linear(max) => {
                let step = nice_step(max);
                #[expect(clippy::cast_possible_truncation, reason = "a handful")]
                #[expect(clippy::cast_sign_loss, reason = "a handful")]
                let count = (max / step).round() as u32;
                (0..=count).map(|index| f64::from(index) * step).collect()
            }
            Self::Log(low, high) => {
                let all = log_marks(low, high).collect::<Vec<_>>();
                let is_power = |value: &f64| (value.log10() - value.log10().round()).abs() < 1e-6;
                // Over several decades the powers alone are enough.
                if all.len() > 8 { all.into_iter().filter(is_power).collect() } else { all }
            }
            Self::Nines(count) => {
                let end = 1.0 - 10_f64.powf(-count);
                [0.5, 0.9, 0.99, 0.999, 0.9999].into_iter().filter(|tick| *tick < end).collect()
            }
        }
    }
}

/// 1, 2 and 5 times the powers of ten from `low` to `high`.
fn log_marks(low: f64, high: f64) -> impl Iterator<Item = f64> {
    let (first, last) = (low.log10().floor(), high.log10().ceil());
    #[expect(clippy::cast_possible_truncation, reason = "exponents of ten")]
    let decades = first as i32..=last as i32;
    let marks = decades.flat_map(|decade| [1.0, 2.0, 5.0].map(|mark| mark * 10_f64.powi(decade)));
    marks.filter(move |mark| (low * 0.999..=high * 1.001).contains(mark))
}

/// A round step that divides `max` into four to eight parts.
fn nice_step(max: f64) -> f64 {
    if max <= 0.0 {
        return 1.0;
    }
    let rough = max / 5.0;
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|step| step * power >= rough * 0.8);
    step.unwrap_or(10.0) * power
}

/// A number with as many digits as people read.
pub(super) fn short(value: f64) -> String {
    let (scaled, suffix) = match value.abs() {
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
    format!("{text}{suffix}")
}

/// A time in ns, with its unit.
pub(super) fn time(ns: f64) -> String {
    match ns {
        ns if ns >= 1e9 => format!("{} s", short(ns / 1e9)),
        ns if ns >= 1e6 => format!("{} ms", short(ns / 1e6)),
        ns if ns >= 1e3 => format!("{} µs", short(ns / 1e3)),
        ns => format!("{} ns", short(ns)),
    }
}

/// A share as a percentile.
pub(super) fn percentile(share: f64) -> String {
    let percent = format!("{:.3}", share * 100.0);
    format!("p{}", percent.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_hold_their_values_and_have_round_ticks() {
        assert_eq!(Scale::linear([0.0, 93.0]).ticks(), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(Scale::log([3.0, 40.0]).ticks(), [2.0, 5.0, 10.0, 20.0, 50.0]);
        assert_eq!(Scale::log([1.0, 1e6]).ticks().len(), 7);
        assert_eq!(Scale::linear([]).place(5.0), 1.0);
        let shares = [0.1; 10].iter().map(|share| 1000.0 * share).sum::<f64>() * 1.000_000_01;
        assert_eq!(Scale::linear([shares]).ticks().last(), Some(&1000.0));
        assert_eq!(Scale::log([0.0]), Scale::Log(1.0, 10.0));
        for scale in [Scale::linear([9.0]), Scale::log([1.0, 9.0]), Scale::Nines(4.0)] {
            let places =
                scale.ticks().into_iter().map(|tick| scale.place(tick)).collect::<Vec<_>>();
            assert!(places.is_sorted() && places.iter().all(|place| (0.0..=1.0).contains(place)));
        }
    }

    #[test]
    fn nines_are_equally_far_apart() {
        let scale = Scale::Nines(4.0);
        for (share, place) in [(0.0, 0.0), (0.9, 0.25), (0.99, 0.5), (0.9999, 1.0), (1.0, 1.0)] {
            assert!((scale.place(share) - place).abs() < 1e-9, "{share}");
        }
    }

    #[test]
    fn numbers_are_short() {
        for (value, text) in
            [(0.0, "0"), (1234.0, "1.23 k"), (250_000.0, "250 k"), (12.5, "12.5"), (2e6, "2 M")]
        {
            assert_eq!(short(value), text);
        }
        assert_eq!(time(1_500.0), "1.5 µs");
        assert_eq!(time(2e9), "2 s");
        assert_eq!(percentile(0.999), "p99.9");
        assert_eq!(percentile(0.5), "p50");
    }
}
