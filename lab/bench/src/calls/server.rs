//! The side that answers.

use core::time::Duration;

use ipc::{Server, ServerConfig, Wait};
use memory::sync::Ordering;

use super::{COMPARED_EVERY, Calls, NUMBER_BYTES, NumberedMessage, Shape};
use crate::{
    error::Error,
    sample::{Ready, SamplePlan},
    shared_words::{SharedWord, SharedWords},
};

const WRONG: &str = "the request is wrong";
/// Longest sleep without a look whether the sample is over.
const SLEEP: Duration = Duration::from_millis(10);

impl Calls {
    /// Serves until the initiator is done or one side failed; calls `ready` when it listens.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn respond(
        &self,
        shared: &SharedWords,
        sample: &SamplePlan,
        ready: Ready<'_>,
    ) -> Result<(), Error> {
        let bytes = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
        let config = ServerConfig {
            depth: self.server_depth(),
            request_bytes_max: bytes(self.len_bytes),
            response_bytes_max: bytes(self.answer_bytes()),
            clients_max: self.clients,
            clients_per_user_max: self.clients,
            wait: if self.blocks() { Wait::Block } else { Wait::Busy },
            ..ServerConfig::default()
        };
        let mut server = Server::bind(&Self::socket(sample), config)?;
        ready()?;
        let (done, failed) =
            (shared.word(SharedWord::InitiatorDone), shared.word(SharedWord::Failed));
        if self.shape == Shape::InPlace {
            return self.respond_in_place(&mut server, || {
                // SYNC(calls-done): pairs with the Release in `initiate`.
                let is_done = done.load(Ordering::Acquire) == sample.number;
                is_done || failed.load(Ordering::Relaxed) != 0
            });
        }
        let (message, answer_bytes) = (NumberedMessage::new(self.len_bytes), self.answer_bytes());
        let is_echoed = answer_bytes == self.len_bytes;
        let mut compared = 0;
        loop {
            while let Some(request) = server.recv() {
                let payload = request.payload();
                if !is_echoed {
                    check(&message, payload, &mut compared)?;
                }
                request.reply(&payload[..answer_bytes])?;
            }
            // SYNC(calls-done): pairs with the Release in `initiate`.
            if done.load(Ordering::Acquire) == sample.number || failed.load(Ordering::Relaxed) != 0
            {
                return Ok(());
            }
            server.rest(if self.blocks() { os::clock::deadline_ns(SLEEP) } else { u64::MAX });
        }
    }
}

impl Calls {
    /// Answers each request with its number in a message of the server's own.
    fn respond_in_place(
        &self,
        server: &mut Server,
        mut is_over: impl FnMut() -> bool,
    ) -> Result<(), Error> {
        let (mut message, mut compared) = (NumberedMessage::new(self.len_bytes), 0);
        while !is_over() {
            while let Some(request) = server.recv_lent() {
                let number = message.number_of(request.body(), &mut compared);
                let wrong = || Error::Call { index: compared, what: WRONG.to_owned() };
                let number = number.ok_or_else(wrong)?;
                request.reply(message.stamp(number))?;
            }
            server.rest(u64::MAX);
        }
        Ok(())
    }
}

/// Compares a request that goes one way with what it should be.
fn check(message: &NumberedMessage, payload: &[u8], compared: &mut u64) -> Result<(), Error> {
    *compared += 1;
    let (first, last) = (payload.first_chunk::<NUMBER_BYTES>(), payload.last_chunk());
    let number = first.map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let is_right = match compared.is_multiple_of(COMPARED_EVERY) {
        true => message.is(number, payload),
        false => payload.len() == message.len() && first == last,
    };
    if is_right { Ok(()) } else { Err(Error::Call { index: number, what: WRONG.to_owned() }) }
}
