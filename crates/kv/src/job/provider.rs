//! A process that offers the shards of a rank: a thread per shard, and the main thread, which talks to the
//! coordinator.

use std::{
    cell::Cell,
    rc::Rc,
    sync::{Mutex, PoisonError},
    thread,
};

use client::ProviderStop;
use memory::sync::AtomicU32;
use os::{child::ChildChannel, clock};

use super::{
    Config,
    coordinator::ChildError,
    rank::{JOIN_TIMEOUT, lead, service_of},
    threads::{MainThread, Threads},
};
use crate::{
    backend::{Contact, delegation::ShardProvider},
    measured::Measured,
    place::Shard,
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
    thread::scope(|scope| {
        let names = shards.iter().map(|shard| format!("provider-{}", shard.0));
        let threads = Threads::start(scope, names, move |index, main: &MainThread<Measured>| {
            serve(config, shards[index], stops, main)
        })?;
        // Nobody looks at the stage: what providers count is not of an interval.
        let result = lead(coordinator, &threads, &AtomicU32::new(0), &stop);
        // Also when the job failed.
        stop();
        result
    })
}

/// The thread of one shard.
fn serve(
    config: &Config,
    shard: Shard,
    stops: &Mutex<Vec<ProviderStop>>,
    main: &MainThread<Measured>,
) -> Result<(), ChildError> {
    // The store is filled before the roster is there: filling takes longer than connecting.
    let service = service_of(config, shard, Rc::new(Cell::new(0)));
    let Some(roster) = main.exchange(Contact::default()) else { return Ok(()) };
    let deadline_ns = clock::deadline_ns(JOIN_TIMEOUT);
    let provider = ShardProvider::offer(&config.setup(), shard, &roster, deadline_ns)?;
    stops.lock().unwrap_or_else(PoisonError::into_inner).push(provider.stop_handle());
    main.ready();
    let served = provider.serve(service)?;
    main.done(Measured { served, ..Measured::default() });
    Ok(())
}
