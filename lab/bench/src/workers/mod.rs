//! Calls between two workers in two processes, generic over the NIC, with every answer checked.
//!
//! ```text
//! initiator                                    responder
//!   endpoint 0 … n, depth calls in flight ──▶  answers each with its body, the first word inverted
//!   compares every byte, calls again      ◀──  one way: compares the body, answers with that word alone
//! ```
//!
//! [`tail_beside`](WorkerCalls::tail_beside) asks for the slowest calls instead.
//!
//! Each sample has workers and ports of its own, so none inherits the state of the one before; its
//! first calls are not timed.

use memory::sync::Ordering;
use os::{child::from_json, clock::PollClock};
use rpc::{Counters, Handler, Invitation, PeerId, Worker};
use serde::{Deserialize, Serialize};
use verbs::Nic;

use measure::results::PerBatch;

use self::program::{Client, Server};
pub use self::switches::Switches;
use crate::{
    error::Error,
    sample::{Measured, Ready, SamplePlan},
    shared_words::{Patience, SharedWord, SharedWords},
    traffic::link::PATIENCE,
};

pub mod matrix;
mod program;
pub mod switches;
mod tail;

/// Polls between two looks at the shared words.
const POLLS_PER_LOOK: u32 = 64;

/// What is called, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerCalls {
    /// Of both workers.
    pub switches: Switches,
    /// Connections between the two workers.
    pub endpoints: u16,
    /// Calls in flight, over all endpoints. One: the result is ns per round trip; more: millions of
    /// calls per second.
    pub depth: u16,
    /// Of the body of each call, and of its answer. At least 8.
    pub len_bytes: usize,
    /// Answers are 8 bytes long: the result is GiB/s of bodies.
    pub is_one_way: bool,
    /// Calls are made one by one over the first endpoint, and the result is what 99 of 100 of them stay
    /// below, in ns. Meanwhile bodies of so many bytes go one way over the second endpoint, unless it is 0.
    pub tail_beside: Option<usize>,
}

impl WorkerCalls {
    /// Of an answer.
    fn answer_bytes(&self) -> usize {
        if self.is_one_way { crate::series::WORD_BYTES } else { self.len_bytes }
    }
}

/// A worker and its endpoints, opened for one sample.
pub(crate) struct Opened<N: Nic> {
    worker: Worker<N>,
    peers: Vec<PeerId>,
}

impl<N: Nic> Opened<N> {
    /// A worker on `nic` for `calls`, and what the other side must be told.
    pub(crate) fn open(nic: N, calls: &WorkerCalls) -> Result<(Self, Vec<String>), Error> {
        let config = calls.switches.config(calls.endpoints);
        let mut worker = Worker::open(nic, config, os::clock::now_ns())?;
        let invited =
            (0..calls.endpoints).map(|_| worker.invite()).collect::<Result<Vec<_>, _>>()?;
        let (peers, invitations): (Vec<_>, Vec<_>) = invited.into_iter().unzip();
        let told = invitations.iter().map(|one| serde_json::to_string(one.as_bytes()));
        let told = told.collect::<Result<_, _>>()?;
        Ok((Self { worker, peers }, told))
    }

    /// Connects to what the other side told.
    pub(crate) fn connect(&mut self, theirs: &[String]) -> Result<(), Error> {
        if theirs.len() != self.peers.len() {
            return Err(rpc::ContactError::Length(theirs.len()).into());
        }
        for (peer, text) in self.peers.iter().zip(theirs) {
            let bytes = from_json::<Vec<u8>>(text)?;
            self.worker.connect(*peer, &Invitation::from_bytes(&bytes)?)?;
        }
        Ok(())
    }

    /// Runs the timed side of `sample`, after the other side is ready.
    pub(crate) fn initiate(
        self,
        calls: &WorkerCalls,
        shared: &SharedWords,
        sample: &SamplePlan,
    ) -> Result<Measured, Error> {
        let (len_bytes, peers) = (calls.len_bytes, self.peers.clone());
        match calls.tail_beside {
            Some(beside) => {
                self.run(tail::Client::new(len_bytes, beside, sample, peers), shared, sample)
            }
            None => self.run(Client::new(calls.clone(), sample, peers), shared, sample),
        }
    }

    fn run(
        self,
        mut client: impl Program<N>,
        shared: &SharedWords,
        sample: &SamplePlan,
    ) -> Result<Measured, Error> {
        let Self { mut worker, peers } = self;
        client.begin(&mut worker);
        let (mut clock, mut patience) = (PollClock::new(), shared.patience(PATIENCE));
        while !client.is_finished() {
            step(&mut worker, &mut client, &mut clock, &mut patience)?;
            if let Some(failure) = client.failure() {
                return Err(failure);
            }
        }
        let per_batch = per_batch(peers.iter().filter_map(|peer| worker.counters(*peer)));
        // SYNC(calls-done): pairs with the Acquire in `respond`, in the other process.
        shared.word(SharedWord::InitiatorDone).store(sample.number, Ordering::Release);
        // SYNC(calls-done): pairs with the Release in `respond`, in the other process.
        while shared.word(SharedWord::ResponderDone).load(Ordering::Acquire) != sample.number {
            step(&mut worker, &mut client, &mut clock, &mut patience)?;
        }
        Ok(Measured { value: client.value(sample.count), per_batch: Some(per_batch) })
    }

    /// Answers until the other side has finished; calls `ready` when the initiator may begin.
    pub(crate) fn respond(
        mut self,
        calls: &WorkerCalls,
        shared: &SharedWords,
        sample: &SamplePlan,
        ready: Ready<'_>,
    ) -> Result<(), Error> {
        let mut server = Server::new(calls);
        let (mut clock, mut patience) = (PollClock::new(), shared.patience(PATIENCE));
        ready()?;
        // SYNC(calls-done): pairs with the Release in `initiate`, in the other process.
        while shared.word(SharedWord::InitiatorDone).load(Ordering::Acquire) != sample.number {
            for _ in 0..POLLS_PER_LOOK {
                step(&mut self.worker, &mut server, &mut clock, &mut patience)?;
            }
            if let Some(failure) = server.failure.take() {
                return Err(failure);
            }
        }
        // SYNC(calls-done): pairs with the Acquire in `initiate`, in the other process.
        shared.word(SharedWord::ResponderDone).store(sample.number, Ordering::Release);
        Ok(())
    }
}

/// The timed side of a sample.
trait Program<N: Nic>: Handler<N> {
    /// Makes the first calls.
    fn begin(&mut self, worker: &mut Worker<N>);

    /// Whether the last call was answered.
    fn is_finished(&self) -> bool;

    /// The first thing that went wrong since this was asked before.
    fn failure(&mut self) -> Option<Error>;

    /// The number of a sample of so many timed calls.
    fn value(&mut self, count: u64) -> f64;
}

macro_rules! program {
    ($client:ty) => {
        impl<N: Nic> Program<N> for $client {
            fn begin(&mut self, worker: &mut Worker<N>) {
                self.begin(worker);
            }

            #[inline]
            fn is_finished(&self) -> bool {
                self.is_finished()
            }

            #[inline]
            fn failure(&mut self) -> Option<Error> {
                self.failure.take()
            }

            fn value(&mut self, count: u64) -> f64 {
                self.value(count)
            }
        }
    };
}
program!(Client);
program!(tail::Client);

#[inline]
fn step<N: Nic>(
    worker: &mut Worker<N>,
    handler: &mut impl Handler<N>,
    clock: &mut PollClock,
    patience: &mut Patience<'_>,
) -> Result<(), Error> {
    if worker.poll(clock.now_ns(), handler) == 0 {
        patience.wait()?;
    } else {
        patience.progress();
    }
    Ok(())
}

fn per_batch(counters: impl Iterator<Item = Counters>) -> PerBatch {
    let [mut out, mut into] = [(0, 0); 2];
    for one in counters {
        out = (out.0 + one.messages_out, out.1 + one.batches_out);
        into = (into.0 + one.messages_in, into.1 + one.batches_in);
    }
    let mean = |(messages, batches): (u64, u64)| messages as f64 / batches.max(1) as f64;
    PerBatch { calls: mean(out), answers: mean(into) }
}
