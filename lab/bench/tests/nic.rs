//! Every kind of traffic and of calls, between two ports of the software NIC, on two threads.

use std::{sync::mpsc, thread};

use copyrpc_bench::{
    Error, NicWork,
    dc_plan::{self, DcGrid},
    job::{Job, Measured, NicSide, SamplePlan},
    plan::{self, Measurement},
    workers::{
        WorkerCalls,
        switches::{Grid, SWITCHES, Switches},
    },
};
use measure::shared_words::SharedWords;
use softnic::{Config, Nic};

/// Messages per kind: more than any window, and whole batches.
const COUNT: u64 = 600;

fn side(fabric: &str) -> NicWork<Nic, impl Fn() -> Result<Nic, String> + use<>> {
    let fabric = format!("{fabric}-{}", std::process::id());
    let config = Config { fabric, ..Config::default() };
    NicWork::new(move || softnic::open(&config).map_err(|error| error.to_string())).unwrap()
}

/// Runs `samples` between two threads and returns what the initiator measured.
fn run(fabric: &str, samples: &[(Job, SamplePlan)]) -> Result<Vec<Measured>, Error> {
    let (numbers, responder) = run_each(fabric, samples, samples);
    responder.and(numbers)
}

/// The initiator runs `ours`, the responder `theirs`. Both stay until both are done: queues torn down by one side
/// would fail the other's requests in their own way.
fn run_each(
    fabric: &str,
    ours: &[(Job, SamplePlan)],
    theirs: &[(Job, SamplePlan)],
) -> (Result<Vec<Measured>, Error>, Result<(), Error>) {
    let shared = &SharedWords::new().unwrap();
    let (to_responder, from_initiator) = mpsc::channel::<Vec<String>>();
    let (to_initiator, from_responder) = mpsc::channel::<Vec<String>>();
    let (ready, is_ready) = mpsc::channel();
    let (end, is_end) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let responder = scope.spawn(move || {
            let mut side = side(fabric);
            let mut respond = |(job, sample): &(Job, SamplePlan)| {
                let _ = to_initiator.send(side.open(job)?);
                let Ok(contacts) = from_initiator.recv() else { return Err(Error::NoNic) };
                side.connect(job, &contacts)?;
                let mut tell = || ready.send(()).map_err(|_| Error::Stray);
                side.respond(job, shared, sample, &mut tell).inspect_err(|_| shared.fail())
            };
            let done = theirs.iter().try_for_each(&mut respond);
            drop((ready, to_initiator));
            let _ = is_end.recv();
            done
        });
        let mut side = side(fabric);
        let mut initiate = |(job, sample): &(Job, SamplePlan)| {
            let theirs = from_responder.recv().map_err(|_| Error::NoNic)?;
            let _ = to_responder.send(side.open(job)?);
            side.connect(job, &theirs)?;
            shared.reset();
            if is_ready.recv().is_err() {
                return Err(Error::NoNic); // its own reason comes first
            }
            side.initiate(job, shared, sample).inspect_err(|_| shared.fail())
        };
        let numbers = ours.iter().map(&mut initiate).collect::<Result<_, _>>();
        drop((to_responder, end));
        (numbers, responder.join().unwrap())
    })
}

fn jobs(plan: Vec<plan::Planned>) -> impl Iterator<Item = Job> {
    plan.into_iter().filter_map(|planned| match planned.measurement {
        Measurement::Together(job @ (Job::Traffic(_) | Job::Worker(_))) => Some(job),
        _ => None,
    })
}

fn sample(count: u64, number: u64) -> SamplePlan {
    SamplePlan { count, number, ..SamplePlan::default() }
}

#[test]
#[ignore = "slow: every measurement of the NIC"]
fn every_kind_of_traffic_arrives_intact_and_leaves_nothing_behind_slow() {
    let jobs = || jobs(plan::verbs(true));
    // Small ones again on the same links: what one sample left, the next would trip over.
    let samples = (1..).zip(jobs().chain(jobs().take(20))).map(|(number, job)| {
        let Job::Traffic(traffic) = &job else { unreachable!("verbs makes no calls") };
        let is_large = format!("{traffic:?}").contains("len_bytes: 65536")
            || format!("{traffic:?}").contains("len_bytes: 1048576");
        let count = if is_large { 20 } else { COUNT };
        (job, sample(count, number))
    });
    let samples = samples.collect::<Vec<_>>();
    let numbers = run("traffic", &samples).unwrap();
    assert_eq!(numbers.len(), samples.len());
    let is_number = |measured: &Measured| measured.value.is_finite() && measured.value > 0.0;
    assert!(numbers.iter().all(is_number), "{numbers:?}");
}

#[test]
fn the_longest_messages_arrive_intact() {
    let mut plan = plan::verbs(false);
    plan.extend(plan::rpc(false, &Grid::default()));
    // Builds without optimization move bytes so slowly that longer bodies meet the NIC's timeouts on a busy machine.
    let names = ["bandwidth/rc-send/16MiB", "rpc/round-trip/4MiB", "rpc/one-way/4MiB"];
    plan.retain(|planned| names.contains(&planned.cell.name.as_str()));
    let samples = (1..).zip(jobs(plan)).map(|(number, job)| (job, sample(2, number)));
    let samples = samples.collect::<Vec<_>>();
    assert_eq!(samples.len(), 3, "{samples:?}");
    assert_eq!(run("longest", &samples).unwrap().len(), samples.len());
}

#[test]
fn two_sides_that_disagree_about_the_sample_are_told() {
    let job = jobs(plan::verbs(true)).next().unwrap();
    let (ours, theirs) = ([(job.clone(), sample(50, 1))], [(job, sample(50, 2))]);
    let (initiator, responder) = run_each("disagree", &ours, &theirs);
    assert!(matches!(responder, Err(Error::WrongBytes { index: 0, .. })), "{responder:?}");
    assert!(matches!(initiator, Err(Error::Wait(_))), "{initiator:?}");
}

fn dc_jobs(grid: &DcGrid) -> Vec<Job> {
    let plan = dc_plan::dc_reads(true, grid);
    let jobs = plan.into_iter().map(|planned| match planned.measurement {
        Measurement::Together(job @ Job::DcReads(_)) => job,
        other => unreachable!("{other:?}"),
    });
    jobs.collect()
}

#[test]
fn reads_over_dc_fetch_what_lies_at_every_target() {
    let grid = DcGrid { windows: vec![1, 5, 64], initiators: vec![3, 16], targets: vec![1, 7] };
    let jobs = [dc_jobs(&DcGrid::default()), dc_jobs(&grid)].concat();
    let samples = (1..).zip(jobs).map(|(number, job)| (job, sample(COUNT, number)));
    let samples = samples.collect::<Vec<_>>();
    assert_eq!(samples.len(), 4 + 2 * 4 + 4 + 3 * 2 * 2 * 3);
    let numbers = run("dc", &samples).unwrap();
    assert!(numbers.iter().all(|measured| measured.value.is_finite() && measured.value > 0.0));
}

#[test]
fn a_read_over_dc_that_fetches_something_else_is_noticed() {
    let job = dc_jobs(&DcGrid::default()).remove(0);
    let (ours, theirs) = ([(job.clone(), sample(50, 1))], [(job, sample(50, 2))]);
    let (initiator, _) = run_each("dc-wrong", &ours, &theirs);
    assert!(matches!(initiator, Err(Error::Wrong { what: "first word", .. })), "{initiator:?}");
}

fn calls(switches: Switches, endpoints: u16, depth: u16, len_bytes: usize) -> Job {
    Job::Worker(WorkerCalls {
        switches,
        endpoints,
        depth,
        len_bytes,
        is_one_way: false,
        tail_beside: None,
    })
}

/// The default but for these lists of values.
fn grid(lists: &[(&str, &[&str])]) -> Grid {
    let mut grid = Grid::default();
    for (switch, values) in SWITCHES.iter().zip(&mut grid.switches) {
        if let Some((_, list)) = lists.iter().find(|(name, _)| *name == switch.name) {
            *values = list.iter().map(|&value| value.to_owned()).collect();
        }
    }
    grid
}

#[test]
fn every_point_of_the_matrix_answers_every_call() {
    let both: &[&str] = &["on", "off"];
    let grid = grid(&[
        ("transport", &["rc", "dc"]),
        ("dcis", &["1", "2"]),
        ("inline", both),
        ("doorbell-batching", both),
        ("srq", both),
        ("signal-interval", &["1", "16"]),
    ]);
    let samples = (1..).zip(grid.points());
    let samples = samples.map(|(n, (switches, _))| (calls(switches, 2, 16, 32), sample(50, n)));
    let measured = run("matrix", &samples.collect::<Vec<_>>()).unwrap();
    assert_eq!(measured.len(), 32);
    let is_right = |m: &Measured| m.value > 0.0 && m.per_batch.is_some_and(|p| p.calls >= 1.0);
    assert!(measured.iter().all(is_right), "{measured:?}");
}

#[test]
fn every_flush_policy_and_every_size_answers_every_call() {
    let policies: &[&str] =
        &["immediate", "hold:2us", "adaptive-hold:4", "rtt-hold:0.5", "poll-budget:2"];
    let flushes = grid(&[("flush", policies)]).points().into_iter().map(|(s, _)| (s, 32));
    let sizes = [8, 4096, 1 << 20].map(|len_bytes| (Switches::default(), len_bytes));
    let samples = (1..).zip(flushes.chain(sizes));
    let samples = samples.map(|(n, (switches, len))| (calls(switches, 1, 1, len), sample(20, n)));
    for measured in run("policies", &samples.collect::<Vec<_>>()).unwrap() {
        assert!(measured.value > 0.0, "{measured:?}");
        // Releases of large answers ride with the next call.
        let calls = measured.per_batch.unwrap().calls;
        assert!((1.0..=2.0).contains(&calls), "{measured:?}");
    }
}

#[test]
fn calls_beside_long_bodies_are_answered_and_timed() {
    let job = |beside| {
        Job::Worker(WorkerCalls {
            endpoints: 2,
            depth: 1,
            len_bytes: 56,
            tail_beside: Some(beside),
            ..WorkerCalls::default()
        })
    };
    let samples = (1..).zip([0, 100_000]);
    let samples = samples.map(|(n, beside)| (job(beside), sample(100, n)));
    let measured = run("tail", &samples.collect::<Vec<_>>()).unwrap();
    assert!(measured.iter().all(|m| m.value > 0.0), "{measured:?}");
}

#[test]
fn bodies_that_go_one_way_are_compared_and_answered_with_a_word() {
    let job = |len_bytes| {
        let switches = Switches::default();
        let (endpoints, depth, is_one_way) = (1, 4, true);
        Job::Worker(WorkerCalls {
            switches,
            endpoints,
            depth,
            len_bytes,
            is_one_way,
            tail_beside: None,
        })
    };
    let samples = (1..).zip([8, 56, 4096, 1 << 20]);
    let samples = samples.map(|(n, len_bytes)| (job(len_bytes), sample(100, n)));
    let measured = run("one-way", &samples.collect::<Vec<_>>()).unwrap();
    assert!(measured.iter().all(|m| m.value > 0.0), "{measured:?}");
}
