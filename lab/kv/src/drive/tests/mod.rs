//! Clients against a virtual cluster: every number is known in advance.

mod faulty;
mod loopback;

use self::{
    faulty::{Fault, Faulty},
    loopback::{Cluster, LoopbackClient},
};
use super::*;
use crate::{
    backend::{Contact, Counters, Roster},
    history::{self, CheckError},
    place::Shard,
    workload::{Locality, Mix, Pace, Popularity, ValueSize},
};

const US: u64 = 1000;
const MS: u64 = 1_000_000;
/// Virtual time passes in steps of this.
const TICK_NS: u64 = 500;

fn workload() -> Workload {
    Workload {
        clients_per_rank: 1,
        keys: 200,
        mix: Mix { get: 60, delete: 5, cas: 10 },
        value_size: ValueSize { min_bytes: 24, max_bytes: 90 },
        popularity: Popularity::Uniform,
        warm_up_ms: 2,
        duration_ms: 10,
        timeout_ms: 5,
        ..Workload::default()
    }
}

type Finished = Vec<(ClientTally, Vec<HistoryEvent>)>;

/// Runs one driver per client of the workload to the end.
fn run<C: Client>(
    workload: &Workload,
    cluster: &Cluster,
    wrap: impl Fn(LoopbackClient) -> C,
) -> Result<Finished, DriveError> {
    let schedule = Schedule::new(workload, 0);
    let clients = (0..workload.topology().clients()).map(ClientId);
    let mut pairs = clients
        .map(|id| (Driver::new(workload, id, schedule), wrap(cluster.client(id)), false))
        .collect::<Vec<_>>();
    while pairs.iter().any(|(_, _, is_done)| !is_done) {
        for (driver, client, is_done) in pairs.iter_mut().filter(|(_, _, is_done)| !is_done) {
            *is_done = driver.step(client, &|| cluster.now_ns())? == Step::Done;
        }
        cluster.advance(TICK_NS);
        assert!(cluster.now_ns() < schedule.drained_ns + MS, "the drivers never end");
    }
    Ok(pairs.into_iter().map(|(mut driver, _, _)| driver.finish()).collect())
}

fn run_plain(workload: &Workload, service_ns: u64) -> Finished {
    run(workload, &Cluster::new(workload, service_ns), |client| client).unwrap()
}

fn judge_history(finished: Finished) -> Result<history::HistoryReport, CheckError> {
    history::check(finished.into_iter().flat_map(|(_, events)| events))
}

/// Watches how many calls are outstanding.
struct Watched {
    inner: LoopbackClient,
    outstanding: usize,
    most: std::rc::Rc<std::cell::Cell<usize>>,
}

impl Client for Watched {
    fn contact(&self) -> Contact {
        Contact::default()
    }

    fn join(&mut self, _: &Roster, _: u64) -> Result<(), BackendError> {
        Ok(())
    }

    fn submit(
        &mut self,
        to: Shard,
        token: crate::backend::CallToken,
        request: &[u8],
    ) -> Result<(), SubmitError> {
        self.inner.submit(to, token, request)?;
        self.outstanding += 1;
        self.most.set(self.most.get().max(self.outstanding));
        Ok(())
    }

    fn poll(
        &mut self,
        budget: usize,
        sink: &mut impl FnMut(Event<'_>),
    ) -> Result<usize, BackendError> {
        let count = self.inner.poll(budget, sink)?;
        self.outstanding -= count;
        Ok(count)
    }

    fn wait(&mut self, deadline_ns: u64) -> Result<(), BackendError> {
        self.inner.wait(deadline_ns)
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

#[test]
fn a_client_says_whether_it_is_worth_its_while_to_look_again() {
    let workload = workload();
    let (cluster, schedule) = (Cluster::new(&workload, 10 * US), Schedule::new(&workload, 0));
    let mut client = cluster.client(ClientId(0));
    let mut driver = Driver::new(&workload, ClientId(0), schedule);
    let mut step = || driver.step(&mut client, &|| cluster.now_ns()).unwrap();
    assert!(matches!(step(), Step::Sent { .. }), "calls left, and no answer can be there");
    assert!(matches!(step(), Step::Idle { .. }), "all calls are outstanding");
    cluster.advance(MS);
    assert_eq!(step(), Step::Busy, "answers came: there is room for more calls");
    assert!(matches!(step(), Step::Sent { .. }));
}

/// `--queue-depth` used to be ignored.
#[test]
fn pitfall_28_the_queue_depth_is_honoured_and_reached() {
    for queue_depth in [1, 3, 32] {
        let workload = Workload { queue_depth, ..workload() };
        let most = std::rc::Rc::new(std::cell::Cell::new(0));
        let cluster = Cluster::new(&workload, 10 * US);
        let watch = |inner| Watched { inner, outstanding: 0, most: most.clone() };
        let finished = run(&workload, &cluster, watch).unwrap();
        assert_eq!(most.get(), queue_depth as usize);
        let seen = finished[0].0.outstanding.iter().max();
        assert_eq!(seen, Some(&queue_depth), "and reported");
    }
}

/// Warm-up used to be counted, and rank 0 multiplied by the number of ranks.
#[test]
fn pitfall_28_throughput_is_the_sum_of_all_over_the_measured_interval() {
    let workload = workload();
    let finished = run_plain(&workload, 10 * US);
    let completed = |(tally, _): &(ClientTally, Vec<HistoryEvent>)| {
        tally.local.completed + tally.remote.completed
    };
    let total = finished.iter().map(completed).sum::<u64>();
    assert!(total.abs_diff(1000) <= 10, "10 ms at 10 us each: {total}");
    let calls = finished.iter().map(|(tally, _)| tally.calls).sum::<u64>();
    assert!(calls >= 1190, "the warm-up made calls too: {calls}");
    for (tally, _) in &finished {
        assert_eq!(
            tally.slices.iter().sum::<u64>(),
            tally.local.completed + tally.remote.completed
        );
        assert!(tally.slices.iter().all(|&count| count > 0), "no slice is dropped");
        assert!(tally.failures.is_empty());
    }
}

#[test]
fn pitfall_27_local_and_remote_are_counted_apart() {
    for (locality, has_local, has_remote) in [
        (Locality::Natural, true, true),
        (Locality::Local, true, false),
        (Locality::Remote, false, true),
    ] {
        let finished = run_plain(&Workload { locality, ..workload() }, US);
        for (tally, _) in finished {
            assert_eq!(tally.local.completed > 0, has_local, "{locality}");
            assert_eq!(tally.remote.completed > 0, has_remote, "{locality}");
            assert_eq!(!tally.local.latency.is_empty(), has_local, "{locality}");
            assert_eq!(!tally.remote.latency.is_empty(), has_remote, "{locality}");
        }
    }
}

/// A closed loop asks nothing while the server stalls; an open one shows what that hides.
#[test]
fn fault_k2_open_loop_latency_shows_a_stall_that_a_closed_loop_hides() {
    let p90_us = |pace| {
        let workload = Workload { pace, ranks: 1, queue_depth: 1, timeout_ms: 50, ..workload() };
        let cluster = Cluster::new(&workload, US);
        cluster.stall(6 * MS..9 * MS); // 3 of the 10 ms that are measured
        let finished = run(&workload, &cluster, |client| client).unwrap();
        finished[0].0.local.latency.value_at_quantile(0.9) / US
    };
    assert!(p90_us(Pace::Closed) < 10, "only one call meets the stall");
    let open = p90_us(Pace::Open(100_000));
    // Calls are due all the time: three tenths of them wait up to 3 ms, and then queue.
    assert!((1500..3500).contains(&open), "{open} us");
}

/// An hour of a rate that nobody keeps up with: drawn one by one, it took longer than it was to take.
#[test]
fn fault_k2_more_calls_than_can_be_drawn_are_counted_and_timed_all_the_same() {
    let (rate, duration_ms) = (100_000_000, 3_000_000);
    let workload = Workload { pace: Pace::Open(rate), duration_ms, keys: 20_000, ..workload() };
    let (cluster, schedule) = (Cluster::new(&workload, US), Schedule::new(&workload, 0));
    let mut client = cluster.client(ClientId(0));
    let mut driver = Driver::new(&workload, ClientId(0), schedule);
    cluster.advance(schedule.drained_ns);
    assert_eq!(driver.step(&mut client, &|| cluster.now_ns()).unwrap(), Step::Done);
    let (tally, _) = driver.finish();
    let due = |ms| (ms * rate / 1000 / u64::from(workload.topology().clients())) as f64;
    let is_near = |found: u64, expected: f64| (found as f64 / expected - 1.0).abs() < 0.02;
    let unsent = tally.failures[&CallFailure::Unsent];
    assert!(is_near(unsent, due(workload.warm_up_ms + duration_ms)), "{unsent} unsent");
    let mut latency = tally.local.latency.clone();
    latency.add(&tally.remote.latency).unwrap();
    assert!(is_near(latency.len(), due(duration_ms)), "those due in the warm-up are not timed");
    let median_ns = latency.value_at_quantile(0.5);
    assert!(is_near(median_ns, (duration_ms * MS / 2 + workload.timeout_ms * MS) as f64));
    let local = tally.local.latency.len();
    assert!(is_near(2 * local, latency.len() as f64), "half of two nodes: {local}");
}

#[test]
fn fault_k2_open_loop_calls_that_are_never_sent_are_counted_and_timed() {
    let pace = Pace::Open(1_000_000); // the server manages a tenth of it
    let workload = Workload { pace, ranks: 1, queue_depth: 1, ..workload() };
    let finished = run_plain(&workload, 10 * US);
    let (tally, _) = &finished[0];
    let unsent = tally.failures[&CallFailure::Unsent];
    assert!(unsent > 5000, "{unsent} unsent");
    let timed = tally.local.latency.len() + tally.remote.latency.len();
    assert!(timed.abs_diff(10_000) < 400, "every call due is in the histogram: {timed}");
    assert!(tally.local.latency.max() > 10 * MS, "one rank: all are local");
    assert!(tally.remote.latency.is_empty());
}

/// What becomes of the calls to one shard.
#[derive(Clone, Copy, Debug)]
enum Broken {
    /// They are not taken.
    Gone,
    /// They are taken, and fail.
    Overloaded,
    /// They are taken and lost, with all of the shard's that are outstanding at the next poll.
    Lost,
}

struct Without {
    inner: LoopbackClient,
    broken: Broken,
    shard: Shard,
    taken: Vec<crate::backend::CallToken>,
}

impl Client for Without {
    fn contact(&self) -> Contact {
        self.inner.contact()
    }

    fn join(&mut self, _: &Roster, _: u64) -> Result<(), BackendError> {
        Ok(())
    }

    fn submit(
        &mut self,
        to: Shard,
        token: crate::backend::CallToken,
        request: &[u8],
    ) -> Result<(), SubmitError> {
        match self.broken {
            _ if to != self.shard => self.inner.submit(to, token, request),
            Broken::Gone => Err(SubmitError::Gone(to)),
            Broken::Overloaded | Broken::Lost => {
                self.taken.push(token);
                Ok(())
            }
        }
    }

    fn poll(
        &mut self,
        budget: usize,
        sink: &mut impl FnMut(Event<'_>),
    ) -> Result<usize, BackendError> {
        let taken = std::mem::take(&mut self.taken);
        match self.broken {
            Broken::Lost if !taken.is_empty() => sink(Event::Lost { shard: self.shard }),
            Broken::Lost => {}
            Broken::Gone | Broken::Overloaded => taken.iter().for_each(|&token| {
                sink(Event::Failed { token, failure: CallFailure::Overloaded });
            }),
        }
        Ok(taken.len() + self.inner.poll(budget, sink)?)
    }

    fn wait(&mut self, deadline_ns: u64) -> Result<(), BackendError> {
        self.inner.wait(deadline_ns)
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

#[test]
fn fault_k2_calls_that_fail_at_one_shard_are_counted_and_timed_and_touch_no_others() {
    let workload = Workload { pace: Pace::Open(2_000_000), queue_depth: 64, ..workload() };
    for (broken, failure) in [
        (Broken::Gone, CallFailure::PeerGone),
        (Broken::Overloaded, CallFailure::Overloaded),
        (Broken::Lost, CallFailure::PeerGone),
    ] {
        let cluster = Cluster::new(&workload, 100);
        let without = |inner| Without { inner, broken, shard: Shard(1), taken: Vec::new() };
        for (id, (tally, _)) in (0..).zip(run(&workload, &cluster, without).unwrap()) {
            let failed = tally.failures[&failure];
            assert_eq!((tally.failures.len(), tally.late), (1, 0), "{broken:?} {tally:?}");
            assert!(failed.abs_diff(6000) < 600, "half of 12 ms at 1 M/s: {failed}");
            let [here, there] = [&tally.local.latency, &tally.remote.latency];
            let [reached, broken] = if id == 0 { [here, there] } else { [there, here] };
            assert!(broken.len().abs_diff(5000) < 500, "of the interval: {}", broken.len());
            assert!(reached.max() < 50 * US, "{} ns", reached.max());
        }
    }
}

/// A call that waited for room is late by that, but has all of its timeout for its answer.
#[test]
fn a_call_is_given_up_a_timeout_after_it_was_sent_and_soon_after_that() {
    let pace = Pace::Open(90_000); // the server manages 100,000
    let base = Workload { pace, ranks: 1, queue_depth: 1, timeout_ms: 1, ..workload() };
    let cluster = Cluster::new(&base, 10 * US);
    cluster.stall(4 * MS..7 * MS);
    let (tally, _) = run(&base, &cluster, |client| client).unwrap().remove(0);
    assert!(
        (1..=3).contains(&tally.failures[&CallFailure::Timeout]),
        "only in the stall: {tally:?}"
    );
    assert!(tally.local.latency.max() > 2 * MS, "what waited for room is late");

    let lossy = Workload { pace: Pace::Closed, timeout_ms: 4, ..base };
    let lose = |client| Faulty::new(client, Fault::Drop, 1);
    let (tally, _) = run(&lossy, &Cluster::new(&lossy, US), lose).unwrap().remove(0);
    assert_eq!(tally.calls, tally.failures[&CallFailure::Timeout]);
    let longest = tally.local.latency.max();
    assert!((4 * MS..=4 * MS + MS / 2).contains(&longest), "sixteenths of a timeout: {longest}");
}

#[test]
fn who_has_nothing_to_do_says_until_when() {
    let workload = Workload { queue_depth: 1, timeout_ms: 4000, ..workload() };
    let (cluster, begin_ns) = (Cluster::new(&workload, 100 * MS), MS);
    let schedule = Schedule::new(&workload, begin_ns);
    assert_eq!(
        (schedule.measure_ns, schedule.end_ns, schedule.drained_ns),
        (3 * MS, 13 * MS, 4013 * MS)
    );
    let mut client = cluster.client(ClientId(0));
    let mut driver = Driver::new(&workload, ClientId(0), schedule);
    let mut step = || driver.step(&mut client, &|| cluster.now_ns()).unwrap();
    assert_eq!(step(), Step::Idle { until_ns: begin_ns }, "too early");
    cluster.advance(begin_ns);
    assert_eq!(step(), Step::Sent { until_ns: 13 * MS }, "the end, before the next sweep");
    cluster.advance(12 * MS);
    assert_eq!(step(), Step::Idle { until_ns: MS + 250 * MS }, "the next sweep, before the answer");
}

/// What it does not know of a key is what every key began with.
#[test]
fn a_cas_expects_what_this_client_knows_of_that_key() {
    let mut driver = Driver::new(&workload(), ClientId(0), Schedule::new(&workload(), 0));
    driver.remember(3, Some(Version(77)));
    assert_eq!(driver.seen_version(3), Some(Version(77)));
    assert_eq!(driver.seen_version(3 + 256), Some(value::INITIAL), "another key of its place");
    driver.remember(3 + 256, None);
    assert_eq!(driver.seen_version(3 + 256), None, "it was deleted");
    assert_eq!(driver.seen_version(3), Some(value::INITIAL), "forgotten");
}

#[test]
fn fault_k1_lies_about_answers_are_found_by_the_client_that_asked() {
    for fault in [Fault::FlipBit, Fault::Cut, Fault::Duplicate, Fault::Swap, Fault::Replay] {
        let workload = Workload { queue_depth: 4, ..workload() };
        let cluster = Cluster::new(&workload, US);
        let result = run(&workload, &cluster, |client| Faulty::new(client, fault, 50));
        assert!(matches!(result, Err(DriveError::Violation { .. })), "{fault:?}");
    }
}

#[test]
fn fault_k1_any_flipped_bit_is_found() {
    for period in 1..100 {
        let workload = Workload { ranks: 1, ..workload() };
        let cluster = Cluster::new(&workload, US);
        let result = run(&workload, &cluster, |client| Faulty::new(client, Fault::FlipBit, period));
        assert!(matches!(result, Err(DriveError::Violation { .. })), "answer {period}");
    }
}

#[test]
fn fault_k1_lies_that_look_right_are_found_by_the_history() {
    for fault in [Fault::Stale, Fault::Forget] {
        let verify = Verify::Full;
        let workload =
            Workload { verify, keys: 20, mix: Mix { get: 50, delete: 0, cas: 0 }, ..workload() };
        let cluster = Cluster::new(&workload, US);
        let finished = run(&workload, &cluster, |client| Faulty::new(client, fault, 20)).unwrap();
        let verdict = judge_history(finished);
        assert!(matches!(verdict, Err(CheckError::Violated { .. })), "{fault:?}: {verdict:?}");
    }
}

#[test]
fn fault_k1_an_honest_store_is_linearizable_also_when_answers_are_lost() {
    for fault in [None, Some(Fault::Drop)] {
        let workload =
            Workload { verify: Verify::Full, keys: 20, clients_per_rank: 2, ..workload() };
        let cluster = Cluster::new(&workload, US);
        let finished = match fault {
            None => run(&workload, &cluster, |client| client).unwrap(),
            Some(fault) => {
                run(&workload, &cluster, |client| Faulty::new(client, fault, 300)).unwrap()
            }
        };
        let timeouts =
            finished.iter().filter_map(|(tally, _)| tally.failures.get(&CallFailure::Timeout));
        assert_eq!(timeouts.sum::<u64>() > 0, fault.is_some(), "what is lost is counted");
        let report = judge_history(finished).unwrap();
        assert_eq!(report.keys, 20);
        assert_eq!(report.unknown > 0, fault.is_some());
    }
}

#[test]
fn a_late_answer_is_neither_an_answer_nor_a_lie() {
    let workload = Workload { ranks: 1, queue_depth: 2, timeout_ms: 1, ..workload() };
    let cluster = Cluster::new(&workload, US);
    cluster.stall(4 * MS..7 * MS);
    let finished = run(&workload, &cluster, |client| client).unwrap();
    let (tally, _) = &finished[0];
    assert!(tally.failures[&CallFailure::Timeout] >= 2);
    assert_eq!(tally.late, tally.failures[&CallFailure::Timeout], "they come after the stall");
}

#[test]
fn a_full_backend_delays_calls_but_loses_none() {
    let workload = Workload { queue_depth: 16, verify: Verify::Full, ..workload() };
    let cluster = Cluster::new(&workload, 5 * US);
    cluster.limit(3);
    let finished = run(&workload, &cluster, |client| client).unwrap();
    for (tally, _) in &finished {
        assert!(tally.failures.is_empty() && tally.calls > 500);
        assert_eq!(tally.outstanding.iter().max(), Some(&3));
    }
    judge_history(finished).unwrap();
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let summary = || {
        let finished = run_plain(&workload(), 7 * US);
        let summarize =
            |(tally, _): (ClientTally, _)| (tally.slices, tally.calls, tally.mismatches);
        finished.into_iter().map(summarize).collect::<Vec<_>>()
    };
    assert_eq!(summary(), summary());
}

#[test]
fn samples_become_means_of_the_slices_that_they_fall_into() {
    let schedule = Schedule {
        begin_ns: 0,
        measure_ns: 100,
        end_ns: 140,
        drained_ns: 200,
        slice_ns: 10,
        series_ns: 0,
    };
    let samples = [(99, 1000), (100, 4), (109, 6), (125, 9), (140, 1000)];
    assert_eq!(schedule.means(samples.into_iter()), [5, 5, 9, 9]);
    assert!(schedule.means([(50, 1)].into_iter()).is_empty());
}

/// Intervals of one job: each is measured for itself, and the client goes on with what it knows of the store.
#[test]
fn a_driver_goes_on_in_the_next_interval_and_counts_from_nothing() {
    let workload = Workload { mix: Mix { get: 50, delete: 0, cas: 25 }, ..workload() };
    let cluster = Cluster::new(&workload, US);
    let mut client = cluster.client(ClientId(0));
    let mut driver = Driver::new(&workload, ClientId(0), Schedule::new(&workload, 0));
    let mut tallies = Vec::new();
    for _ in 0..3 {
        while driver.step(&mut client, &|| cluster.now_ns()).unwrap() != Step::Done {
            cluster.advance(TICK_NS);
        }
        let (tally, _) = driver.finish();
        assert_eq!(driver.answered(), 0, "the next interval counts from nothing");
        assert_eq!(
            tally.slices.iter().sum::<u64>(),
            tally.local.completed + tally.remote.completed
        );
        tallies.push(tally);
        let schedule = Schedule::of_interval(&workload, cluster.now_ns() + MS);
        assert!(schedule.measure_ns - schedule.begin_ns < workload.warm_up_ms * MS + 1);
        driver.restart(&workload, schedule);
    }
    for tally in &tallies {
        assert!(tally.calls > 0 && tally.failures.is_empty(), "{tally:?}");
        assert!(tally.start_skew_ns.is_some());
    }
}
