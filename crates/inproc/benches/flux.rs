//! Cost of a call between n threads that all call each other, each with a window of calls to each.
//!
//! Reported: wall time per call of one thread, reply included. Every reply is checked. Pinned round
//! robin to the cores allowed; with fewer cores than threads the numbers say how sleeping works, not
//! how fast lines move. Smoke mode: `cargo test --benches`.
#![allow(missing_docs, reason = "criterion_group! makes an undocumented function")]

use std::{sync::Barrier, thread, time::Duration, time::Instant};

use copyrpc_inproc::{
    Waiting,
    flux::{self, Config, Event, Node},
    spsc::{Discipline, FastForward, Lamport, Onesided},
};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

const CALLS_MAX: u32 = 32;

fn run<D: Discipline>(threads: usize, calls: u64) -> Duration {
    let config = Config {
        nodes: threads,
        calls_max: CALLS_MAX,
        waiting: Waiting::default(),
        ..Config::default()
    };
    let nodes = flux::mesh::<u64, u64, u64, D>(config);
    let barrier = Barrier::new(threads);
    let cores = os::affinity::allowed_cores().unwrap_or_default();
    let times: Vec<(Instant, Instant)> = thread::scope(|scope| {
        let run = |node: Node<u64, u64, u64, D>| {
            if !cores.is_empty() {
                // Unpinned numbers are worse, not wrong.
                let _ = os::affinity::pin_current_thread(cores[node.number() % cores.len()]);
            }
            barrier.wait();
            let start = Instant::now();
            work(node, threads, calls);
            (start, Instant::now())
        };
        let running: Vec<_> =
            nodes.into_iter().map(|node| scope.spawn(move || run(node))).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let start = times.iter().map(|(start, _)| *start).min().expect("threads");
    times.iter().map(|(_, stop)| *stop - start).max().expect("threads")
}

/// Calls the others in turn, answers theirs, and stays until all are done.
fn work<D: Discipline>(mut node: Node<u64, u64, u64, D>, threads: usize, calls: u64) {
    let (number, others) = (node.number(), threads - 1);
    let (mut sent, mut replied, mut told, mut ended) = (0u64, 0u64, 0, 0);
    let mut to = number;
    let next = |to: usize| {
        if (to + 1) % threads == number { (to + 2) % threads } else { (to + 1) % threads }
    };
    to = next(to);
    while replied < calls || told < others || ended < others {
        while sent < calls && node.call(to, sent, sent).is_ok() {
            sent += 1;
            to = next(to);
        }
        while replied == calls && told < others {
            let peer = (number + 1 + told) % threads;
            if node.notify(peer, 0).is_err() {
                break;
            }
            told += 1;
        }
        let mut is_idle = true;
        while let Some(event) = node.poll() {
            is_idle = false;
            match event {
                Event::Request { request, reply, .. } => reply.send(request + 1),
                Event::Notice { .. } => ended += 1,
                Event::Reply { user, result, .. } => {
                    assert_eq!(result, Ok(user + 1));
                    replied += 1;
                }
            }
        }
        if is_idle {
            node.wait(os::clock::deadline_ns(Duration::from_millis(10)));
        }
    }
}

fn discipline<D: Discipline>(c: &mut Criterion, name: &str) {
    let mut group = c.benchmark_group(format!("flux/{name}"));
    group.throughput(Throughput::Elements(1));
    for threads in [2, 4, 8] {
        let id = BenchmarkId::new("threads", threads);
        group.bench_function(id, |b| b.iter_custom(|calls| run::<D>(threads, calls)));
    }
    group.finish();
}

fn all(c: &mut Criterion) {
    discipline::<Lamport>(c, "lamport");
    discipline::<FastForward>(c, "fastforward");
    discipline::<Onesided>(c, "onesided");
}

criterion_group!(benches, all);
criterion_main!(benches);
