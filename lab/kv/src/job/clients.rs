//! A client process: a thread per client, and the main thread, which talks to the coordinator.

use std::{
    thread,
    time::{Duration, Instant},
};

use measure::events::EventMeter;
use memory::sync::{AtomicBool, AtomicU64, Ordering};
use os::{child::ChildChannel, clock};

use super::{
    Config, Report,
    coordinator::{self, ChildError},
    meter::{Meter, Spent},
    threads::{MainThread, NextInterval, Threads},
};
use crate::{
    backend::{Backend, Client, Counters, ThreadIdle},
    drive::{ClientTally, Driver, Step},
    history::HistoryEvent,
    measured::Measured,
    place::ClientId,
};

/// Longest sleep inside the backend.
const NAP: Duration = Duration::from_millis(20);
/// Between two progress reports.
const PROGRESS_PERIOD: Duration = Duration::from_secs(1);
/// Between two looks at a client's connections while nothing is measured.
const UPKEEP_PERIOD: Duration = Duration::from_secs(1);
/// Longest time to connect.
const JOIN_TIMEOUT: Duration = Duration::from_secs(30);
/// Operations of the history per message.
const HISTORY_CHUNK: usize = 100_000;

/// The result of one client in one interval.
struct Finished {
    id: ClientId,
    tally: ClientTally,
    events: Vec<HistoryEvent>,
    counters: Counters,
}

/// What the threads of the process share.
struct Shared {
    /// Calls that were answered so far, by client.
    answered: Vec<AtomicU64>,
    stop: AtomicBool,
}

/// Runs the schedule that the coordinator gives.
pub(super) fn run<B: Backend>(
    coordinator: &mut ChildChannel,
    config: &Config,
    backend: &B,
    ids: &[ClientId],
) -> Result<(), ChildError> {
    let answered = ids.iter().map(|_| AtomicU64::new(0)).collect();
    let shared = &Shared { answered, stop: AtomicBool::new(false) };
    // Before there are other threads, which it counts, too.
    let mut events = config.counters.then(EventMeter::of_machine);
    thread::scope(|scope| {
        let names = ids.iter().map(|id| format!("client-{}", id.0));
        let threads = Threads::start(scope, names, move |index, main: &MainThread<Finished>| {
            drive(config, backend, ids[index], &shared.answered[index], &shared.stop, main)
        })?;
        let clients = config.workload.topology().clients();
        let result = lead(coordinator, &threads, &shared.answered, clients, events.as_mut());
        // Relaxed: the flag is all there is to see. It matters if one of several threads failed.
        shared.stop.store(true, Ordering::Relaxed);
        result
    })
}

/// The thread of one client: intervals, and in between the little that keeps its connections alive. It ends early
/// and well if the job does.
fn drive<B: Backend>(
    config: &Config,
    backend: &B,
    id: ClientId,
    answered: &AtomicU64,
    stop: &AtomicBool,
    main: &MainThread<Finished>,
) -> Result<(), ChildError> {
    let mut client = backend.client(id)?;
    let Some(roster) = main.exchange(client.contact()) else { return Ok(()) };
    client.join(&roster, clock::deadline_ns(JOIN_TIMEOUT))?;
    main.ready();
    let mut driver = None::<Driver>;
    let mut counted = Counters::default();
    loop {
        let schedule = match main.schedule(UPKEEP_PERIOD) {
            NextInterval::Begins(schedule) => schedule,
            NextInterval::NotYet => {
                keep_up(config, &mut client, driver.as_mut())?;
                continue;
            }
            NextInterval::Never => return Ok(()),
        };
        let driver = match &mut driver {
            Some(driver) => {
                driver.restart(&config.workload, schedule);
                driver
            }
            none => none.insert(Driver::new(&config.workload, id, schedule)),
        };
        let idle = run_interval(config, &mut client, driver, answered, stop)?;
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        let (tally, events) = driver.finish();
        let mut counters = client.counters();
        let so_far = counters.clone();
        counters = counters.since(&counted);
        counted = so_far;
        idle.count("client", &mut counters);
        main.done(Finished { id, tally, events, counters });
    }
}

/// One look at what has arrived while nothing is measured: a peer's question whether this client lives, an answer
/// that is late.
fn keep_up(
    config: &Config,
    client: &mut impl Client,
    driver: Option<&mut Driver>,
) -> Result<(), ChildError> {
    if let Some(driver) = driver {
        driver.step(client, &clock::now_ns)?;
        // Nothing is measured now.
        let _ = driver.finish();
    }
    if config.wait.can_sleep() {
        client.wait(clock::NOW)?;
    }
    Ok(())
}

/// Calls until the schedule is over, or the process is to stop.
fn run_interval(
    config: &Config,
    client: &mut impl Client,
    driver: &mut Driver,
    answered: &AtomicU64,
    stop: &AtomicBool,
) -> Result<ThreadIdle, ChildError> {
    let mut idle = ThreadIdle::new(config.wait);
    while !stop.load(Ordering::Relaxed) {
        if idle.sleeps_at_once() && driver.is_full() {
            client.wait(clock::deadline_ns(NAP))?;
        }
        let step = driver.step(client, &clock::now_ns)?;
        if matches!(step, Step::Busy | Step::Sent { .. }) {
            idle.reset();
            // Relaxed: a number to be shown, it publishes nothing.
            answered.store(driver.answered(), Ordering::Relaxed);
        }
        match step {
            // Who sleeps at once looks first whether there is room for more.
            Step::Sent { .. } if idle.sleeps_at_once() => {}
            Step::Sent { until_ns } | Step::Idle { until_ns } if idle.is_to_sleep() => {
                client.wait(until_ns.min(clock::deadline_ns(NAP)))?;
            }
            Step::Busy | Step::Sent { .. } | Step::Idle { .. } => {}
            Step::Done => break,
        }
    }
    Ok(idle)
}

/// The main thread.
fn lead(
    coordinator: &mut ChildChannel,
    threads: &Threads<Finished>,
    answered: &[AtomicU64],
    clients: u16,
    mut events: Option<&mut EventMeter>,
) -> Result<(), ChildError> {
    threads.connect(coordinator)?;
    while let Some(schedule) = threads.next_interval(coordinator)? {
        let late_processes = u32::from(clock::now_ns() > schedule.begin_ns);
        let mut meter = Meter::new(events.as_deref_mut());
        let mut finished = Vec::new();
        let mut last_progress = Instant::now();
        while finished.len() < threads.count() {
            finished.extend(threads.result(meter.pause(&schedule).min(PROGRESS_PERIOD))?);
            meter.look(&schedule);
            if last_progress.elapsed() >= PROGRESS_PERIOD {
                last_progress = Instant::now();
                let count = answered.iter().map(|count| count.load(Ordering::Relaxed)).sum();
                coordinator::send(coordinator, &Report::Progress(count))?;
            }
        }
        let Spent { cpu_ns, switches, harness_cpu_ns } = meter.spent();
        let mut measured = Measured {
            clients_cpu_ns: cpu_ns,
            clients_switches: switches,
            clients_events: meter.events(),
            uncounted: meter.uncounted(),
            harness_cpu_ns,
            late_processes,
            ..Measured::default()
        };
        for Finished { id, tally, events, counters } in finished {
            measured.add(&Measured::of_client(id, clients, &tally, counters, schedule.series_ns));
            for chunk in events.chunks(HISTORY_CHUNK) {
                coordinator::send(coordinator, &Report::History(chunk.to_vec()))?;
            }
        }
        coordinator::send(coordinator, &Report::Measured(Box::new(measured)))?;
    }
    Ok(())
}
