//! Production daemons in a world with a machine's times.

use copyrpc_sim::{
    cluster::steady::{Begin, Connected, FlushPolicy, Measured, PARTS, Steady, run},
    machine::{CONNECT_X7, DelegationProfile, QUICK_NIC},
    world::Time,
};

const LOAD: Steady = Steady {
    nodes: 2,
    threads: 1,
    clients: 4,
    depth: 1,
    flush: FlushPolicy::SelfClocked { wqes: 2 },
    transport: Connected::Rc,
    machine: CONNECT_X7,
    begin: Begin::Burst,
    lengths: (Time::from_ns(100_000), Time::from_ns(150_000)),
    seed: 1,
};

/// All calls are answered.
fn measured(load: Steady) -> Measured {
    let measured = run(&load).unwrap();
    assert_eq!(measured.others, 0, "{load:?} {measured:?}");
    measured
}

/// The smallest and the largest rate of loads that begin in each way.
fn rates(load: Steady) -> [f64; 2] {
    let rates = Begin::ALL.map(|begin| measured(Steady { begin, ..load }).mops_per_node);
    println!("{rates:?}");
    [rates.iter().copied().fold(f64::INFINITY, f64::min), rates.iter().copied().fold(0.0, f64::max)]
}

#[test]
fn starts_of_two_nodes_end_in_one_state() {
    let [least, most] = rates(LOAD);
    assert!(least > 0.0 && most / least < 1.15, "{least} {most}");
    let one = measured(LOAD);
    assert_eq!(one, measured(LOAD));
    // The last half of the series is what is counted.
    assert_eq!(one.series.len(), 2 * PARTS as usize);
    let counted: f64 = one.series.iter().skip(PARTS as usize).sum();
    assert!((counted / f64::from(PARTS) / one.mops_per_node - 1.0).abs() < 1e-6, "{one:?}");
}

/// The NIC's time per entry is what the daemon's batches amortize.
#[test]
fn batches_grow_with_the_load() {
    let (shallow, deep) = (measured(LOAD), measured(Steady { depth: 8, ..LOAD }));
    println!("{shallow:?} {deep:?}");
    assert!(deep.messages_per_wqe > 2.0 * shallow.messages_per_wqe, "{shallow:?} {deep:?}");
    assert!(deep.mops_per_node > 2.0 * shallow.mops_per_node, "{shallow:?} {deep:?}");
}

/// Other peers' requests fill the NIC's time: a second one of each only leaves with fewer messages.
#[test]
fn with_many_nodes_one_unfinished_request_per_peer_does_more_than_two() {
    let lengths = (Time::from_ns(60_000), Time::from_ns(100_000));
    let at =
        |flush, begin| measured(Steady { nodes: 8, clients: 16, flush, begin, lengths, ..LOAD });
    let default = FlushPolicy::for_peers(7);
    let (one, two) =
        (at(default, Begin::Burst), at(FlushPolicy::SelfClocked { wqes: 2 }, Begin::Burst));
    println!("{one:?} {two:?}");
    assert!(one.mops_per_node > 1.05 * two.mops_per_node, "{one:?} {two:?}");
    assert!(one.messages_per_wqe > two.messages_per_wqe && one.connection_bytes > 1 << 20);
    let perturbed = at(default, Begin::Perturbed);
    let rates = [one.mops_per_node, perturbed.mops_per_node];
    assert!(rates[0] / rates[1] < 1.1 && rates[1] / rates[0] < 1.1, "{rates:?}");
}

/// Clients and peers are spread over the threads of a daemon, which pass calls to each other.
#[test]
fn daemons_of_two_threads_answer_all_calls_and_do_more_where_the_thread_was_the_limit() {
    let lengths = (Time::from_ns(60_000), Time::from_ns(100_000));
    let flush = FlushPolicy::for_peers(3);
    let at = |threads| {
        let load = Steady { nodes: 4, threads, clients: 16, depth: 16, flush, lengths, ..LOAD };
        let one = measured(load);
        assert_eq!(one, measured(load));
        one
    };
    let (one, two) = (at(1), at(2));
    println!("{one:?} {two:?}");
    assert!(two.mops_per_node > 1.2 * one.mops_per_node, "{one:?} {two:?}");
}

/// Rule C7.8: where the NIC is what calls wait for, batches wait in the daemon, in one state however it began.
#[test]
fn with_more_peers_than_the_nic_has_places_batches_grow_whatever_the_start() {
    let lengths = (Time::from_ns(400_000), Time::from_ns(200_000));
    let one = FlushPolicy::for_peers(13);
    let load = Steady { nodes: 14, clients: 16, depth: 2, flush: one, lengths, ..LOAD };
    let [least, most] = rates(load);
    assert!(least > 0.0 && most / least < 1.1, "{least} {most}");
    let hold = FlushPolicy::RttHold { permille: 500 };
    let held = measured(Steady { flush: hold, ..load }).mops_per_node;
    // Without a window it is 0.81 of that.
    println!("holding {held}");
    assert!(least > 0.9 * held, "{least}, holding {held}");
}

/// The default's rate by that of two unfinished requests per peer, on a quick NIC with a way of so many µs.
fn default_by_two(nodes: u32, wire: f64) -> f64 {
    let lengths = (Time::from_ns(400_000), Time::from_ns(200_000));
    let machine = DelegationProfile { wire, ..QUICK_NIC };
    let load = Steady { nodes, clients: 16, depth: 2, machine, lengths, ..LOAD };
    let default = FlushPolicy::for_peers(nodes as usize - 1);
    let two = FlushPolicy::SelfClocked { wqes: 2 };
    let [default, two] = [default, two].map(|flush| measured(Steady { flush, ..load }));
    println!("{nodes} nodes, way of {wire} µs: {default:?} {two:?}");
    default.mops_per_node / two.mops_per_node
}

/// A quick NIC is given all that there is: what the default loses, it loses by the way, for what waits for the one batch of
/// its peer waits for a round trip. The window has no part in it: it limits nothing of five peers, who lose as much.
#[test]
fn with_a_quick_nic_the_default_loses_by_the_way_alone() {
    let [short, usual] = [0.55, QUICK_NIC.wire].map(|wire| default_by_two(14, wire));
    assert!(short > 0.95 && (0.78..0.88).contains(&usual), "{short} {usual}");
    let [short, usual] = [0.55, QUICK_NIC.wire].map(|wire| default_by_two(6, wire));
    assert!(short > 0.95 && (0.76..0.86).contains(&usual), "{short} {usual}");
}

/// The two states of delegation are not of that other daemon alone: production daemons whose calls each leave at once have
/// them, and the default, in the same world, has one.
#[test]
fn starts_of_immediate_batches_end_in_two_states_and_those_of_the_default_in_one() {
    let lengths = (Time::from_ns(500_000), Time::from_ns(200_000));
    let at = |flush, begin| {
        let load = Steady { nodes: 8, clients: 46, depth: 8, flush, begin, lengths, ..LOAD };
        measured(load).mops_per_node
    };
    let [up, down] = [Begin::Burst, Begin::Cold].map(|begin| at(FlushPolicy::Immediate, begin));
    let cured = [Begin::Burst, Begin::Cold].map(|begin| at(FlushPolicy::for_peers(7), begin));
    println!("{up} {down} {cured:?}");
    assert!(up > 4.0 * down, "{up} {down}");
    assert!(cured.iter().all(|rate| *rate > 0.9 * up), "{up} {cured:?}");
}
