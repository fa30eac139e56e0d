//! Names of clients and of requests.

/// Names a client among all that a server ever had; servers of one team never share a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientId {
    pub(crate) slot: u16,
    pub(crate) generation: u64,
}

/// Names a request among all that a server ever took: the address of its answer.
///
/// It is known before the request is answered, and can be copied and stored. Only the first answer
/// to an id reaches the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId {
    pub(crate) client: ClientId,
    pub(crate) call: u16,
    pub(crate) serial: u64,
}

impl ClientId {
    /// Its slot, below the most clients at a time. No other client of the server has it now.
    #[inline]
    #[must_use]
    pub fn slot(self) -> u16 {
        self.slot
    }

    /// Tells clients apart that have a slot one after the other.
    #[inline]
    #[must_use]
    pub fn generation(self) -> u64 {
        self.generation
    }
}

impl RequestId {
    /// The client that made the request.
    #[inline]
    #[must_use]
    pub fn client(self) -> ClientId {
        self.client
    }
}

/// A client as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientProcess {
    /// Its user.
    pub uid: u32,
    /// Its process; 0: it is in a PID namespace that this process does not see.
    pub pid: u32,
}

/// A client that is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientCensus {
    /// The client.
    pub client: ClientId,
    /// As the kernel knows it; `None` without an operating system.
    pub process: Option<ClientProcess>,
    /// The name by which it was introduced, if it was.
    pub tag: Option<u64>,
    /// Requests that were taken of it.
    pub requests: u64,
    /// Those that are not answered.
    pub in_flight: usize,
}
