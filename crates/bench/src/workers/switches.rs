//! What can be switched about a worker, in words: as options of a command, as text in results.

use core::{fmt, str::FromStr};

use rpc::{Config, FlushPolicy, TransportKind};
use serde::{Deserialize, Serialize};

/// A value of an option that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is none of {expected}")]
pub struct SwitchError {
    text: String,
    expected: &'static str,
}

fn unknown(text: &str, expected: &'static str) -> SwitchError {
    SwitchError { text: text.to_owned(), expected }
}

/// What carries batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Carrier {
    /// A queue pair for each endpoint.
    #[default]
    Rc,
    /// A few initiators and a target for all.
    Dc,
}

impl FromStr for Carrier {
    type Err = SwitchError;

    fn from_str(text: &str) -> Result<Self, SwitchError> {
        match text {
            "rc" => Ok(Self::Rc),
            "dc" => Ok(Self::Dc),
            _ => Err(unknown(text, "rc, dc")),
        }
    }
}

impl fmt::Display for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rc => "rc",
            Self::Dc => "dc",
        })
    }
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Switch {
    /// On.
    On,
    /// Off.
    Off,
}

impl FromStr for Switch {
    type Err = SwitchError;

    fn from_str(text: &str) -> Result<Self, SwitchError> {
        match text {
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            _ => Err(unknown(text, "on, off")),
        }
    }
}

impl fmt::Display for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::On { "on" } else { "off" })
    }
}

/// A flush policy, written `self-clocked:2`, `immediate`, `hold:10us`, `adaptive-hold:8`,
/// `rtt-hold:0.5`, `poll-budget:4` or `coalesce:10us`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Flush(pub FlushPolicy);

/// Every form of a [`Flush`].
const FLUSHES: &str = "self-clocked:N, immediate, hold:TIME, adaptive-hold:N, rtt-hold:FACTOR, \
                       poll-budget:N, coalesce:TIME (times in ns or us)";

impl FromStr for Flush {
    type Err = SwitchError;

    fn from_str(text: &str) -> Result<Self, SwitchError> {
        let policy = match text.split_once(':') {
            None if text == "immediate" => Some(FlushPolicy::Immediate),
            None => None,
            Some((name, value)) => policy(name, value),
        };
        policy.map(Self).ok_or_else(|| unknown(text, FLUSHES))
    }
}

fn policy(name: &str, value: &str) -> Option<FlushPolicy> {
    let count = || value.parse::<u16>().ok().filter(|count| *count > 0);
    Some(match name {
        "self-clocked" => FlushPolicy::SelfClocked { wqes: count()? },
        "hold" => FlushPolicy::Hold { ns: nanoseconds(value)? },
        "adaptive-hold" => FlushPolicy::AdaptiveHold { messages: count()? },
        "rtt-hold" => FlushPolicy::RttHold { permille: permille(value)? },
        "poll-budget" => FlushPolicy::PollBudget { polls: count()?.into() },
        "coalesce" => FlushPolicy::Coalesce { ns: nanoseconds(value)? },
        _ => return None,
    })
}

fn nanoseconds(text: &str) -> Option<u32> {
    let (number, unit_ns) = match text.strip_suffix("us") {
        Some(number) => (number, 1000),
        None => (text.strip_suffix("ns")?, 1),
    };
    number.parse::<u32>().ok()?.checked_mul(unit_ns)
}

/// Thousandths, of a decimal number with up to three places.
fn permille(text: &str) -> Option<u32> {
    let (whole, places) = text.split_once('.').unwrap_or((text, ""));
    let places = (places.len() <= 3).then(|| format!("{places:0<3}"))?;
    whole.parse::<u32>().ok()?.checked_mul(1000)?.checked_add(places.parse().ok()?)
}

impl fmt::Display for Flush {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |ns: u32| {
            if ns.is_multiple_of(1000) { format!("{}us", ns / 1000) } else { format!("{ns}ns") }
        };
        match self.0 {
            FlushPolicy::SelfClocked { wqes } => write!(f, "self-clocked:{wqes}"),
            FlushPolicy::Immediate => f.write_str("immediate"),
            FlushPolicy::Hold { ns } => write!(f, "hold:{}", time(ns)),
            FlushPolicy::AdaptiveHold { messages } => write!(f, "adaptive-hold:{messages}"),
            FlushPolicy::RttHold { permille } => {
                write!(f, "rtt-hold:{}.{:03}", permille / 1000, permille % 1000)
            }
            FlushPolicy::PollBudget { polls } => write!(f, "poll-budget:{polls}"),
            FlushPolicy::Coalesce { ns } => write!(f, "coalesce:{}", time(ns)),
        }
    }
}

impl TryFrom<String> for Flush {
    type Error = SwitchError;

    fn try_from(text: String) -> Result<Self, SwitchError> {
        text.parse()
    }
}

impl From<Flush> for String {
    fn from(flush: Flush) -> Self {
        flush.to_string()
    }
}

/// One position of every switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Switches {
    /// What carries batches.
    pub transport: Carrier,
    /// DC: initiators.
    pub dcis: u16,
    /// Short batches go into the work queue entry.
    pub inline: Switch,
    /// One doorbell for all batches of a poll.
    pub doorbell_batching: Switch,
    /// One receive queue for all endpoints.
    pub srq: Switch,
    /// A completion is asked for at least every so many batches.
    pub signal_interval: u16,
    /// When batches are posted.
    pub flush: Flush,
}

impl Default for Switches {
    /// As [`Config`].
    fn default() -> Self {
        let Config { dcis, signal_interval, flush, .. } = Config::default();
        Self {
            transport: Carrier::Rc,
            dcis,
            inline: Switch::On,
            doorbell_batching: Switch::On,
            srq: Switch::On,
            signal_interval,
            flush: Flush(flush),
        }
    }
}

impl Switches {
    /// Settings of a worker that polls: the defaults but for the switches.
    pub(crate) fn config(&self, endpoints: u16) -> Config {
        let base = Config::default();
        Config {
            transport: match self.transport {
                Carrier::Rc => TransportKind::Rc,
                Carrier::Dc => TransportKind::Dc,
            },
            dcis: self.dcis,
            peers_max: endpoints,
            flush: self.flush.0,
            signal_interval: self.signal_interval,
            inline_bytes: if self.inline == Switch::On { base.inline_bytes } else { 0 },
            doorbell_batching: self.doorbell_batching == Switch::On,
            shared_receives: self.srq == Switch::On,
            may_sleep: false,
            ..base
        }
    }
}

impl fmt::Display for Switches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { transport, dcis, inline, doorbell_batching, srq, signal_interval, flush } = self;
        write!(f, "transport {transport}, ")?;
        if *transport == Carrier::Dc {
            write!(f, "dcis {dcis}, ")?;
        }
        write!(
            f,
            "inline {inline}, doorbell-batching {doorbell_batching}, srq {srq}, \
             signal-interval {signal_interval}, flush {flush}"
        )
    }
}

/// Lists of values for every switch: all combinations are measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    /// As [`Switches::transport`].
    pub transport: Vec<Carrier>,
    /// As [`Switches::dcis`].
    pub dcis: Vec<u16>,
    /// As [`Switches::inline`].
    pub inline: Vec<Switch>,
    /// As [`Switches::doorbell_batching`].
    pub doorbell_batching: Vec<Switch>,
    /// As [`Switches::srq`].
    pub srq: Vec<Switch>,
    /// As [`Switches::signal_interval`].
    pub signal_interval: Vec<u16>,
    /// As [`Switches::flush`].
    pub flush: Vec<Flush>,
}

impl Default for Grid {
    /// One point: the default.
    fn default() -> Self {
        let Switches { transport, dcis, inline, doorbell_batching, srq, signal_interval, flush } =
            Switches::default();
        Self {
            transport: vec![transport],
            dcis: vec![dcis],
            inline: vec![inline],
            doorbell_batching: vec![doorbell_batching],
            srq: vec![srq],
            signal_interval: vec![signal_interval],
            flush: vec![flush],
        }
    }
}

impl Grid {
    /// Every value of every switch but the policies.
    #[must_use]
    pub fn of_switches() -> Self {
        let both = vec![Switch::On, Switch::Off];
        Self {
            transport: vec![Carrier::Rc, Carrier::Dc],
            dcis: vec![1, 2, 4],
            inline: both.clone(),
            doorbell_batching: both.clone(),
            srq: both,
            signal_interval: vec![16, 1, 64],
            ..Self::default()
        }
    }

    /// Every combination, and what to add to a cell's name to tell it from the others. Those that
    /// would differ only in what has no effect are left out.
    #[must_use]
    pub fn points(&self) -> Vec<(Switches, String)> {
        let mut points = vec![(Switches::default(), String::new())];
        spread(&mut points, &self.transport, |s, v| s.transport = v, |v| v.to_string());
        spread(&mut points, &self.dcis, |s, v| s.dcis = v, |v| format!("dcis-{v}"));
        spread(&mut points, &self.inline, |s, v| s.inline = v, |v| format!("inline-{v}"));
        let name = |v: &Switch| format!("doorbell-batching-{v}");
        spread(&mut points, &self.doorbell_batching, |s, v| s.doorbell_batching = v, name);
        spread(&mut points, &self.srq, |s, v| s.srq = v, |v| format!("srq-{v}"));
        let name = |v: &u16| format!("signal-{v}");
        spread(&mut points, &self.signal_interval, |s, v| s.signal_interval = v, name);
        spread(&mut points, &self.flush, |s, v| s.flush = v, Flush::to_string);
        points.retain(|(switches, _)| self.is_first_of_its_kind(switches));
        points
    }

    /// On RC the number of initiators has no effect; on DC receives are always shared.
    fn is_first_of_its_kind(&self, switches: &Switches) -> bool {
        match switches.transport {
            Carrier::Rc => self.dcis.first() == Some(&switches.dcis),
            Carrier::Dc => self.srq.first() == Some(&switches.srq),
        }
    }
}

/// Multiplies the points by the values of one switch, each once; a single value leaves the names as
/// they are.
fn spread<T: Copy + PartialEq>(
    points: &mut Vec<(Switches, String)>,
    values: &[T],
    set: impl Fn(&mut Switches, T),
    name: impl Fn(&T) -> String,
) {
    let is_first = |(at, value): &(usize, &T)| !values[..*at].contains(value);
    let distinct = || values.iter().enumerate().filter(is_first).map(|(_, value)| *value);
    let before = core::mem::take(points);
    for (switches, suffix) in before {
        for value in distinct() {
            let mut point = (switches, suffix.clone());
            set(&mut point.0, value);
            if distinct().count() > 1 {
                point.1 = format!("{suffix}/{}", name(&value));
            }
            points.push(point);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_read_as_it_is_written() {
        for text in [
            "self-clocked:2",
            "immediate",
            "hold:10us",
            "hold:1500ns",
            "adaptive-hold:8",
            "rtt-hold:0.500",
            "rtt-hold:2.000",
            "poll-budget:4",
            "coalesce:3us",
        ] {
            assert_eq!(text.parse::<Flush>().unwrap().to_string(), text);
        }
        assert_eq!("rtt-hold:0.5".parse(), Ok(Flush(FlushPolicy::RttHold { permille: 500 })));
        for bad in ["", "hold", "hold:10", "self-clocked:0", "rtt-hold:0.1234", "never:1"] {
            assert!(bad.parse::<Flush>().unwrap_err().to_string().contains("adaptive-hold:N"));
        }
    }

    #[test]
    fn the_default_switches_are_a_workers_defaults() {
        let config = Config { peers_max: 8, may_sleep: false, ..Config::default() };
        assert_eq!(Switches::default().config(8), config);
    }

    #[test]
    fn a_grid_has_every_combination_that_differs() {
        let mut grid = Grid {
            transport: vec![Carrier::Rc, Carrier::Dc],
            dcis: vec![1, 2],
            inline: vec![Switch::On],
            doorbell_batching: vec![Switch::On],
            srq: vec![Switch::On, Switch::Off],
            signal_interval: vec![16],
            flush: vec![Flush(FlushPolicy::default())],
        };
        let names = |grid: &Grid| grid.points().into_iter().map(|p| p.1).collect::<Vec<_>>();
        let expected =
            ["/rc/dcis-1/srq-on", "/rc/dcis-1/srq-off", "/dc/dcis-1/srq-on", "/dc/dcis-2/srq-on"];
        assert_eq!(names(&grid), expected);
        (grid.transport, grid.dcis, grid.srq) = (vec![Carrier::Rc], vec![1], vec![Switch::On]);
        assert_eq!(grid.points(), [(Switches::default(), String::new())]);
        (grid.inline, grid.signal_interval) = (vec![Switch::On; 2], vec![16, 1, 16]);
        assert_eq!(names(&grid), ["/signal-16", "/signal-1"], "a value given twice counts once");
    }
}
