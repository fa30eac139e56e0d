//! What can be switched about a backend: named, listed, checked and recorded in every result.

use std::{collections::BTreeMap, fmt};

use config::units::{parse_bytes, parse_duration_ns, show_bytes, show_duration_ns};
use daemon::ReplyHold;
use rpc::FlushPolicy;
use serde::{Deserialize, Serialize};

/// Something that has one of a few values, or any of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch {
    /// Its name.
    pub name: &'static str,
    /// What it may be; the first is the default. Presets vary these.
    pub values: &'static [&'static str],
    /// What it may be besides.
    pub range: SwitchRange,
    /// Effect, as a phrase for `--help`.
    pub meaning: &'static str,
}

/// Values that a switch takes besides those of its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwitchRange {
    /// None.
    Listed,
    /// A number from one to another one.
    Count(u32, u32),
    /// A number of bytes from one to another one, in steps of 64.
    Bytes(u32, u32),
    /// A power of two, as a number of bytes, from one to another one.
    PowerOfTwo(u32, u32),
    /// A time from one to another one, in nanoseconds.
    Time(u32, u32),
    /// A flush policy with its number.
    Flush,
    /// A way to hold replies, with its number.
    ReplyHold,
}

/// Every flush policy with a number.
const FLUSHES: &str = "self-clocked-N, adaptive-hold-N, poll-budget-N, N from 1 to 65535; hold-TIME, \
                       coalesce-TIME, up to 4s; rtt-hold-FACTOR, three places at most";

impl SwitchRange {
    fn contains(self, text: &str) -> bool {
        match self {
            Self::Listed => false,
            Self::Count(min, max) => count(text).is_some_and(|n| (min..=max).contains(&n)),
            Self::Bytes(min, max) => {
                bytes(text).is_some_and(|n| n.is_multiple_of(64) && (min..=max).contains(&n))
            }
            Self::PowerOfTwo(min, max) => {
                bytes(text).is_some_and(|n| n.is_power_of_two() && (min..=max).contains(&n))
            }
            Self::Time(min, max) => time_ns(text).is_some_and(|n| (min..=max).contains(&n)),
            Self::Flush => flush(text).is_some(),
            Self::ReplyHold => reply_hold(text).is_some(),
        }
    }
}

impl fmt::Display for SwitchRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = |bytes: u32| show_bytes(bytes.into());
        let time = |ns: u32| show_duration_ns(ns.into());
        match *self {
            Self::Listed => Ok(()),
            Self::Count(min, max) => write!(f, "{min} to {max}"),
            Self::Bytes(min, max) => {
                write!(f, "{} to {} in steps of 64", bytes(min), bytes(max))
            }
            Self::PowerOfTwo(min, max) => {
                write!(f, "a power of two from {} to {}", bytes(min), bytes(max))
            }
            Self::Time(min, max) => write!(f, "{} to {}", time(min), time(max)),
            Self::Flush => f.write_str(FLUSHES),
            Self::ReplyHold => {
                f.write_str("TIME, adaptive-TIME, from 1ns to 100us; rtt-FACTOR, from 0.001 to 100")
            }
        }
    }
}

/// As a whole number.
pub(super) fn count(text: &str) -> Option<u32> {
    text.parse().ok()
}

/// As a number of bytes.
pub(super) fn bytes(text: &str) -> Option<u32> {
    u32::try_from(parse_bytes(text).ok()?).ok()
}

/// As a time.
pub(super) fn time_ns(text: &str) -> Option<u32> {
    u32::try_from(parse_duration_ns(text).ok()?).ok()
}

/// As a way to hold replies; `None` of `off`.
pub(super) fn reply_hold(text: &str) -> Option<ReplyHold> {
    const NS_MAX: u32 = 100_000;
    let time = |text: &str| time_ns(text).filter(|ns| (1..=NS_MAX).contains(ns));
    if let Some(text) = text.strip_prefix("adaptive-") {
        return time(text).map(|ns| ReplyHold::Adaptive { ns });
    }
    let Some(factor) = text.strip_prefix("rtt-") else {
        return time(text).map(|ns| ReplyHold::Fixed { ns });
    };
    match flush(&format!("rtt-hold-{factor}")) {
        Some(FlushPolicy::RttHold { permille }) if (1..=100_000).contains(&permille) => {
            Some(ReplyHold::RoundTrip { permille })
        }
        _ => None,
    }
}

/// As a flush policy: its name and its number, which a `-` parts.
pub(super) fn flush(text: &str) -> Option<FlushPolicy> {
    let written = match text.rsplit_once('-') {
        Some((name, number)) => format!("{name}:{number}"),
        None => text.to_owned(),
    };
    protocols::flush_policy(&written).ok()
}

/// The value of every switch of a backend, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Switches(BTreeMap<String, String>);

/// A switch that does not exist, or not with this value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SwitchError {
    /// No such switch.
    #[error("backend {backend} has no switch `{name}`; it has: {known}")]
    Name {
        /// Of the backend.
        backend: &'static str,
        /// As given.
        name: String,
        /// The ones there are.
        known: String,
    },
    /// No such value.
    #[error("switch `{name}` cannot be `{value}`; it can be: {known}")]
    Value {
        /// Of the switch.
        name: &'static str,
        /// As given.
        value: String,
        /// The ones there are.
        known: String,
    },
}

impl Switch {
    /// All that it can be, in words.
    #[must_use]
    pub fn known(&self) -> String {
        let listed = self.values.join(", ");
        match self.range {
            SwitchRange::Listed => listed,
            range => format!("{listed}; or {range}"),
        }
    }
}

impl Switches {
    /// All of `table`, at their defaults unless `given` says otherwise.
    ///
    /// # Errors
    ///
    /// [`SwitchError`].
    pub fn resolve(
        backend: &'static str,
        table: &[Switch],
        given: &BTreeMap<String, String>,
    ) -> Result<Self, SwitchError> {
        let names = || table.iter().map(|switch| switch.name).collect::<Vec<_>>().join(", ");
        if let Some(name) = given.keys().find(|&name| table.iter().all(|s| s.name != name)) {
            return Err(SwitchError::Name { backend, name: name.clone(), known: names() });
        }
        let resolve = |switch: &Switch| {
            let default = switch.values[0];
            let value = given.get(switch.name).map_or(default, String::as_str);
            if !switch.values.contains(&value) && !switch.range.contains(value) {
                let known = switch.known();
                return Err(SwitchError::Value { name: switch.name, value: value.into(), known });
            }
            Ok((switch.name.to_owned(), value.to_owned()))
        };
        table.iter().map(resolve).collect::<Result<_, _>>().map(Self)
    }

    /// The value of `name`; "" if the backend has no such switch.
    #[must_use]
    pub fn value(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Kind;

    fn given(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    /// Nobody varied RC/DC, inline/SGE, signalling or batching before explaining a slowdown: here
    /// each is a switch that is listed, accepted in all its values, and recorded.
    #[test]
    fn pitfall_30_every_switch_is_settable_and_recorded() {
        for kind in Kind::ALL {
            for switch in kind.switches() {
                assert!(switch.values.len() >= 2, "{} switches nothing", switch.name);
                assert!(!switch.meaning.is_empty());
                for value in switch.values {
                    let given = given(&[(switch.name, value)]);
                    let all = Switches::resolve(kind.name(), kind.switches(), &given).unwrap();
                    assert_eq!(all.value(switch.name), *value);
                    assert_eq!(all.iter().count(), kind.switches().len(), "all are recorded");
                    let json = serde_json::to_string(&all).unwrap();
                    assert_eq!(serde_json::from_str::<Switches>(&json).unwrap(), all);
                }
            }
        }
    }

    #[test]
    fn unknown_names_and_values_are_refused_with_the_known_ones() {
        let (values, range) = (&["red", "blue"][..], SwitchRange::Listed);
        let table = [Switch { name: "colour", values, range, meaning: "paint" }];
        let resolve = |pairs| Switches::resolve("test", &table, &given(pairs));
        assert_eq!(resolve(&[]).unwrap().value("colour"), "red");
        let error = resolve(&[("color", "red")]).unwrap_err().to_string();
        assert_eq!(error, "backend test has no switch `color`; it has: colour");
        let error = resolve(&[("colour", "green")]).unwrap_err().to_string();
        assert_eq!(error, "switch `colour` cannot be `green`; it can be: red, blue");
    }
    #[test]
    fn a_range_takes_what_lies_in_it_and_names_itself() {
        let resolve = |range, value: &str| {
            let table = [Switch { name: "x", values: &["auto"], range, meaning: "" }];
            let resolved = Switches::resolve("test", &table, &given(&[("x", value)]));
            resolved.map(|all| all.value("x").to_owned()).map_err(|error| error.to_string())
        };
        for (range, good, bad, words) in [
            (
                SwitchRange::Count(1, 256),
                &["1", "256"][..],
                &["0", "257", "1.5", "-1", ""][..],
                "1 to 256",
            ),
            (
                SwitchRange::Bytes(128, 1 << 20),
                &["128", "4KiB", "1MiB"],
                &["64", "130", "2MiB"],
                "in steps of 64",
            ),
            (
                SwitchRange::PowerOfTwo(1 << 16, 1 << 26),
                &["64KiB", "4MiB"],
                &["32KiB", "3MiB", "128MiB"],
                "a power of two from",
            ),
            (
                SwitchRange::Time(1_000, 1_000_000),
                &["1us", "35us", "1ms"],
                &["10", "999ns", "2ms"],
                "to",
            ),
            (
                SwitchRange::ReplyHold,
                &["10us", "3us", "adaptive-5us", "rtt-1", "rtt-0.75"],
                &["0ns", "1ms", "on", "rtt-", "rtt-0", "adaptive-x"],
                "adaptive-TIME",
            ),
            (
                SwitchRange::Flush,
                &["hold-10us", "hold-3us", "rtt-hold-1.5", "self-clocked-3", "adaptive-hold-64"],
                &["hold", "hold-10", "rtt-hold-x", "self-clocked-0", "never-1"],
                "rtt-hold-FACTOR",
            ),
        ] {
            for value in good {
                assert_eq!(resolve(range, value).as_deref(), Ok(*value), "{range:?}");
            }
            for value in bad {
                let error = resolve(range, value).unwrap_err();
                assert!(error.contains("auto; or ") && error.contains(words), "{error}");
            }
        }
        assert_eq!(flush("hold-10us"), Some(FlushPolicy::Hold { ns: 10_000 }));
        assert_eq!(flush("rtt-hold-1.5"), Some(FlushPolicy::RttHold { permille: 1500 }));
    }
}
