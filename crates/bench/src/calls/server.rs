//! The side that answers.

use core::time::Duration;

use ipc::{Server, ServerConfig, Wait};
use memory::sync::Ordering;

use super::{CLIENTS_MAX, CallSample, CallsError, DEPTH};
use crate::{
    board::{Board, Word},
    duo::DuoError,
};

/// Longest sleep without a look whether the sample is over.
const SLEEP: Duration = Duration::from_millis(10);

impl CallSample {
    /// Serves until the initiator is done or one side failed; calls `ready` when it listens.
    ///
    /// # Errors
    ///
    /// [`CallsError`].
    pub fn respond(
        &self,
        board: &Board,
        ready: &mut dyn FnMut() -> Result<(), DuoError>,
    ) -> Result<(), CallsError> {
        let len_bytes = u32::try_from(self.calls.len_bytes).unwrap_or(u32::MAX);
        let config = ServerConfig {
            depth: DEPTH,
            request_bytes_max: len_bytes,
            response_bytes_max: len_bytes,
            clients_max: CLIENTS_MAX,
            clients_per_user_max: CLIENTS_MAX,
            wait: if self.calls.blocks() { Wait::Block } else { Wait::Busy },
            ..ServerConfig::default()
        };
        let mut server = Server::bind(&self.socket, config)?;
        ready()?;
        let (done, failed) = (board.word(Word::InitiatorDone), board.word(Word::Failed));
        loop {
            while let Some(request) = server.recv() {
                let payload = request.payload();
                request.reply(payload)?;
            }
            // SYNC(calls-done): pairs with the Release in `initiate`.
            if done.load(Ordering::Acquire) == self.number || failed.load(Ordering::Relaxed) != 0 {
                return Ok(());
            }
            server.rest(if self.calls.blocks() { os::clock::deadline_ns(SLEEP) } else { u64::MAX });
        }
    }
}
