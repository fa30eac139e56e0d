//! Many clients, many switches, deaths: nothing lost, nothing twice, nothing to another one.

use copyrpc_proto::scalerpc::{
    client::State,
    server::{ServerConfig, Stage},
};
use proptest::prelude::*;

use crate::world::{STEP_NS, World};

/// Each client keeps up to `depth` calls in flight until it has made `calls`.
fn run(world: &mut World, calls: u64, depth: usize) {
    let mut is_done = false;
    while !is_done {
        is_done = true;
        for at in 0..world.peers.len() {
            let peer = &world.peers[at];
            if !peer.is_dead && peer.made < calls {
                is_done = false;
                let room = depth.saturating_sub(peer.core.outstanding());
                if room > 0 && world.random.below(3) > 0 {
                    world.call(at, u64::MAX);
                }
            }
        }
        world.step();
    }
    world.settle(200_000);
}

fn check(world: &World) {
    for (at, peer) in world.peers.iter().enumerate() {
        for cookie in 0..peer.made {
            let times = world.executed.get(&(at, cookie)).copied().unwrap_or_default();
            assert!(times <= 1, "call {cookie} of client {at} ran {times} times");
            if peer.ended.get(&cookie).is_some_and(Result::is_ok) {
                assert_eq!(times, 1, "call {cookie} of client {at} was answered, not executed");
            }
        }
        assert!(peer.is_dead || peer.ended.values().all(Result::is_ok));
    }
}

/// Rules S3.3, S4.1, S4.2, S4.3: hundreds of clients, thousands of switches.
#[test]
fn four_hundred_clients_share_zones_of_sixty() {
    let clients = if cfg!(miri) { 8 } else { 400 };
    let config = ServerConfig { slice_ns: 20 * STEP_NS, slots: 4, ..ServerConfig::default() };
    let mut world = World::new(config, clients, 7);
    world.handler_steps = 3;
    run(&mut world, if cfg!(miri) { 4 } else { 60 }, 2);
    check(&world);
    let counters = world.server.counters();
    assert_eq!(counters.executed, world.executed.len() as u64);
    assert!(counters.warmed > 0 && counters.warmed < counters.executed, "both ways were used");
    assert!(world.server.groups().all(|size| size <= 60));
}

/// Thousands of switches, with turns and groups of all lengths.
#[test]
fn thousands_of_switches_lose_and_repeat_nothing() {
    let mut switches = 0;
    let cases: &[(u64, u16, usize, u64)] = match cfg!(miri) {
        true => &[(10, 2, 6, 6)],
        false => &[
            (10, 10, 100, 100),
            (10, 2, 24, 1000),
            (100, 10, 40, 100),
            (1000, 120, 300, 40),
            (3, 1, 10, 1500),
        ],
    };
    for (slice_steps, group, clients, calls) in cases.iter().copied() {
        let slice_ns = slice_steps * STEP_NS;
        let config =
            ServerConfig { slice_ns, group, regroup_rotations: 3, ..ServerConfig::default() };
        let mut world = World::new(config, clients, 11 + slice_steps);
        world.handler_steps = 5;
        run(&mut world, calls, 4);
        check(&world);
        switches += world.server.counters().switches;
    }
    println!("{switches} switches");
    assert!(cfg!(miri) || switches > 3000, "{switches} switches");
}

/// Rule S5.1: no call waits longer than all turns of a rotation, the way and the handlers.
#[test]
fn every_group_has_its_turn_within_a_rotation() {
    let config = ServerConfig { group: 10, slice_ns: 100 * STEP_NS, ..ServerConfig::default() };
    let mut world = World::new(config, 60, 3);
    run(&mut world, if cfg!(miri) { 2 } else { 40 }, 1);
    let bound_ns = world.server.rotation_ns_max() + 2 * config.slice_ns;
    let all = world.peers.iter().flat_map(|peer| &peer.latencies_ns);
    let longest_ns = all.copied().max().unwrap();
    assert!(longest_ns <= bound_ns, "{longest_ns} ns, bound {bound_ns} ns");
    let groups = world.server.groups().count() as u64;
    // The step of the distribution: who just missed its turn waits for all others.
    assert!(cfg!(miri) || longest_ns >= (groups - 2) * config.slice_ns, "{longest_ns} ns");
}

/// Rule S5.2: one group alone never waits for a turn.
#[test]
fn a_single_group_keeps_its_turn() {
    let mut world = World::new(ServerConfig::default(), 3, 5);
    run(&mut world, 50, 1);
    check(&world);
    assert_eq!(world.server.counters().switches, 0);
    let all = world.peers.iter().flat_map(|peer| &peer.latencies_ns);
    assert!(all.copied().max().unwrap() <= 20 * STEP_NS);
    assert!(world.peers.iter().all(|peer| peer.core.state() == State::Process));
}

/// Rule S4.4: a client dies in each state that the server knows; its zone serves others only after its queue
/// pair is gone, and no other notices.
#[test]
fn a_client_may_die_in_every_state() {
    let mut died = [0; 5];
    for seed in 0..if cfg!(miri) { 5 } else { 300 } {
        let config = ServerConfig { group: 3, slice_ns: 10 * STEP_NS, ..ServerConfig::default() };
        let mut world = World::new(config, 9, seed);
        world.handler_steps = 4;
        let deaths_after = world.random.below(200);
        for step in 0..deaths_after {
            for at in 0..9 {
                if (step + at as u64).is_multiple_of(3) {
                    world.call(at, u64::MAX);
                }
            }
            world.step();
        }
        let victim = world.random.below(9) as usize;
        let stage = world.peers[victim].id.and_then(|id| world.server.stage(id));
        died[match stage.unwrap() {
            Stage::Idle => 0,
            Stage::Reading { .. } => 1,
            Stage::Warm { .. } => 2,
            Stage::Active { .. } => 3,
            Stage::Retiring { .. } => 4,
        }] += 1;
        world.kill(victim);
        (0..seed % 30).for_each(|_| world.step());
        world.notice(victim);
        let newcomer = world.join();
        world.call(newcomer, u64::MAX);
        run(&mut world, 100, 2);
        check(&world);
    }
    assert!(cfg!(miri) || died.iter().all(|times| *times > 0), "{died:?}");
}

/// Rule S4.5: a client that is alive but does not acknowledge is dropped after a while.
#[test]
fn a_client_that_does_not_leave_its_zone_is_dropped() {
    let config = ServerConfig {
        group: 2,
        slice_ns: 10 * STEP_NS,
        ack_timeout_ns: 500 * STEP_NS,
        ..ServerConfig::default()
    };
    let mut world = World::new(config, 6, 1);
    for at in 0..6 {
        world.call(at, u64::MAX);
    }
    let is_active = |world: &World| {
        let id = world.peers[0].id.unwrap();
        matches!(world.server.stage(id), Some(Stage::Active { .. }))
    };
    while !is_active(&world) {
        world.step();
        assert!(world.now_ns < 1000 * STEP_NS);
    }
    // It is stopped: its NIC serves READs, but it says nothing.
    world.kill(0);
    let mut steps = 0;
    while world.peers[0].id.is_some() {
        for at in 1..6 {
            world.call(at, u64::MAX);
        }
        world.step();
        steps += 1;
        assert!(steps < 2000, "it is never dropped");
    }
    world.settle(100_000);
    check(&world);
    assert_eq!(world.server.counters().dropped, 1);
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: if cfg!(miri) { 2 } else { 40 },
        ..ProptestConfig::default()
    })]

    /// Any sizes, delays and handlers; deadlines that pass at any time.
    #[test]
    fn any_world_executes_each_call_once_at_most(
        seed: u64, group in 1..12u16, clients in 1..30usize, slice_steps in 1..60u64,
        slots in 1..9u8, delay_steps in 1..8u64, handler_steps in 0..80u64, deadline in 1..400u64,
    ) {
        let slice_ns = slice_steps * STEP_NS;
        let config = ServerConfig {
            group, slice_ns, slots, regroup_rotations: 2, ..ServerConfig::default()
        };
        let mut world = World::new(config, clients, seed);
        (world.delay_steps, world.handler_steps) = (delay_steps, handler_steps);
        for _ in 0..300 {
            let at = world.random.below(clients as u64) as usize;
            let deadline_ns = match world.random.below(4) {
                0 => world.now_ns + deadline * STEP_NS,
                _ => u64::MAX,
            };
            world.call(at, deadline_ns);
            world.step();
        }
        world.settle(100_000);
        for peer in &world.peers {
            prop_assert_eq!(peer.ended.len() as u64, peer.made);
        }
        prop_assert!(world.executed.values().all(|times| *times == 1));
    }
}
