//! Groups in turn keep their rate where a pool per client loses it, and a run is a function of its seed.

use copyrpc_sim::{
    actors::pool_server::{self, Late, Load, Way},
    machine::CONNECT_IB,
    scenarios::scalerpc::{self, CONTEXTS, Outcome, PoolPlan},
    world::Time,
};

fn plan(clients: &[u16], contexts: usize) -> PoolPlan {
    PoolPlan { clients: clients.to_vec(), contexts, ..PoolPlan::default() }
}

fn run(plan: &PoolPlan) -> Outcome {
    let outcome = scalerpc::run(plan, |_, _| ());
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
    let [first, again, other] = [3, 3, 4].map(|seed| scalerpc::run(&plan(seed), |_, _| ()));
    assert!(first.events > 1000);
    assert_eq!((first.events, first.trace), (again.events, again.trace));
    assert_ne!(first.trace, other.trace);
}

/// Writes arrive when the turn of their client is over, READs of announced requests end when groups have
/// switched, and zones are somebody else's by then. Each answer is checked against its call as it arrives.
#[test]
fn fault_d10_what_comes_outside_of_a_turn_is_neither_lost_nor_executed_twice() {
    let us = |us: u64| Time::from_ns(1000 * us);
    for seed in 0..4 {
        let run = |late| {
            let load = Load {
                way: Way::ScaleRpc { group: 10, slice: us(50) },
                clients: 40,
                depth: 4,
                threads: 4,
                late,
                warm_up: us(1000),
                end: us(8000),
            };
            pool_server::run(&CONNECT_IB, &load, seed)
        };
        let (calm, late) = (run(None), run(Some(Late { permille: 20, longest: us(200) })));
        println!("{} {} {} {:?}", calm.outside, late.outside, late.executed, late.answered);
        let answered: u64 = late.answered.iter().sum();
        // The end of a turn is told, too, and requests cross it.
        assert!(calm.outside > 100 && late.outside > 100, "nothing came outside of a turn");
        assert!(late.outside * calm.executed > calm.outside * late.executed, "nothing was late");
        assert!((answered..=answered + 40 * 4).contains(&late.executed), "{late:?}");
        assert!(late.answered.iter().all(|calls| *calls > 50), "{:?}", late.answered);
    }
}
