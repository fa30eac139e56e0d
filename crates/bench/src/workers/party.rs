//! One side of the calls.

use std::fmt::Write as _;

use memory::sync::Ordering;
use os::clock::PollClock;
use rpc::{Counters, Handler, Invitation, PeerId, Worker};
use verbs::Nic;

use crate::{
    board::{Board, Patience, Word},
    duo::DuoError,
    limit::per_second,
    stats,
    traffic::link::PATIENCE,
    workers::{
        Measured, Merging, WorkerCalls, WorkerError, WorkerSample,
        program::{Client, Server},
    },
};

/// Polls between two looks at the shared words.
const POLLS_PER_LOOK: u32 = 64;

/// One side of the calls, whatever its NIC: what the two processes hold.
pub trait WorkerParty {
    /// Opens a worker for `calls`; returns what the other side must be told.
    ///
    /// # Errors
    ///
    /// [`WorkerError`].
    fn open(&mut self, calls: &WorkerCalls) -> Result<Vec<String>, WorkerError>;

    /// Connects to what the other side told.
    ///
    /// # Errors
    ///
    /// [`WorkerError`].
    fn connect(&mut self, invitations: &[String]) -> Result<(), WorkerError>;

    /// Runs the timed side of `sample`, after the other side is ready, and drops the worker.
    ///
    /// # Errors
    ///
    /// [`WorkerError`].
    fn initiate(&mut self, board: &Board, sample: &WorkerSample) -> Result<Measured, WorkerError>;

    /// Answers until the other side has finished, and drops the worker; calls `ready` when the
    /// initiator may begin.
    ///
    /// # Errors
    ///
    /// [`WorkerError`].
    fn respond(
        &mut self,
        board: &Board,
        sample: &WorkerSample,
        ready: &mut dyn FnMut() -> Result<(), DuoError>,
    ) -> Result<(), WorkerError>;
}

/// A worker and its endpoints.
struct Opened<N: Nic> {
    worker: Worker<N>,
    peers: Vec<PeerId>,
}

/// Workers on ports that `open_nic` opens, one at a time.
pub struct Workers<N: Nic, F> {
    open_nic: F,
    opened: Option<Opened<N>>,
}

impl<N: Nic, F: Fn() -> Result<N, String>> Workers<N, F> {
    /// Opens nothing yet.
    #[must_use]
    pub fn new(open_nic: F) -> Self {
        Self { open_nic, opened: None }
    }
}

impl<N: Nic, F: Fn() -> Result<N, String>> WorkerParty for Workers<N, F> {
    fn open(&mut self, calls: &WorkerCalls) -> Result<Vec<String>, WorkerError> {
        self.opened = None;
        let nic = (self.open_nic)().map_err(WorkerError::Nic)?;
        let config = calls.switches.config(calls.endpoints);
        let mut worker = Worker::open(nic, config, os::clock::now_ns())?;
        let invited =
            (0..calls.endpoints).map(|_| worker.invite()).collect::<Result<Vec<_>, _>>()?;
        let (peers, invitations): (Vec<_>, Vec<_>) = invited.into_iter().unzip();
        self.opened = Some(Opened { worker, peers });
        Ok(invitations.iter().map(|invitation| to_hex(invitation.as_bytes())).collect())
    }

    fn connect(&mut self, invitations: &[String]) -> Result<(), WorkerError> {
        let Opened { worker, peers } = self.opened.as_mut().ok_or(WorkerError::NotOpen)?;
        if invitations.len() != peers.len() {
            return Err(rpc::ContactError::Length(invitations.len()).into());
        }
        for (peer, text) in peers.iter().zip(invitations) {
            worker.connect(*peer, &Invitation::from_bytes(&from_hex(text))?)?;
        }
        Ok(())
    }

    fn initiate(&mut self, board: &Board, sample: &WorkerSample) -> Result<Measured, WorkerError> {
        let Opened { mut worker, peers } = self.opened.take().ok_or(WorkerError::NotOpen)?;
        let mut client = Client::new(*sample, peers.clone());
        client.begin(&mut worker);
        let (mut clock, mut patience) = (PollClock::new(), board.patience(PATIENCE));
        while client.finished.is_none() {
            step(&mut worker, &mut client, &mut clock, &mut patience)?;
            if let Some(failure) = client.failure.take() {
                return Err(failure);
            }
        }
        let merging = merging(peers.iter().filter_map(|peer| worker.counters(*peer)));
        // SYNC(calls-done): pairs with the Acquire in `respond`, in the other process.
        board.word(Word::InitiatorDone).store(sample.number, Ordering::Release);
        // SYNC(calls-done): pairs with the Release in `respond`, in the other process.
        while board.word(Word::ResponderDone).load(Ordering::Acquire) != sample.number {
            step(&mut worker, &mut client, &mut clock, &mut patience)?;
        }
        Ok(Measured { value: value(&mut client, sample), merging })
    }

    fn respond(
        &mut self,
        board: &Board,
        sample: &WorkerSample,
        ready: &mut dyn FnMut() -> Result<(), DuoError>,
    ) -> Result<(), WorkerError> {
        let Opened { mut worker, .. } = self.opened.take().ok_or(WorkerError::NotOpen)?;
        let mut server = Server::default();
        let (mut clock, mut patience) = (PollClock::new(), board.patience(PATIENCE));
        ready()?;
        // SYNC(calls-done): pairs with the Release in `initiate`, in the other process.
        while board.word(Word::InitiatorDone).load(Ordering::Acquire) != sample.number {
            for _ in 0..POLLS_PER_LOOK {
                step(&mut worker, &mut server, &mut clock, &mut patience)?;
            }
            let closed = server.closed.map(WorkerError::Closed);
            if let Some(failure) = server.failure.take().or(closed) {
                return Err(failure);
            }
        }
        // SYNC(calls-done): pairs with the Acquire in `initiate`, in the other process.
        board.word(Word::ResponderDone).store(sample.number, Ordering::Release);
        Ok(())
    }
}

#[inline]
fn step<N: Nic>(
    worker: &mut Worker<N>,
    handler: &mut impl Handler<N>,
    clock: &mut PollClock,
    patience: &mut Patience<'_>,
) -> Result<(), WorkerError> {
    if worker.poll(clock.now_ns(), handler) == 0 {
        patience.wait()?;
    } else {
        patience.progress();
    }
    Ok(())
}

/// Median batch of round trips in ns, or millions of calls per second.
fn value(client: &mut Client, sample: &WorkerSample) -> f64 {
    if sample.calls.depth == 1 && !client.round_trips.is_empty() {
        return stats::median(&mut client.round_trips);
    }
    match (client.started(), client.finished) {
        (Some(begin), Some(end)) => per_second(sample.count, end - begin) / 1e6,
        _ => 0.0,
    }
}

fn merging(counters: impl Iterator<Item = Counters>) -> Merging {
    let add = |sum: Counters, one: Counters| Counters {
        batches_out: sum.batches_out + one.batches_out,
        messages_out: sum.messages_out + one.messages_out,
        batches_in: sum.batches_in + one.batches_in,
        messages_in: sum.messages_in + one.messages_in,
        ..sum
    };
    let sum = counters.fold(Counters::default(), add);
    let mean = |messages: u64, batches: u64| messages as f64 / batches.max(1) as f64;
    Merging {
        calls: mean(sum.messages_out, sum.batches_out),
        answers: mean(sum.messages_in, sum.batches_in),
    }
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Empty if it is not hexadecimal: then it is no invitation either.
fn from_hex(text: &str) -> Vec<u8> {
    let digits = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok();
    text.as_bytes().chunks(2).map(digits).collect::<Option<_>>().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invitations_survive_their_text() {
        assert_eq!(to_hex(&[0, 0x1f, 0xff]), "001fff");
        assert_eq!(from_hex("001fff"), [0, 0x1f, 0xff]);
        assert!(from_hex("0g").is_empty());
    }
}
