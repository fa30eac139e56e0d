//! READs over DC transport, against the numbers that *dct-bench* measured on Connect-IB.
//!
//! Source: A. Kalia, M. Kaminsky, D. Andersen: notes of `other/dct-bench` in repository *fasst* (OSDI 2016),
//! measured with HoTS commit 09ec57b. Latency and throughput of a row obey Little's law exactly in that
//! program, and the target's PCIe reads under incast from one initiator per thread are 1.5 times its rate, so of the
//! 36 fitted numbers 22 are independent. The model has 18 constants, and its structure was chosen with all of
//! them in sight. One row more is predicted: the rate of one thread with 16 initiators.
//! [`leave_one_out`](super::leave_one_out) says what each row adds.
//!
//! Two rows of READs over RC are missed. The reference takes the size of a WQE for the difference: one line over RC, two over DC. Here
//! an initiator's unit takes half as long for it then, and the program no longer than senders over UD take, whose
//! WQEs have two lines. In the model that changes next to nothing, for units of responders are what READs wait for.

use measure::reference::{DC_READS, DcReadsReference};
use serde::Serialize;

use super::{Compared, Standing};
use crate::{
    actors::reads::{self, Load, Measured, Targets},
    machine::{CONNECT_IB, NicProfile, Profile},
    world::Time,
};

/// All rows of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Of the run.
    pub seed: u64,
    /// Every number.
    pub rows: Vec<Compared>,
    /// Events of all simulations together.
    pub events: u64,
    /// A hash of all of them, in order.
    pub trace: u64,
}

impl Outcome {
    /// Rows whose error is too large.
    pub fn misses(&self) -> impl Iterator<Item = &Compared> {
        self.rows.iter().filter(|row| row.is_missed())
    }
}

/// A simulation, and the numbers that it yields.
struct Cell {
    load: Load,
    numbers: Vec<Number>,
    over: Over,
}

/// What READs travel over.
#[derive(Clone, Copy)]
enum Over {
    Dc,
    /// Queue pairs that never change their target, with WQEs of one line.
    Rc,
}

/// A turn of a program that posts SENDs over UD, in ns: more than 10 M/s.
const UD_TURN: Time = Time::from_ns(100);

impl Over {
    fn profile(self, profile: &Profile) -> Profile {
        let mut changed = profile.clone();
        if matches!(self, Self::Rc) {
            changed.nic = NicProfile { issue: profile.nic.issue.half(), ..changed.nic };
            changed.cpu.turn = UD_TURN.min(changed.cpu.turn);
        }
        changed
    }
}

struct Number {
    what: String,
    unit: &'static str,
    reference: f64,
    of: fn(&Measured) -> f64,
    standing: Standing,
}

fn cells() -> Vec<Cell> {
    let mut cells = latencies();
    cells.extend(fixed_targets());
    cells.extend(DC_READS.map(|DcReadsReference { window, initiators, mops, us }| {
        let load = Load { window: window.into(), initiators: initiators.into(), ..base() };
        let label = format!("5 x 14 threads, window {window}, {initiators} initiators");
        let rate = number(format!("{label}: rate per machine"), "M/s", mops, rate);
        let latency = number(format!("{label}: latency"), "µs", us, latency);
        Cell { load, numbers: vec![rate, latency], over: Over::Dc }
    }));
    cells
}

fn rate(measured: &Measured) -> f64 {
    measured.per_client_mops
}

fn latency(measured: &Measured) -> f64 {
    measured.latency_us
}

fn number(what: String, unit: &'static str, reference: f64, of: fn(&Measured) -> f64) -> Number {
    Number { what, unit, reference, of, standing: Standing::Fitted }
}

/// Five machines with 14 threads each and random targets, which look at the clock.
fn base() -> Load {
    Load {
        machines: 5,
        first_client: 0,
        clients: 5,
        threads: 14,
        window: 16,
        initiators: 1,
        targets: Targets::Random,
        hot: None,
        is_timed: true,
        warm_up: Time::from_ns(60_000),
        end: Time::from_ns(340_000),
    }
}

fn latencies() -> Vec<Cell> {
    let one = Load { clients: 1, threads: 1, warm_up: Time::from_ns(20_000), ..base() };
    let same = Load { machines: 2, targets: Targets::Always(1), ..one.clone() };
    let other = Load { targets: Targets::Alternating, ..one };
    let cell = |load: &Load, window, what: &str, us| Cell {
        load: Load { window, ..load.clone() },
        numbers: vec![number(
            format!("one thread, window {window}, {what}: latency"),
            "µs",
            us,
            latency,
        )],
        over: Over::Dc,
    };
    vec![
        cell(&same, 1, "same target", 1.9),
        cell(&other, 1, "another target each time", 2.9),
        cell(&same, 16, "same target", 4.0),
        cell(&other, 16, "another target each time", 26.0),
    ]
}

fn fixed_targets() -> Vec<Cell> {
    let untimed = Load { is_timed: false, window: 32, ..base() };
    let thread = Load {
        machines: 2,
        clients: 1,
        threads: 1,
        targets: Targets::Always(1),
        warm_up: Time::from_ns(20_000),
        ..untimed.clone()
    };
    let all = Load {
        machines: 8,
        clients: 8,
        targets: Targets::Fixed,
        warm_up: Time::from_ns(40_000),
        end: Time::from_ns(150_000),
        ..untimed.clone()
    };
    let incast = |initiators, warm_up, end| Load {
        machines: 11,
        first_client: 1,
        clients: 10,
        initiators,
        targets: Targets::Always(0),
        warm_up: Time::from_ns(warm_up),
        end: Time::from_ns(end),
        ..untimed.clone()
    };
    let served = |label: &str, rate, pcie| {
        vec![
            number(format!("{label}: rate at the target"), "M/s", rate, |m| m.served_mops),
            number(format!("{label}: PCIe reads"), "M/s", pcie, |m| m.pcie_reads_mops),
        ]
    };
    let one = |what: &str, mops, standing| {
        vec![Number { standing, ..number(what.to_owned(), "M/s", mops, rate) }]
    };
    let cell = |over, load: &Load, numbers| Cell { load: load.clone(), numbers, over };
    let queues = Load { initiators: 16, ..thread.clone() };
    let (few, many) = (incast(1, 40_000, 120_000), incast(16, 300_000, 700_000));
    let label = "10 x 14 threads to one machine";
    let of_queues = one("one thread, same target, 16 initiators: rate", 7.2, Standing::Predicted);
    let of_thread = one("one thread, same target: rate", 7.2, Standing::Fitted);
    let of_all = one("8 x 14 threads, fixed targets: rate per machine", 39.0, Standing::Fitted);
    let rc_thread = one("RC, one thread: rate", 10.9, Standing::Missed(0.28));
    let rc_all = one("RC, fixed targets: rate per machine", 50.0, Standing::Missed(0.22));
    vec![
        cell(Over::Dc, &queues, of_queues),
        cell(Over::Dc, &thread, of_thread),
        cell(Over::Dc, &all, of_all),
        cell(Over::Dc, &few, served(label, 94.6, 141.0)),
        cell(Over::Dc, &many, served(&format!("{label}, 16 initiators"), 20.1, 41.0)),
        cell(Over::Rc, &thread, rc_thread),
        cell(Over::Rc, &all, rc_all),
    ]
}

/// Simulates every number. `progress` hears how many cells of how many are done.
#[must_use]
pub fn run(seed: u64, progress: impl FnMut(usize, usize)) -> Outcome {
    run_on(&CONNECT_IB, seed, progress)
}

/// Simulates every number on a machine that may differ from [`CONNECT_IB`].
#[must_use]
pub fn run_on(profile: &Profile, seed: u64, mut progress: impl FnMut(usize, usize)) -> Outcome {
    let cells = cells();
    let mut outcome = Outcome { seed, rows: Vec::new(), events: 0, trace: 0 };
    for (index, cell) in cells.iter().enumerate() {
        let (measured, rows) = cell.run(profile, seed);
        outcome.events += measured.events;
        outcome.trace = outcome.trace.rotate_left(1) ^ measured.trace;
        outcome.rows.extend(rows);
        progress(index + 1, cells.len());
    }
    outcome
}

impl Cell {
    fn run(&self, profile: &Profile, seed: u64) -> (Measured, Vec<Compared>) {
        let measured = reads::run(&self.over.profile(profile), &self.load, seed);
        let rows = self.numbers.iter().map(|number| Compared {
            what: number.what.clone(),
            unit: number.unit,
            reference: number.reference,
            simulated: (number.of)(&measured),
            standing: number.standing,
        });
        (measured, rows.collect())
    }
}

/// The first claimed number that is missed, with a simulation after the other until then.
#[must_use]
pub fn first_miss(profile: &Profile, seed: u64) -> Option<Compared> {
    let is_missed = |row: &Compared| row.standing.is_claimed() && row.is_missed();
    cells().iter().find_map(|cell| cell.run(profile, seed).1.into_iter().find(is_missed))
}

/// Numbers of each simulation, in the order of rows.
pub(super) fn cell_sizes() -> Vec<usize> {
    cells().iter().map(|cell| cell.numbers.len()).collect()
}

/// Numbers of one simulation.
pub(super) fn run_cell(profile: &Profile, cell: usize, seed: u64) -> Vec<Compared> {
    cells()[cell].run(profile, seed).1
}
