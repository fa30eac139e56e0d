//! What both processes do together in one sample.

use std::time::Duration;

use measure::results::Metric;
use serde::{Deserialize, Serialize};

pub use crate::sample::{Measured, Ready, SamplePlan};
use crate::{
    by_protocol::ProtocolCalls,
    calls::Calls,
    dc_reads::{self, DcReads},
    delegated::DelegatedCalls,
    error::Error,
    limit::SharedLimit,
    one_core,
    shared_words::SharedWords,
    traffic::Traffic,
    workers::WorkerCalls,
};

/// What both processes do. A new way to call is a variant here, an arm of each `match` below, and cells in a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Job {
    /// Rates of bare memory.
    Limit(SharedLimit),
    /// Round trips on one core that both share.
    OneCore,
    /// Through the NIC.
    Traffic(Traffic),
    /// To a server in the other process.
    Calls(Calls),
    /// Through workers on the NIC.
    Worker(WorkerCalls),
    /// By way of daemons.
    Delegated(DelegatedCalls),
    /// Over any of the protocols.
    Protocol(ProtocolCalls),
    /// READs over DC.
    DcReads(DcReads),
}

/// One side of the traffic and of the calls on a NIC, whatever that is: what the two processes hold.
pub trait NicSide {
    /// Opens what `job` takes; what the other side must be told to connect.
    ///
    /// # Errors
    ///
    /// [`Error`].
    fn open(&mut self, job: &Job) -> Result<Vec<String>, Error>;

    /// Connects to what the other side told.
    ///
    /// # Errors
    ///
    /// [`Error`].
    fn connect(&mut self, job: &Job, theirs: &[String]) -> Result<(), Error>;

    /// Of a job whose sides differ: takes what the initiator told, and says what it must be told.
    ///
    /// # Errors
    ///
    /// [`Error`].
    fn accept(&mut self, job: &Job, theirs: &[String]) -> Result<Vec<String>, Error>;

    /// Keeps the NIC going between samples; how long it needs no more of that.
    ///
    /// # Errors
    ///
    /// [`Error`].
    fn idle(&mut self) -> Result<Option<Duration>, Error>;

    /// Runs the timed side of `sample`, after the other side is ready.
    ///
    /// # Errors
    ///
    /// [`Error`].
    fn initiate(
        &mut self,
        job: &Job,
        shared: &SharedWords,
        sample: &SamplePlan,
    ) -> Result<Measured, Error>;

    /// Runs the other side; calls `ready` when the initiator may begin.
    ///
    /// # Errors
    ///
    /// [`Error`].
    fn respond(
        &mut self,
        job: &Job,
        shared: &SharedWords,
        sample: &SamplePlan,
        ready: Ready<'_>,
    ) -> Result<(), Error>;
}

/// The NIC of one side, if there is one.
pub(crate) type NicOrNone = Option<Box<dyn NicSide>>;

impl Job {
    /// Whether the two sides must tell each other how to connect first.
    pub(crate) fn needs_nic(&self) -> bool {
        matches!(self, Self::Traffic(_) | Self::Worker(_) | Self::Protocol(_) | Self::DcReads(_))
    }

    /// Whether the responder cannot say how to connect before the initiator has.
    pub(crate) fn has_server(&self) -> bool {
        matches!(self, Self::Protocol(_))
    }

    /// The timed side.
    pub(crate) fn initiate(
        &self,
        nic: &mut NicOrNone,
        shared: &SharedWords,
        sample: &SamplePlan,
    ) -> Result<Measured, Error> {
        match self {
            Self::Limit(limit) => Ok(limit.initiate(shared, sample.count)?.into()),
            Self::OneCore => Ok(one_core::initiate(shared, sample)?.into()),
            Self::Calls(calls) => Ok(calls.initiate(shared, sample)?.into()),
            Self::Delegated(calls) => Ok(calls.initiate(shared, sample)?.into()),
            Self::Traffic(_) | Self::Worker(_) | Self::Protocol(_) | Self::DcReads(_) => {
                nic.as_mut().ok_or(Error::NoNic)?.initiate(self, shared, sample)
            }
        }
    }

    /// The other side.
    pub(crate) fn respond(
        &self,
        nic: &mut NicOrNone,
        shared: &SharedWords,
        sample: &SamplePlan,
        ready: Ready<'_>,
    ) -> Result<(), Error> {
        match self {
            Self::Limit(limit) => {
                ready()?;
                limit.respond(shared, sample.count)
            }
            Self::OneCore => one_core::respond(shared, ready),
            Self::Calls(calls) => calls.respond(shared, sample, ready),
            Self::Delegated(calls) => calls.respond(shared, sample, ready),
            Self::Traffic(_) | Self::Worker(_) | Self::Protocol(_) | Self::DcReads(_) => {
                nic.as_mut().ok_or(Error::NoNic)?.respond(self, shared, sample, ready)
            }
        }
    }

    /// Length of a message.
    pub(crate) fn len_bytes(&self) -> usize {
        match self {
            Self::Traffic(traffic) => traffic.len_bytes(),
            Self::Calls(calls) => calls.len_bytes,
            Self::Delegated(calls) => calls.len_bytes(),
            Self::Worker(calls) => calls.len_bytes,
            Self::Protocol(calls) => calls.len_bytes,
            Self::DcReads(_) => dc_reads::READ_BYTES,
            Self::Limit(_) | Self::OneCore => 0,
        }
    }

    /// Time per message or call, in ns, of a sample whose number was `value`.
    pub(crate) fn message_ns(&self, metric: Metric, value: f64) -> f64 {
        let silence_ns = if let Self::Calls(calls) = self { calls.silence_ns() } else { 0.0 };
        // Of READs in flight at a time, one is complete after each such part of the time of one.
        let in_flight =
            if let Self::DcReads(reads) = self { reads.latencies_at_a_time() } else { 1.0 };
        metric.each_ns(value, self.len_bytes()) / in_flight + silence_ns
    }
}
