//! Counters of both ends, by name.

use verbs::Nic;

use crate::{erpc, scalerpc};

pub(crate) fn of_worker<N: Nic>(worker: &rpc::Worker<N>) -> Vec<(&'static str, u64)> {
    let stats = worker.stats();
    vec![("polls", stats.polls), ("send queue full", stats.send_queue_full)]
}

pub(crate) fn of_endpoint<N: Nic>(endpoint: &erpc::Endpoint<N>) -> Vec<(&'static str, u64)> {
    let stats = endpoint.stats();
    vec![
        ("packets in", stats.packets_in),
        ("packets out", stats.packets_out),
        ("packets ignored", stats.ignored),
        ("packets not taken", stats.lost),
        ("retransmissions", stats.retransmissions),
        ("sessions failed", stats.failures),
    ]
}

pub(crate) fn of_server<N: Nic>(server: &scalerpc::Server<N>) -> Vec<(&'static str, u64)> {
    let counters = server.counters();
    vec![
        ("turns ended", counters.switches),
        ("requests executed", counters.executed),
        ("requests read ahead", counters.warmed),
        ("messages ignored", counters.ignored),
        ("clients dropped", counters.dropped),
    ]
}
