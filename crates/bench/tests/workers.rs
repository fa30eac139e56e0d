//! WorkerCalls of every load between two workers on the software NIC, on two threads.

use std::{sync::mpsc, thread};

use copyrpc_bench::{
    board::Board,
    duo::DuoError,
    workers::{
        Measured, WorkerCalls, WorkerError, WorkerParty, WorkerSample, Workers,
        switches::{Carrier, Flush, Grid, Switch, Switches},
    },
};
use softnic::{Config, Nic};

/// Timed calls per sample: some windows.
const COUNT: u64 = 50;

fn workers(fabric: &str) -> Workers<Nic, impl Fn() -> Result<Nic, String> + use<>> {
    let fabric = format!("{fabric}-{}", std::process::id());
    let config = Config { fabric, ..Config::default() };
    Workers::new(move || softnic::open(&config).map_err(|error| error.to_string()))
}

/// Runs each sample between two threads and returns what the initiator measured.
fn run(fabric: &str, samples: &[WorkerSample]) -> Vec<Measured> {
    let board = Board::new().unwrap();
    let (to_responder, from_initiator) = mpsc::channel::<Vec<String>>();
    let (to_initiator, from_responder) = mpsc::channel::<Vec<String>>();
    let (ready, is_ready) = mpsc::channel();
    thread::scope(|scope| {
        let board = &board;
        let responder = scope.spawn(move || {
            let mut party = workers(fabric);
            for sample in samples {
                to_initiator.send(party.open(&sample.calls)?).unwrap();
                party.connect(&from_initiator.recv().unwrap())?;
                let mut tell = || ready.send(()).map_err(|_| DuoError::PeerGone);
                party.respond(board, sample, &mut tell).inspect_err(|_| board.fail())?;
            }
            Ok::<_, WorkerError>(())
        });
        let mut party = workers(fabric);
        let mut initiate = |sample: &WorkerSample| {
            let theirs = from_responder.recv().map_err(|_| WorkerError::NotOpen)?;
            to_responder.send(party.open(&sample.calls)?).unwrap();
            party.connect(&theirs)?;
            if is_ready.recv().is_err() {
                return Err(WorkerError::NotOpen);
            }
            party.initiate(board, sample).inspect_err(|_| board.fail())
        };
        let measured = samples.iter().map(&mut initiate).collect::<Result<_, _>>();
        let responder = responder.join().unwrap();
        // What failed there is usually why this failed here.
        assert!(responder.is_ok() && measured.is_ok(), "{responder:?}, {measured:?}");
        measured.unwrap()
    })
}

#[test]
fn every_point_of_the_matrix_answers_every_call() {
    let grid = Grid {
        transport: vec![Carrier::Rc, Carrier::Dc],
        dcis: vec![1, 2],
        inline: vec![Switch::On, Switch::Off],
        doorbell_batching: vec![Switch::On, Switch::Off],
        srq: vec![Switch::On, Switch::Off],
        signal_interval: vec![1, 16],
        flush: vec!["self-clocked:2".parse().unwrap()],
    };
    let samples = (1..).zip(grid.points()).map(|(number, (switches, _))| {
        let calls = WorkerCalls { switches, endpoints: 2, depth: 16, len_bytes: 32 };
        WorkerSample { calls, count: COUNT, number }
    });
    let measured = run("matrix", &samples.collect::<Vec<_>>());
    assert_eq!(measured.len(), 32);
    assert!(measured.iter().all(|m| m.value > 0.0 && m.merging.calls >= 1.0), "{measured:?}");
}

#[test]
fn every_flush_policy_and_every_size_answers_every_call() {
    let policies = ["immediate", "hold:2us", "adaptive-hold:4", "rtt-hold:0.5", "poll-budget:2"];
    let flushes = policies.map(|text| text.parse::<Flush>().unwrap());
    let sizes = [8, 4096, 1 << 20].map(|len_bytes| (Flush(Default::default()), len_bytes));
    let shapes = flushes.into_iter().map(|flush| (flush, 32)).chain(sizes);
    let samples = (1..).zip(shapes).map(|(number, (flush, len_bytes))| {
        let switches = Switches { flush, ..Switches::default() };
        let calls = WorkerCalls { switches, endpoints: 1, depth: 1, len_bytes };
        WorkerSample { calls, count: 20, number }
    });
    for measured in run("policies", &samples.collect::<Vec<_>>()) {
        assert!(measured.value > 0.0, "{measured:?}");
        // Releases of large answers ride with the next call.
        assert!((1.0..=2.0).contains(&measured.merging.calls), "{measured:?}");
    }
}
