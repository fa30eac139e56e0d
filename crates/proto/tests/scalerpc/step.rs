//! Servers that switch together.

use copyrpc_proto::scalerpc::{Exchange, Server, server::ServerConfig};

use crate::{
    long::call_again,
    world::{Random, STEP_NS, World},
};

const SLICE_NS: u64 = 100 * STEP_NS;
/// Longest way between two servers, in steps.
const WAY_STEPS: u64 = 10;
/// Between two questions.
const ASK_STEPS: u64 = 10_000;
/// The follower's clock gains a nanosecond in so many steps: 50 ppm.
const DRIFT_STEPS: u64 = 20;

fn world(start_ns: u64) -> World {
    let config = ServerConfig { group: 2, slice_ns: SLICE_NS, ..ServerConfig::default() };
    let mut world = World::new(config, 8, start_ns + 1);
    world.is_long = true;
    world.now_ns = start_ns;
    world
}

/// A step of a server whose groups all have something to do. Whether its turn ended.
fn step(world: &mut World) -> bool {
    call_again(world);
    let before = world.server.counters().switches;
    world.step();
    world.server.counters().switches > before
}

/// Distance of a time from the nearest of those that are slices apart from `phase_ns`.
fn distance_ns(ns: u64, phase_ns: u64) -> u64 {
    let after_ns = (ns + SLICE_NS - phase_ns % SLICE_NS) % SLICE_NS;
    after_ns.min(SLICE_NS - after_ns)
}

/// The farthest that a follower's switch was from the leader's, in true time, and how often it switched.
fn farthest_ns(follows: bool, steps: u64) -> (u64, u64) {
    // The leader's clock is the true time.
    let mut leader = world(0);
    let mut follower = world(7_654_321);
    // Their turns do not end together by chance.
    for _ in 0..37 {
        step(&mut leader);
    }
    leader.server.keep_step(leader.server.next_switch_ns());
    let mut random = Random(9);
    let mut farthest = 0;
    let mut switches = 0;
    let mut asked = None;
    let mut answered = None;
    let mut is_in_step = false;
    for at in 1..=steps {
        step(&mut leader);
        follower.now_ns += u64::from(at % DRIFT_STEPS == 0);
        if step(&mut follower) && (is_in_step || !follows) {
            switches += 1;
            farthest = farthest.max(distance_ns(leader.now_ns, leader.server.next_switch_ns()));
        }
        if follows && at % ASK_STEPS == 1 {
            asked = Some((at + random.below(WAY_STEPS), follower.now_ns));
        }
        if let Some((due, asked_ns)) = asked.filter(|(due, _)| *due <= at) {
            let switch_ns = leader.server.next_switch_ns();
            let exchange =
                Exchange { asked_ns, answered_ns: leader.now_ns, arrived_ns: 0, switch_ns };
            (asked, answered) = (None, Some((due + random.below(WAY_STEPS), exchange)));
        }
        if let Some((_, exchange)) = answered.filter(|(due, _)| *due <= at) {
            answered = None;
            let exchange = Exchange { arrived_ns: follower.now_ns, ..exchange };
            assert!(follower.server.follow(&exchange));
            is_in_step = true;
        }
    }
    (farthest, switches)
}

/// Rules S6.1, S6.2, S6.3: with clocks that differ by milliseconds, one of which is 50 ppm fast.
#[test]
fn a_follower_switches_when_its_leader_does() {
    let steps = if cfg!(miri) { 600 } else { 3 * ASK_STEPS };
    let (farthest, switches) = farthest_ns(true, steps);
    assert!(switches * 2 * SLICE_NS / STEP_NS > steps - 2 * WAY_STEPS, "{switches} turns");
    // Half of the round trip, what the clock gains between two questions, and the steps of this test.
    let bound_ns = WAY_STEPS * STEP_NS + ASK_STEPS / DRIFT_STEPS + 3 * STEP_NS;
    assert!(farthest <= bound_ns, "{farthest} ns, bound {bound_ns} ns");
    if !cfg!(miri) {
        let (farthest, _) = farthest_ns(false, steps);
        assert!(farthest > bound_ns, "servers that do not follow are in step by chance");
    }
}

/// Rule S6.2: a repeated step changes nothing, and a new step moves a turn's end by half a slice at
/// most.
#[test]
fn a_turn_ends_within_half_a_slice_of_when_it_would_have() {
    let config =
        ServerConfig { group: 1, slice_ns: SLICE_NS, clients_max: 1, ..ServerConfig::default() };
    for switch_ns in (0..3 * SLICE_NS).step_by(if cfg!(miri) { 39_997 } else { 997 }) {
        let mut server = Server::new(config, 5_000_000);
        let before_ns = server.next_switch_ns();
        server.keep_step(switch_ns);
        let after_ns = server.next_switch_ns();
        assert_eq!(after_ns % SLICE_NS, switch_ns % SLICE_NS);
        assert!(after_ns.abs_diff(before_ns) <= SLICE_NS / 2, "{switch_ns}");
        server.keep_step(switch_ns + 5 * SLICE_NS);
        assert_eq!(server.next_switch_ns(), after_ns);
        // The next turn: a server that is late takes half a slice to one and a half.
        for late_ns in [0, 1, SLICE_NS / 3, SLICE_NS / 2, SLICE_NS - 1] {
            let now_ns = after_ns + late_ns;
            let mut server = Server::new(config, 5_000_000);
            server.keep_step(switch_ns);
            server.handle_timeout(now_ns);
            let end_ns = server.next_switch_ns();
            assert_eq!(end_ns % SLICE_NS, switch_ns % SLICE_NS);
            assert!((SLICE_NS / 2..=SLICE_NS * 3 / 2).contains(&(end_ns - now_ns)), "{late_ns}");
        }
    }
}

/// Rule S6.3.
#[test]
fn an_answer_that_took_longer_than_a_slice_is_not_followed() {
    let config = ServerConfig { slice_ns: SLICE_NS, ..ServerConfig::default() };
    let mut server = Server::new(config, 0);
    let before_ns = server.next_switch_ns();
    let asked_ns = 0;
    let answered_ns = 90 * STEP_NS;
    let late = Exchange { asked_ns, answered_ns, arrived_ns: SLICE_NS + 1, switch_ns: SLICE_NS };
    assert!(!server.follow(&late));
    assert_eq!(server.next_switch_ns(), before_ns);
}

/// Rule S6.4: a server whose leader says nothing any more goes on with the step that it has.
#[test]
fn a_server_whose_leader_is_gone_keeps_its_step() {
    let config = ServerConfig { slice_ns: SLICE_NS, ..ServerConfig::default() };
    let mut server = Server::new(config, 0);
    let switch_ns = 7 * SLICE_NS + SLICE_NS / 3;
    server.keep_step(switch_ns);
    for _ in 0..100 {
        let due_ns = server.next_switch_ns();
        assert_eq!(due_ns % SLICE_NS, switch_ns % SLICE_NS);
        server.handle_timeout(due_ns);
        assert_eq!(server.next_switch_ns(), due_ns + SLICE_NS);
    }
}
