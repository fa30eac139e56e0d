//! Calls over each protocol, between two ports of the software NIC, on two threads.

use std::{sync::mpsc, thread};

use copyrpc_bench::{
    NicWork,
    by_protocol::ProtocolCalls,
    job::{Job, NicSide, SamplePlan},
    plan::Measurement,
    protocol_plan,
};
use measure::shared_words::SharedWords;
use protocols::Protocol;
use softnic::{Config, Nic};

fn side(fabric: &str) -> NicWork<Nic, impl Fn() -> Result<Nic, String> + use<>> {
    let config = Config { fabric: fabric.to_owned(), ..Config::default() };
    NicWork::new(move || softnic::open(&config).map_err(|error| error.to_string())).unwrap()
}

/// The number of each job, which makes `count` calls.
fn run(jobs: &[(ProtocolCalls, u64)]) -> Vec<f64> {
    let shared = &SharedWords::new().unwrap();
    let fabric = &format!("by-protocol-{}", std::process::id());
    let (to_responder, from_initiator) = mpsc::channel::<Vec<String>>();
    let (to_initiator, from_responder) = mpsc::channel::<Vec<String>>();
    let (ready, is_ready) = mpsc::channel();
    let samples = || jobs.iter().zip(1..);
    let sample = |count, number| SamplePlan { count, number, ..SamplePlan::default() };
    thread::scope(|scope| {
        let responder = scope.spawn(move || {
            let mut side = side(fabric);
            for ((calls, count), number) in samples() {
                let job = Job::Protocol(*calls);
                let told = side.accept(&job, &from_initiator.recv().unwrap()).unwrap();
                to_initiator.send(told).unwrap();
                let mut tell = || {
                    ready.send(()).unwrap();
                    Ok(())
                };
                let served = side.respond(&job, shared, &sample(*count, number), &mut tell);
                served.inspect_err(|_| shared.fail()).unwrap();
            }
        });
        let mut side = side(fabric);
        let mut numbers = Vec::new();
        for ((calls, count), number) in samples() {
            shared.reset();
            let job = Job::Protocol(*calls);
            to_responder.send(side.open(&job).unwrap()).unwrap();
            side.connect(&job, &from_responder.recv().unwrap()).unwrap();
            is_ready.recv().unwrap();
            let measured = side.initiate(&job, shared, &sample(*count, number));
            numbers.push(measured.inspect_err(|_| shared.fail()).unwrap().value);
        }
        responder.join().unwrap();
        numbers
    })
}

#[test]
fn every_protocol_answers_every_call() {
    let loads = [(1, 1, 32, 100), (1, 32, 32, 400), (8, 64, 1000, 400), (1, 1, 1 << 20, 3)];
    let jobs = Protocol::ALL.into_iter().flat_map(|protocol| {
        loads.map(|(lanes, depth, len_bytes, count)| {
            (
                ProtocolCalls { protocol, lanes, depth, len_bytes, scalerpc: Default::default() },
                count,
            )
        })
    });
    let numbers = run(&jobs.collect::<Vec<_>>());
    assert_eq!(numbers.len(), 12);
    assert!(numbers.iter().all(|number| number.is_finite() && *number > 0.0), "{numbers:?}");
}

/// The table has the same rows for each protocol.
#[test]
fn the_plan_treats_protocols_alike() {
    let plan = protocol_plan::plan(false, &Protocol::ALL, &[], Default::default());
    let rows = |protocol: Protocol| {
        let of_it = plan.iter().filter(move |planned| {
            matches!(planned.measurement, Measurement::Together(Job::Protocol(calls))
                if calls.protocol == protocol)
        });
        let prefix = protocol.name().len();
        of_it.map(|planned| planned.cell.name[prefix..].to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(rows(Protocol::Copyrpc).len(), 12);
    assert_eq!(rows(Protocol::Copyrpc), rows(Protocol::Erpc));
    assert_eq!(rows(Protocol::Copyrpc), rows(Protocol::Scalerpc));
}
