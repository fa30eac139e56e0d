//! As many turns as a server has in a day of little load, and turns of every length.

use copyrpc_proto::scalerpc::server::ServerConfig;

use crate::world::{STEP_NS, World};

/// Every client that waits for nothing makes a call.
pub(crate) fn call_again(world: &mut World) {
    for at in 0..world.peers.len() {
        if world.peers[at].core.outstanding() == 0 {
            world.call(at, u64::MAX);
        }
    }
}

/// Every client calls again about when it was answered, until there were so many turns.
fn switch(clients: usize, group: u16, switches: u64) {
    let config = ServerConfig {
        group,
        slice_ns: 3 * STEP_NS,
        slots: 2,
        regroup_rotations: 7,
        ..ServerConfig::default()
    };
    let mut world = World::new(config, clients, 23);
    (world.is_long, world.handler_steps) = (true, 4);
    while world.server.counters().switches < switches {
        call_again(&mut world);
        world.step();
    }
    let is_answered = |world: &World| world.peers.iter().all(|peer| peer.answered() == peer.made);
    for _ in 0..100_000 {
        if is_answered(&world) {
            break;
        }
        world.step();
    }
    let lost = world.peers.iter().filter(|peer| peer.answered() != peer.made).count();
    assert_eq!((lost, world.executed.len()), (0, 0), "every call ran once and was answered");
    let made: u64 = world.peers.iter().map(|peer| peer.made).sum();
    let counters = world.server.counters();
    assert_eq!(counters.executed, made);
    println!("{clients} clients, groups of {group}: {switches} turns, {made} calls, {counters:?}");
}

/// Rules S4.1, S4.2, S4.3.
#[test]
fn many_turns_of_four_hundred_clients_lose_and_repeat_nothing() {
    switch(8, 2, 20);
    if !cfg!(miri) {
        switch(400, 40, 1000);
    }
}

/// Rules S4.1, S4.2, S4.3. As many turns as `SCALERPC_SWITCHES` says, or a million.
#[test]
#[ignore = "long: minutes; `cargo xtask ci --full` runs it"]
fn a_million_turns_of_four_hundred_clients_lose_and_repeat_nothing_long() {
    let switches = std::env::var("SCALERPC_SWITCHES");
    switch(400, 40, switches.map_or(1_000_000, |switches| switches.parse().unwrap()));
}

/// The summary of a distribution of latencies, in ns.
struct Distribution {
    groups: usize,
    p50: u64,
    p99: u64,
    longest: u64,
    /// Share that lies between a turn and all other turns, in permille.
    between: usize,
}

/// One call in flight per client, in a loop: within a turn, or after the turns of all other groups.
fn latencies(group: u16, slice_ns: u64, clients: usize) -> Distribution {
    let config = ServerConfig { group, slice_ns, regroup_rotations: 0, ..ServerConfig::default() };
    let mut world = World::new(config, clients, 5);
    let groups = world.server.groups().count();
    let rotation_ns = groups as u64 * slice_ns;
    // In the first rotation every group begins to wait at once.
    for rotations in [2, 5] {
        world.peers.iter_mut().for_each(|peer| peer.latencies_ns.clear());
        while world.now_ns < rotations * rotation_ns {
            call_again(&mut world);
            world.step();
        }
    }
    let all = world.peers.iter().flat_map(|peer| &peer.latencies_ns).copied();
    let mut all: Vec<u64> = all.collect();
    all.sort_unstable();
    // Way there and back, and the turn in which it was made.
    let within_ns = 10 * STEP_NS + slice_ns;
    let after_ns = rotation_ns.saturating_sub(2 * slice_ns);
    let between = all.iter().filter(|ns| (within_ns + 1..after_ns).contains(*ns)).count();
    Distribution {
        groups,
        p50: all[all.len() / 2],
        p99: all[all.len() * 99 / 100],
        longest: all[all.len() - 1],
        between: 1000 * between / all.len(),
    }
}

/// Prints a row per case, and checks it.
fn check_latencies(cases: &[(u16, u64)], clients: usize) {
    println!("| group | groups | slice | p50 | p99 | longest | (groups - 1) slices |");
    println!("|---|---|---|---|---|---|---|");
    for &(group, slice_us) in cases {
        let slice_ns = slice_us * 1000;
        let Distribution { groups, p50, p99, longest, between } =
            latencies(group, slice_ns, clients);
        let step_ns = (groups as u64 - 1) * slice_ns;
        let [p50, p99, longest_us, step_us] = [p50, p99, longest, step_ns].map(|ns| ns / 1000);
        println!(
            "| {group} | {groups} | {slice_us} µs | {p50} µs | {p99} µs | {longest_us} µs | {step_us} µs |"
        );
        assert!(longest + 2 * slice_ns >= step_ns, "{longest} ns of {step_ns} ns");
        // The way, and what a turn waits for its clients' acknowledgements.
        let bound_ns = groups as u64 * (slice_ns * 3 / 2) + 20 * STEP_NS;
        assert!(longest <= bound_ns, "{longest} ns, bound {bound_ns} ns");
        assert!(slice_us < 100 || between == 0, "{between} permille lie between");
    }
}

/// Rules S5.1, S5.2: a call is answered within the turn, or waits for those of all other groups: a step of
/// (groups − 1) slices.
#[test]
fn latency_has_a_step_of_the_turns_of_the_other_groups() {
    check_latencies(&[(2, 10)], 8);
    if !cfg!(miri) {
        check_latencies(&[(10, 10), (10, 100), (40, 10), (40, 100), (120, 100)], 240);
    }
}

/// Rules S5.1, S5.2.
#[test]
#[ignore = "long: a minute; `cargo xtask ci --full` runs it"]
fn latency_has_a_step_with_every_slice_and_group_long() {
    let slices = [10, 30, 100, 300, 1000];
    let groups = [10, 20, 40, 80, 120];
    let cases: Vec<_> =
        groups.iter().flat_map(|group| slices.map(|slice_us| (*group, slice_us))).collect();
    check_latencies(&cases, 240);
}
