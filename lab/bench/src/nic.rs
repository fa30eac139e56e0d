//! Both kinds of work on one NIC: traffic over links that are made once, calls by workers that are made for each
//! sample.

use std::time::Duration;

use verbs::Nic;

use crate::{
    by_protocol::ProtocolSide,
    dc_reads::DcSide,
    error::Error,
    job::{Job, Measured, NicSide, Ready, SamplePlan},
    shared_words::SharedWords,
    traffic::Links,
    workers::Opened,
};

/// The work of one side on ports that `open_nic` opens.
pub struct NicWork<N: Nic, F> {
    open_nic: F,
    links: Links<N>,
    opened: Option<Opened<N>>,
    side: Option<ProtocolSide<N>>,
    dc_side: Option<DcSide<N>>,
}

impl<N: Nic, F: Fn() -> Result<N, String>> NicWork<N, F> {
    /// Opens a port for traffic.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn new(open_nic: F) -> Result<Self, Error> {
        let links = Links::create(open_port(&open_nic)?)?;
        Ok(Self { open_nic, links, opened: None, side: None, dc_side: None })
    }
}

fn open_port<N>(open_nic: impl Fn() -> Result<N, String>) -> Result<N, Error> {
    open_nic().map_err(Error::refused("cannot open a port of the NIC"))
}

impl<N: Nic, F: Fn() -> Result<N, String>> NicSide for NicWork<N, F> {
    fn open(&mut self, job: &Job) -> Result<Vec<String>, Error> {
        let calls = match job {
            Job::Worker(calls) => calls,
            Job::DcReads(reads) => {
                self.dc_side = None;
                let (side, told) = DcSide::open(open_port(&self.open_nic)?, *reads)?;
                self.dc_side = Some(side);
                return Ok(told);
            }
            Job::Protocol(calls) => {
                self.side = None;
                let (side, told) = ProtocolSide::open(open_port(&self.open_nic)?, calls)?;
                self.side = Some(side);
                return Ok(told);
            }
            _ => return self.links.contacts(),
        };
        self.opened = None;
        let (opened, told) = Opened::open(open_port(&self.open_nic)?, calls)?;
        self.opened = Some(opened);
        Ok(told)
    }

    fn connect(&mut self, job: &Job, theirs: &[String]) -> Result<(), Error> {
        match job {
            Job::Worker(_) => self.opened.as_mut().ok_or(Error::NoNic)?.connect(theirs),
            Job::Protocol(_) => self.side.as_mut().ok_or(Error::NoNic)?.connect(theirs),
            Job::DcReads(_) => self.dc_side.as_mut().ok_or(Error::NoNic)?.connect(theirs),
            _ => self.links.connect(theirs),
        }
    }

    fn accept(&mut self, job: &Job, theirs: &[String]) -> Result<Vec<String>, Error> {
        let Job::Protocol(calls) = job else { return Err(Error::NoNic) };
        self.side = None;
        let (side, told) = ProtocolSide::accept(open_port(&self.open_nic)?, calls, theirs)?;
        self.side = Some(side);
        Ok(told)
    }

    fn idle(&mut self) -> Result<Option<Duration>, Error> {
        self.links.idle()
    }

    fn initiate(
        &mut self,
        job: &Job,
        shared: &SharedWords,
        sample: &SamplePlan,
    ) -> Result<Measured, Error> {
        match job {
            Job::Traffic(traffic) => Ok(traffic.initiate(&mut self.links, shared, sample)?.into()),
            Job::Worker(calls) => {
                self.opened.take().ok_or(Error::NoNic)?.initiate(calls, shared, sample)
            }
            Job::DcReads(_) => {
                let side = self.dc_side.take().ok_or(Error::NoNic)?;
                Ok(side.initiate(shared, sample)?.into())
            }
            Job::Protocol(calls) => {
                let side = self.side.take().ok_or(Error::NoNic)?;
                Ok(side.initiate(calls, shared, sample)?.into())
            }
            Job::Limit(_) | Job::OneCore | Job::Calls(_) | Job::Delegated(_) => Err(Error::NoNic),
        }
    }

    fn respond(
        &mut self,
        job: &Job,
        shared: &SharedWords,
        sample: &SamplePlan,
        ready: Ready<'_>,
    ) -> Result<(), Error> {
        match job {
            Job::Traffic(traffic) => traffic.respond(&mut self.links, shared, sample, ready),
            Job::Worker(calls) => {
                self.opened.take().ok_or(Error::NoNic)?.respond(calls, shared, sample, ready)
            }
            Job::DcReads(_) => {
                self.dc_side.take().ok_or(Error::NoNic)?.respond(shared, sample, ready)
            }
            Job::Protocol(_) => {
                self.side.take().ok_or(Error::NoNic)?.respond(shared, sample, ready)
            }
            Job::Limit(_) | Job::OneCore | Job::Calls(_) | Job::Delegated(_) => Err(Error::NoNic),
        }
    }
}
