//! The violations of the protocol that a peer can commit.

/// A peer broke a rule of the protocol. The connection is closed; nothing else is.
///
/// Rule numbers are those of `docs/protocol/copyrpc.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Violation {
    /// A batch does not lie inside the ring. (C2.2)
    #[error("a batch of {lines} lines at line {at} exceeds the ring of {ring} lines")]
    OutsideRing {
        /// First line.
        at: u64,
        /// Length.
        lines: u64,
        /// Of the ring.
        ring: u64,
    },
    /// A batch is longer than this side announced. (C2.3)
    #[error("a batch of {lines} lines exceeds the announced {max}")]
    BatchTooLong {
        /// Length.
        lines: u64,
        /// Announced.
        max: u64,
    },
    /// A batch covers lines that were not given back. (C3.2)
    #[error("a batch ends {lines} lines beyond the credit given")]
    NoCredit {
        /// Lines too many.
        lines: u64,
    },
    /// The wrap bit is set where the ring just started, or would skip the whole ring. (C2.4)
    #[error("a batch wraps at the start of the ring")]
    Wrap,
    /// The batch is of another connection. (C1.4)
    #[error("a batch carries epoch {found:#x}, this connection is {expected:#x}")]
    Epoch {
        /// In the batch.
        found: u32,
        /// Of this connection.
        expected: u32,
    },
    /// A batch was lost or repeated. (C2.5)
    #[error("batch {found} follows batch {expected} minus one")]
    Sequence {
        /// In the batch.
        found: u16,
        /// The next one.
        expected: u16,
    },
    /// The messages do not end in the last line of the batch. (C2.6)
    #[error("a batch with room for {room} B of messages leaves {unused} B unused")]
    BatchLength {
        /// In the header.
        unused: usize,
        /// In the lines of the batch.
        room: usize,
    },
    /// A message ends beyond its batch. (C2.7)
    #[error("message {index} of a batch ends beyond it")]
    MessageLength {
        /// Its place in the batch.
        index: u16,
    },
    /// There are more or fewer messages than the header says. (C2.6)
    #[error("a batch does not hold the {claimed} messages that it claims")]
    Count {
        /// In the header.
        claimed: u16,
    },
    /// No such kind. (C2.8)
    #[error("a message is of kind {0:#04x}, which does not exist")]
    Kind(u8),
    /// Credit for lines that were never sent. (C3.3)
    #[error("credit for line {found}, sent are {sent}, credited {credited}")]
    Credit {
        /// In the message.
        found: u64,
        /// Lines sent.
        sent: u64,
        /// Lines credited.
        credited: u64,
    },
    /// More batches are said to be handled than were sent. (C3.6)
    #[error("{found} batches are said to be handled, sent are {sent}")]
    Handled {
        /// In the message.
        found: u64,
        /// Sent.
        sent: u64,
    },
    /// More batches are unhandled than this side announced that it can take. (C3.6)
    #[error("a batch comes when {max} are unhandled, which is as many as were announced")]
    Unhandled {
        /// Announced.
        max: u16,
    },
    /// Requests reserve more of the reverse ring than was granted. (C4.3)
    #[error("a request reserves {asked} lines for its response, {free} are free")]
    Budget {
        /// Lines the request reserves.
        asked: u32,
        /// Lines not reserved.
        free: u32,
    },
    /// A request reserves nothing. (C4.2)
    #[error("a request reserves no line for its response")]
    NoBudget,
    /// A response, release or cancellation of a call that is not there. (C5.3)
    #[error("a message of kind {kind:#04x} names call {token:#x}, which is not in flight")]
    Token {
        /// Kind of the message.
        kind: u8,
        /// The name.
        token: u32,
    },
    /// A response is longer than the call allowed. (C4.4)
    #[error("a response of {len_bytes} B exceeds the {max_bytes} B that the call allowed")]
    ResponseTooLong {
        /// Of the response.
        len_bytes: usize,
        /// Allowed.
        max_bytes: usize,
    },
    /// The body of a message has not the length that its kind has. (C2.8)
    #[error("a message of kind {kind:#04x} has {len_bytes} B")]
    Body {
        /// Kind of the message.
        kind: u8,
        /// Its body.
        len_bytes: usize,
    },
    /// A large body is empty or longer than this side accepts. (C6.2)
    #[error("a large body of {len_bytes} B is not between 1 B and {max_bytes} B")]
    LargeLength {
        /// Announced.
        len_bytes: u32,
        /// Accepted.
        max_bytes: u32,
    },
}

impl Violation {
    /// Whether, said before the first message of a batch, it may be the fault of the process that announced
    /// the batch, and not of the peer whose ring was named. Where the transport does not tell who
    /// sent an immediate, that may be any process.
    #[must_use]
    pub fn is_of_announcement(&self) -> bool {
        matches!(
            self,
            Self::OutsideRing { .. }
                | Self::BatchTooLong { .. }
                | Self::NoCredit { .. }
                | Self::Wrap
                | Self::Epoch { .. }
                | Self::Sequence { .. }
                | Self::BatchLength { .. }
                | Self::MessageLength { .. }
                | Self::Count { .. }
        )
    }
}
