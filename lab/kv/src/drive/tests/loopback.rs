//! The whole cluster in the calling thread, in virtual time: what tests drive clients against.
//!
//! All clients share one server that takes `service_ns` for each request, in order, and does nothing
//! during its stalls.

use std::{cell::RefCell, collections::VecDeque, ops::Range, rc::Rc};

use crate::{
    backend::{BackendError, CallToken, Client, Counters, Event, Roster, SubmitError},
    place::{ClientId, Shard},
    store::Partition,
    workload::Workload,
};

/// The virtual cluster and its clock.
#[derive(Debug)]
pub(super) struct Loopback {
    shards: Vec<Partition>,
    now_ns: u64,
    service_ns: u64,
    stalls: Vec<Range<u64>>,
    /// When the server is done with what it has.
    free_ns: u64,
    capacity: usize,
}

/// A handle of the cluster.
#[derive(Clone, Debug)]
pub(super) struct Cluster(Rc<RefCell<Loopback>>);

impl Cluster {
    /// The cluster that `workload` asks for, at time 0.
    pub(super) fn new(workload: &Workload, service_ns: u64) -> Self {
        let topology = workload.topology();
        let fill =
            |shard| Partition::filled(topology, Shard(shard), workload.value_size, workload.seed);
        Self(Rc::new(RefCell::new(Loopback {
            shards: (0..topology.shards()).map(fill).collect(),
            now_ns: 0,
            service_ns,
            stalls: Vec::new(),
            free_ns: 0,
            capacity: usize::MAX,
        })))
    }

    /// Lets the server do nothing in this interval.
    pub(super) fn stall(&self, interval: Range<u64>) {
        self.0.borrow_mut().stalls.push(interval);
    }

    /// Lets each client have `capacity` calls outstanding: the next one is refused as full.
    pub(super) fn limit(&self, capacity: usize) {
        self.0.borrow_mut().capacity = capacity;
    }

    /// Virtual time.
    pub(super) fn now_ns(&self) -> u64 {
        self.0.borrow().now_ns
    }

    /// Moves virtual time on.
    pub(super) fn advance(&self, ns: u64) {
        self.0.borrow_mut().now_ns += ns;
    }

    /// A client's end.
    pub(super) fn client(&self, _client: ClientId) -> LoopbackClient {
        LoopbackClient { cluster: self.clone(), answers: VecDeque::new() }
    }
}

impl Loopback {
    /// When a request that arrives now is served.
    fn serve_ns(&mut self) -> u64 {
        let mut done_ns = self.now_ns.max(self.free_ns) + self.service_ns;
        for stall in &self.stalls {
            if stall.contains(&done_ns) {
                done_ns = stall.end + self.service_ns;
            }
        }
        self.free_ns = done_ns;
        done_ns
    }
}

/// A client's end.
#[derive(Debug)]
pub(super) struct LoopbackClient {
    cluster: Cluster,
    /// Answers and when they are there, in order.
    answers: VecDeque<(u64, CallToken, Vec<u8>)>,
}

impl Client for LoopbackClient {
    fn join(&mut self, _roster: &Roster, _deadline_ns: u64) -> Result<(), BackendError> {
        Ok(())
    }

    fn submit(&mut self, to: Shard, token: CallToken, request: &[u8]) -> Result<(), SubmitError> {
        let cluster = &mut *self.cluster.0.borrow_mut();
        if self.answers.len() >= cluster.capacity {
            return Err(SubmitError::Full);
        }
        let shard = cluster.shards.get_mut(usize::from(to.0)).ok_or(SubmitError::Gone(to))?;
        let mut answer = Vec::new();
        shard.serve(request, &mut answer);
        self.answers.push_back((cluster.serve_ns(), token, answer));
        Ok(())
    }

    fn poll(
        &mut self,
        budget: usize,
        sink: &mut impl FnMut(Event<'_>),
    ) -> Result<usize, BackendError> {
        let now_ns = self.cluster.now_ns();
        let is_there = |answer: &&(u64, CallToken, Vec<u8>)| answer.0 <= now_ns;
        let count = self.answers.iter().take(budget).take_while(is_there).count();
        for (_, token, bytes) in self.answers.drain(..count) {
            sink(Event::Answer { token, bytes: &bytes });
        }
        Ok(count)
    }

    fn wait(&mut self, deadline_ns: u64) -> Result<(), BackendError> {
        let next_ns = self.answers.front().map_or(deadline_ns, |answer| answer.0.min(deadline_ns));
        let now_ns = self.cluster.now_ns();
        self.cluster.advance(next_ns.saturating_sub(now_ns));
        Ok(())
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}
