//! What a poll of calls over queue pairs finds, for the backends that make such calls.

use protocols::Status;

use super::{CallFailure, CallToken, Event};
use crate::place::Shard;

/// An event without its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Found {
    /// A call ended. Its cookie is its token.
    Ended(u64, Status),
    /// The connection to a shard ended.
    Lost(usize),
}

impl Found {
    #[inline]
    pub(super) fn event(self, bytes: &[u8]) -> Event<'_> {
        match self {
            Self::Ended(cookie, Status::Ok) => Event::Answer { token: CallToken(cookie), bytes },
            Self::Ended(cookie, status) => {
                Event::Failed { token: CallToken(cookie), failure: CallFailure::of_status(status) }
            }
            Self::Lost(shard) => {
                Event::Lost { shard: Shard(u16::try_from(shard).unwrap_or(u16::MAX)) }
            }
        }
    }
}
