//! What can be switched about a worker: one table of names and texts, for the command line and for results.

use core::fmt;

use config::units::parse_bytes;
use protocols::{FLUSH_FORMS, flush_policy};
use rpc::{Config, TransportKind};
use serde::{Deserialize, Serialize};

/// Something that can be switched.
pub struct Switch {
    /// Its name.
    pub name: &'static str,
    /// What it may be.
    pub forms: &'static str,
    /// Effect, as a phrase for `--help`.
    pub meaning: &'static str,
    /// What precedes a value in the name of a cell.
    label: &'static str,
    /// What the grid of all switches has; the first is the default.
    values: &'static [&'static str],
    /// `None`: the text is none of the forms.
    set: fn(Config, &str) -> Option<Config>,
}

/// All of them.
pub static SWITCHES: [Switch; 8] = [
    Switch {
        name: "transport",
        forms: "rc, dc",
        meaning: "A queue pair per endpoint (rc), or a few initiators and one target for all (dc)",
        label: "",
        values: &["rc", "dc"],
        set: |config, text| {
            let kinds = [("rc", TransportKind::Rc), ("dc", TransportKind::Dc)];
            let (_, transport) = kinds.into_iter().find(|(name, _)| *name == text)?;
            Some(Config { transport, ..config })
        },
    },
    Switch {
        name: "dcis",
        forms: "1 to 256",
        meaning: "Initiators, 1 to 256; for dc only",
        label: "dcis-",
        values: &["1", "2", "4"],
        set: |config, text| Some(Config { dcis: count(text, 256)?, ..config }),
    },
    Switch {
        name: "inline",
        forms: "on, off",
        meaning: "Short batches inside the work queue entry, or gathered by the NIC",
        label: "inline-",
        values: ON_OFF,
        set: |config, text| {
            let default = Config::default().inline_bytes;
            Some(Config { inline_bytes: if is_on(text)? { default } else { 0 }, ..config })
        },
    },
    Switch {
        name: "doorbell-batching",
        forms: "on, off",
        meaning: "One doorbell for all batches of a poll, or one each",
        label: "doorbell-batching-",
        values: ON_OFF,
        set: |config, text| Some(Config { doorbell_batching: is_on(text)?, ..config }),
    },
    Switch {
        name: "srq",
        forms: "on, off",
        meaning: "One receive queue for all endpoints, or one each; for rc only",
        label: "srq-",
        values: ON_OFF,
        set: |config, text| Some(Config { shared_receives: is_on(text)?, ..config }),
    },
    Switch {
        name: "signal-interval",
        forms: "1 to 64",
        meaning: "A completion at least every so many batches, 1 to 64",
        label: "signal-",
        values: &["16", "1", "64"],
        set: |config, text| Some(Config { signal_interval: count(text, 64)?, ..config }),
    },
    Switch {
        name: "ring",
        forms: "a power of two from 64KiB to 64MiB",
        meaning: "Ring that each peer writes into, half of it for answers: a power of two from 64KiB to 64MiB",
        label: "ring-",
        values: &["256KiB"],
        set: |config, text| {
            let bytes = usize::try_from(parse_bytes(text).ok()?).ok()?;
            let is_possible = bytes.is_power_of_two() && (1 << 16..=1 << 26).contains(&bytes);
            let batch_bytes = config.batch_bytes.min(bytes / 4);
            let response_bytes = bytes / 2;
            is_possible.then_some(Config {
                ring_bytes: bytes,
                response_bytes,
                batch_bytes,
                ..config
            })
        },
    },
    Switch {
        name: "flush",
        forms: FLUSH_FORMS,
        meaning: "When batches are posted: self-clocked:N, immediate, hold:TIME, adaptive-hold:N, \
                  rtt-hold:FACTOR, poll-budget:N, coalesce:TIME",
        label: "",
        values: &["self-clocked:2"],
        set: |config, text| Some(Config { flush: flush_policy(text).ok()?, ..config }),
    },
];

const ON_OFF: &[&str] = &["on", "off"];

fn is_on(text: &str) -> Option<bool> {
    ON_OFF.iter().position(|value| *value == text).map(|position| position == 0)
}

fn count(text: &str, max: u16) -> Option<u16> {
    text.parse().ok().filter(|count| (1..=max).contains(count))
}

impl Switch {
    /// Refuses what is none of the forms.
    ///
    /// # Errors
    ///
    /// The forms there are, in words.
    pub fn check(&self, text: &str) -> Result<(), String> {
        let is_known = (self.set)(Config::default(), text).is_some();
        if is_known { Ok(()) } else { Err(format!("`{text}` is none of {}", self.forms)) }
    }

    /// What it is unless told otherwise.
    #[must_use]
    pub fn default(&self) -> &'static str {
        self.values[0]
    }
}

/// The value of each of [`SWITCHES`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Switches(Box<[String; SWITCHES.len()]>);

impl Default for Switches {
    fn default() -> Self {
        Self(Box::new(SWITCHES.each_ref().map(|switch| switch.default().to_owned())))
    }
}

impl Switches {
    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        SWITCHES.iter().zip(self.0.iter()).map(|(switch, value)| (switch.name, value.as_str()))
    }

    /// Settings of a worker that polls: the defaults but for the switches.
    pub(crate) fn config(&self, endpoints: u16) -> Config {
        let mut config = Config { peers_max: endpoints, may_sleep: false, ..Config::default() };
        for (switch, value) in SWITCHES.iter().zip(self.0.iter()) {
            // What is no value of its switch is refused where it comes from, and changes nothing here.
            config = (switch.set)(config.clone(), value).unwrap_or(config);
        }
        config
    }

    fn is_dc(&self) -> bool {
        self.0[0] == "dc"
    }
}

impl fmt::Display for Switches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.iter().filter(|(name, _)| *name != "dcis" || self.is_dc());
        let shown = shown.map(|(name, value)| format!("{name} {value}"));
        f.write_str(&shown.collect::<Vec<_>>().join(", "))
    }
}

/// Connections and calls in flight, over all of them, of short calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallLoad {
    /// For the names of cells.
    pub name: String,
    /// Connections.
    pub endpoints: u16,
    /// Calls in flight over all of them.
    pub depth: u16,
}

impl CallLoad {
    /// Every combination that has a call in flight for each connection.
    #[must_use]
    pub fn grid(endpoints: &[u16], depths: &[u16]) -> Vec<Self> {
        let mut loads = Vec::new();
        for (&endpoints, &depth) in
            endpoints.iter().flat_map(|e| depths.iter().map(move |depth| (e, depth)))
        {
            let s = if endpoints == 1 { "" } else { "s" };
            let load =
                Self { name: format!("{endpoints}-endpoint{s}-qd{depth}"), endpoints, depth };
            if depth >= endpoints && !loads.contains(&load) {
                loads.push(load);
            }
        }
        loads
    }
}

/// Calls of 32 B each way: endpoints and calls in flight over all of them.
const LOADS: [(&str, u16, u16); 3] =
    [("1-endpoint-qd1", 1, 1), ("1-endpoint-qd32", 1, 32), ("8-endpoints-qd256", 8, 256)];

/// The same as a list of loads.
fn loads() -> Vec<CallLoad> {
    LOADS
        .map(|(name, endpoints, depth)| CallLoad { name: name.to_owned(), endpoints, depth })
        .into()
}

/// Lists of values for each of [`SWITCHES`]: all combinations are measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    /// By switch.
    pub switches: [Vec<String>; SWITCHES.len()],
    /// Of short calls.
    pub loads: Vec<CallLoad>,
}

impl Default for Grid {
    /// One point: the default.
    fn default() -> Self {
        let switches = SWITCHES.each_ref().map(|switch| vec![switch.default().to_owned()]);
        Self { switches, loads: loads() }
    }
}

impl Grid {
    /// Every value of every switch but the policies.
    #[must_use]
    pub fn of_switches() -> Self {
        let owned = |value: &&str| (*value).to_owned();
        let switches = SWITCHES.each_ref().map(|s| s.values.iter().map(owned).collect());
        Self { switches, ..Self::default() }
    }

    /// The default but for these lists, by name.
    #[cfg(test)]
    pub(crate) fn with(lists: &[(&str, &[&str])]) -> Self {
        let mut grid = Self::default();
        for (name, values) in lists {
            let at = SWITCHES.iter().position(|switch| switch.name == *name).expect("a switch");
            grid.switches[at] = values.iter().map(|&value| value.to_owned()).collect();
        }
        grid
    }

    /// A switch with other values than its default that has no effect at any point, with the reason.
    #[must_use]
    pub fn without_effect(&self) -> Option<&'static str> {
        let of = |name: &str| {
            let mut all = SWITCHES.iter().zip(&self.switches);
            all.find(|(switch, _)| switch.name == name).map(|(switch, values)| {
                (values, values.iter().any(|value| value != switch.default()))
            })
        };
        let has = |transport: &str| {
            of("transport").is_some_and(|(values, _)| values.iter().any(|value| value == transport))
        };
        let is_changed = |name: &str| of(name).is_some_and(|(_, is_changed)| is_changed);
        if is_changed("dcis") && !has("dc") {
            return Some("--dcis is for --transport dc; on rc each endpoint has a queue pair");
        }
        if is_changed("srq") && !has("rc") {
            return Some("--srq is for --transport rc; on dc receives are always shared");
        }
        None
    }

    /// Every combination, and what to add to a cell's name to tell it from the others. Those that
    /// would differ only in what has no effect are left out.
    #[must_use]
    pub fn points(&self) -> Vec<(Switches, String)> {
        let mut points = vec![(Switches::default(), String::new())];
        for (at, (switch, values)) in SWITCHES.iter().zip(&self.switches).enumerate() {
            let is_first = |(at, value): &(usize, &String)| !values[..*at].contains(value);
            let values = values.iter().enumerate().filter(is_first).map(|(_, value)| value);
            let values = values.collect::<Vec<_>>();
            let with = |(switches, suffix): (Switches, String)| {
                let with = |value: &&String| {
                    let mut point = (switches.clone(), suffix.clone());
                    point.0.0[at].clone_from(value);
                    if values.len() > 1 {
                        point.1 += &format!("/{}{value}", switch.label);
                    }
                    point
                };
                values.iter().map(with).collect::<Vec<_>>()
            };
            points = points.into_iter().flat_map(with).collect();
        }
        points.retain(|(switches, _)| self.is_first_of_its_kind(switches));
        points
    }

    /// On RC the number of initiators has no effect; on DC receives are always shared.
    fn is_first_of_its_kind(&self, switches: &Switches) -> bool {
        let without_effect = if switches.is_dc() { "srq" } else { "dcis" };
        let mut all = SWITCHES.iter().zip(&self.switches).zip(switches.0.iter());
        all.all(|((switch, values), value)| {
            switch.name != without_effect || values.first() == Some(value)
        })
    }
}

#[cfg(test)]
mod tests {
    use rpc::FlushPolicy;

    use super::*;

    #[test]
    fn a_value_reaches_the_worker_and_no_value_is_refused_with_the_forms() {
        let mut grid = Grid::default();
        grid.switches[SWITCHES.len() - 1] = vec!["hold:10us".to_owned()];
        assert_eq!(grid.points()[0].0.config(1).flush, FlushPolicy::Hold { ns: 10_000 });
        let [.., flush] = &SWITCHES;
        assert!(flush.check("never:1").unwrap_err().contains("adaptive-hold:N"));
        assert_eq!(SWITCHES[1].check("0").unwrap_err(), "`0` is none of 1 to 256");
    }

    #[test]
    fn switches_of_another_transport_have_no_effect() {
        let of = |lists: &[(&str, &[&str])]| Grid::with(lists).without_effect();
        assert!(of(&[("dcis", &["2"])]).is_some_and(|text| text.contains("--transport dc")));
        assert!(of(&[("transport", &["dc"]), ("srq", ON_OFF)]).is_some());
        assert_eq!(
            of(&[("transport", &["rc", "dc"]), ("dcis", &["1", "2"]), ("srq", ON_OFF)]),
            None
        );
        assert_eq!(
            (Grid::default().without_effect(), Grid::of_switches().without_effect()),
            (None, None)
        );
    }

    #[test]
    fn loads_are_combinations_with_a_call_for_each_connection() {
        let names =
            |loads: Vec<CallLoad>| loads.into_iter().map(|load| load.name).collect::<Vec<_>>();
        let loads = CallLoad::grid(&[1, 8, 8], &[1, 32]);
        assert_eq!(names(loads), ["1-endpoint-qd1", "1-endpoint-qd32", "8-endpoints-qd32"]);
        let ring = SWITCHES.iter().find(|switch| switch.name == "ring").unwrap();
        assert!(ring.check("4MiB").is_ok());
        for bad in ["32KiB", "3MiB", "128MiB", "big"] {
            assert!(ring.check(bad).unwrap_err().ends_with("from 64KiB to 64MiB"), "{bad}");
        }
    }

    #[test]
    fn the_default_switches_are_a_workers_defaults() {
        let config = Config { peers_max: 8, may_sleep: false, ..Config::default() };
        assert_eq!(Switches::default().config(8), config);
        let is_known = |switch: &Switch| switch.values.iter().all(|v| switch.check(v).is_ok());
        assert!(SWITCHES.iter().all(is_known));
    }

    #[test]
    fn a_grid_has_every_combination_that_differs() {
        let names = |grid: &Grid| grid.points().into_iter().map(|p| p.1).collect::<Vec<_>>();
        let grid =
            Grid::with(&[("transport", &["rc", "dc"]), ("dcis", &["1", "2"]), ("srq", ON_OFF)]);
        let expected =
            ["/rc/dcis-1/srq-on", "/rc/dcis-1/srq-off", "/dc/dcis-1/srq-on", "/dc/dcis-2/srq-on"];
        assert_eq!(names(&grid), expected);
        assert_eq!(Grid::default().points(), [(Switches::default(), String::new())]);
        let grid =
            Grid::with(&[("inline", &["on", "on"]), ("signal-interval", &["16", "1", "16"])]);
        assert_eq!(names(&grid), ["/signal-16", "/signal-1"], "a value given twice counts once");
    }
}
