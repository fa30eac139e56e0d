//! The client thread's end: one connection to the daemon of its node.

use std::{io, time::Duration};

use client::{CallError, ClientConfig, Pipeline};
use os::clock;
use rpc::Status;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Address, address_of, client_config};
use crate::{
    backend::{
        BackendError, CallFailure, CallToken, Client, Counters, Event, JobSetup, Roster,
        SubmitError,
    },
    place::{Shard, Topology},
};

/// A pipeline to a daemon.
pub struct DelegationClient {
    /// The first shard of its node.
    home: Shard,
    topology: Topology,
    config: ClientConfig,
    message_bytes_max: usize,
    /// `None` before it has joined.
    pipeline: Option<Pipeline<(Shard, CallToken)>>,
    /// The daemon is gone.
    is_lost: bool,
    waits: u64,
}

impl DelegationClient {
    pub(super) fn new(setup: &JobSetup, home: Shard) -> Self {
        Self {
            home,
            topology: setup.topology,
            config: client_config(setup),
            message_bytes_max: setup.message_bytes_max,
            pipeline: None,
            is_lost: false,
            waits: 0,
        }
    }
}

fn failure_of(error: &CallError) -> CallFailure {
    match error.status() {
        Status::DeadlineExceeded => CallFailure::Timeout,
        Status::ResourceExhausted => CallFailure::Overloaded,
        _ => CallFailure::PeerGone,
    }
}

/// Whether the connection to the daemon itself has ended.
fn is_of_daemon(error: &CallError) -> bool {
    matches!(error, CallError::Daemon(_)) && error.status() == Status::Unavailable
}

impl Client for DelegationClient {
    fn join(&mut self, roster: &Roster, deadline_ns: u64) -> Result<(), BackendError> {
        let contact = roster
            .servers
            .get(usize::from(self.home.0))
            .ok_or_else(|| BackendError::new("cannot join", "its daemon is not on the roster"))?;
        let address = Address::of(contact)?;
        // Daemons and clients join at the same time: the socket may not be there yet.
        loop {
            match Pipeline::connect(&address.socket, self.config) {
                Ok(pipeline) => {
                    self.pipeline = Some(pipeline);
                    return Ok(());
                }
                Err(cause) if clock::now_ns() >= deadline_ns => {
                    return Err(BackendError::new("cannot connect to the daemon", cause));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(2)),
            }
        }
    }

    fn submit(&mut self, to: Shard, token: CallToken, request: &[u8]) -> Result<(), SubmitError> {
        let Some(pipeline) = self.pipeline.as_mut().filter(|_| !self.is_lost) else {
            return Err(SubmitError::Gone(to));
        };
        let (len_bytes, max_bytes) = (request.len(), self.message_bytes_max);
        if len_bytes > max_bytes {
            return Err(SubmitError::TooLarge { len_bytes, max_bytes });
        }
        match pipeline.submit(address_of(self.topology, to), request, (to, token)) {
            Ok(_) => Ok(()),
            Err(refused) if refused.error.status() == Status::ResourceExhausted => {
                Err(SubmitError::Full)
            }
            Err(refused) if refused.error.status() == Status::OutOfRange => {
                Err(SubmitError::TooLarge { len_bytes, max_bytes })
            }
            Err(_) => Err(SubmitError::Gone(to)),
        }
    }

    /// One look at the response ring, which holds no more events than there are calls.
    fn poll(
        &mut self,
        _budget: usize,
        sink: &mut impl FnMut(Event<'_>),
    ) -> Result<usize, BackendError> {
        let Some(pipeline) = &mut self.pipeline else { return Ok(0) };
        let mut is_lost = false;
        let mut count = pipeline.poll(|(_, token), answer| match answer {
            Ok(bytes) => sink(Event::Answer { token, bytes }),
            Err(error) => {
                is_lost |= is_of_daemon(&error);
                sink(Event::Failed { token, failure: failure_of(&error) });
            }
        });
        pipeline.flush();
        if is_lost && !std::mem::replace(&mut self.is_lost, true) {
            for shard in 0..self.topology.shards() {
                sink(Event::Lost { shard: Shard(shard) });
                count += 1;
            }
        }
        Ok(count)
    }

    fn wait(&mut self, deadline_ns: u64) -> Result<(), BackendError> {
        let Some(pipeline) = &mut self.pipeline else { return Ok(()) };
        pipeline.flush();
        if pipeline.in_flight() > 0 && !pipeline.arm() {
            return Ok(());
        }
        self.waits += 1;
        let left_ns = deadline_ns.saturating_sub(clock::now_ns());
        let left = Duration::from_nanos(left_ns);
        let timeout = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        let mut fds = [PollFd::new(&*pipeline, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(BackendError::new("cannot wait", io::Error::from(errno))),
        }
    }

    fn counters(&self) -> Counters {
        let mut counters = Counters::default();
        counters.named.insert("client waits".to_owned(), self.waits);
        counters
    }
}
