//! Verbs traffic between two processes, generic over the NIC, with every message checked.
//!
//! | shape | timed | checked |
//! |---|---|---|
//! | [`OneWay`] | messages one way, a window of them in flight: small ones per second, large ones as bandwidth | all bytes of each small one; last word of each large one (WRITE: its completion), all bytes that are there at the end |
//! | [`RoundTrip`] | one message there, one back | length, immediate and last word of each; all bytes of small ones; all bytes of the last large one |
//! | [`Remote`] | one READ or atomic at a time | each value, and what the target holds at the end |
//!
//! Patterns differ from sample to sample, so what an earlier sample left is never taken for data.

use memory::sync::Ordering;
use serde::{Deserialize, Serialize};
use verbs::Nic;

use self::link::{Event, Link};
use crate::{
    error::Error,
    sample::{Ready, SamplePlan},
    shared_words::{SharedWord, SharedWords},
};

pub(crate) mod link;
mod links;
mod one_way;
mod payload;
mod remote;
mod round_trip;

pub(crate) use links::Contact;
pub use links::{LinkKind, Links};
pub use one_way::OneWay;
pub(crate) use payload::SMALL_BYTES;
pub use remote::Remote;
pub use round_trip::RoundTrip;

/// The operation that carries a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verb {
    /// SEND into the next receive buffer; a completion tells.
    Send,
    /// WRITE with immediate, consuming an empty receive; a completion tells.
    WriteImm,
    /// WRITE: the receiver's CPU takes no part, or polls the last word.
    Write,
    /// READ: the other side's CPU takes no part.
    Read,
}

/// Kinds of message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Traffic {
    /// M messages/s, or GiB/s.
    OneWay(OneWay),
    /// ns.
    RoundTrip(RoundTrip),
    /// ns.
    Remote(Remote),
}

impl Traffic {
    /// Runs the timed side of `sample`, after the other side is ready; its number in the unit of the traffic.
    pub(crate) fn initiate<N: Nic>(
        self,
        links: &mut Links<N>,
        shared: &SharedWords,
        sample: &SamplePlan,
    ) -> Result<f64, Error> {
        let link = links.link(self.link());
        let value = match self {
            Self::OneWay(one_way) => one_way.initiate(link, shared, sample)?,
            Self::RoundTrip(round_trip) => round_trip.initiate(link, shared, sample)?,
            Self::Remote(remote) => remote.initiate(link, shared, sample)?,
        };
        meet(link, shared, SharedWord::InitiatorDone, SharedWord::ResponderDone, sample)?;
        if let Self::OneWay(one_way) = self {
            one_way.verify(link, sample, true)?;
        }
        Ok(value)
    }

    /// Runs the other side; calls `ready` when the initiator may begin.
    pub(crate) fn respond<N: Nic>(
        self,
        links: &mut Links<N>,
        shared: &SharedWords,
        sample: &SamplePlan,
        ready: Ready<'_>,
    ) -> Result<(), Error> {
        let link = links.link(self.link());
        match self {
            Self::OneWay(one_way) => one_way.respond(link, shared, sample, ready)?,
            Self::RoundTrip(round_trip) => round_trip.respond(link, shared, sample, ready)?,
            Self::Remote(remote) => {
                remote.prepare_target(link, sample);
                ready()?;
            }
        }
        meet(link, shared, SharedWord::ResponderDone, SharedWord::InitiatorDone, sample)?;
        match self {
            Self::Remote(remote) => remote.verify_target(link, sample),
            Self::OneWay(one_way) => one_way.verify(link, sample, false),
            Self::RoundTrip(_) => Ok(()),
        }
    }

    /// Length of a message.
    pub(crate) fn len_bytes(self) -> usize {
        match self {
            Self::OneWay(OneWay { len_bytes, .. })
            | Self::RoundTrip(RoundTrip { len_bytes, .. }) => len_bytes,
            Self::Remote(_) => payload::WORD_BYTES,
        }
    }

    fn link(self) -> LinkKind {
        match self {
            Self::OneWay(OneWay { link, .. }) | Self::RoundTrip(RoundTrip { link, .. }) => link,
            Self::Remote(_) => LinkKind::Rc,
        }
    }
}

/// Ends a sample on both sides: keeps the NIC going until the other side needs nothing any more.
fn meet<N: Nic>(
    link: &mut Link<N>,
    shared: &SharedWords,
    mine: SharedWord,
    theirs: SharedWord,
    sample: &SamplePlan,
) -> Result<(), Error> {
    let mut patience = shared.patience(link::PATIENCE);
    // SYNC(sample-done): pairs with the Acquire below, in the other process.
    shared.word(mine).store(sample.number, Ordering::Release);
    // SYNC(sample-done): pairs with the Release above, in the other process.
    while shared.word(theirs).load(Ordering::Acquire) != sample.number {
        match link.poll()? {
            Some(Event::Received { .. }) => return Err(Error::Stray),
            Some(Event::Sent(_)) => {}
            None => patience.wait()?,
        }
    }
    Ok(())
}
