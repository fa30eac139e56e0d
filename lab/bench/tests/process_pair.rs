//! Two real processes. Without the usual harness, because this program must be able to run itself
//! as the other side.

use std::{
    fs,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use copyrpc_bench::{
    Error,
    calls::{CALLER_COMMAND, Calls, Shape, serve_caller},
    job::SamplePlan,
    limit::SharedLimit,
    process_pair::{ChildSide, ProcessPair, REPLY_DEADLINE},
};
use measure::{cores::Cores, ping_pong::PROBE_WINDOW, shared_words::SharedWords};
use os::affinity::allowed_cores;

const CHILD: &str = "be-the-other-side";
const COUNT: u64 = 20_000;

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some(CHILD) => return child(),
        Some(CALLER_COMMAND) => return serve_caller().expect("started by the initiator"),
        _ => {}
    }
    clients_that_are_processes_get_their_answers();
    let Ok(cores) = Cores::choose() else {
        return println!("skipped: two cores are needed");
    };
    the_two_sides_measure_together(cores);
    a_dropped_pair_leaves_no_process(cores);
    a_dead_child_is_an_error_not_a_hang(cores);
    println!("process_pair: ok");
}

/// Serves limits until told to stop.
fn child() {
    let mut side = ChildSide::of_child().expect("started by the parent");
    while let Ok(Some(limit)) = side.control.receive::<Option<SharedLimit>>(None) {
        side.control.send(&()).unwrap();
        limit.respond(&side.shared, COUNT).unwrap();
    }
}

fn clients_that_are_processes_get_their_answers() {
    let folder = std::env::temp_dir().join(format!("copyrpc-callers-{}", std::process::id()));
    let shared = &SharedWords::new().unwrap();
    let cores = allowed_cores().unwrap();
    for (number, (clients, depth, ring)) in (1..).zip([(1, 1, 64), (5, 4, 8), (3, 1, 1)]) {
        let shape = Shape::Processes(depth);
        let calls = Calls { len_bytes: 56, clients, ring, shape };
        let sample =
            SamplePlan { count: 300, number, folder: folder.clone(), cores: cores.clone() };
        let value = thread::scope(|scope| {
            let (ready, is_ready) = mpsc::channel();
            let server = scope.spawn({
                let sample = sample.clone();
                move || {
                    let mut tell = || {
                        ready.send(()).unwrap();
                        Ok(())
                    };
                    calls.respond(shared, &sample, &mut tell)
                }
            });
            is_ready.recv().unwrap();
            let value = calls.initiate(shared, &sample).inspect_err(|_| shared.fail());
            server.join().unwrap().unwrap();
            value.unwrap()
        });
        assert!(value.is_finite() && value > 0.0, "{calls:?}: {value}");
    }
    fs::remove_dir_all(folder).unwrap();
}

fn the_two_sides_measure_together(cores: Cores) {
    let mut process_pair = ProcessPair::start(cores, &[CHILD]).unwrap();
    for limit in [
        SharedLimit::RoundTrip { window: PROBE_WINDOW },
        SharedLimit::Stream,
        SharedLimit::RoundTrip { window: Duration::from_millis(1) },
    ] {
        process_pair.shared.reset();
        process_pair.control.send(&Some(limit)).unwrap();
        process_pair.control.receive::<()>(Some(REPLY_DEADLINE)).unwrap();
        assert!(limit.initiate(&process_pair.shared, COUNT).unwrap() > 0.0, "{limit:?}");
    }
    assert_eq!(allowed_cores().unwrap(), [cores.initiator], "the initiator is pinned");
    let status = fs::read_to_string(format!("/proc/{}/status", process_pair.child_id())).unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    assert_eq!(list.trim(), cores.responder.to_string(), "the responder is pinned");
}

fn a_dropped_pair_leaves_no_process(cores: Cores) {
    let process_pair = ProcessPair::start(cores, &[CHILD]).unwrap();
    let process = format!("/proc/{}", process_pair.child_id());
    assert!(fs::exists(&process).unwrap());
    drop(process_pair);
    assert!(!fs::exists(&process).unwrap(), "killed and reaped");
}

fn a_dead_child_is_an_error_not_a_hang(cores: Cores) {
    let mut process_pair = ProcessPair::start(cores, &[CHILD]).unwrap();
    process_pair.control.send(&None::<SharedLimit>).unwrap();
    let begin = Instant::now();
    let reply = process_pair.control.receive::<()>(Some(REPLY_DEADLINE));
    assert!(reply.as_ref().is_err_and(Error::is_gone), "{reply:?}");
    assert!(begin.elapsed() < REPLY_DEADLINE, "noticed before the deadline");
}
