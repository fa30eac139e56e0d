//! A daemon process: a thread per shard, and the main thread, which talks to the coordinator.

use std::{cell::Cell, rc::Rc, thread, time::Duration};

use measure::events::EventMeter;
use memory::sync::{AtomicU32, Ordering};
use os::{
    child::{ChannelError, ChildChannel, TypedMessageError},
    clock,
};

use super::{
    Config, Order, Report,
    coordinator::{self, ChildError, LOOK},
    meter::{Meter, Spent},
    threads::{MainThread, Threads},
};
use crate::{
    backend::{Backend, Counters, Server, Service, ThreadIdle},
    drive::Schedule,
    measured::{Measured, of_rank},
    place::Shard,
    series::RankRecorder,
    store::Partition,
};

/// Requests served between two turns, at most.
const BUDGET: usize = 256;
/// Longest sleep, so that a thread sees that it is to stop.
const NAP: Duration = Duration::from_millis(20);
/// One in this many turns, and one in this many requests, is timed.
const SAMPLE_PERIOD: u64 = 64;
/// Longest time to connect.
pub(super) const JOIN_TIMEOUT: Duration = Duration::from_secs(30);

/// How far an interval is, as the thread that takes orders tells the others.
mod stage {
    /// Until the first interval: clients connect, which takes many turns.
    pub(super) const CONNECT: u32 = 6;
    /// Between intervals: threads sleep unless something comes, however they wait otherwise.
    pub(super) const IDLE: u32 = 0;
    pub(super) const WARM_UP: u32 = 1;
    pub(super) const MEASURED: u32 = 2;
    pub(super) const OVER: u32 = 3;
    /// All clients have stopped: the interval is to be reported.
    pub(super) const REPORT: u32 = 4;
    /// The job is over.
    pub(super) const END: u32 = 5;
}

/// Serves until told to stop.
pub(super) fn run<B: Backend>(
    coordinator: &mut ChildChannel,
    config: &Config,
    backend: &B,
    rank: u16,
) -> Result<(), ChildError> {
    let shards = &config.workload.topology().shards_of(rank).collect::<Vec<_>>();
    let stage = &AtomicU32::new(stage::CONNECT);
    // Before there are other threads, which it counts, too.
    let mut events = config.counters.then(EventMeter::of_machine);
    thread::scope(|scope| {
        let names = shards.iter().map(|shard| format!("shard-{}", shard.0));
        let threads = Threads::start(scope, names, move |index, main: &MainThread<Measured>| {
            serve(config, backend, shards[index], stage, main)
        })?;
        let collect = |total: &mut Measured, schedule: &Schedule| {
            for _ in 0..threads.count() {
                if let Some(measured) = threads.result(coordinator::ORDER_TIMEOUT)? {
                    let samples = measured.rank_counters.samples.iter().copied();
                    let rank_outstanding = schedule.means(samples);
                    total.add(&Measured { rank_outstanding, ..measured });
                }
            }
            Ok(())
        };
        let result = lead(coordinator, &threads, stage, events.as_mut(), &collect);
        // Relaxed: the number is all there is to see.
        stage.store(stage::END, Ordering::Relaxed);
        result
    })
}

/// The main thread of a process that serves: `collect` adds the reports of its threads after each interval.
pub(super) fn lead(
    coordinator: &mut ChildChannel,
    threads: &Threads<Measured>,
    stage: &AtomicU32,
    mut events: Option<&mut EventMeter>,
    collect: &dyn Fn(&mut Measured, &Schedule) -> Result<(), ChildError>,
) -> Result<(), ChildError> {
    threads.connect(coordinator)?;
    while let Some(schedule) = threads.next_interval(coordinator)? {
        let mut meter = Meter::new(events.as_deref_mut());
        until_stop(coordinator, threads, stage, &schedule, &mut meter)?;
        let Spent { cpu_ns, switches, harness_cpu_ns } = meter.spent();
        stage.store(stage::REPORT, Ordering::Relaxed);
        let mut total = Measured {
            ranks_cpu_ns: cpu_ns,
            ranks_switches: switches,
            ranks_events: meter.events(),
            uncounted: meter.uncounted(),
            harness_cpu_ns,
            ..Measured::default()
        };
        collect(&mut total, &schedule)?;
        stage.store(stage::IDLE, Ordering::Relaxed);
        coordinator::send(coordinator, &Report::Measured(Box::new(total)))?;
    }
    Ok(())
}

/// One interval, until the coordinator says that it is over.
fn until_stop(
    coordinator: &mut ChildChannel,
    threads: &Threads<Measured>,
    stage: &AtomicU32,
    schedule: &Schedule,
    meter: &mut Meter<'_>,
) -> Result<(), ChildError> {
    loop {
        meter.look(schedule);
        stage.store(stage_at(schedule, clock::now_ns()), Ordering::Relaxed);
        threads.result(Duration::ZERO)?;
        match coordinator.recv_json(clock::deadline_ns(meter.pause(schedule).min(LOOK))) {
            Ok(Order::Stop) => return Ok(()),
            Ok(other) => return Err(coordinator::out_of_turn(&other)),
            Err(TypedMessageError::Channel(ChannelError::TimedOut)) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn stage_at(schedule: &Schedule, now_ns: u64) -> u32 {
    match now_ns {
        ns if ns >= schedule.end_ns => stage::OVER,
        ns if ns >= schedule.measure_ns => stage::MEASURED,
        _ => stage::WARM_UP,
    }
}

/// The thread of one shard.
fn serve<B: Backend>(
    config: &Config,
    backend: &B,
    shard: Shard,
    stage: &AtomicU32,
    main: &MainThread<Measured>,
) -> Result<(), ChildError> {
    let serving_ns = Rc::new(Cell::new(0));
    let mut server = backend.server(shard, service_of(config, shard, Rc::clone(&serving_ns)))?;
    let Some(roster) = main.exchange(server.contact()) else { return Ok(()) };
    server.join(&roster, clock::deadline_ns(JOIN_TIMEOUT))?;
    main.ready();
    let served = &mut 0;
    loop {
        match stage.load(Ordering::Relaxed) {
            stage::END => return Ok(()),
            stage::CONNECT => {
                let turn = server.turn(BUDGET)?;
                *served += turn.served as u64;
                if turn.handled == 0 && config.wait.can_sleep() {
                    server.wait(clock::deadline_ns(NAP))?;
                } else if turn.handled == 0 {
                    thread::yield_now();
                }
            }
            // Reported: the others of this process are still about to.
            stage::IDLE | stage::REPORT => {
                *served += server.turn(BUDGET)?.served as u64;
                if config.is_woken() {
                    server.wait(clock::deadline_ns(NAP))?;
                } else {
                    thread::sleep(NAP);
                }
            }
            _ => {
                let idle = ThreadIdle::new(config.wait);
                let plan = config.workload.series;
                let mut recorder =
                    plan.map(|plan| RankRecorder::new(plan.slice_ns, server.totals()));
                let turns = Turns { stage, serving_ns: &serving_ns, recorder: recorder.as_mut() };
                let measured = take_turns(&mut server, idle, turns, served)?;
                let rank = config.workload.topology().rank_of(shard);
                let series = recorder.map(|recorder| recorder.finish(rank));
                let each_rank = of_rank(rank, &measured.rank_counters);
                main.done(Measured { series, each_rank, ..measured });
            }
        }
    }
}

/// What answers requests to `shard`; adds the time of some of them to `serving_ns`.
fn service_of(config: &Config, shard: Shard, serving_ns: Rc<Cell<u64>>) -> Service {
    let workload = &config.workload;
    let mut partition =
        Partition::filled(workload.topology(), shard, workload.value_size, workload.seed);
    let mut calls = 0_u64;
    Box::new(move |request: &[u8], answer: &mut Vec<u8>| {
        calls += 1;
        let since_ns = calls.is_multiple_of(SAMPLE_PERIOD).then(clock::now_ns);
        partition.serve(request, answer);
        if let Some(since_ns) = since_ns {
            serving_ns.set(serving_ns.get() + clock::now_ns() - since_ns);
        }
    })
}

/// What the turns of an interval look at and fill.
struct Turns<'a> {
    stage: &'a AtomicU32,
    serving_ns: &'a Cell<u64>,
    recorder: Option<&'a mut RankRecorder>,
}

/// Serves one interval, until the stage says that it is to be reported. What was served between intervals counts
/// to the next one.
fn take_turns(
    server: &mut impl Server,
    mut idle: ThreadIdle,
    turns: Turns<'_>,
    served: &mut u64,
) -> Result<Measured, ChildError> {
    let Turns { stage, serving_ns, mut recorder } = turns;
    let mut phases = Phases::default();
    let mut marks = Marks::default();
    serving_ns.set(0);
    loop {
        let stage = stage.load(Ordering::Relaxed);
        marks.look(stage, || counters(server, &phases, &idle, serving_ns));
        if matches!(stage, stage::IDLE | stage::REPORT | stage::END) {
            break;
        }
        phases.begin_turn();
        if idle.sleeps_at_once() {
            server.wait(clock::deadline_ns(NAP))?;
        }
        phases.end_phase(Phase::Wait);
        let turn = server.turn(BUDGET)?;
        phases.end_phase(Phase::Turn);
        *served += turn.served as u64;
        if let Some(recorder) = &mut recorder {
            recorder.turn(clock::now_ns(), turn.handled, server.totals());
        }
        if turn.handled > 0 {
            idle.reset();
        } else if idle.is_adaptive() && server.is_expecting() && idle.spin() {
            // The spin was the wait.
        } else if !idle.sleeps_at_once() && idle.is_to_sleep() {
            server.wait(clock::deadline_ns(NAP))?;
        }
        phases.end_phase(Phase::Wait);
    }
    let counters = marks.between(counters(server, &phases, &idle, serving_ns));
    let served = std::mem::take(served);
    Ok(Measured { served, rank_counters: counters, ..Measured::default() })
}

/// All that a thread counts.
fn counters(
    server: &impl Server,
    phases: &Phases,
    idle: &ThreadIdle,
    serving_ns: &Cell<u64>,
) -> Counters {
    let mut counters = server.counters();
    phases.report(serving_ns.get(), &mut counters);
    idle.count("daemon", &mut counters);
    counters
}

/// What was counted when the measured interval began, and when it ended.
#[derive(Debug, Default)]
struct Marks {
    begin: Option<Counters>,
    end: Option<Counters>,
}

impl Marks {
    #[inline]
    fn look(&mut self, stage: u32, counters: impl FnOnce() -> Counters) {
        if stage >= stage::MEASURED && self.begin.is_none() {
            self.begin = Some(counters());
        } else if stage >= stage::OVER && self.end.is_none() {
            self.end = Some(counters());
        }
    }

    fn between(self, now: Counters) -> Counters {
        self.end.unwrap_or(now).since(&self.begin.unwrap_or_default())
    }
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Wait,
    /// Everything else: sending, receiving, serving.
    Turn,
}

/// Where the time of some turns went.
#[derive(Debug, Default)]
struct Phases {
    turns: u64,
    /// `Some` during a turn that is timed.
    since_ns: Option<u64>,
    spent_ns: [u64; 2],
}

impl Phases {
    fn begin_turn(&mut self) {
        self.turns += 1;
        self.since_ns = self.turns.is_multiple_of(SAMPLE_PERIOD).then(clock::now_ns);
    }

    fn end_phase(&mut self, phase: Phase) {
        if let Some(since_ns) = self.since_ns {
            let now_ns = clock::now_ns();
            self.spent_ns[phase as usize] += now_ns - since_ns;
            self.since_ns = Some(now_ns);
        }
    }

    /// As many calls are timed as turns: one in [`SAMPLE_PERIOD`].
    fn report(&self, serving_ns: u64, counters: &mut Counters) {
        let [wait_ns, turn_ns] = self.spent_ns;
        let transport_ns = turn_ns.saturating_sub(serving_ns);
        let phases = [("wait", wait_ns), ("transport", transport_ns), ("serve", serving_ns)];
        counters.phases_ns.extend(phases.map(|(name, ns)| (name.to_owned(), ns)));
    }
}
