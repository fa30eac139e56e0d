//! Where requests of this node's processes come from: shared memory, or a test.

use std::fmt::Debug;

use rpc::Status;

/// How a request is answered.
#[derive(Debug)]
pub enum Answer<L> {
    /// At once: the body is in the buffer.
    Now(Status),
    /// Later; by whom.
    Later(L),
}

/// What became of a request.
#[derive(Debug)]
pub enum Next<T, L> {
    /// It was answered.
    Answered,
    /// It is to be answered with this token, later.
    Deferred(T, L),
    /// There was none: the turn is over.
    End,
}

/// The clients of a daemon. Nothing here waits.
pub trait Front {
    /// The obligation to answer one request.
    type Token: Debug;
    /// Names a client among all that there ever were.
    type Client: Copy + Eq + Debug;

    /// Takes the next request of this turn. `serve` gets who asks, what, and where the body of an
    /// answer goes.
    fn next<L>(
        &mut self,
        serve: impl FnOnce(Self::Client, &[u8], &mut Vec<u8>) -> Answer<L>,
    ) -> Next<Self::Token, L>;

    /// Answers later. Clients that are gone need no answer.
    fn reply(&mut self, token: Self::Token, status: Status, body: &[u8]);

    /// Whether a client is still there.
    fn is_there(&self, client: Self::Client) -> bool;

    /// Counts departures: while it stays the same, nobody has left.
    fn departures(&self) -> u64;

    /// Clients that are there, that ever came, and that were evicted.
    fn census(&self) -> (u64, u64, u64);
}

/// Processes that call through shared memory.
#[derive(Debug)]
pub struct IpcFront {
    pub(super) server: ipc::Server,
    /// Body of the answer that is being made.
    body: Vec<u8>,
}

impl IpcFront {
    /// The clients of a server.
    #[must_use]
    pub fn new(server: ipc::Server) -> Self {
        Self { server, body: Vec::new() }
    }
}

impl Front for IpcFront {
    type Token = ipc::Token;
    type Client = ipc::ClientId;

    #[inline]
    fn next<L>(
        &mut self,
        serve: impl FnOnce(ipc::ClientId, &[u8], &mut Vec<u8>) -> Answer<L>,
    ) -> Next<ipc::Token, L> {
        let Some(request) = self.server.recv() else { return Next::End };
        self.body.clear();
        match serve(request.client(), request.payload(), &mut self.body) {
            // A response that is too long is told to the client.
            Answer::Now(Status::Ok) => drop(request.reply(&self.body)),
            Answer::Now(Status::ResourceExhausted) => request.reply_exhausted(),
            Answer::Now(status) => request.reply_error(status.code().into()),
            Answer::Later(later) => return Next::Deferred(request.defer(), later),
        }
        Next::Answered
    }

    #[inline]
    fn reply(&mut self, token: ipc::Token, status: Status, body: &[u8]) {
        // It fails if the client is gone, or if the response is too long, which the client is told.
        let _ = match status {
            Status::Ok => self.server.reply(token, body),
            status => self.server.reply_error(token, status.code().into()),
        };
    }

    fn is_there(&self, client: ipc::ClientId) -> bool {
        self.server.clients().any(|there| there == client)
    }

    fn departures(&self) -> u64 {
        let stats = self.server.stats();
        stats.departed + stats.evicted
    }

    fn census(&self) -> (u64, u64, u64) {
        let stats = self.server.stats();
        (stats.clients as u64, stats.welcomed, stats.evicted)
    }
}
