//! A client process: one thread per client, and one that takes orders.

use std::{
    sync::mpsc::{self, Receiver, Sender},
    thread,
    time::{Duration, Instant},
};

use memory::sync::{AtomicBool, AtomicU64, Ordering};
use os::clock;

use super::{
    ClientsReport, Config, Report,
    child::{self, Alarm, ChildError, Word},
    control::Control,
    meter::{Meter, Spent},
};
use crate::{
    backend::{Backend, Client, Contact, Counters, Idle, Roster},
    drive::{Driver, Schedule, Step, Tally},
    history::Recorder,
    place::ClientId,
};

/// Longest sleep inside the backend.
const NAP: Duration = Duration::from_millis(20);
/// Between two progress reports.
const PROGRESS_PERIOD: Duration = Duration::from_millis(200);
/// Longest time to connect.
const JOIN_TIMEOUT: Duration = Duration::from_secs(30);
/// Operations of the history per message.
const HISTORY_CHUNK: usize = 100_000;
/// Longest wait of a thread for the order to begin.
const GO_TIMEOUT: Duration = Duration::from_secs(240);

/// What one client has at the end.
struct Finished {
    id: ClientId,
    tally: Tally,
    recorder: Option<Recorder>,
    counters: Counters,
}

/// Runs the schedule that the coordinator gives.
pub(super) fn run<B: Backend>(
    control: &mut Control,
    config: &Config,
    backend: &B,
    ids: &[ClientId],
) -> Result<(), ChildError> {
    let answered = ids.iter().map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let (to_main, words) = mpsc::channel();
        let (mut rosters, mut starts) = (Vec::new(), Vec::new());
        for (index, &id) in ids.iter().enumerate() {
            let (to_thread, roster) = mpsc::channel();
            rosters.push(to_thread);
            let (to_thread, start) = mpsc::channel();
            starts.push(to_thread);
            let (to_main, answered, stop) = (to_main.clone(), &answered[index], &stop);
            let body = move || {
                let _alarm = Alarm(to_main.clone());
                let line = Line { index, to_main: &to_main, roster, start, answered, stop };
                if let Err(error) = drive(config, backend, id, &line) {
                    // If nobody listens any more, the process is about to end.
                    let _ = to_main.send(Word::Failed(error));
                }
            };
            let named = thread::Builder::new().name(format!("client-{}", id.0));
            named
                .spawn_scoped(scope, body)
                .map_err(|cause| ChildError::System { what: "cannot start a thread", cause })?;
        }
        drop(to_main);
        let result = lead(control, &words, &rosters, &starts, &answered);
        // Relaxed: the flag is all there is to see. It matters if one of several threads failed.
        stop.store(true, Ordering::Relaxed);
        result
    })
}

/// A thread's connections to the one that takes orders.
struct Line<'a> {
    index: usize,
    to_main: &'a Sender<Word<Finished>>,
    roster: Receiver<Roster>,
    start: Receiver<Schedule>,
    answered: &'a AtomicU64,
    stop: &'a AtomicBool,
}

impl Line<'_> {
    fn meet(&self, contact: Contact) -> Option<Roster> {
        let _ = self.to_main.send(Word::Contact(self.index, contact));
        self.roster.recv_timeout(GO_TIMEOUT).ok()
    }

    fn begin(&self) -> Option<Schedule> {
        let _ = self.to_main.send(Word::Ready);
        self.start.recv_timeout(GO_TIMEOUT).ok()
    }

    /// Reports, and returns when the job is over: then the other end of this channel is dropped.
    fn done(&self, finished: Finished) {
        let _ = self.to_main.send(Word::Done(finished));
        let _ = self.start.recv_timeout(GO_TIMEOUT);
    }
}

/// The thread of one client. It ends early and well if the job does.
fn drive<B: Backend>(
    config: &Config,
    backend: &B,
    id: ClientId,
    line: &Line<'_>,
) -> Result<(), ChildError> {
    let mut client = backend.client(id)?;
    let Some(roster) = line.meet(client.contact()) else { return Ok(()) };
    client.join(&roster, clock::deadline_ns(JOIN_TIMEOUT))?;
    let Some(schedule) = line.begin() else { return Ok(()) };
    let mut driver = Driver::new(&config.workload, id, schedule);
    let mut idle = Idle::new(config.wait);
    while !line.stop.load(Ordering::Relaxed) {
        if idle.sleeps_at_once() && driver.is_full() {
            client.wait(clock::deadline_ns(NAP))?;
        }
        let step = driver.step(&mut client, &clock::now_ns)?;
        if matches!(step, Step::Busy | Step::Sent { .. }) {
            idle.found();
            // Relaxed: a number to be shown, it publishes nothing.
            line.answered.store(driver.answered(), Ordering::Relaxed);
        }
        match step {
            // Who sleeps at once looks first whether there is room for more.
            Step::Sent { .. } if idle.sleeps_at_once() => {}
            Step::Sent { until_ns } | Step::Idle { until_ns } if idle.is_to_sleep() => {
                client.wait(until_ns.min(clock::deadline_ns(NAP)))?;
            }
            Step::Busy | Step::Sent { .. } | Step::Idle { .. } => {}
            Step::Done => {
                let (tally, recorder) = driver.finish();
                let mut counters = client.counters();
                idle.count("client", &mut counters);
                line.done(Finished { id, tally, recorder, counters });
                break;
            }
        }
    }
    Ok(())
}

/// The thread that takes orders.
fn lead(
    control: &mut Control,
    words: &Receiver<Word<Finished>>,
    rosters: &[Sender<Roster>],
    starts: &[Sender<Schedule>],
    answered: &[AtomicU64],
) -> Result<(), ChildError> {
    let schedule = child::prepare(control, words, rosters.len(), |roster| {
        for to_thread in rosters {
            let _ = to_thread.send(roster.clone());
        }
    })?;
    for to_thread in starts {
        let _ = to_thread.send(schedule);
    }
    let mut meter = Meter::default();
    let mut finished = Vec::new();
    let mut last_progress = Instant::now();
    while finished.len() < starts.len() {
        if let Some(Word::Done(one)) = child::hear(words, meter.pause(&schedule))? {
            finished.push(one);
        }
        meter.look(&schedule);
        if last_progress.elapsed() >= PROGRESS_PERIOD {
            last_progress = Instant::now();
            let count = answered.iter().map(|count| count.load(Ordering::Relaxed)).sum();
            control.send(&Report::Progress(count))?;
        }
    }
    let Spent { cpu_ns, switches } = meter.spent();
    let mut report = ClientsReport { cpu_ns, switches, ..ClientsReport::default() };
    let mut events = Vec::new();
    for one in finished {
        report.add_client(one.id, &one.tally, &one.counters);
        events.extend(one.recorder.map(Recorder::into_events).unwrap_or_default());
    }
    for chunk in events.chunks(HISTORY_CHUNK) {
        control.send(&Report::History(chunk.to_vec()))?;
    }
    control.send(&Report::Clients(Box::new(report)))?;
    child::await_end(control)
}
