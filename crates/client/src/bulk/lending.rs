//! Clients of futures that lend memory.

use std::{os::fd::OwnedFd, sync::Arc, time::Duration};

use proto::{Status, bulk::SLICES_MAX};
use zerocopy::IntoBytes as _;

use crate::{
    CallError, HERE, To,
    bulk::{
        BulkError, BulkRegion, Connection, Slice,
        message::{BODY_BYTES_MAX, RegionHead, SliceHead, method},
        word, word_or_zero,
    },
    message::DAEMON,
};

/// What a call has beside its body.
#[derive(Clone, Debug, Default)]
pub(crate) enum Beside {
    #[default]
    Nothing,
    /// Slices of memory that it lends.
    Slices(Vec<LentSlice>),
    /// The descriptor of the region that it is about, for the daemon of this connection.
    Region(Arc<OwnedFd>, Connection),
}

/// A slice, as the daemon of a connection knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LentSlice {
    pub(crate) head: SliceHead,
    pub(crate) connection: Connection,
}

impl Beside {
    /// The slices of a call with this body, if a call can have them.
    pub(crate) fn slices(slices: &[Slice<'_>], body: &[u8]) -> Result<Self, CallError> {
        check_lengths(slices.len(), body.len())?;
        let lent = |slice: &Slice<'_>| LentSlice {
            head: slice.head(),
            connection: slice.region.connection,
        };
        Ok(Self::Slices(slices.iter().map(lent).collect()))
    }

    pub(crate) fn is_region(&self) -> bool {
        matches!(self, Self::Region(..))
    }
}

/// Whether a call may lend so many slices beside so long a body.
pub(super) fn check_lengths(slices: usize, body_bytes: usize) -> Result<(), CallError> {
    if slices > SLICES_MAX || body_bytes > BODY_BYTES_MAX {
        return Err(CallError::LendsTooMuch { slices, body_bytes });
    }
    Ok(())
}

/// A client of futures, as what follows uses it.
pub(crate) trait AsksLater {
    type Asked: Future<Output = Result<Vec<u8>, CallError>>;

    /// Makes a call with what is beside it.
    fn ask(&self, to: To, body: &[u8], beside: Beside, timeout: Duration) -> Self::Asked;

    /// By which the daemon gets regions now.
    fn connection(&self) -> Connection;

    /// The deadline of what names none.
    fn patience(&self) -> Duration;
}

fn about(method: u16) -> To {
    To { rank: HERE, service: DAEMON, method }
}

/// Makes a region, after the daemon has said that there is room for it.
pub(crate) async fn make_region(
    client: &impl AsksLater,
    len_bytes: u64,
) -> Result<BulkRegion, BulkError> {
    let (of, timeout) = (|error| BulkError::of(error, len_bytes), client.patience());
    let head = RegionHead { len_bytes: len_bytes.into() };
    let room = client.ask(about(method::ROOM), head.as_bytes(), Beside::Nothing, timeout);
    room.await.map_err(of)?;
    let connection = client.connection();
    let mut region = BulkRegion::make(len_bytes, connection)?;
    let copied = region.fd().map(|fd| fd.try_clone_to_owned()).map_err(of)?;
    let fd = copied.map_err(|_| BulkError::Share { len_bytes })?;
    let beside = Beside::Region(Arc::new(fd), connection);
    let told = client.ask(about(method::REGION), head.as_bytes(), beside, timeout).await;
    region.id = told.and_then(|answer| word_or_zero(&answer)).map_err(of)?;
    Ok(region)
}

/// Puts a region in the place of one whose connection is over; says whether it was.
pub(crate) async fn renew_region(
    client: &impl AsksLater,
    region: &mut BulkRegion,
) -> Result<bool, BulkError> {
    if !region.connection.is_before(client.connection()) {
        return Ok(false);
    }
    let made = make_region(client, region.len_bytes()).await?;
    made.copy_from(region)?;
    *region = made;
    Ok(true)
}

/// The number of slices of a region that are lent, and of those that may still be written.
pub(crate) async fn count_lent(
    client: &impl AsksLater,
    region: &BulkRegion,
) -> Result<(u64, u64), CallError> {
    let (id, timeout) = (region.id.to_le_bytes(), client.patience());
    let answer = client.ask(about(method::LENT), &id, Beside::Nothing, timeout).await?;
    Ok((word(&answer)?, word(answer.get(8..).unwrap_or_default())?))
}

/// Has the daemon forget a region; hands it back if a call still uses it.
pub(crate) async fn forget_region(
    client: &impl AsksLater,
    region: BulkRegion,
) -> Result<(), (BulkRegion, CallError)> {
    let (id, timeout) = (region.id.to_le_bytes(), client.patience());
    match client.ask(about(method::FORGET), &id, Beside::Nothing, timeout).await {
        Ok(_) => Ok(()),
        Err(CallError::Unanswered(Status::NotFound)) => Err((region, CallError::NotHeld)),
        Err(error) => Err((region, error)),
    }
}

/// The methods of a client of futures that lends memory, which are the same for all of them.
macro_rules! lends {
    ($client:ty, $call:ty) => {
        impl $client {
            /// Makes `len_bytes` of zeroed memory, all of it allocated, which calls can lend. The pages are allocated by
            /// the task that polls: a region of many megabytes keeps its thread for a while.
            ///
            /// # Errors
            ///
            /// [`BulkError`](crate::bulk::BulkError).
            pub async fn bulk(
                &self,
                len_bytes: u64,
            ) -> Result<crate::bulk::BulkRegion, crate::bulk::BulkError> {
                crate::bulk::lending::make_region(self, len_bytes).await
            }

            /// Makes a region of this client anew if it has connected again since, as
            /// [`Client::renew`](crate::Client::renew) does.
            ///
            /// # Errors
            ///
            /// [`BulkError`](crate::bulk::BulkError); the region stays as it was.
            pub async fn renew(
                &self,
                region: &mut crate::bulk::BulkRegion,
            ) -> Result<bool, crate::bulk::BulkError> {
                crate::bulk::lending::renew_region(self, region).await
            }

            /// Calls a method of a service that a [`BulkProvider`](crate::bulk::BulkProvider) offers, which may use the
            /// slices until it answers: see [`Client::call_bulk`](crate::Client::call_bulk). Dropping the future gives the
            /// call up: the service moves nothing afterwards, and [`lent`](Self::lent) says when what is writable is the
            /// program's again.
            pub fn call_bulk(
                &self,
                to: crate::To,
                body: &[u8],
                slices: &[crate::bulk::Slice<'_>],
                timeout: std::time::Duration,
            ) -> $call {
                match crate::bulk::lending::Beside::slices(slices, body) {
                    Ok(beside) => {
                        crate::bulk::lending::AsksLater::ask(self, to, body, beside, timeout)
                    }
                    Err(error) => self.refuse(error),
                }
            }

            /// The number of slices of a region that are lent to calls, and the number of those that may still be
            /// written.
            ///
            /// # Errors
            ///
            /// [`CallError`](crate::CallError).
            pub async fn lent(
                &self,
                region: &crate::bulk::BulkRegion,
            ) -> Result<(u64, u64), crate::CallError> {
                crate::bulk::lending::count_lent(self, region).await
            }

            /// Has the daemon forget a region, and gives its memory back; hands it back if a call still uses it.
            ///
            /// # Errors
            ///
            /// As of [`Client::forget`](crate::Client::forget).
            pub async fn forget(
                &self,
                region: crate::bulk::BulkRegion,
            ) -> Result<(), (crate::bulk::BulkRegion, crate::CallError)> {
                crate::bulk::lending::forget_region(self, region).await
            }
        }
    };
}

pub(crate) use lends;
