//! Verbs traffic between two processes, generic over the NIC, with every message checked.
//!
//! | shape | timed | checked |
//! |---|---|---|
//! | [`stream`] | small messages one way, as many per second as possible | all bytes of each |
//! | [`round_trip`] | one message there, one back | length, immediate and last word of each; all bytes of small ones; all bytes of the last large one |
//! | [`remote`] | one READ or atomic at a time | each value, and what the target holds at the end |
//! | [`transfer`] | large messages one way, a window of them in flight | last word of each (WRITE: its completion); all bytes that are there at the end |
//!
//! Patterns differ from sample to sample, so what an earlier sample left is never taken for data.

use core::time::Duration;

use memory::sync::Ordering;
use serde::{Deserialize, Serialize};
use verbs::Nic;

use crate::{
    board::{Board, Word},
    duo::DuoError,
    traffic::{
        link::{Event, Link},
        remote::Remote,
        round_trip::RoundTrip,
        stream::Stream,
        transfer::Transfer,
    },
};

mod error;
pub mod link;
mod links;
mod payload;
pub mod remote;
pub mod round_trip;
pub mod stream;
pub mod transfer;

pub use error::TrafficError;
pub use links::{Contact, LinkKind, Links};

/// Round trips or remote operations per reading of the clock.
pub(crate) const BATCH: u64 = 50;

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Traffic {
    /// M messages/s.
    Stream(Stream),
    /// ns.
    RoundTrip(RoundTrip),
    /// ns.
    Remote(Remote),
    /// GiB/s.
    Transfer(Transfer),
}

/// One sample of some traffic: both sides get the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// What is sent.
    pub traffic: Traffic,
    /// Number of messages or operations.
    pub count: u64,
    /// Different for every sample, not 0, below 2³¹: seeds the patterns and the sequence numbers.
    pub number: u64,
}

impl Sample {
    /// Sequence number of message `index`: never repeated within a run, never 0.
    pub(crate) fn sequence(&self, index: u64) -> u64 {
        self.number << 32 | index
    }
}

/// One side of the traffic, whatever its NIC: what the two processes hold.
pub trait Party {
    /// What the other side needs to connect.
    fn contacts(&self) -> Vec<Contact>;

    /// Connects to the other side.
    ///
    /// # Errors
    ///
    /// [`TrafficError`].
    fn connect(&mut self, contacts: &[Contact]) -> Result<(), TrafficError>;

    /// Keeps the NIC going between samples; returns how long it needs no more of that.
    ///
    /// # Errors
    ///
    /// [`TrafficError`].
    fn idle(&mut self) -> Result<Option<Duration>, TrafficError>;

    /// Runs the timed side of `sample`, after the other side is ready; its number in the unit of
    /// the traffic.
    ///
    /// # Errors
    ///
    /// [`TrafficError`].
    fn initiate(&mut self, board: &Board, sample: &Sample) -> Result<f64, TrafficError>;

    /// Runs the other side; calls `ready` when the initiator may begin.
    ///
    /// # Errors
    ///
    /// [`TrafficError`].
    fn respond(
        &mut self,
        board: &Board,
        sample: &Sample,
        ready: &mut dyn FnMut() -> Result<(), DuoError>,
    ) -> Result<(), TrafficError>;
}

impl<N: Nic> Party for Links<N> {
    fn contacts(&self) -> Vec<Contact> {
        self.contacts()
    }

    fn connect(&mut self, contacts: &[Contact]) -> Result<(), TrafficError> {
        self.connect(contacts)
    }

    fn idle(&mut self) -> Result<Option<Duration>, TrafficError> {
        self.idle()
    }

    fn initiate(&mut self, board: &Board, sample: &Sample) -> Result<f64, TrafficError> {
        let link = self.link(sample.traffic.link());
        let result = match sample.traffic {
            Traffic::Stream(stream) => stream.initiate(link, board, sample)?,
            Traffic::RoundTrip(round_trip) => round_trip.initiate(link, board, sample)?,
            Traffic::Remote(remote) => remote.initiate(link, board, sample)?,
            Traffic::Transfer(transfer) => transfer.initiate(link, board, sample)?,
        };
        meet(link, board, Word::InitiatorDone, Word::ResponderDone, sample)?;
        if let Traffic::Transfer(transfer) = sample.traffic {
            transfer.verify_initiator(link, sample)?;
        }
        Ok(result)
    }

    fn respond(
        &mut self,
        board: &Board,
        sample: &Sample,
        ready: &mut dyn FnMut() -> Result<(), DuoError>,
    ) -> Result<(), TrafficError> {
        let link = self.link(sample.traffic.link());
        match sample.traffic {
            Traffic::Stream(stream) => stream.respond(link, board, sample, ready)?,
            Traffic::RoundTrip(round_trip) => round_trip.respond(link, board, sample, ready)?,
            Traffic::Remote(remote) => remote.prepare_target(link, sample, ready)?,
            Traffic::Transfer(transfer) => transfer.respond(link, board, sample, ready)?,
        }
        meet(link, board, Word::ResponderDone, Word::InitiatorDone, sample)?;
        match sample.traffic {
            Traffic::Remote(remote) => remote.verify_target(link, sample),
            Traffic::Transfer(transfer) => transfer.verify_responder(link, sample),
            Traffic::Stream(_) | Traffic::RoundTrip(_) => Ok(()),
        }
    }
}

impl Traffic {
    /// Time per message or operation, in ns, of a sample whose number was `value`.
    pub(crate) fn message_ns(self, value: f64) -> f64 {
        match self {
            Self::Stream(_) => 1e3 / value,
            Self::RoundTrip(_) | Self::Remote(_) => value,
            Self::Transfer(transfer) => {
                transfer.len_bytes as f64 / (value * f64::from(1 << 30)) * 1e9
            }
        }
    }

    fn link(self) -> LinkKind {
        match self {
            Self::Stream(stream) => stream.link,
            Self::RoundTrip(round_trip) => round_trip.link,
            Self::Remote(_) => LinkKind::Rc,
            Self::Transfer(transfer) => transfer.link,
        }
    }
}

/// Ends a sample on both sides: keeps the NIC going until the other side needs nothing any more.
fn meet<N: Nic>(
    link: &mut Link<N>,
    board: &Board,
    mine: Word,
    theirs: Word,
    sample: &Sample,
) -> Result<(), TrafficError> {
    let mut patience = board.patience(link::PATIENCE);
    // SYNC(sample-done): pairs with the Acquire below, in the other process.
    board.word(mine).store(sample.number, Ordering::Release);
    // SYNC(sample-done): pairs with the Release above, in the other process.
    while board.word(theirs).load(Ordering::Acquire) != sample.number {
        match link.poll()? {
            Some(Event::Received { .. }) => return Err(TrafficError::Stray),
            Some(Event::Sent(_)) => {}
            None => patience.wait()?,
        }
    }
    Ok(())
}
