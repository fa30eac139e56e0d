//! Memory that calls lend to the answering process.
//!
//! A process makes a [`BulkRegion`], which its daemon registers once. A call carries [`Slice`]s of it, which
//! the process that answers, a [`BulkProvider`] on any node, pulls from and pushes to by one-sided access:
//! the daemons carry names of memory, not its bytes. Rights end with the call. The rules are in
//! `docs/bulk.md`.
//!
//! ```no_run
//! use copyrpc_client::{Client, ClientConfig, To};
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut client = Client::connect("/run/user/1000/copyrpc/job.sock".as_ref(), ClientConfig::default())?;
//! let region = client.bulk(64 << 20)?;
//! region.write(0, b"a checkpoint")?;
//! let to = To { rank: 3, service: 17, method: 1 };
//! let slices = [region.slice(0, 12), region.writable(4096, 1 << 20)];
//! let answer = client.call_bulk(to, b"store the first, fill the second", &slices, Duration::from_secs(5))?;
//! # let _ = answer; Ok(()) }
//! ```

pub(crate) mod lending;
pub mod message;
mod provider;
mod region;

use std::{
    thread,
    time::{Duration, Instant},
};

use ipc::Failed;
use memory::MapError;
use proto::Status;
use zerocopy::IntoBytes as _;

pub use proto::bulk::{Direction, Move};
pub use provider::{BulkProvider, BulkRequest, SliceLen, Ticket};
pub(crate) use region::Connection;
pub use region::{BulkRegion, RegionError, Slice};

use crate::{
    CallError, Client, HERE, To, call_head,
    message::{CallExtra, DAEMON},
    patience,
};
use lending::check_lengths;
use message::{BulkCallHead, IS_WRITABLE, RegionHead, SliceHead, method};

/// Why there is no bulk memory.
///
/// | variant | try again |
/// |---|---|
/// | [`Memory`](Self::Memory), [`Share`](Self::Share) | later |
/// | [`NeverLends`](Self::NeverLends) | never, with this daemon |
/// | [`Unfit`](Self::Unfit), [`TooLong`](Self::TooLong) | not with this length or this memory |
/// | [`Copy`](Self::Copy) | not in this process |
/// | [`Daemon`](Self::Daemon) | as that error says |
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BulkError {
    /// The memory cannot be mapped.
    #[error(transparent)]
    Memory(#[from] MapError),
    /// The NIC of the daemon lends no memory of processes.
    #[error("the NIC of this daemon lends no memory of processes; pass bodies with ordinary calls")]
    NeverLends,
    /// The share of the process, or that of all processes, is used up.
    #[error(
        "{len_bytes} B are not registered now: this process has as many regions or bytes as it may have \
         (COPYRPC_CALLER_BULK_BYTES), or the daemon has; forget a region, or retry later"
    )]
    Share {
        /// Length of the region.
        len_bytes: u64,
    },
    /// No process may register so much.
    #[error(
        "{len_bytes} B are more than a process may register; make smaller regions, or raise \
         COPYRPC_CALLER_BULK_BYTES of the daemon"
    )]
    TooLong {
        /// Length of the region.
        len_bytes: u64,
    },
    /// The daemon refuses the memory as it is.
    #[error(
        "the daemon refuses the memory: its length is 0, pages of it are not allocated, or its seals are not those of a \
         region; its log says which"
    )]
    Unfit,
    /// The bytes of a region cannot be copied to what is to follow it.
    #[error(transparent)]
    Copy(#[from] RegionError),
    /// The daemon did not answer, or answered with something else.
    #[error("the daemon registers no bulk memory: {0}")]
    Daemon(CallError),
}

impl BulkError {
    /// How a request to register `len_bytes` failed.
    fn of(error: CallError, len_bytes: u64) -> Self {
        match error {
            CallError::NoService(_) => Self::NeverLends,
            CallError::Refused(Status::ResourceExhausted) => Self::Share { len_bytes },
            CallError::Unanswered(Status::OutOfRange) => Self::TooLong { len_bytes },
            CallError::Unanswered(Status::InvalidArgument) => Self::Unfit,
            error => Self::Daemon(error),
        }
    }

    /// The status that stands for this error.
    #[must_use]
    pub fn status(&self) -> Status {
        match self {
            Self::Memory(_) | Self::Share { .. } => Status::ResourceExhausted,
            Self::NeverLends => Status::Unimplemented,
            Self::TooLong { .. } => Status::OutOfRange,
            Self::Unfit => Status::InvalidArgument,
            Self::Copy(_) => Status::FailedPrecondition,
            Self::Daemon(error) => error.status(),
        }
    }
}

/// Something that asks the daemon of this node about regions.
trait Registrar {
    /// By which the daemon gets regions now.
    fn connection(&self) -> Connection;

    /// Has the daemon do `method` for a region of this length.
    fn ask_region(&mut self, method: u16, len_bytes: u64) -> Result<u64, CallError>;

    /// Sends the descriptor of the region that is asked about next.
    fn send(&mut self, region: &BulkRegion) -> Result<(), CallError>;

    /// Makes a region, after the daemon has said that there is room for it.
    fn make_region(&mut self, len_bytes: u64) -> Result<BulkRegion, BulkError> {
        let of = |error| BulkError::of(error, len_bytes);
        self.ask_region(method::ROOM, len_bytes).map_err(of)?;
        let mut region = BulkRegion::make(len_bytes, self.connection())?;
        self.send(&region).map_err(of)?;
        region.id = self.ask_region(method::REGION, len_bytes).map_err(of)?;
        Ok(region)
    }

    /// Puts a region in the place of one whose connection is over; says whether it was.
    fn renew_region(&mut self, region: &mut BulkRegion) -> Result<bool, BulkError> {
        if !region.connection.is_before(self.connection()) {
            return Ok(false);
        }
        // Another file: the daemon that had it sealed it, and no other one gets it.
        let made = self.make_region(region.len_bytes())?;
        made.copy_from(region)?;
        *region = made;
        Ok(true)
    }
}

impl Registrar for Client {
    fn connection(&self) -> Connection {
        self.connection
    }

    fn ask_region(&mut self, method: u16, len_bytes: u64) -> Result<u64, CallError> {
        let head = RegionHead { len_bytes: len_bytes.into() };
        let timeout = self.config.timeout;
        let len_bytes = self.ask(method, &[head.as_bytes()], timeout)?;
        word_or_zero(self.ipc.response(len_bytes))
    }

    fn send(&mut self, region: &BulkRegion) -> Result<(), CallError> {
        Ok(self.ipc.send_descriptor(region.fd()?)?)
    }
}

/// The header of a request to the daemon of this node.
fn daemon_head(method: u16, timeout: Duration) -> crate::message::CallHead {
    call_head(To { rank: HERE, service: DAEMON, method }, timeout, 0, 0)
}

/// A word that a daemon answered with.
fn word(answer: &[u8]) -> Result<u64, CallError> {
    let bytes = answer.first_chunk().ok_or(CallError::Unanswered(Status::Internal))?;
    Ok(u64::from_le_bytes(*bytes))
}

/// The same; an empty answer is as good as 0.
fn word_or_zero(answer: &[u8]) -> Result<u64, CallError> {
    if answer.is_empty() { Ok(0) } else { word(answer) }
}

impl Client {
    /// Asks the daemon, and returns the length of its answer.
    fn ask(&mut self, method: u16, body: &[&[u8]], timeout: Duration) -> Result<usize, CallError> {
        self.ask_about(To { rank: HERE, service: DAEMON, method }, method, body, timeout)
    }

    /// Asks the daemon about a call to `to`, which says why there is no answer.
    fn ask_about(
        &mut self,
        to: To,
        method: u16,
        body: &[&[u8]],
        timeout: Duration,
    ) -> Result<usize, CallError> {
        // Its provider is told of the trace.
        let trace = if method == method::CALL { self.trace } else { 0 };
        let head = call_head(To { rank: HERE, service: DAEMON, method }, timeout, 0, trace);
        let extra = CallExtra { trace: trace.into() };
        let extra = if trace == 0 { &[][..] } else { extra.as_bytes() };
        let mut parts = vec![head.as_bytes(), extra];
        parts.extend_from_slice(body);
        let ended = self.ipc.call_parts_within(&parts, patience(timeout)).map(<[u8]>::len);
        match ended {
            Ok(len_bytes) => Ok(len_bytes),
            Err(error) if !self.ipc.was_sent() => Err(CallError::not_sent_in_time(error)),
            Err(error) => Err(CallError::of(Failed { error, detail: self.ipc.detail() }, to)),
        }
    }

    /// Makes `len_bytes` of zeroed memory, all of it allocated, which calls can lend.
    ///
    /// # Errors
    ///
    /// [`BulkError`].
    pub fn bulk(&mut self, len_bytes: u64) -> Result<BulkRegion, BulkError> {
        self.make_region(len_bytes)
    }

    /// Makes a region of this client anew if it has connected again since: memory of the same length with the same bytes,
    /// which the daemon of now has. Says whether it did; else nothing has happened.
    ///
    /// # Errors
    ///
    /// [`BulkError`]; the region stays as it was.
    pub fn renew(&mut self, region: &mut BulkRegion) -> Result<bool, BulkError> {
        self.renew_region(region)
    }

    /// Calls a method of a service that a [`BulkProvider`] offers, which may use the slices until it
    /// answers, and waits for the answer, which is valid until the next call. It is made again as
    /// [`ClientConfig::retry`](crate::ClientConfig::retry) allows.
    ///
    /// A call that ends with [`Status::DeadlineExceeded`] or [`Status::Unavailable`] may have been executed,
    /// and its writable slices may still be written: [`reclaim`](Self::reclaim) waits until they are not.
    /// What is only readable is free at once.
    ///
    /// # Errors
    ///
    /// [`CallError`]; [`Status::OutOfRange`] for a slice outside its region; [`CallError::LendsTooMuch`] for more than 64
    /// slices, or a body of more than 2048 bytes; [`Status::FailedPrecondition`] for a slice that is still lent; [`CallError::NotHeld`] for
    /// one of a region that is to be [renewed](Self::renew).
    pub fn call_bulk(
        &mut self,
        to: To,
        body: &[u8],
        slices: &[Slice<'_>],
        timeout: Duration,
    ) -> Result<&[u8], CallError> {
        check_lengths(slices.len(), body.len())?;
        let heads: Vec<SliceHead> = slices.iter().map(Slice::head).collect();
        let len_bytes = self.retrying(timeout, |client, left| {
            if slices.iter().any(|slice| slice.region.connection.is_before(client.connection)) {
                return Err(CallError::NotHeld);
            }
            let head = BulkCallHead::new(to, left, heads.len());
            client.ask_about(to, method::CALL, &[head.as_bytes(), heads.as_bytes(), body], left)
        })?;
        Ok(self.ipc.response(len_bytes))
    }

    /// The number of slices of a region that are lent to calls, and the number of those that may still be written.
    ///
    /// # Errors
    ///
    /// [`CallError`].
    pub fn lent(&mut self, region: &BulkRegion) -> Result<(u64, u64), CallError> {
        let timeout = self.config.timeout;
        let len_bytes = self.ask(method::LENT, &[&region.id.to_le_bytes()], timeout)?;
        let answer = self.ipc.response(len_bytes);
        Ok((word(answer)?, word(answer.get(8..).unwrap_or_default())?))
    }

    /// Waits until no slice of a region can be written any more by a call that was given up.
    ///
    /// # Errors
    ///
    /// [`CallError`]; [`Status::DeadlineExceeded`]: they still can.
    pub fn reclaim(&mut self, region: &BulkRegion, timeout: Duration) -> Result<(), CallError> {
        let begin = Instant::now();
        let mut pause = Duration::from_micros(20);
        while self.lent(region)?.1 > 0 {
            if begin.elapsed() >= timeout {
                return Err(CallError::Unanswered(Status::DeadlineExceeded));
            }
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Has the daemon forget a region, and gives its memory back; hands it back if a call still uses it.
    ///
    /// # Errors
    ///
    /// The region, and why: [`Status::FailedPrecondition`] if slices of it are lent, [`CallError::NotHeld`] if the
    /// daemon has no such region of this client.
    pub fn forget(&mut self, region: BulkRegion) -> Result<(), (BulkRegion, CallError)> {
        let timeout = self.config.timeout;
        match self.ask(method::FORGET, &[&region.id.to_le_bytes()], timeout) {
            Ok(_) => Ok(()),
            Err(error) => Err((region, error)),
        }
    }
}

impl BulkCallHead {
    /// The header of a call that lends so many slices.
    pub(crate) fn new(to: To, timeout: Duration, slices: usize) -> Self {
        Self {
            rank: to.rank.into(),
            service: to.service.into(),
            method: to.method.into(),
            timeout_us: u32::try_from(timeout.as_micros()).unwrap_or(u32::MAX).max(1).into(),
            slices: u16::try_from(slices).unwrap_or(u16::MAX).into(),
            reserved: 0.into(),
        }
    }
}

impl Slice<'_> {
    fn head(&self) -> SliceHead {
        SliceHead {
            region: self.region.id.into(),
            offset: self.offset.into(),
            len_bytes: self.len_bytes.into(),
            flags: if self.is_writable { IS_WRITABLE } else { 0 }.into(),
            reserved: 0.into(),
        }
    }
}
