//! Groups in turn keep their rate where a pool per client loses it, and a run is a function of its seed.

use copyrpc_sim::scenarios::scalerpc::{self, CONTEXTS, Outcome, PoolPlan};

fn plan(clients: &[u16], contexts: usize) -> PoolPlan {
    PoolPlan { clients: clients.to_vec(), contexts, ..PoolPlan::default() }
}

fn run(plan: &PoolPlan) -> Outcome {
    let outcome = scalerpc::run(plan);
    for row in &outcome.rows {
        println!("{row:?}");
    }
    outcome
}

#[test]
fn scalerpc_is_flat_from_40_to_400_clients_where_a_pool_per_client_falls() {
    let outcome = run(&plan(&[40, 120, 400], CONTEXTS));
    assert!(outcome.spread(|row| row.scalerpc) < 0.1);
    let [few, .., many] = &outcome.rows[..] else { panic!("three rows") };
    assert!(many.pool.mops < 0.6 * few.pool.mops, "the NIC waits for contexts");
    assert!(many.pool.misses_per_call > 0.2 && few.pool.misses_per_call < 0.01);
    assert!(many.scalerpc.mops > 1.6 * many.pool.mops);
    assert!(few.scalerpc.switches == 0 && many.scalerpc.switches > 10);
    // Rule S5.1: what is not answered within a turn waits for those of the other groups.
    assert!(many.scalerpc.p50_us < 100.0 && many.scalerpc.longest_us > 500.0);
}

#[test]
fn neither_falls_while_all_connections_fit_the_nic() {
    let outcome = run(&plan(&[40, 400], 1350));
    assert!(outcome.spread(|row| row.pool) < 0.1 && outcome.spread(|row| row.scalerpc) < 0.1);
}

#[test]
fn the_same_seed_gives_the_same_events() {
    let plan = |seed| PoolPlan { seed, depth: 2, ..plan(&[60], 32) };
    let [first, again, other] = [3, 3, 4].map(|seed| scalerpc::run(&plan(seed)));
    assert!(first.events > 1000);
    assert_eq!((first.events, first.trace), (again.events, again.trace));
    assert_ne!(first.trace, other.trace);
}
