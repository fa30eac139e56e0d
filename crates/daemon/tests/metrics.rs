//! Counters through their file: what is written is what is read, and nothing else is.

use std::{env, fs, path::Path, process::Command};

use bootstrap::RankInfo;
use copyrpc_daemon::metrics::{
    Counter, DaemonState, LAYOUT, Life, LoopTimer, MetricsFile, Phase, ReadError, Recorder,
    SAMPLES, Snapshot, Tally, Timing, render,
};
use proptest::prelude::*;

#[path = "../../bootstrap/tests/common/mod.rs"]
mod common;
use common::TempFolder;

fn create(path: &Path, threads: usize) -> (MetricsFile, Vec<Recorder>) {
    MetricsFile::create(path, "job@1", RankInfo::new(1, 4).unwrap(), threads, 8).unwrap()
}

#[test]
fn what_is_written_is_what_is_read() {
    let temp = TempFolder::new("metrics");
    let path = temp.path().join("job.metrics");
    let (file, mut recorders) = create(&path, 2);
    recorders[0].add(Counter::Loops, 3);
    recorders[1].add(Counter::Loops, 4);
    recorders[0].set(Counter::Clients, 2);
    for value in [10, 20, 30_000] {
        recorders[1].record(Timing::Rtt, value);
    }
    let snapshot = Snapshot::read(&path).unwrap();
    assert_eq!((snapshot.name.as_str(), snapshot.rank, snapshot.size), ("job@1", 1, 4));
    assert_eq!(snapshot.state, DaemonState::Alive(Life::Starting));
    assert_eq!(snapshot.sections[0].counter(Counter::Loops), 3);
    let total = snapshot.total();
    assert_eq!((total.counter(Counter::Loops), total.counter(Counter::Clients)), (7, 2));
    let rtt = total.histogram(Timing::Rtt);
    assert_eq!((rtt.count(), rtt.sum(), rtt.quantile(0.5)), (3, 30_030, 20));
    file.set_life(Life::Serving);
    recorders[0].add(Counter::Loops, 1);
    let later = Snapshot::read(&path).unwrap();
    assert_eq!(later.state, DaemonState::Alive(Life::Serving));
    let since = later.total().since(&total);
    assert_eq!((since.counter(Counter::Loops), since.counter(Counter::Clients)), (1, 2));
    assert_eq!(since.histogram(Timing::Rtt).count(), 0);
    drop(file);
    assert_eq!(temp.names(), [""; 0], "a daemon that stops leaves nothing");
}

#[test]
fn what_is_tallied_is_readable_once_it_is_published_or_its_writer_is_gone() {
    let temp = TempFolder::new("metrics-tally");
    let path = temp.path().join("job.metrics");
    let (_file, mut recorders) = create(&path, 1);
    let mut tally = Tally::new(recorders.remove(0));
    let read = || {
        let total = Snapshot::read(&path).unwrap().total();
        let call = total.histogram(Timing::Call);
        (total.counter(Counter::Replies), call.count(), call.sum())
    };
    tally.add(Counter::Replies, 5);
    tally.record(Timing::Call, 0);
    tally.record_all(Timing::Call, 0, 2);
    assert_eq!(read(), (0, 0, 0));
    tally.publish();
    tally.publish();
    assert_eq!(read(), (5, 3, 0));
    for value in [10, 10, 20, 20, 20, 0] {
        tally.add(Counter::Replies, 1);
        tally.record(Timing::Call, value);
    }
    drop(tally);
    assert_eq!(read(), (11, 9, 80));
}

#[test]
fn samples_form_a_ring_and_come_at_most_every_10_ms() {
    let temp = TempFolder::new("metrics-samples");
    let path = temp.path().join("job.metrics");
    let (_file, mut recorders) = create(&path, 1);
    let recorder = &mut recorders[0];
    let count = SAMPLES as u64 + 10;
    for number in 0..count {
        recorder.add(Counter::Replies, 2);
        recorder.sample(number * 10_000_000, number);
        recorder.sample(number * 10_000_000 + 9_999_999, 999);
    }
    let total = Snapshot::read(&path).unwrap().total();
    let samples = total.samples();
    assert_eq!(samples.len(), SAMPLES);
    assert_eq!((samples[0].number, samples[SAMPLES - 1].number), (11, count));
    assert!(samples.iter().all(|sample| sample.outstanding == sample.number - 1));
    assert!(samples.iter().all(|sample| sample.done == 2 * sample.number));
}

#[test]
fn the_moments_of_all_threads_are_sums_of_what_each_said_last() {
    let temp = TempFolder::new("metrics-moments");
    let path = temp.path().join("job.metrics");
    let (_file, mut recorders) = create(&path, 2);
    for (thread, time_ns, outstanding) in
        [(0, 10_000_000, 5), (1, 15_000_000, 100), (0, 20_000_000, 7), (1, 40_000_000, 0)]
    {
        recorders[thread].add(Counter::Replies, outstanding);
        recorders[thread].sample(time_ns, outstanding);
    }
    let total = Snapshot::read(&path).unwrap().total();
    let moments = total.samples().iter();
    let moments =
        moments.map(|sample| (sample.time_ns / 1_000_000, sample.outstanding, sample.done));
    assert_eq!(
        moments.collect::<Vec<_>>(),
        [(10, 5, 5), (15, 105, 105), (20, 107, 112), (40, 7, 112)]
    );
}

#[test]
fn one_turn_in_so_many_is_timed_by_phase() {
    let temp = TempFolder::new("metrics-timer");
    let path = temp.path().join("job.metrics");
    let (_file, mut recorders) = create(&path, 1);
    let (mut timer, mut now_ns) = (LoopTimer::new(4), 0);
    for _ in 0..10 {
        if let Some(mut lap) = timer.begin(|| now_ns) {
            lap.phase(&mut recorders[0], Phase::Clients, now_ns + 7);
            lap.phase(&mut recorders[0], Phase::Control, now_ns + 10);
            lap.end(&mut recorders[0]);
        }
        now_ns += 100;
    }
    let total = Snapshot::read(&path).unwrap().total();
    let of = |timing| (total.histogram(timing).count(), total.histogram(timing).sum());
    assert_eq!(of(Timing::PhaseClients), (3, 21));
    assert_eq!(of(Timing::PhaseControl), (3, 9));
    assert_eq!(of(Timing::Loop), (3, 30));
    assert!(LoopTimer::new(0).begin(|| unreachable!("no clock is read")).is_none());
}

#[test]
fn other_versions_layouts_and_files_are_told_apart() {
    let temp = TempFolder::new("metrics-foreign");
    let path = temp.path().join("job.metrics");
    let (_file, _recorders) = create(&path, 1);
    let whole = fs::read(&path).unwrap();
    let parse = |bytes: &[u8]| Snapshot::parse(&path, bytes).map(|snapshot| snapshot.rank);
    assert_eq!(parse(&whole).unwrap(), 1);
    let mut other = whole.clone();
    other[8] = 77;
    let error = parse(&other).unwrap_err().to_string();
    assert!(error.contains("version 77") && error.contains(&format!("{LAYOUT:x}")), "{error}");
    assert!(matches!(parse(&whole[..whole.len() / 2]), Err(ReadError::Short { .. })));
    assert!(matches!(parse(b"[toml]"), Err(ReadError::Foreign { .. })));
    assert!(matches!(Snapshot::read(temp.path()), Err(ReadError::Io { .. })));
}

#[test]
fn counters_are_readable_after_a_crash_and_replaced_by_the_next_daemon() {
    let temp = TempFolder::new("metrics-crash");
    let path = temp.path().join("job.metrics");
    let mut child = Command::new(env::current_exe().unwrap());
    child.args(["--exact", "what_the_daemon_that_crashes_does", "--nocapture"]);
    child.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    assert!(!child.env(CHILD, &path).status().unwrap().success());
    let crashed = Snapshot::read(&path).unwrap();
    assert_eq!(crashed.state, DaemonState::Crashed);
    assert_eq!(crashed.total().counter(Counter::Loops), 41);
    let (_file, _recorders) = create(&path, 1);
    assert_eq!(Snapshot::read(&path).unwrap().total().counter(Counter::Loops), 0);
    assert_eq!(temp.names(), ["job.metrics"]);
}

const CHILD: &str = "TEST_CHILD_METRICS";

/// Not a test by itself: what the process does that the test above starts.
#[test]
fn what_the_daemon_that_crashes_does() {
    let Some(path) = env::var_os(CHILD) else { return };
    let (file, mut recorders) = create(path.as_ref(), 1);
    file.set_life(Life::Serving);
    recorders[0].add(Counter::Loops, 41);
    std::process::abort();
}

#[test]
fn prometheus_gets_each_family_once_with_help_and_labels() {
    let temp = TempFolder::new("metrics-prometheus");
    let path = temp.path().join("job.metrics");
    let (_file, mut recorders) = create(&path, 1);
    recorders[0].add(Counter::Flushes, 5);
    // The largest value of a bucket that is shown, the next one, and one in the bucket behind that.
    for rtt_ns in [255, 256, 612] {
        recorders[0].record(Timing::Rtt, rtt_ns);
    }
    let snapshot = Snapshot::read(&path).unwrap();
    let text = render::prometheus(&[snapshot.clone(), snapshot]);
    assert_eq!(text.matches("# TYPE copyrpc_flushes_total counter").count(), 1);
    assert_eq!(text.matches("copyrpc_flushes_total{daemon=\"job@1\",rank=\"1\"} 5\n").count(), 2);
    assert!(!text.contains("_ns"), "base units in names");
    assert!(text.contains("# TYPE copyrpc_rtt_seconds histogram\n"), "{text}");
    let bucket = |le: &str, count: u64| {
        format!("copyrpc_rtt_seconds_bucket{{daemon=\"job@1\",rank=\"1\",le=\"{le}\"}} {count}\n")
    };
    for (le, count) in [("0.000000255", 1), ("0.000000511", 2), ("0.000001023", 3), ("+Inf", 3)] {
        assert!(text.contains(&bucket(le, count)), "{le}: {count}\n{text}");
    }
    let sum = "copyrpc_rtt_seconds_sum{daemon=\"job@1\",rank=\"1\"} 0.000001123\n";
    assert!(text.contains(sum), "{text}");
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(name.starts_with("copyrpc_") && value.parse::<f64>().is_ok(), "{line}");
    }
}

#[test]
fn prometheus_gets_each_thread_of_several_with_its_label() {
    let temp = TempFolder::new("metrics-prometheus-threads");
    let path = temp.path().join("job.metrics");
    let (_file, mut recorders) = create(&path, 2);
    recorders[1].add(Counter::Flushes, 5);
    let text = render::prometheus(&[Snapshot::read(&path).unwrap()]);
    for (thread, value) in [(0, 0), (1, 5)] {
        let labels = format!("daemon=\"job@1\",rank=\"1\",thread=\"{thread}\"");
        assert!(text.contains(&format!("copyrpc_flushes_total{{{labels}}} {value}\n")), "{text}");
    }
    assert_eq!(text.matches("copyrpc_up{").count(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64, failure_persistence: None, ..Default::default()
    })]

    #[test]
    fn any_bytes_are_refused_or_read(
        at in 0usize..256, bytes in proptest::collection::vec(any::<u8>(), 0..64), cut in 0usize..100,
    ) {
        let temp = TempFolder::new("metrics-any");
        let path = temp.path().join("job.metrics");
        let (_file, _recorders) = create(&path, 1);
        let mut image = fs::read(&path).unwrap();
        image[at..at + bytes.len()].copy_from_slice(&bytes);
        image.truncate(image.len() - image.len() * cut / 100);
        if let Ok(snapshot) = Snapshot::parse(&path, &image) {
            prop_assert!(snapshot.total().samples().len() <= SAMPLES);
            prop_assert!(render::prometheus(&[snapshot]).contains("copyrpc_up"));
        }
    }
}
