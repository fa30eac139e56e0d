//! A shard as a service that a process offers to the daemon of its node.

use std::{thread, time::Duration};

use client::{ClientConfig, Offer, Provider, ProviderStop};
use os::clock;
use rpc::Status;

use super::{Address, service_of};
use crate::{
    backend::{BackendError, JobSetup, Roster},
    place::Shard,
};

/// Offers one shard.
#[derive(Debug)]
pub struct ShardProvider {
    provider: Provider,
}

impl ShardProvider {
    /// Offers `shard` to the daemon of its node, as soon as that takes offers.
    ///
    /// # Errors
    ///
    /// [`BackendError`], also when `deadline_ns` passes.
    pub fn offer(
        setup: &JobSetup,
        shard: Shard,
        roster: &Roster,
        deadline_ns: u64,
    ) -> Result<Self, BackendError> {
        let contact = roster.servers.get(usize::from(shard.0)).ok_or_else(|| {
            BackendError::new("cannot offer a shard", "its daemon is not on the roster")
        })?;
        let socket = Address::of(contact)?.socket;
        let topology = setup.topology;
        // As many as all clients can have in flight: none waits in the daemon while this process is idle.
        let window = usize::from(topology.clients()) * setup.queue_depth as usize;
        let offer = Offer::new(service_of(topology, shard)).window(window);
        let config = ClientConfig { wait: setup.wait.policy(), ..ClientConfig::default() };
        loop {
            match Provider::offer(&socket, &offer, config) {
                Ok(provider) => return Ok(Self { provider }),
                Err(cause) if clock::now_ns() >= deadline_ns => {
                    return Err(BackendError::new("cannot offer a shard", cause));
                }
                // Daemons and providers join at the same time: the daemon may take no turns yet.
                Err(_) => thread::sleep(Duration::from_millis(2)),
            }
        }
    }

    /// Ends [`serve`](Self::serve).
    #[must_use]
    pub fn stop_handle(&self) -> ProviderStop {
        self.provider.stop_handle()
    }

    /// Answers requests by `service` until it is stopped.
    ///
    /// # Errors
    ///
    /// [`BackendError`] if the daemon goes before.
    pub fn serve(self, service: &mut dyn FnMut(&[u8], &mut Vec<u8>)) -> Result<(), BackendError> {
        let ended = self.provider.serve(|request, answer| {
            service(request.body, answer);
            Some(Status::Ok)
        });
        ended.map_err(|cause| BackendError::new("a shard's provider cannot go on", cause))
    }

    /// Answers requests by `service` on so many threads until it is stopped.
    ///
    /// # Errors
    ///
    /// As of [`serve`](Self::serve).
    pub fn serve_on(
        self,
        threads: usize,
        service: &(dyn Fn(&[u8], &mut Vec<u8>) + Sync),
    ) -> Result<(), BackendError> {
        let ended = self.provider.serve_on(threads, |request, answer| {
            service(request.body, answer);
            Status::Ok
        });
        ended.map_err(|cause| BackendError::new("a shard's provider cannot go on", cause))
    }
}
