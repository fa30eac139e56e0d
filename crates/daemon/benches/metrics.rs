//! What counting costs a turn of the daemon's loop, in nanoseconds: the numbers of `metrics`.
//!
//! | cell | what one iteration does |
//! |---|---|
//! | `count` | one addition to a counter |
//! | `record` | one value of a distribution |
//! | `record in a row` | the same value again |
//! | `turn, untimed` | the four counters of a turn that finds nothing |
//! | `turn, 1 in N timed` | the same, with all five phases timed in one of N turns |
#![allow(missing_docs, reason = "criterion_group! makes an undocumented function")]

use std::{env, fs, hint::black_box, process};

use bootstrap::RankInfo;
use copyrpc_daemon::metrics::{Counter, LoopTimer, MetricsFile, Phase, Snapshot, Tally, Timing};
use criterion::{Criterion, criterion_group, criterion_main};

const PHASES: [Phase; 5] =
    [Phase::Clients, Phase::Nic, Phase::Post, Phase::Waiting, Phase::Control];

fn turn(tally: &mut Tally, timer: &mut LoopTimer) {
    let lap = timer.begin(os::clock::now_ns);
    tally.add(Counter::Loops, 1);
    for counter in [Counter::RequestsIpc, Counter::Completions, Counter::Incoming] {
        tally.add(counter, black_box(0));
    }
    if let Some(mut lap) = lap {
        for phase in PHASES {
            lap.phase(tally.recorder(), phase, os::clock::now_ns());
        }
        lap.end(tally.recorder());
    }
}

fn metrics(c: &mut Criterion) {
    let path = env::temp_dir().join(format!("copyrpc-bench-{}.metrics", process::id()));
    let made = MetricsFile::create(&path, "bench", RankInfo::ALONE, 1, 0);
    let (_file, mut recorders) = made.expect("room for a file of counters");
    let mut tally = Tally::new(recorders.remove(0));
    let tally = &mut tally;
    c.bench_function("count", |b| b.iter(|| tally.add(Counter::Flushes, black_box(1))));
    let mut value = 0_u64;
    c.bench_function("record", |b| {
        b.iter(|| {
            value = value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            tally.record(Timing::Rtt, black_box(value >> 44));
        });
    });
    c.bench_function("record in a row", |b| b.iter(|| tally.record(Timing::Rtt, black_box(7))));
    for every in [0, 1024, 64, 1] {
        let name = match every {
            0 => "turn, untimed".to_owned(),
            every => format!("turn, 1 in {every} timed"),
        };
        let mut timer = LoopTimer::new(every);
        c.bench_function(&name, |b| b.iter(|| turn(tally, &mut timer)));
    }
    tally.publish();
    let total = Snapshot::read(&path).expect("just written").total();
    assert!(total.counter(Counter::Loops) > 0 && total.histogram(Timing::Loop).count() > 0);
    fs::remove_file(&path).expect("it is there");
}

criterion_group!(benches, metrics);
criterion_main!(benches);
