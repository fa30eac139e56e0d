//! A daemon process: one thread per shard, and one that takes orders.

use std::{
    cell::Cell,
    rc::Rc,
    sync::mpsc::{self, Receiver, Sender},
    thread,
    time::Duration,
};

use memory::sync::{AtomicU32, Ordering, hint};
use os::clock;

use super::{
    Config, Order, RankReport, Report,
    child::{self, Alarm, ChildError, Word},
    control::{Control, ControlError},
    meter::{Meter, Spent},
};
use crate::{
    backend::{Backend, Counters, Idle, Roster, Server, Service},
    drive::Schedule,
    place::Shard,
    store::Partition,
};

/// Requests served between two turns, at most.
const BUDGET: usize = 256;
/// Longest sleep, so that a thread sees that it is to stop.
const NAP: Duration = Duration::from_millis(20);
/// One in this many turns, and one in this many requests, is timed.
const SAMPLE_PERIOD: u64 = 64;
/// Longest time to connect.
const JOIN_TIMEOUT: Duration = Duration::from_secs(30);

/// How far the job is, as the thread that takes orders tells the others: each follows the one before.
mod stage {
    pub(super) const WARM_UP: u32 = 0;
    pub(super) const MEASURED: u32 = 1;
    pub(super) const OVER: u32 = 2;
    pub(super) const STOP: u32 = 3;
}

/// Serves until told to stop.
pub(super) fn run<B: Backend>(
    control: &mut Control,
    config: &Config,
    backend: &B,
    rank: u16,
) -> Result<(), ChildError> {
    let shards = config.workload.topology().shards_of(rank).collect::<Vec<_>>();
    let stage = AtomicU32::new(stage::WARM_UP);
    thread::scope(|scope| {
        let (to_main, words) = mpsc::channel();
        let mut rosters = Vec::new();
        for (index, &shard) in shards.iter().enumerate() {
            let (roster, from_main) = mpsc::channel();
            rosters.push(roster);
            let (to_main, stage) = (to_main.clone(), &stage);
            let body = move || {
                let _alarm = Alarm(to_main.clone());
                let served = serve(config, backend, shard, stage, &|contact| {
                    let _ = to_main.send(Word::Contact(index, contact));
                    from_main.recv().ok().map(|roster| (roster, ready(&to_main)))
                });
                // If nobody listens any more, the process is about to end.
                let _ = to_main.send(match served {
                    Ok(report) => Word::Done(report),
                    Err(error) => Word::Failed(error),
                });
            };
            let named = thread::Builder::new().name(format!("shard-{}", shard.0));
            named
                .spawn_scoped(scope, body)
                .map_err(|cause| ChildError::System { what: "cannot start a thread", cause })?;
        }
        drop(to_main);
        let result = lead(control, &words, &rosters, &stage);
        // Relaxed: the number is all there is to see.
        stage.store(stage::STOP, Ordering::Relaxed);
        result
    })
}

/// What a thread calls when it is connected.
fn ready<T: Send>(to_main: &Sender<Word<T>>) -> impl Fn() + use<T> {
    let to_main = to_main.clone();
    move || drop(to_main.send(Word::Ready))
}

/// The thread that takes orders.
fn lead(
    control: &mut Control,
    words: &Receiver<Word<RankReport>>,
    rosters: &[Sender<Roster>],
    stage: &AtomicU32,
) -> Result<(), ChildError> {
    let schedule = child::prepare(control, words, rosters.len(), |roster| {
        for to_thread in rosters {
            let _ = to_thread.send(roster.clone());
        }
    })?;
    let mut meter = Meter::default();
    loop {
        meter.look(&schedule);
        stage.store(stage_at(&schedule, clock::now_ns()), Ordering::Relaxed);
        child::hear(words, Duration::ZERO)?;
        match control.receive(meter.pause(&schedule)) {
            Ok(Order::Stop) => break,
            Ok(other) => return Err(child::out_of_turn(&other)),
            Err(ControlError::Silent(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    stage.store(stage::STOP, Ordering::Relaxed);
    let Spent { cpu_ns, switches } = meter.spent();
    let mut total = RankReport { cpu_ns, switches, ..RankReport::default() };
    for _ in rosters {
        if let Some(Word::Done(report)) = child::hear(words, child::ORDER_TIMEOUT)? {
            let samples = report.counters.samples.iter().copied();
            total.add(&RankReport { outstanding: schedule.means(samples), ..report });
        }
    }
    control.send(&Report::Rank(total))?;
    child::await_end(control)
}

fn stage_at(schedule: &Schedule, now_ns: u64) -> u32 {
    match now_ns {
        ns if ns >= schedule.end_ns => stage::OVER,
        ns if ns >= schedule.measure_ns => stage::MEASURED,
        _ => stage::WARM_UP,
    }
}

/// The thread of one shard. `meet` tells its contact, and returns everybody's with what to call
/// once connected; `None` if the job ended before.
fn serve<B: Backend, R: Fn()>(
    config: &Config,
    backend: &B,
    shard: Shard,
    stage: &AtomicU32,
    meet: &impl Fn(crate::backend::Contact) -> Option<(Roster, R)>,
) -> Result<RankReport, ChildError> {
    let serving_ns = Rc::new(Cell::new(0));
    let mut server = backend.server(shard, service_of(config, shard, Rc::clone(&serving_ns)))?;
    let Some((roster, ready)) = meet(server.contact()) else { return Ok(RankReport::default()) };
    server.join(&roster, clock::deadline_ns(JOIN_TIMEOUT))?;
    ready();
    take_turns(server, Idle::new(config.wait), stage, &serving_ns)
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

/// Serves until the stage says stop.
fn take_turns(
    mut server: impl Server,
    mut idle: Idle,
    stage: &AtomicU32,
    serving_ns: &Cell<u64>,
) -> Result<RankReport, ChildError> {
    let mut phases = Phases::default();
    let mut marks = Marks::default();
    let mut served = 0;
    loop {
        let stage = stage.load(Ordering::Relaxed);
        marks.look(stage, || counters(&server, &phases, &idle, serving_ns));
        if stage == stage::STOP {
            break;
        }
        phases.begin_turn();
        if idle.sleeps_at_once() {
            server.wait(clock::deadline_ns(NAP))?;
        }
        phases.end_phase(Phase::Wait);
        let count = server.turn(BUDGET)?;
        phases.end_phase(Phase::Turn);
        served += count as u64;
        if count > 0 {
            idle.found();
        } else if idle.is_adaptive() && server.is_expecting() {
            hint::spin_loop();
        } else if !idle.sleeps_at_once() && idle.is_to_sleep() {
            server.wait(clock::deadline_ns(NAP))?;
        }
        phases.end_phase(Phase::Wait);
    }
    let counters = marks.between(counters(&server, &phases, &idle, serving_ns));
    Ok(RankReport { served, counters, ..RankReport::default() })
}

/// All that a thread counts.
fn counters(
    server: &impl Server,
    phases: &Phases,
    idle: &Idle,
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
