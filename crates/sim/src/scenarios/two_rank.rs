//! One and two ranks with 16 clients each, against what was measured on ConnectX-7 with another daemon than ours
//! (`benchkv`, 2-rank performance analysis, 15 s, one run).
//!
//! The reference contradicts itself:
//!
//! - Its counters of two ranks, 0.0682 and 0.0553 requests per turn in 978 and 1215 million turns, are 66.7 and
//!   67.2 million requests. In 15 s that is 4.45 and 4.48 M/s *per rank*, 8.93 M/s in all. It reports 4.46 M/s in
//!   all, half of that to 0.1 %. With one rank the counters give what is reported, 15.8 M/s.
//! - Of the sampled turns of two ranks 99.9 % took 50 ns at most, but a tenth of their first phases took 112 ns.
//!
//! So there are two readings, of which each cannot have what contradicts it ([`Standing::Contradicted`]); every
//! number is met in one of them:
//!
//! - *As counted*: 8.93 M/s. The NIC reads batches from memory, and nothing else is needed. Then the reported
//!   throughput is that of one rank.
//! - *As reported*: 4.46 M/s. The NIC reads one entry of a shared receive queue after the other, and turns take
//!   twice as long. Then the turns are those of 30 s.
//!
//! Both have the round trip of 5.50 µs, because both have one read of 600 ns more on each way. [`matrix`] shows
//! each candidate alone and together.

use serde::Serialize;

use super::{Compared, Standing};
use crate::{
    actors::slot_daemon::{self, Candidate, Counted, Load, Pattern},
    machine::{TWO_RANK, TwoRankProfile},
};

/// How the reference is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Reading {
    /// The counters of the daemons are of 15 s.
    Counted,
    /// The throughput is of two ranks.
    Reported,
}

impl Reading {
    /// The candidates that are on.
    #[must_use]
    pub const fn candidates(self) -> [Candidate; 2] {
        match self {
            Self::Counted => [Candidate::Gather, Candidate::Queueing],
            Self::Reported => [Candidate::SrqChain, Candidate::Queueing],
        }
    }

    /// The machine. A turn of two ranks is fitted to turns per request, in each reading.
    fn profile(self) -> TwoRankProfile {
        match self {
            Self::Counted => TWO_RANK,
            Self::Reported => TwoRankProfile { turn: REPORTED_TURN_NS, ..TWO_RANK },
        }
    }

    const fn other(self) -> Self {
        match self {
            Self::Counted => Self::Reported,
            Self::Reported => Self::Counted,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Counted => "as counted",
            Self::Reported => "as reported",
        }
    }
}

/// A turn that finds nothing, as reported.
const REPORTED_TURN_NS: f64 = 18.0;

/// Throughput of two ranks as reported, and as the daemons have counted, in M/s.
pub const THROUGHPUT: (f64, f64) = (4.46, 8.93);
/// Round trip of a call in a ping-pong, in µs.
pub const ROUND_TRIP_US: f64 = 5.50;

const SECONDS: f64 = 15.0;

/// 1097 million turns of 0.0611 requests are 8.93 M/s in 15 s: who has the reported 4.46 M/s has half of the
/// turns, and who has the turns has twice the throughput.
const CONTRADICTED: [(Reading, &str); 4] = [
    (Reading::Counted, "throughput, reported"),
    (Reading::Counted, "slowdown, reported"),
    (Reading::Reported, "turns in 15 s"),
    (Reading::Reported, "throughput, counted"),
];

/// Counters of a rank: per turn, and turns in millions.
struct Reference {
    turns: f64,
    requests: f64,
    local: f64,
    remote: f64,
    completions: f64,
    incoming: f64,
    flushes: f64,
}

const RANKS: [Reference; 2] = [
    Reference {
        turns: 978.0,
        requests: 0.0682,
        local: 0.0339,
        remote: 0.0342,
        completions: 0.0569,
        incoming: 0.0344,
        flushes: 0.0564,
    },
    Reference {
        turns: 1215.0,
        requests: 0.0553,
        local: 0.0276,
        remote: 0.0277,
        completions: 0.0454,
        incoming: 0.0275,
        flushes: 0.0458,
    },
];

/// All numbers of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Of the run.
    pub seed: u64,
    /// Every number.
    pub rows: Vec<Compared>,
    /// A hash of all turns.
    pub trace: u64,
}

impl Outcome {
    /// Numbers that are claimed and off by more than that.
    pub fn misses(&self) -> impl Iterator<Item = &Compared> {
        self.rows.iter().filter(|row| row.is_missed())
    }
}

fn measure(
    profile: &TwoRankProfile,
    pattern: Pattern,
    candidates: &[Candidate],
    seed: u64,
) -> Counted {
    let load = Load { pattern, candidates, warm_up_us: 200, end_us: 1200 };
    slot_daemon::run(profile, &load, seed)
}

/// Per turn of both ranks together.
fn reference(of: impl Fn(&Reference) -> f64) -> f64 {
    let turns: f64 = RANKS.iter().map(|rank| rank.turns).sum();
    RANKS.iter().map(|rank| of(rank) * rank.turns).sum::<f64>() / turns
}

#[expect(clippy::cast_precision_loss, reason = "far below 2⁵³")]
const fn real(count: u64) -> f64 {
    count as f64
}

/// Turns of one rank in 15 s, in millions.
fn turns(counted: &Counted) -> f64 {
    real(counted.turns) / f64::from(u32::try_from(counted.ranks).unwrap_or(1)) / counted.span_us
        * SECONDS
}

/// Rows, as they are added.
#[derive(Default)]
struct Rows {
    rows: Vec<Compared>,
    trace: u64,
}

impl Rows {
    fn add(&mut self, what: String, unit: &'static str, numbers: (f64, f64), standing: Standing) {
        let (reference, simulated) = numbers;
        self.rows.push(Compared { what, unit, reference, simulated, standing });
    }

    /// Numbers that a reading cannot have, because it has others: they are not derivable there, if the other
    /// reading has them.
    fn contradict(&mut self) {
        for (reading, what) in CONTRADICTED {
            let at = |reading: Reading| {
                let name = format!("{}: {what}", reading.name());
                self.rows.iter().position(|row| row.what == name)
            };
            if let (Some(here), Some(there)) = (at(reading), at(reading.other()))
                && self.rows[there].is_near()
            {
                self.rows[here].standing = Standing::Contradicted;
            }
        }
    }

    fn measure(
        &mut self,
        profile: &TwoRankProfile,
        pattern: Pattern,
        candidates: &[Candidate],
        seed: u64,
    ) -> Counted {
        let counted = measure(profile, pattern, candidates, seed);
        self.trace = self.trace.rotate_left(1) ^ counted.trace;
        counted
    }
}

/// Simulates every number.
#[must_use]
pub fn run(seed: u64) -> Outcome {
    let mut rows = Rows::default();
    let raw = rows.measure(&TWO_RANK, Pattern::PingPong, &[Candidate::Queueing], seed);
    rows.add(
        "ping-pong, inline: round trip".into(),
        "µs",
        (4.17, round_trip(&raw)),
        Standing::Fitted,
    );
    let one = rows.measure(&TWO_RANK, Pattern::Uniform(1), &[Candidate::Queueing], seed);
    one_rank(&mut rows, &one);
    for reading in [Reading::Counted, Reading::Reported] {
        two_ranks(&mut rows, reading, &one, seed);
    }
    rows.contradict();
    Outcome { seed, rows: rows.rows, trace: rows.trace }
}

fn round_trip(counted: &Counted) -> f64 {
    counted.span_us / real(counted.ended.max(1))
}

fn median(counted: &Counted, phase: usize) -> f64 {
    real(counted.phases[phase].percentile(50).try_into().unwrap_or(u64::MAX))
}

fn one_rank(rows: &mut Rows, one: &Counted) {
    use Standing::{Checked, Fitted};
    let mut add = |what: &str, unit, reference, simulated, standing| {
        rows.add(format!("1 rank: {what}"), unit, (reference, simulated), standing);
    };
    add("throughput", "M/s", 15.77, one.total_mops(), Checked);
    add("requests per turn", "", 14.44, one.per_turn(one.local), Checked);
    add("turns in 15 s", "M", 16.4, turns(one), Checked);
    add("slots, median", "ns", 964.0, median(one, 2), Fitted);
    add("turn, median", "ns", 1005.0, median(one, 4), Checked);
}

fn two_ranks(rows: &mut Rows, reading: Reading, one: &Counted, seed: u64) {
    use Standing::{Checked, Fitted, Shown};
    let (profile, candidates) = (reading.profile(), reading.candidates());
    let calls = rows.measure(&profile, Pattern::PingPong, &candidates, seed);
    let two = rows.measure(&profile, Pattern::Uniform(2), &candidates, seed);
    let mut add = |what: &str, unit, reference: f64, simulated, standing| {
        rows.add(format!("{}: {what}", reading.name()), unit, (reference, simulated), standing);
    };
    add("round trip of a ping-pong", "µs", ROUND_TRIP_US, round_trip(&calls), Fitted);
    add("rate of a ping-pong", "k/s", 181.8, 1000.0 * calls.total_mops(), Fitted);
    let mut count = |what: &str, of: fn(&Reference) -> f64, count: u64, standing| {
        add(&format!("{what} per turn"), "", reference(of), two.per_turn(count), standing);
    };
    count("requests", |rank| rank.requests, two.local + two.remote, Fitted);
    count("local requests", |rank| rank.local, two.local, Checked);
    count("remote requests", |rank| rank.remote, two.remote, Checked);
    count("completions", |rank| rank.completions, two.completions, Checked);
    count("incoming requests", |rank| rank.incoming, two.incoming, Checked);
    count("batches", |rank| rank.flushes, two.flushes, Checked);
    let sent = reference(|rank| rank.remote + rank.incoming) / reference(|rank| rank.flushes);
    let simulated = real(two.remote + two.incoming) / real(two.flushes.max(1));
    add("messages per batch", "", sent, simulated, Checked);
    let mean_turns = RANKS.iter().map(|rank| rank.turns).sum::<f64>() / 2.0;
    add("turns in 15 s", "M", mean_turns, turns(&two), Checked);
    // The clock's own time is the time of a phase that finds nothing.
    let phases = [("completions", 8.0), ("incoming", 7.0), ("slots", 7.0), ("post", 7.0)];
    for (phase, (name, reference)) in phases.into_iter().enumerate() {
        add(&format!("{name}, median"), "ns", reference, median(&two, phase), Fitted);
    }
    // Whether a sampled turn has the clock's time in it is not known.
    add("turn, median", "ns", 27.0, median(&two, 4), Shown);
    add("throughput, reported", "M/s", THROUGHPUT.0, two.total_mops(), Checked);
    add("throughput, counted", "M/s", THROUGHPUT.1, two.total_mops(), Checked);
    add("slowdown, reported", "", 3.54, one.total_mops() / two.total_mops(), Checked);
}

/// What some candidates together lead to.
#[derive(Clone, Debug, Serialize)]
pub struct Combination {
    /// The candidates that are on.
    pub candidates: Vec<Candidate>,
    /// Round trip of a ping-pong, in µs.
    pub round_trip_us: f64,
    /// Throughput of one rank, in M/s.
    pub one_mops: f64,
    /// Throughput of two ranks, in M/s.
    pub two_mops: f64,
    /// A call to the other rank takes a client so long, in µs.
    pub remote_us: f64,
    /// Turns per request.
    pub turns_per_request: f64,
    /// Messages per batch.
    pub messages_per_batch: f64,
}

impl Combination {
    /// How much slower two ranks are than one.
    #[must_use]
    pub fn slowdown(&self) -> f64 {
        self.one_mops / self.two_mops
    }
}

/// Nothing on, each candidate alone, each with queueing, two that both read memory, and all. Turns are those of
/// the reading *as counted*.
#[must_use]
pub fn matrix(seed: u64) -> Vec<Combination> {
    let mut combinations = vec![Vec::new()];
    combinations.extend(Candidate::ALL.map(|candidate| vec![candidate]));
    let others = Candidate::ALL.into_iter().filter(|candidate| *candidate != Candidate::Queueing);
    combinations.extend(others.clone().map(|candidate| vec![candidate, Candidate::Queueing]));
    combinations.push(vec![Candidate::Gather, Candidate::SrqChain, Candidate::Queueing]);
    combinations.push(Candidate::ALL.to_vec());
    combinations.into_iter().map(|candidates| cell(candidates, seed)).collect()
}

fn cell(candidates: Vec<Candidate>, seed: u64) -> Combination {
    let measure = |pattern| measure(&TWO_RANK, pattern, &candidates, seed);
    let (calls, one, two) =
        (measure(Pattern::PingPong), measure(Pattern::Uniform(1)), measure(Pattern::Uniform(2)));
    let requests = (two.local + two.remote).max(1);
    Combination {
        candidates: candidates.clone(),
        round_trip_us: calls.span_us / real(calls.ended.max(1)),
        one_mops: one.total_mops(),
        two_mops: two.total_mops(),
        remote_us: two.remote_us(),
        turns_per_request: real(two.turns) / real(requests),
        messages_per_batch: real(two.remote + two.incoming) / real(two.flushes.max(1)),
    }
}
