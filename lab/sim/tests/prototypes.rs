//! Two designs that are not built.

use copyrpc_sim::scenarios::prototypes::{hot_peers, return_paths};

#[test]
fn answers_into_slots_pay_where_requests_of_a_nic_are_cheap_and_nowhere_else() {
    let rows = return_paths(&[8], &[1, 8], 46, 1, |_, _| ());
    assert_eq!(rows.len(), 4);
    for row in &rows {
        let is_cheap = row.wqe_us < 0.1;
        let is_better = row.slot.mops_per_node > row.daemon.mops_per_node;
        assert_eq!(is_better, is_cheap, "{row:?}");
        assert!(row.slot.wqes_per_call > row.daemon.wqes_per_call, "{row:?}");
    }
    let again = return_paths(&[8], &[1], 46, 1, |_, _| ());
    assert_eq!(again[0].daemon, rows[0].daemon);
}

#[test]
fn a_queue_pair_for_a_hot_peer_helps_who_has_one_initiator_and_is_no_better_than_more_initiators() {
    let rows = hot_peers(&[1, 8], &[500], 1, |_, _| ());
    let [one, eight] = [rows[0], rows[1]];
    assert!(one.own.per_client_mops > 1.3 * one.shared.per_client_mops, "{one:?}");
    assert!(one.own.per_client_mops < one.one_more.per_client_mops, "{one:?}");
    assert!(eight.own.per_client_mops < eight.shared.per_client_mops, "{eight:?}");
}
