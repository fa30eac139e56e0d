//! A process that offers the shards of a rank: a thread per shard, and the main thread, which talks to the
//! coordinator.

use std::{
    cell::Cell,
    sync::{Mutex, PoisonError},
    thread,
};

use client::ProviderStop;
use measure::events::EventMeter;
use memory::sync::{AtomicU32, AtomicU64, Ordering};
use os::{child::ChildChannel, clock};

use super::{
    Config,
    coordinator::ChildError,
    rank::{JOIN_TIMEOUT, lead},
    threads::{MainThread, Threads},
};
use crate::{
    backend::{
        Contact,
        delegation::{ShardProvider, provider_threads},
    },
    drive::Schedule,
    measured::Measured,
    place::Shard,
    store::Partition,
    workload::Workload,
};

/// Serves until told to stop.
pub(super) fn run(
    coordinator: &mut ChildChannel,
    config: &Config,
    rank: u16,
) -> Result<(), ChildError> {
    let shards = &config.workload.topology().shards_of(rank).collect::<Vec<_>>();
    let stops = &Mutex::new(Vec::<ProviderStop>::new());
    let stop =
        || stops.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(ProviderStop::stop);
    // Requests so far, by shard.
    let served = &shards.iter().map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
    // Before there are other threads, which it counts, too.
    let mut events = config.counters.then(EventMeter::of_machine);
    thread::scope(|scope| {
        let names = shards.iter().map(|shard| format!("provider-{}", shard.0));
        let threads = Threads::start(scope, names, move |index, main: &MainThread<Measured>| {
            serve(config, shards[index], &served[index], stops, main)
        })?;
        let reported = Cell::new(0);
        let collect = |total: &mut Measured, _: &Schedule| {
            // Relaxed: all clients have their answers, so the number is final.
            let so_far = served.iter().map(|count| count.load(Ordering::Relaxed)).sum();
            total.served += so_far - reported.replace(so_far);
            Ok(())
        };
        // Nobody looks at the stage: what providers count is not of an interval.
        let result = lead(coordinator, &threads, &AtomicU32::new(0), events.as_mut(), &collect);
        // Also when the job failed.
        stop();
        result
    })
}

/// The thread of one shard, which counts its requests in `served`.
fn serve(
    config: &Config,
    shard: Shard,
    served: &AtomicU64,
    stops: &Mutex<Vec<ProviderStop>>,
    main: &MainThread<Measured>,
) -> Result<(), ChildError> {
    // The store is filled before the roster is there: filling takes longer than connecting.
    let Workload { value_size, seed, .. } = config.workload;
    let mut partition = Partition::filled(config.workload.topology(), shard, value_size, seed);
    let Some(roster) = main.exchange(Contact::default()) else { return Ok(()) };
    let deadline_ns = clock::deadline_ns(JOIN_TIMEOUT);
    let provider = ShardProvider::offer(&config.setup(), shard, &roster, deadline_ns)?;
    stops.lock().unwrap_or_else(PoisonError::into_inner).push(provider.stop_handle());
    main.ready();
    // Relaxed, here and below: a number that publishes nothing.
    match provider_threads(&config.switches) {
        None => {
            let mut count = 0;
            provider.serve(&mut |request, answer| {
                count += 1;
                served.store(count, Ordering::Relaxed);
                partition.serve(request, answer);
            })?;
        }
        Some(threads) => {
            let partition = Mutex::new(partition);
            provider.serve_on(threads, &|request, answer| {
                served.fetch_add(1, Ordering::Relaxed);
                let mut partition = partition.lock().unwrap_or_else(PoisonError::into_inner);
                partition.serve(request, answer);
            })?;
        }
    }
    Ok(())
}
