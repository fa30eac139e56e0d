//! Production daemons in a world with a machine's times.

use copyrpc_sim::{
    cluster::steady::{Begin, Connected, FlushPolicy, Measured, Steady, run},
    machine::{DELEGATION, QUICK_NIC},
    world::Time,
};

fn measured(depth: u16, wqes: u16, begin: Begin) -> Measured {
    let lengths = (Time::from_ns(100_000), Time::from_ns(150_000));
    let flush = FlushPolicy::SelfClocked { wqes };
    run(&Steady {
        nodes: 2,
        threads: 1,
        clients: 4,
        depth,
        flush,
        transport: Connected::Rc,
        machine: &DELEGATION,
        begin,
        lengths,
        seed: 1,
    })
    .unwrap()
}

#[test]
fn starts_of_two_nodes_end_in_one_state() {
    let all = Begin::ALL.map(|begin| measured(1, 2, begin));
    println!("{all:?}");
    assert!(all.iter().all(|one| one.others == 0), "{all:?}");
    let rates = all.map(|one| one.mops_per_node);
    let most = rates.iter().copied().fold(0.0, f64::max);
    let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
    assert!(least > 0.0 && most / least < 1.15, "{rates:?}");
    assert_eq!(measured(1, 2, Begin::Burst), measured(1, 2, Begin::Burst));
}

/// The NIC's time per entry is what the daemon's batches amortize.
#[test]
fn batches_grow_with_the_load() {
    let (shallow, deep) = (measured(1, 2, Begin::Burst), measured(8, 2, Begin::Burst));
    println!("{shallow:?} {deep:?}");
    assert!(deep.messages_per_wqe > 2.0 * shallow.messages_per_wqe, "{shallow:?} {deep:?}");
    assert!(deep.mops_per_node > 2.0 * shallow.mops_per_node, "{shallow:?} {deep:?}");
}

/// Other peers' requests fill the NIC's time: a second one of each only leaves with fewer messages.
#[test]
fn with_many_nodes_one_unfinished_request_per_peer_does_more_than_two() {
    let at = |flush, begin| {
        let lengths = (Time::from_ns(60_000), Time::from_ns(100_000));
        let (transport, seed) = (Connected::Rc, 1);
        let load = Steady {
            nodes: 8,
            threads: 1,
            clients: 16,
            depth: 1,
            flush,
            transport,
            machine: &DELEGATION,
            begin,
            lengths,
            seed,
        };
        let measured = run(&load).unwrap();
        assert_eq!(measured.others, 0, "{measured:?}");
        measured
    };
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
    let at = |threads| {
        let lengths = (Time::from_ns(60_000), Time::from_ns(100_000));
        let flush = FlushPolicy::for_peers(3);
        let (transport, begin, seed) = (Connected::Rc, Begin::Burst, 1);
        let (nodes, clients, depth) = (4, 16, 16);
        let load = Steady {
            nodes,
            threads,
            clients,
            depth,
            flush,
            transport,
            machine: &DELEGATION,
            begin,
            lengths,
            seed,
        };
        let measured = run(&load).unwrap();
        assert_eq!(measured.others, 0, "{measured:?}");
        assert_eq!(measured, run(&load).unwrap());
        measured
    };
    let (one, two) = (at(1), at(2));
    println!("{one:?} {two:?}");
    assert!(two.mops_per_node > 1.2 * one.mops_per_node, "{one:?} {two:?}");
}

/// Rule C7.8: where the NIC is what calls wait for, batches wait in the daemon, in one state however it began.
#[test]
fn with_more_peers_than_the_nic_has_places_batches_grow_whatever_the_start() {
    let at = |machine, flush, begin| {
        let lengths = (Time::from_ns(400_000), Time::from_ns(200_000));
        let (nodes, threads, clients, depth) = (14, 1, 16, 2);
        let (transport, seed) = (Connected::Rc, 1);
        let load = Steady {
            nodes,
            threads,
            clients,
            depth,
            flush,
            transport,
            machine,
            begin,
            lengths,
            seed,
        };
        let measured = run(&load).unwrap();
        assert_eq!(measured.others, 0, "{measured:?}");
        measured.mops_per_node
    };
    let one = FlushPolicy::for_peers(13);
    let rates = Begin::ALL.map(|begin| at(&DELEGATION, one, begin));
    let hold = at(&DELEGATION, FlushPolicy::RttHold { permille: 500 }, Begin::Burst);
    println!("{rates:?}, holding {hold}");
    let most = rates.iter().copied().fold(0.0, f64::max);
    let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
    assert!(least > 0.0 && most / least < 1.1, "{rates:?}");
    assert!(least > 0.9 * hold, "{rates:?} {hold}");
    // A quick NIC is given all that there is.
    let two = FlushPolicy::SelfClocked { wqes: 2 };
    let quick = [one, two].map(|flush| at(&QUICK_NIC, flush, Begin::Burst));
    println!("{quick:?}");
    assert!(quick[0] > 0.95 * quick[1], "{quick:?}");
}
