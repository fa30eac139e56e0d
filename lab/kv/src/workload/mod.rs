//! What is asked of the store: everything that two results must share to be compared.

mod arrivals;
mod ops;
mod parse;
mod series_plan;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use arrivals::Arrivals;
pub use ops::{OpStream, PlannedOp};
pub use parse::ParseError;
pub use series_plan::{SLICES_MAX, SeriesEvent, SeriesPlan};

use crate::{codec, place::Topology, rng::Rng, words::words};

/// Clients of a job, at most: their ids are 16 bits, and so are those of shards.
const CLIENTS_MAX: u32 = 4096;
/// Longest run, warm-up included: histories and histograms are sized for it.
const RUN_MS_MAX: u64 = 3_600_000;
/// Calls that every backend carries for one client: the longest ring to a daemon.
pub(crate) const QUEUE_DEPTH_MAX: u32 = 4096;
/// Calls per second of an open loop, at most: more than any machine answers.
const RATE_MAX: u64 = 100_000_000;

/// A workload. The same one with the same seed asks for the same operations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// Nodes, each with one daemon process.
    pub ranks: u16,
    /// Threads of each daemon.
    pub daemon_threads: u16,
    /// Clients on each node.
    pub clients_per_rank: u16,
    /// What a client is.
    pub client_kind: ClientKind,
    /// Calls that a client has outstanding, at most.
    pub queue_depth: u32,
    /// Keys of the whole store.
    pub keys: u64,
    /// What is done to them.
    pub mix: Mix,
    /// Distribution of the keys that are asked for.
    pub popularity: Popularity,
    /// On which node they live, seen from the client.
    pub locality: Locality,
    /// How long values are.
    pub value_size: ValueSize,
    /// When the next call is due.
    pub pace: Pace,
    /// Before anything is measured.
    pub warm_up_ms: u64,
    /// The measured interval.
    pub duration_ms: u64,
    /// A call without an answer after this is given up.
    pub timeout_ms: u64,
    /// Of all random numbers.
    pub seed: u64,
    /// How much is checked.
    pub verify: Verify,
    /// What is recorded from microsecond to microsecond, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub series: Option<SeriesPlan>,
}

words! {
    /// What a client is.
    ClientKind, "kind of client" {
        /// A process of its own.
        Process = "process",
        /// A thread of its node's one client process.
        Thread = "thread",
    }
}

/// Shares of the operations, in per cent; the rest are PUTs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mix {
    /// GETs.
    pub get: u8,
    /// DELETEs.
    pub delete: u8,
    /// CASes.
    pub cas: u8,
}

/// How often a key is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Popularity {
    /// All alike.
    Uniform,
    /// By Zipf's law, with this exponent.
    Zipf(f64),
}

words! {
    /// Where the keys of a client's calls live.
    Locality, "locality" {
        /// Wherever the hash puts them: of n ranks, one call in n is local.
        Natural = "natural",
        /// All on the client's own node.
        Local = "local",
        /// All on other nodes.
        Remote = "remote",
    }
}

/// Length of values, uniform between two bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValueSize {
    /// Shortest.
    pub min_bytes: usize,
    /// Longest.
    pub max_bytes: usize,
}

impl ValueSize {
    /// One length.
    #[inline]
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "below a length in bytes")]
    pub fn draw(&self, rng: &mut Rng) -> usize {
        if self.min_bytes == self.max_bytes {
            return self.min_bytes;
        }
        self.min_bytes + rng.below((self.max_bytes - self.min_bytes) as u64 + 1) as usize
    }
}

/// When a client makes its next call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pace {
    /// As soon as the queue depth allows it.
    Closed,
    /// At times fixed in advance, at this rate of all clients together, whether or not earlier calls
    /// are answered. Latency counts from the time fixed.
    Open(u64),
}

words! {
    /// How much is checked.
    Verify, "level of checks" {
        /// Every byte of every answer, by the client that asked.
        Answers = "answers",
        /// Also that the history of each key is linearizable.
        Full = "full",
    }
}

/// A workload that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} = {value} makes no sense: {reason}")]
pub struct WorkloadError {
    /// Name of the setting that is refused.
    pub name: &'static str,
    /// As given.
    pub value: String,
    /// The reason, as a phrase.
    pub reason: String,
}

impl Workload {
    /// The interval that is measured unless another one is asked for, in ms: a client that shares its core with many
    /// gets it seldom.
    #[must_use]
    pub const fn duration_ms_of(clients_per_rank: u16) -> u64 {
        100 + 3 * clients_per_rank as u64
    }

    /// How many there are of everything.
    #[must_use]
    pub fn topology(&self) -> Topology {
        let Self { ranks, daemon_threads, clients_per_rank, keys, .. } = *self;
        Topology { ranks, daemon_threads, clients_per_rank, keys }
    }

    /// Refuses what cannot be run.
    ///
    /// # Errors
    ///
    /// The first thing that is wrong.
    pub fn validate(&self) -> Result<(), WorkloadError> {
        let wrong = |name, value: &dyn ToString, reason: &str| {
            Err(WorkloadError { name, value: value.to_string(), reason: reason.to_owned() })
        };
        let clients = u32::from(self.ranks) * u32::from(self.clients_per_rank);
        let shards = u32::from(self.ranks) * u32::from(self.daemon_threads);
        let ValueSize { min_bytes, max_bytes } = self.value_size;
        let run_ms = self.warm_up_ms.saturating_add(self.duration_ms);
        let shares = [self.mix.get, self.mix.delete, self.mix.cas].map(u32::from);
        match self {
            Self { ranks: 0, .. } => wrong("ranks", &0, "a rank must serve"),
            _ if !(1..=CLIENTS_MAX).contains(&clients) => {
                wrong("clients", &clients, "there must be 1 to 4096 of all ranks together")
            }
            _ if !(1..=CLIENTS_MAX).contains(&shards) => {
                wrong("daemon-threads", &shards, "there must be 1 to 4096 of all ranks together")
            }
            _ if !(1..=QUEUE_DEPTH_MAX).contains(&self.queue_depth) => {
                wrong("qd", &self.queue_depth, "it must be 1 to 4096")
            }
            _ if !(u64::from(shards)..=1 << 32).contains(&self.keys) => {
                wrong("keys", &self.keys, "every daemon thread needs one, and 2^32 is the most")
            }
            _ if shares.iter().sum::<u32>() > 100 => {
                wrong("get + delete + cas", &shares.iter().sum::<u32>(), "it exceeds 100 %")
            }
            _ if self.locality == Locality::Remote && self.ranks == 1 => {
                wrong("locality", &"remote", "one rank has no other to call; use --ranks 2")
            }
            _ if min_bytes < codec::value::VALUE_BYTES_MIN
                || max_bytes > codec::VALUE_BYTES_MAX =>
            {
                let sizes = format!("{min_bytes}-{max_bytes}");
                wrong("value-size", &sizes, "24 B hold key, version and check; 1 MiB is the most")
            }
            _ if min_bytes > max_bytes => wrong("value-size", &min_bytes, "it exceeds the maximum"),
            Self { popularity: Popularity::Zipf(e), .. } if !(*e > 0.0 && *e <= 10.0) => {
                wrong("zipf", e, "the exponent must be above 0 and at most 10")
            }
            Self { pace: Pace::Open(rate), .. } if !(1..=RATE_MAX).contains(rate) => {
                wrong("rate", rate, "it must be 1 to 100 M calls per second")
            }
            _ if self.duration_ms == 0 || run_ms > RUN_MS_MAX => {
                wrong("duration", &self.duration_ms, "it must be 1 ms to 1 h, warm-up included")
            }
            Self { series: Some(plan), .. } if !(1_000..=10_000_000).contains(&plan.slice_ns) => {
                wrong("series", &format!("{}ns", plan.slice_ns), "it must be 1us to 10ms")
            }
            Self { series: Some(plan), .. } if run_ms * 1_000_000 / plan.slice_ns > SLICES_MAX => {
                let reason =
                    format!("it must be {run_ms} ms / {SLICES_MAX} at least, warm-up included");
                wrong("series", &format!("{}ns", plan.slice_ns), &reason)
            }
            _ if self.timeout_ms == 0 || self.timeout_ms > RUN_MS_MAX => {
                wrong("timeout", &self.timeout_ms, "it must be 1 ms to 1 h")
            }
            _ => self.validate_kill(),
        }
    }

    /// What is killed while the others are measured, if something is.
    #[must_use]
    pub fn victim(&self) -> Option<SeriesEvent> {
        let event = self.series?.event;
        matches!(event, SeriesEvent::Kill | SeriesEvent::KillNode).then_some(event)
    }

    fn validate_kill(&self) -> Result<(), WorkloadError> {
        let Some(victim) = self.victim() else { return Ok(()) };
        let of_a_rank = match self.client_kind {
            ClientKind::Thread => 1,
            ClientKind::Process => u32::from(self.clients_per_rank),
        };
        let reason = match self.verify {
            Verify::Full => "what the dead has done is known to nobody; use --verify answers",
            Verify::Answers if victim == SeriesEvent::KillNode && self.ranks < 2 => {
                "there must be two nodes at least"
            }
            Verify::Answers if u32::from(self.ranks) * of_a_rank < 2 => {
                "there must be two client processes at least"
            }
            Verify::Answers => return Ok(()),
        };
        let value = victim.to_string();
        Err(WorkloadError { name: "around", value, reason: reason.to_owned() })
    }

    /// In what two workloads differ: names and both values.
    #[must_use]
    pub fn differences(&self, other: &Self) -> Vec<(String, String, String)> {
        let fields = |workload: &Self| match serde_json::to_value(workload) {
            Ok(Value::Object(fields)) => fields,
            _ => serde_json::Map::new(), // a struct is an object
        };
        let theirs = fields(other);
        let differs = |(name, ours): (String, Value)| {
            let theirs = theirs.get(&name).cloned().unwrap_or_default();
            (ours != theirs).then(|| (name, ours.to_string(), theirs.to_string()))
        };
        fields(self).into_iter().filter_map(differs).collect()
    }
}

impl Default for Workload {
    /// Two nodes with four client processes each; YCSB's mix B with small values.
    fn default() -> Self {
        Self {
            ranks: 2,
            daemon_threads: 1,
            clients_per_rank: 4,
            client_kind: ClientKind::Process,
            queue_depth: 4,
            keys: 100_000,
            mix: Mix { get: 95, delete: 0, cas: 0 },
            popularity: Popularity::Zipf(0.99),
            locality: Locality::Natural,
            value_size: ValueSize { min_bytes: 64, max_bytes: 64 },
            pace: Pace::Closed,
            warm_up_ms: 100,
            duration_ms: Self::duration_ms_of(4),
            timeout_ms: 5000,
            seed: 1,
            verify: Verify::Answers,
            series: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_to_be_killed_has_to_be_one_of_several_and_no_witness() {
        let series = Some(SeriesPlan { slice_ns: 10_000, event: SeriesEvent::Kill });
        let base = Workload { series, ..Workload::default() };
        assert_eq!(base.validate(), Ok(()));
        for wrong in [
            Workload { ranks: 1, clients_per_rank: 1, ..base.clone() },
            Workload { ranks: 1, client_kind: ClientKind::Thread, ..base.clone() },
            Workload { verify: Verify::Full, ..base },
        ] {
            assert_eq!(wrong.validate().unwrap_err().name, "around", "{wrong:?}");
        }
        let series = Some(SeriesPlan { slice_ns: 10_000, event: SeriesEvent::KillNode });
        let base = Workload { series, client_kind: ClientKind::Thread, ..Workload::default() };
        assert_eq!(base.validate(), Ok(()), "a node's clients may be one process");
        let alone = Workload { ranks: 1, ..base };
        assert_eq!(alone.validate().unwrap_err().name, "around");
    }

    #[test]
    fn the_default_makes_sense_and_nonsense_is_named() {
        let default = Workload::default();
        assert_eq!(default.validate(), Ok(()));
        let wrong = |workload: Workload| workload.validate().unwrap_err().name;
        let base = || default.clone();
        assert_eq!(wrong(Workload { ranks: 0, ..base() }), "ranks");
        assert_eq!(wrong(Workload { clients_per_rank: 0, ..base() }), "clients");
        for queue_depth in [0, QUEUE_DEPTH_MAX + 1] {
            assert_eq!(wrong(Workload { queue_depth, ..base() }), "qd");
        }
        for keys in [1, (1 << 32) + 1] {
            assert_eq!(wrong(Workload { keys, ..base() }), "keys");
        }
        let daemon_threads = u16::try_from(CLIENTS_MAX).unwrap();
        assert_eq!(wrong(Workload { daemon_threads, ..base() }), "daemon-threads");
        let mix = Mix { get: 90, delete: 10, cas: 1 };
        assert_eq!(wrong(Workload { mix, ..base() }), "get + delete + cas");
        let remote = Workload { ranks: 1, locality: Locality::Remote, ..base() };
        assert_eq!(wrong(remote), "locality");
        for (min_bytes, max_bytes) in [(8, 64), (64, (1 << 20) + 1), (65, 64)] {
            let value_size = ValueSize { min_bytes, max_bytes };
            assert_eq!(wrong(Workload { value_size, ..base() }), "value-size");
        }
        for rate in [0, u64::MAX] {
            assert_eq!(wrong(Workload { pace: Pace::Open(rate), ..base() }), "rate");
        }
        for exponent in [f64::NAN, 0.0, -1.0, 10.1] {
            let popularity = Popularity::Zipf(exponent);
            assert_eq!(wrong(Workload { popularity, ..base() }), "zipf");
        }
        assert_eq!(wrong(Workload { duration_ms: 0, ..base() }), "duration");
        assert_eq!(wrong(Workload { warm_up_ms: u64::MAX, ..base() }), "duration");
        for timeout_ms in [0, RUN_MS_MAX + 1] {
            assert_eq!(wrong(Workload { timeout_ms, ..base() }), "timeout");
        }
    }

    #[test]
    fn a_difference_is_named_with_both_values() {
        let default = Workload::default();
        assert_eq!(default.differences(&default), []);
        let other = Workload { seed: 2, ranks: 3, ..default.clone() };
        let differs =
            |name: &str, ours: &str, theirs: &str| (name.into(), ours.into(), theirs.into());
        let expected = [differs("ranks", "2", "3"), differs("seed", "1", "2")];
        assert_eq!(default.differences(&other), expected);
    }
}
