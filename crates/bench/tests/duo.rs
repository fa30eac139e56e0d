//! Two real processes. Without the usual harness, because this program must be able to run itself
//! as the other side.

use std::{
    fs,
    time::{Duration, Instant},
};

use copyrpc_bench::{
    cores::Cores,
    duo::{Duo, DuoError, REPLY_DEADLINE, Side},
    limit::SharedLimit,
    pingpong::PROBE_WINDOW,
};
use os::affinity::allowed_cores;

const CHILD: &str = "be-the-other-side";

fn main() {
    if std::env::args().nth(1).as_deref() == Some(CHILD) {
        return child();
    }
    let Ok(cores) = Cores::choose() else {
        return println!("skipped: two cores are needed");
    };
    the_two_sides_measure_together(cores);
    a_dropped_duo_leaves_no_process(cores);
    a_dead_child_is_an_error_not_a_hang(cores);
    println!("duo: ok");
}

/// Serves limits until told to stop.
fn child() {
    let mut side = Side::of_child().expect("started by the parent");
    while let Ok(Some(limit)) = side.control.receive::<Option<SharedLimit>>(None) {
        side.control.send(&()).unwrap();
        limit.respond(&side.board).unwrap();
    }
}

fn the_two_sides_measure_together(cores: Cores) {
    let mut duo = Duo::start(cores, &[CHILD]).unwrap();
    for limit in [
        SharedLimit::RoundTrip { window: PROBE_WINDOW },
        SharedLimit::Stream { count: 20_000 },
        SharedLimit::RoundTrip { window: Duration::from_millis(1) },
    ] {
        duo.board.reset();
        duo.control.send(&Some(limit)).unwrap();
        duo.control.receive::<()>(Some(REPLY_DEADLINE)).unwrap();
        assert!(limit.initiate(&duo.board).unwrap() > 0.0, "{limit:?}");
    }
    assert_eq!(allowed_cores().unwrap(), [cores.initiator], "the initiator is pinned");
    let status = fs::read_to_string(format!("/proc/{}/status", duo.child_id())).unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    assert_eq!(list.trim(), cores.responder.to_string(), "the responder is pinned");
}

fn a_dropped_duo_leaves_no_process(cores: Cores) {
    let duo = Duo::start(cores, &[CHILD]).unwrap();
    let process = format!("/proc/{}", duo.child_id());
    assert!(fs::exists(&process).unwrap());
    drop(duo);
    assert!(!fs::exists(&process).unwrap(), "killed and reaped");
}

fn a_dead_child_is_an_error_not_a_hang(cores: Cores) {
    let mut duo = Duo::start(cores, &[CHILD]).unwrap();
    duo.control.send(&None::<SharedLimit>).unwrap();
    let begin = Instant::now();
    let reply = duo.control.receive::<()>(Some(REPLY_DEADLINE));
    assert!(matches!(reply, Err(DuoError::PeerGone)), "{reply:?}");
    assert!(begin.elapsed() < REPLY_DEADLINE, "noticed before the deadline");
}
