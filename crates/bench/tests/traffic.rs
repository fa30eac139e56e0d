//! Every kind of traffic, between two ports of the software NIC, on two threads.

use std::{sync::mpsc, thread};

use copyrpc_bench::{
    board::{Board, WaitError},
    duo::DuoError,
    plan,
    suite::Job,
    traffic::{Contact, Links, Party, Sample, Traffic, TrafficError},
};
use softnic::{Config, Nic};

/// Messages per kind: more than any window, and whole batches.
const COUNT: u64 = 600;

fn open(fabric: &str) -> Links<Nic> {
    let fabric = format!("{fabric}-{}", std::process::id());
    Links::create(softnic::open(&Config { fabric, ..Config::default() }).unwrap()).unwrap()
}

/// Runs `samples` between two threads and returns what the initiator measured.
fn run(fabric: &str, samples: &[Sample]) -> Result<Vec<f64>, TrafficError> {
    let board = Board::new().unwrap();
    let (to_responder, from_initiator) = mpsc::channel::<Vec<Contact>>();
    let (to_initiator, from_responder) = mpsc::channel::<Vec<Contact>>();
    let (ready, is_ready) = mpsc::channel();
    let (next, is_next) = mpsc::channel();
    thread::scope(|scope| {
        let board = &board;
        let responder = scope.spawn(move || {
            let mut links = open(fabric);
            to_initiator.send(Party::contacts(&links)).unwrap();
            Party::connect(&mut links, &from_initiator.recv().unwrap())?;
            for sample in samples {
                is_next.recv().unwrap();
                let mut tell = || ready.send(()).map_err(|_| DuoError::PeerGone);
                links.respond(board, sample, &mut tell).inspect_err(|_| board.fail())?;
            }
            Ok::<_, TrafficError>(())
        });
        let mut links = open(fabric);
        to_responder.send(Party::contacts(&links)).unwrap();
        Party::connect(&mut links, &from_responder.recv().unwrap())?;
        let initiate = |sample| {
            board.reset();
            let in_turn = next.send(()).is_ok() && is_ready.recv().is_ok();
            if !in_turn {
                return Err(WaitError::PeerFailed.into()); // its own reason comes first, below
            }
            links.initiate(board, sample).inspect_err(|_| board.fail())
        };
        let numbers = samples.iter().map(initiate).collect::<Result<_, _>>();
        responder.join().unwrap().and(numbers)
    })
}

fn traffic() -> impl Iterator<Item = Traffic> {
    plan::verbs(true).into_iter().filter_map(|planned| match planned.job {
        Job::Traffic(traffic) => Some(traffic),
        _ => None,
    })
}

#[test]
fn every_kind_of_traffic_arrives_intact_and_leaves_nothing_behind() {
    // Twice in a row on the same links: what one sample left, the next would trip over.
    let samples = (1..)
        .zip(traffic().chain(traffic()))
        .map(|(number, traffic)| {
            let is_large = matches!(traffic, Traffic::Transfer(t) if t.len_bytes >= 64 << 10)
                || matches!(traffic, Traffic::RoundTrip(t) if t.len_bytes >= 64 << 10);
            Sample { traffic, count: if is_large { 50 } else { COUNT }, number }
        })
        .collect::<Vec<_>>();
    let numbers = run("traffic", &samples).unwrap();
    assert_eq!(numbers.len(), samples.len());
    assert!(numbers.iter().all(|number| number.is_finite() && *number > 0.0), "{numbers:?}");
}

#[test]
fn two_sides_that_disagree_about_the_sample_are_told() {
    let board = Board::new().unwrap();
    let mut links = (open("disagree"), open("disagree"));
    let contacts = (Party::contacts(&links.0), Party::contacts(&links.1));
    Party::connect(&mut links.0, &contacts.1).unwrap();
    Party::connect(&mut links.1, &contacts.0).unwrap();
    let sample = |number| Sample { traffic: traffic().next().unwrap(), count: 50, number };
    let (ready, is_ready) = mpsc::channel();
    let (initiator, responder) = thread::scope(|scope| {
        // Borrowed: queues torn down by one side would fail the other's requests in their own way.
        let (here, there) = (&mut links.0, &mut links.1);
        let board = &board;
        let responder = scope.spawn(move || {
            let mut tell = || ready.send(()).map_err(|_| DuoError::PeerGone);
            there.respond(board, &sample(2), &mut tell).inspect_err(|_| board.fail())
        });
        is_ready.recv().unwrap();
        let initiator = here.initiate(board, &sample(1));
        (initiator, responder.join().unwrap())
    });
    assert!(matches!(responder, Err(TrafficError::WrongBytes { index: 0, .. })), "{responder:?}");
    assert!(matches!(initiator, Err(TrafficError::Wait(_))), "{initiator:?}");
}
