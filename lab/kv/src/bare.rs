//! What the calls of a workload take by themselves: made, carried out and judged on one thread, with no way between.

use std::collections::VecDeque;

use os::clock;
use rustix::time::ClockId;

use crate::{
    backend::{BackendError, CallToken, Client, Counters, Event, Roster, SubmitError},
    drive::{DriveError, Driver, Schedule, Step},
    job::cpu_time_ns,
    place::{ClientId, Shard},
    store::Partition,
    workload::Workload,
};

/// A client whose servers are functions that it calls.
struct BareClient {
    shards: Vec<Partition>,
    answers: VecDeque<(CallToken, Vec<u8>)>,
    /// Buffers of earlier answers.
    spare: Vec<Vec<u8>>,
    /// Some of the requests, to carry them out once more.
    kept: Vec<(Shard, Vec<u8>)>,
}

/// Requests that are kept.
const KEPT: usize = 4096;

/// CPU time per call, in ns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BareWork {
    /// To make a call, to carry it out and to judge its answer.
    pub whole_ns: f64,
    /// Of this, to carry it out.
    pub serve_ns: f64,
}

impl Client for BareClient {
    fn join(&mut self, _roster: &Roster, _deadline_ns: u64) -> Result<(), BackendError> {
        Ok(())
    }

    fn submit(&mut self, to: Shard, token: CallToken, request: &[u8]) -> Result<(), SubmitError> {
        let shard = self.shards.get_mut(usize::from(to.0)).ok_or(SubmitError::Gone(to))?;
        let mut answer = self.spare.pop().unwrap_or_default();
        answer.clear();
        shard.serve(request, &mut answer);
        self.answers.push_back((token, answer));
        if self.kept.len() < KEPT {
            self.kept.push((to, request.to_vec()));
        }
        Ok(())
    }

    fn poll(
        &mut self,
        budget: usize,
        sink: &mut impl FnMut(Event<'_>),
    ) -> Result<usize, BackendError> {
        let count = self.answers.len().min(budget);
        for (token, bytes) in self.answers.drain(..count) {
            sink(Event::Answer { token, bytes: &bytes });
            self.spare.push(bytes);
        }
        Ok(count)
    }

    fn wait(&mut self, _deadline_ns: u64) -> Result<(), BackendError> {
        Ok(())
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

/// Work of the calls of the first client of `workload`: means over its warm-up and its interval.
///
/// # Errors
///
/// [`DriveError`], which is a mistake of the store or of the judge.
pub fn work(workload: &Workload) -> Result<BareWork, DriveError> {
    let topology = workload.topology();
    let fill =
        |shard| Partition::filled(topology, Shard(shard), workload.value_size, workload.seed);
    let shards = (0..topology.shards()).map(fill).collect();
    let (answers, spare, kept) = Default::default();
    let mut client = BareClient { shards, answers, spare, kept };
    let schedule = Schedule::new(workload, clock::now_ns());
    let mut driver = Driver::new(workload, ClientId(0), schedule);
    let before_ns = cpu_time_ns(ClockId::ThreadCPUTime);
    while driver.step(&mut client, &clock::now_ns)? != Step::Done {}
    let whole_ns = cpu_time_ns(ClockId::ThreadCPUTime) - before_ns;
    let BareClient { mut shards, kept, .. } = client;
    let mut answer = Vec::new();
    let before_ns = cpu_time_ns(ClockId::ThreadCPUTime);
    for (shard, request) in &kept {
        answer.clear();
        shards[usize::from(shard.0)].serve(request, &mut answer);
    }
    let serve_ns = cpu_time_ns(ClockId::ThreadCPUTime) - before_ns;
    Ok(BareWork {
        whole_ns: whole_ns as f64 / driver.answered().max(1) as f64,
        serve_ns: serve_ns as f64 / kept.len().max(1) as f64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::ValueSize;

    /// A store's bytes are copied several times and compared, so longer values cost more, whatever else the machine does.
    #[test]
    fn calls_with_long_values_take_more_than_those_with_short_ones() {
        let of = |bytes: usize| {
            let value_size = ValueSize { min_bytes: bytes, max_bytes: bytes };
            let base =
                Workload { keys: 100, warm_up_ms: 0, duration_ms: 30, ..Workload::default() };
            work(&Workload { value_size, ..base }).unwrap()
        };
        let (short, long) = (of(24), of(64 << 10));
        assert!(long.whole_ns > 2.0 * short.whole_ns, "{short:?} and {long:?}");
        assert!(long.serve_ns > 2.0 * short.serve_ns, "{short:?} and {long:?}");
        assert!(short.serve_ns > 0.0 && short.serve_ns < short.whole_ns, "{short:?}");
    }
}
