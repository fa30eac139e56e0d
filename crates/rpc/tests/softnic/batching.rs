//! How many batches answers travel in.

use copyrpc_rpc::{Config, FlushPolicy, PeerId};

use crate::rig::{ECHO, Node, pair};

/// Answers in flight at a time.
const CALLS: usize = 32;

fn calls(node: &mut Node, to: PeerId, is_alone: bool) {
    for _ in 0..CALLS {
        node.call(to, ECHO, b"32 calls that travel together").unwrap();
        if is_alone {
            node.poll();
        }
    }
    node.poll();
}

/// Batches that the server posts for the calls of one round.
fn round(client: &mut Node, server: &mut Node, (to, from): (PeerId, PeerId), alone: bool) -> u64 {
    let before = server.worker.counters(from).unwrap().batches_out;
    let ended = client.program.ended.len();
    calls(client, to, alone);
    server.poll();
    client.poll();
    assert_eq!(client.program.ended.len(), ended + CALLS);
    server.worker.counters(from).unwrap().batches_out - before
}

/// Rule C7.5: two sides with one batch between them would take turns.
#[test]
fn a_peer_that_waits_gets_half_of_its_answers_early() {
    let (mut client, mut server, to, from) = pair(&Config::default());
    let peers = (to, from);
    assert_eq!(round(&mut client, &mut server, peers, false), 1, "others might be active");
    assert_eq!(round(&mut client, &mut server, peers, false), 2);
    let whole = Config { halve_from: u16::MAX, ..Config::default() };
    let (mut client, mut server, to, from) = pair(&whole);
    for _ in 0..3 {
        assert_eq!(round(&mut client, &mut server, (to, from), false), 1);
    }
}

/// Rule C7.6: whatever made batches small, they grow again under load.
#[test]
fn answers_to_small_batches_merge_while_the_peer_has_work() {
    // The second has no window that makes them merge.
    for flush in [FlushPolicy::default(), FlushPolicy::Immediate] {
        // A receive for each call.
        let config = Config { flush, peers_max: 4, ..Config::default() };
        let (mut client, mut server, to, from) = pair(&config);
        for _ in 0..3 {
            let batches = round(&mut client, &mut server, (to, from), true);
            assert!(batches <= 3, "{batches} batches for {CALLS} answers");
        }
    }
}
