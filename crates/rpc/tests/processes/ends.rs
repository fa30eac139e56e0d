//! A peer that dies, stops, comes back, or has many endpoints.

use std::{
    env::temp_dir,
    time::{Duration, Instant},
};

use copyrpc_rpc::{Call, CloseReason, Config, FlushPolicy, PeerId, Status, TransportKind};
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    caller::{Caller, OTHER, alone, config, held},
    child::{COUNT, Peer, is_child},
};

/// Never the reason that a call ends, unless a test wants it to be.
const LONG: Duration = Duration::from_secs(3600);
/// Calls in flight to a peer that is going to be killed.
const DEPTH: usize = 16;
/// Children killed per test; the first one fills what the process keeps for itself.
const ROUNDS: u32 = 4;

fn fabric(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

/// Some number below `below`, different from run to run.
fn some(below: u64) -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(temp_dir()) % below
}

/// Fault A8: whatever is in flight ends, once, and says that the peer is gone; a restarted peer is
/// as good as new.
fn kill_under_load(test: &str, config: &Config, strict: Option<u64>) {
    if is_child(config) {
        return;
    }
    let _alone = alone();
    let fabric = fabric(&test[test.len().saturating_sub(16)..]);
    let mut caller = Caller::open(&fabric, strict, config);
    // The software NIC's initiators remember as many regions that they used; queue pairs of RC go
    // with their peer.
    let remembered = if config.transport == TransportKind::Dc { 8 } else { 0 };
    let mut baseline = None;
    for round in 0..ROUNDS {
        let mut peer = Peer::start(test, &fabric, strict, 1);
        let to = peer.connect(&mut caller.worker);
        let first = caller.program.ended.len();
        let (ok, served) = (caller.program.ok, caller.program.served);
        let goal = 20 + usize::try_from(some(200)).unwrap();
        let load = |caller: &mut Caller| {
            while caller.program.in_flight < DEPTH && caller.call(to, LONG) {}
        };
        caller.until(|caller| {
            load(caller);
            caller.program.ok >= ok + goal && caller.program.served >= served + 20
        });
        // Without room for another call, all that are in flight may have been answered by now.
        caller.until(|caller| caller.program.in_flight < DEPTH);
        peer.process.kill().unwrap();
        peer.process.wait().unwrap();
        // Nobody is there any more, so this one cannot end well.
        load(&mut caller);
        let since = Instant::now();
        caller.until(|caller| {
            load(caller);
            !caller.program.closed.is_empty() && caller.program.in_flight == 0
        });
        eprintln!("round {round}: told after {:?}", since.elapsed());
        check_ends(&caller, first);
        let (who, reason) = caller.program.closed.pop().unwrap();
        assert!(caller.program.closed.is_empty() && who == to);
        assert!(matches!(reason, CloseReason::PeerGone(_) | CloseReason::Failed(_)), "{reason}");
        assert_eq!(caller.worker.peers(), 0);
        drop(peer);
        match baseline {
            None => baseline = Some(held()),
            Some(baseline) => caller.until(|_| is_within(held(), baseline, remembered)),
        }
    }
}

/// Whether descriptors and mappings are what they were, but for some that are remembered.
fn is_within(now: (usize, usize), baseline: (usize, usize), remembered: usize) -> bool {
    now.0 <= baseline.0 + remembered && now.1 <= baseline.1 + remembered
}

/// First some that were answered, then some that were not.
fn check_ends(caller: &Caller, first: usize) {
    let ends = &caller.program.ended[first..];
    let answered = ends.iter().take_while(|end| **end == Some(Status::Ok)).count();
    let lost = &ends[answered..];
    assert!(answered > 0 && !lost.is_empty());
    assert!(lost.iter().all(|end| *end == Some(Status::Unavailable)), "{lost:?}");
}

#[test]
fn fault_a8_a_killed_peer_ends_every_call_rc() {
    let test = "ends::fault_a8_a_killed_peer_ends_every_call_rc";
    kill_under_load(test, &config(TransportKind::Rc, 4), None);
}

#[test]
fn fault_a8_a_killed_peer_ends_every_call_dc() {
    let test = "ends::fault_a8_a_killed_peer_ends_every_call_dc";
    kill_under_load(test, &config(TransportKind::Dc, 4), None);
}

#[test]
fn fault_a8_a_killed_peer_ends_every_call_strict() {
    let test = "ends::fault_a8_a_killed_peer_ends_every_call_strict";
    kill_under_load(test, &config(TransportKind::Rc, 4), Some(0xa8));
}

/// Rule C5.6, faults A5 and A9: the NIC of a stopped process still takes what is written to it, so nothing but
/// deadlines tells. What it executes afterwards it executes once.
fn stop_and_continue(test: &str, config: &Config, strict: Option<u64>) {
    if is_child(config) {
        return;
    }
    let _alone = alone();
    let fabric = fabric(&test[test.len().saturating_sub(16)..]);
    let mut caller = Caller::open(&fabric, strict, config);
    let mut peer = Peer::start(test, &fabric, strict, 1);
    let to = peer.connect(&mut caller.worker);
    let pid = Pid::from_child(&peer.process);
    for round in 1..=3 {
        let ok = caller.program.ok;
        caller.until(|caller| {
            while caller.program.in_flight < DEPTH && caller.call(to, LONG) {}
            caller.program.ok >= ok + 50
        });
        kill_process(pid, Signal::STOP).unwrap();
        let expired = |caller: &Caller| {
            let ends = caller.program.ended.iter();
            ends.filter(|end| **end == Some(Status::DeadlineExceeded)).count()
        };
        caller.until(|caller| {
            while caller.call(to, Duration::from_millis(30)) {}
            expired(caller) >= 5 * round
        });
        kill_process(pid, Signal::CONT).unwrap();
        caller.until(|caller| caller.program.in_flight == 0);
    }
    assert_eq!(caller.program.closed, [], "a stopped peer is not a dead one");
    let count = Call { method: COUNT, cookie: OTHER, timeout: LONG, ..Call::default() };
    caller.until(|caller| caller.worker.call(to, &count, b"").is_ok());
    caller.until(|caller| !caller.program.answers.is_empty());
    let counts = caller.program.answers.pop().unwrap();
    let word = |at: usize| u64::from_le_bytes(counts[at..at + 8].try_into().unwrap());
    let (executed, repeated) = (word(0), word(8));
    assert_eq!(repeated, 0, "calls were executed twice");
    assert!(executed >= caller.program.ok as u64, "each answer needs an execution");
    assert!(executed <= caller.program.ended.len() as u64);
    let known = |end: &Option<Status>| matches!(end, Some(Status::Ok | Status::DeadlineExceeded));
    assert!(caller.program.ended.iter().all(known));
}

#[test]
fn fault_a5_a_stopped_peer_repeats_nothing_rc() {
    let test = "ends::fault_a5_a_stopped_peer_repeats_nothing_rc";
    stop_and_continue(test, &config(TransportKind::Rc, 4), None);
}

#[test]
fn fault_a5_a_stopped_peer_repeats_nothing_dc() {
    let test = "ends::fault_a5_a_stopped_peer_repeats_nothing_dc";
    stop_and_continue(test, &config(TransportKind::Dc, 4), None);
}

#[test]
fn fault_a5_a_stopped_peer_repeats_nothing_strict() {
    let test = "ends::fault_a5_a_stopped_peer_repeats_nothing_strict";
    stop_and_continue(test, &config(TransportKind::Dc, 4), Some(0xa5));
}

/// Fault D11: a stopped process is sent what it has receives for, so it does not hold up what its callers
/// send to others, on DC over the same initiator. Had it to ask for even one batch again, no call to the
/// other process would end before it goes on.
///
/// A software NIC has one exception (docs/softnic.md, "Slots"): a process that is stopped between
/// reserving an entry of the caller's completion queue and filling it holds up that queue. Of 600
/// stops one meets these nanoseconds; of the three here, two never do.
fn stop_one_of_two(test: &str, config: &Config) {
    if is_child(config) {
        return;
    }
    let _alone = alone();
    let fabric = fabric(&test[test.len().saturating_sub(16)..]);
    let mut caller = Caller::open(&fabric, None, config);
    let mut peers = [0, 1].map(|_| Peer::start(test, &fabric, None, 1));
    let [to_stopped, to_other] = peers.each_mut().map(|peer| peer.connect(&mut caller.worker));
    let load = |caller: &mut Caller| {
        // Each call in a batch of its own, as far as there are receives.
        for to in [to_stopped, to_other] {
            while caller.call(to, LONG) {
                caller.worker.flush();
            }
        }
    };
    let answered = |caller: &mut Caller, more: usize| {
        let goal = caller.program.ok + more;
        caller.until_or(Duration::from_secs(10), |caller| {
            load(caller);
            caller.program.ok >= goal
        })
    };
    assert!(answered(&mut caller, 200));
    let pid = Pid::from_child(&peers[0].process);
    let mut held_up = 0;
    for _ in 0..3 {
        kill_process(pid, Signal::STOP).unwrap();
        held_up += u32::from(!answered(&mut caller, 2000));
        let waits = caller.worker.counters(to_stopped).unwrap().window_full;
        assert!(waits > 0 || held_up > 0, "the stopped process got no more than it can take");
        kill_process(pid, Signal::CONT).unwrap();
        assert!(answered(&mut caller, 200), "all go on when the stopped one does");
    }
    assert!(held_up <= 1, "calls to the other process did not end {held_up} times");
    caller.until(|caller| caller.program.in_flight == 0);
    assert_eq!(caller.program.closed, []);
    assert!(caller.program.ended.iter().all(|end| *end == Some(Status::Ok)));
}

/// Fewer receives than calls that can be in flight, and one initiator.
fn scarce(transport: TransportKind) -> Config {
    let flush = FlushPolicy::Immediate;
    Config { receives: 16, dcis: 1, flush, ..config(transport, 2) }
}

#[test]
fn fault_d11_a_stopped_process_does_not_hold_up_others_rc() {
    let test = "ends::fault_d11_a_stopped_process_does_not_hold_up_others_rc";
    stop_one_of_two(test, &scarce(TransportKind::Rc));
}

#[test]
fn fault_d11_a_stopped_process_does_not_hold_up_others_dc() {
    let test = "ends::fault_d11_a_stopped_process_does_not_hold_up_others_dc";
    stop_one_of_two(test, &scarce(TransportKind::Dc));
}

/// 64 endpoints between two processes, calls in both directions on each.
fn many_endpoints(test: &str, transport: TransportKind) {
    const ENDPOINTS: usize = 64;
    let config = Config { receives: 512, ..config(transport, 64) };
    if is_child(&config) {
        return;
    }
    let _alone = alone();
    let fabric = fabric(&test[test.len().saturating_sub(16)..]);
    let mut caller = Caller::open(&fabric, None, &config);
    let mut peer = Peer::start(test, &fabric, None, ENDPOINTS);
    let peers: Vec<PeerId> = (0..ENDPOINTS).map(|_| peer.connect(&mut caller.worker)).collect();
    for _ in 0..10 {
        for to in &peers {
            caller.until(|caller| caller.call(*to, LONG));
        }
    }
    caller.until(|caller| caller.program.in_flight == 0 && caller.program.served >= 640);
    assert_eq!((caller.program.ok, &caller.program.closed[..]), (640, &[][..]));
    for to in &peers {
        assert!(caller.worker.counters(*to).unwrap().messages_in >= 10, "each endpoint took part");
    }
}

#[test]
fn sixty_four_endpoints_rc() {
    many_endpoints("ends::sixty_four_endpoints_rc", TransportKind::Rc);
}

#[test]
fn sixty_four_endpoints_dc() {
    many_endpoints("ends::sixty_four_endpoints_dc", TransportKind::Dc);
}
