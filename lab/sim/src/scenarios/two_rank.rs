//! One and two ranks with 16 clients each, against what was measured on ConnectX-7 with another daemon than ours
//! (`benchkv`, 2-rank performance analysis, 15 s, one run).
//!
//! The reference is one data set. Its counters of turns cover 29.3 s: the histograms of turns hold one sample in 4096,
//! which times 4096 are the turns, and a sampled turn takes 30 and 24 ns, times 978 and 1215 million turns. The
//! 66.7 and 67.2 million requests of that time are the reported 2.23 M/s per rank to 3 %.
//!
//! Fitted are the raw ping-pong, one rank, and requests per turn of two ranks. Everything else of two ranks is predicted, with
//! the time per work request that connections without a daemon have
//! ([`SEND_QUEUE_NS`](crate::machine::SEND_QUEUE_NS)), a measurement of another program.
//!
//! Missed are medians of phases and of turns, and turns that are long. In the model a turn with work takes as long as the
//! phases that find something; in the reference 0.1 % of turns take more than 50 ns, though a tenth of their phases
//! take 83 to 112 ns. The local call is shown: it is an estimate of the reference, which leaves out the client's own time.
//!
//! The predicted rows are [`INDEPENDENT`] quantities: others are their inverses, halves, multiples, or products with a fitted one.
//!
//! [`matrix`] shows each candidate for the cause alone and together.

use serde::Serialize;

use super::{Compared, Standing};
use crate::{
    actors::slot_daemon::{self, Candidate, Counted, Load, Pattern},
    machine::{TWO_RANK, TwoRankProfile},
};

/// The candidates that explain the reference.
pub const EXPLANATION: [Candidate; 2] = [Candidate::SendQueue, Candidate::Queueing];

/// Throughput of two ranks, in M/s.
pub const THROUGHPUT_MOPS: f64 = 4.46;
/// Round trip of a call in a ping-pong, in µs.
pub const ROUND_TRIP_US: f64 = 5.50;

/// Independent quantities among predicted rows: the round trip of a call; of one rank requests per turn and the turn; of two ranks the
/// throughput, and batches per turn. `predicted_rows_are_five_quantities` derives the others.
pub const INDEPENDENT: usize = 5;

/// Seeds of which the mean is taken.
const SEEDS: u64 = 3;
/// Of one simulation, in µs. Means of [`SEEDS`] of them differ by 1 %, a fifteenth of the tolerance.
const SPAN_US: u32 = 6000;
/// What one rank does within it settles sooner.
const WARM_UP_US: u32 = 300;

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
    /// Of the first simulation.
    pub seed: u64,
    /// Every number.
    pub rows: Vec<Compared>,
    /// How far the rates of two ranks with different seeds are apart, as a share of their mean.
    pub spread: f64,
    /// A hash of all turns.
    pub trace: u64,
}

impl Outcome {
    /// Numbers that are claimed and off by more than that.
    pub fn misses(&self) -> impl Iterator<Item = &Compared> {
        self.rows.iter().filter(|row| row.is_missed())
    }
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

/// Simulations that differ in their seeds.
struct Sample(Vec<Counted>);

impl Sample {
    fn of(profile: &TwoRankProfile, pattern: Pattern, candidates: &[Candidate], seed: u64) -> Self {
        let end_us = WARM_UP_US + SPAN_US;
        let load = Load { pattern, candidates, warm_up_us: WARM_UP_US, end_us };
        let seeds = seed..seed.saturating_add(SEEDS);
        Self(seeds.map(|seed| slot_daemon::run(profile, &load, seed)).collect())
    }

    fn mean(&self, of: impl Fn(&Counted) -> f64) -> f64 {
        self.0.iter().map(of).sum::<f64>() / real(self.0.len().max(1) as u64)
    }

    fn spread(&self, of: impl Fn(&Counted) -> f64) -> f64 {
        let least = self.0.iter().map(&of).fold(f64::INFINITY, f64::min);
        let most = self.0.iter().map(&of).fold(0.0, f64::max);
        (most - least) / self.mean(of)
    }

    fn mops(&self) -> f64 {
        self.mean(Counted::total_mops)
    }

    fn round_trip_us(&self) -> f64 {
        self.mean(|counted| counted.span_us / real(counted.ended.max(1)))
    }

    fn per_turn(&self, of: impl Fn(&Counted) -> u64) -> f64 {
        self.mean(|counted| counted.per_turn(of(counted)))
    }

    fn messages_per_batch(&self) -> f64 {
        let messages = |counted: &Counted| real(counted.remote + counted.incoming);
        self.mean(|counted| messages(counted) / real(counted.flushes.max(1)))
    }

    /// Turns of a rank per µs.
    fn turns_per_us(&self) -> f64 {
        self.mean(|counted| real(counted.turns) / real(counted.ranks as u64) / counted.span_us)
    }

    fn median(&self, phase: usize) -> f64 {
        let median = |counted: &Counted| counted.phases[phase].percentile(50);
        self.mean(|counted| real(median(counted).try_into().unwrap_or(u64::MAX)))
    }
}

/// Simulates every number, on a machine that may differ from [`TWO_RANK`].
#[must_use]
pub fn run_on(profile: &TwoRankProfile, seed: u64) -> Outcome {
    run_with(profile, &EXPLANATION, seed)
}

/// The same with other candidates than those that explain the reference.
#[must_use]
pub fn run_with(profile: &TwoRankProfile, candidates: &[Candidate], seed: u64) -> Outcome {
    let raw = Sample::of(profile, Pattern::PingPong, &[Candidate::Queueing], seed);
    let calls = Sample::of(profile, Pattern::PingPong, candidates, seed);
    let one = Sample::of(profile, Pattern::Uniform(1), candidates, seed);
    let two = Sample::of(profile, Pattern::Uniform(2), candidates, seed);
    let mut rows = ping_pong(&raw, &calls);
    rows.extend(one_rank(&one));
    rows.extend(two_ranks(&two, one.mops()));
    rows.extend(counters(&two));
    rows.extend(durations(&two));
    let samples = [raw, calls, one, two];
    let trace = samples
        .iter()
        .flat_map(|sample| &sample.0)
        .fold(0_u64, |all, counted| all.rotate_left(1) ^ counted.trace);
    Outcome { seed, rows, spread: samples[3].spread(Counted::total_mops), trace }
}

/// Simulates every number.
#[must_use]
pub fn run(seed: u64) -> Outcome {
    run_on(&TWO_RANK, seed)
}

fn row(
    what: &str,
    unit: &'static str,
    reference: f64,
    simulated: f64,
    standing: Standing,
) -> Compared {
    Compared { what: what.to_owned(), unit, reference, simulated, standing }
}

fn ping_pong(raw: &Sample, calls: &Sample) -> Vec<Compared> {
    use Standing::{Fitted, Predicted};
    let rate = 1000.0 * calls.mops();
    vec![
        row("ping-pong, raw: round trip", "µs", 4.17, raw.round_trip_us(), Fitted),
        row("ping-pong: round trip", "µs", ROUND_TRIP_US, calls.round_trip_us(), Predicted),
        row("ping-pong: rate", "k/s", 181.8, rate, Predicted),
    ]
}

fn one_rank(one: &Sample) -> Vec<Compared> {
    use Standing::{Fitted, Predicted};
    let mean_ns = 1000.0 / one.turns_per_us();
    vec![
        row("1 rank: throughput", "M/s", 15.77, one.mops(), Predicted),
        row("1 rank: slots, median", "ns", 964.0, one.median(2), Fitted),
        row("1 rank: requests per turn", "", 14.44, one.per_turn(|c| c.local), Predicted),
        row("1 rank: turns in 15 s", "M", 16.4, 15.0 * one.turns_per_us(), Predicted),
        row("1 rank: turn, median", "ns", 1005.0, one.median(4), Predicted),
        row("1 rank: turn, mean", "ns", 912.0, mean_ns, Predicted),
        row("1 rank: time per call", "µs", 1.015, one.mean(Counted::local_us), Predicted),
    ]
}

fn two_ranks(two: &Sample, one_mops: f64) -> Vec<Compared> {
    use Standing::{Predicted, Shown};
    let per_client_us = 32.0 / two.mops();
    let in_15_s = 15.0 * two.mops() / 2.0;
    let remote_us = two.mean(Counted::remote_us);
    let per_client_k = 1000.0 * two.mops() / 32.0;
    let slower = one_mops / two.mops();
    vec![
        row("2 ranks: throughput", "M/s", THROUGHPUT_MOPS, two.mops(), Predicted),
        row("2 ranks: slower than 1 rank by", "", 3.54, slower, Predicted),
        row("2 ranks: rate of a client", "k/s", 139.4, per_client_k, Predicted),
        row("2 ranks: time per call", "µs", 7.17, per_client_us, Predicted),
        row("2 ranks: remote call", "µs", 14.7, remote_us, Predicted),
        row("2 ranks: local call, estimated", "µs", 0.23, two.mean(Counted::local_us), Shown),
        row("2 ranks: requests of a rank in 15 s", "M", 32.21, in_15_s, Predicted),
    ]
}

fn counters(two: &Sample) -> Vec<Compared> {
    use Standing::{Fitted, Predicted};
    let count = |what: &str, of: fn(&Reference) -> f64, simulated: f64, standing| {
        row(&format!("2 ranks: {what} per turn"), "", reference(of), simulated, standing)
    };
    let sent = reference(|rank| rank.remote + rank.incoming) / reference(|rank| rank.flushes);
    let requests = two.per_turn(|c| c.local + c.remote);
    let per_request = 1.0 / reference(|rank| rank.requests);
    // 30 and 24 ns of a sampled turn.
    let turns_per_us = 0.5 * (1000.0 / 30.0 + 1000.0 / 24.0);
    vec![
        count("requests", |rank| rank.requests, requests, Fitted),
        count("local requests", |rank| rank.local, two.per_turn(|c| c.local), Predicted),
        count("remote requests", |rank| rank.remote, two.per_turn(|c| c.remote), Predicted),
        count("completions", |rank| rank.completions, two.per_turn(|c| c.completions), Predicted),
        count("incoming", |rank| rank.incoming, two.per_turn(|c| c.incoming), Predicted),
        count("batches", |rank| rank.flushes, two.per_turn(|c| c.flushes), Predicted),
        row("2 ranks: turns per request", "", per_request, 1.0 / requests, Fitted),
        row("2 ranks: messages per batch", "", sent, two.messages_per_batch(), Predicted),
        row("2 ranks: turns of a rank", "M/s", turns_per_us, two.turns_per_us(), Predicted),
    ]
}

fn durations(two: &Sample) -> Vec<Compared> {
    let phases = [
        ("completions", 8.0, 0.38),
        ("incoming", 7.0, 0.29),
        ("slots", 7.0, 0.29),
        ("post", 7.0, 0.29),
    ];
    let medians = phases.into_iter().enumerate().map(|(phase, (name, reference, known))| {
        let what = format!("2 ranks: {name}, median");
        row(&what, "ns", reference, two.median(phase), Standing::Missed(known))
    });
    let long = 100.0 * two.mean(|counted| counted.phases[4].share_above(50));
    // 338 of 535 226 samples of both ranks.
    let above = row("2 ranks: turns above 50 ns", "%", 0.066, long, Standing::Missed(125.0));
    let median = row("2 ranks: turn, median", "ns", 27.0, two.median(4), Standing::Missed(0.26));
    medians.chain([median, above]).collect()
}

/// What some candidates together lead to, as means over seeds.
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
    /// Messages per batch, those without one counted.
    pub messages_per_batch: f64,
}

impl Combination {
    /// How much slower two ranks are than one.
    #[must_use]
    pub fn slowdown(&self) -> f64 {
        self.one_mops / self.two_mops
    }

    /// Whether round trip, throughput and messages per batch are within the tolerance.
    #[must_use]
    pub fn explains(&self) -> bool {
        let sent = reference(|rank| rank.remote + rank.incoming) / reference(|rank| rank.flushes);
        let pairs = [
            (self.round_trip_us, ROUND_TRIP_US),
            (self.two_mops, THROUGHPUT_MOPS),
            (self.messages_per_batch, sent),
        ];
        pairs.iter().all(|(ours, theirs)| (ours / theirs - 1.0).abs() <= super::ERROR_MAX)
    }
}

/// Nothing on, each candidate alone, each with queueing, the two of the reference's own hypothesis on top of the
/// explanation, and all.
#[must_use]
pub fn matrix(
    profile: &TwoRankProfile,
    seed: u64,
    mut progress: impl FnMut(usize, usize),
) -> Vec<Combination> {
    use Candidate::{Backpressure, CreditReturn, Gather, Queueing, SendQueue, SrqChain};
    let mut combinations = vec![Vec::new()];
    combinations.extend(Candidate::ALL.map(|candidate| vec![candidate]));
    let others = Candidate::ALL.into_iter().filter(|candidate| *candidate != Queueing);
    combinations.extend(others.clone().map(|candidate| vec![candidate, Queueing]));
    combinations.push(vec![Gather, CreditReturn, Queueing]);
    combinations.push(vec![Gather, Backpressure, Queueing]);
    combinations.push(vec![Gather, SrqChain, Queueing]);
    combinations.push(vec![SendQueue, CreditReturn, Queueing]);
    combinations.push(vec![SendQueue, Backpressure, Queueing]);
    combinations.push(Candidate::ALL.to_vec());
    let count = combinations.len();
    let cells = combinations.into_iter().enumerate().map(|(index, candidates)| {
        let cell = cell(profile, candidates, seed);
        progress(index + 1, count);
        cell
    });
    cells.collect()
}

fn cell(profile: &TwoRankProfile, candidates: Vec<Candidate>, seed: u64) -> Combination {
    let sample = |pattern| Sample::of(profile, pattern, &candidates, seed);
    let calls = sample(Pattern::PingPong);
    let one = sample(Pattern::Uniform(1));
    let two = sample(Pattern::Uniform(2));
    Combination {
        round_trip_us: calls.round_trip_us(),
        one_mops: one.mops(),
        two_mops: two.mops(),
        remote_us: two.mean(Counted::remote_us),
        turns_per_request: 1.0 / two.per_turn(|c| c.local + c.remote),
        messages_per_batch: two.messages_per_batch(),
        candidates,
    }
}

/// What two nodes with 32 calls under way each, half of them to the other node, do without a cause, or with less of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ablation {
    /// The cause that is left out or made smaller.
    pub what: &'static str,
    /// M/s of both nodes; `None`: the cause is not in the model.
    pub mops: Option<f64>,
    /// Why it is not in the model, or what the number is worth.
    pub remark: Option<&'static str>,
}

/// A send queue's time per work request, in ns, that was chosen by 20.4 M/s over UCX-AM: half of them to the other node are 98 ns
/// per answer of a node. So the rate that follows from it explains nothing.
const UCX_SEND_QUEUE_NS: f64 = 98.0;

/// M/s of two nodes, by a daemon.
const TWO_NODES_MOPS: f64 = 9.5;
/// M/s of two nodes, over UCX-AM.
const UCX_MOPS: f64 = 20.4;

/// M/s of two nodes with 32 calls under way each: a client per call.
fn two_nodes_mops(profile: &TwoRankProfile, candidates: &[Candidate], seed: u64) -> f64 {
    let profile = TwoRankProfile { clients: 32, ..profile.clone() };
    Sample::of(&profile, Pattern::Uniform(2), candidates, seed).mops()
}

/// The rates that [`ablation`] is about. The daemon's is missed: 599 ns per work request leave less than half of it. That over UCX-AM is
/// fitted.
#[must_use]
pub fn two_nodes(seed: u64) -> Vec<Compared> {
    let short = TwoRankProfile { send_queue: UCX_SEND_QUEUE_NS, ..TWO_RANK };
    let daemon = two_nodes_mops(&TWO_RANK, &EXPLANATION, seed);
    let ucx = two_nodes_mops(&short, &EXPLANATION, seed);
    let what = |of: &str| format!("2 nodes, 8 clients, depth 4: {of}, mean");
    vec![
        row(&what("copyrpc"), "M/s", TWO_NODES_MOPS, daemon, Standing::Missed(0.58)),
        row(&what("UCX-AM"), "M/s", UCX_MOPS, ucx, Standing::Fitted),
    ]
}

/// Two nodes with 32 calls under way each, of which a measurement has 9.5 M/s with a daemon and 20.4 over UCX-AM: the causes that
/// it names, one at a time and together, and the time of the send queue.
#[must_use]
pub fn ablation(seed: u64) -> Vec<Ablation> {
    let loops = |by: f64| TwoRankProfile {
        turn: TWO_RANK.turn * by,
        completion: TWO_RANK.completion * by,
        serve: TWO_RANK.serve * by,
        take: TWO_RANK.take * by,
        flush: TWO_RANK.flush * by,
        ..TWO_RANK
    };
    let each = [Candidate::DoorbellEach, Candidate::SendQueue, Candidate::Queueing];
    let short = TwoRankProfile { send_queue: UCX_SEND_QUEUE_NS, ..TWO_RANK };
    let cases: [(&'static str, TwoRankProfile, &[Candidate], Option<&'static str>); 6] = [
        ("nothing", TWO_RANK, &EXPLANATION, None),
        ("each message leaves at once", TWO_RANK, &each, None),
        ("phases of the loop: a tenth less", loops(0.9), &EXPLANATION, None),
        ("indirections: a twentieth less", loops(0.95), &EXPLANATION, None),
        ("all of these", loops(0.855), &each, None),
        ("send queue: 98 instead of 599 ns", short, &EXPLANATION, Some(CIRCULAR)),
    ];
    let mut ablated = cases
        .map(|(what, profile, candidates, remark)| Ablation {
            what,
            mops: Some(two_nodes_mops(&profile, candidates, seed)),
            remark,
        })
        .to_vec();
    let what = "READ of a consumer position";
    ablated.insert(4, Ablation { what, mops: None, remark: Some(NO_READ) });
    ablated
}

const CIRCULAR: &str = "chosen by the 20.4 M/s themselves";
/// A READ for a quarter of a ring of 4 MiB: less than a nanosecond per message.
const NO_READ: &str = "not modelled: 3 µs once in 8000 messages";
