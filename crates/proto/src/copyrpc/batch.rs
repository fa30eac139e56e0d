//! Building a batch in private memory, and reading one from a private copy.

use alloc::vec::Vec;

use zerocopy::{FromBytes, IntoBytes};

use super::{
    layout::{
        BATCH_HEADER_BYTES, BatchHeader, Head, KIND_CANCEL, KIND_LARGE_REQUEST,
        KIND_LARGE_RESPONSE, KIND_RELEASE, KIND_REQUEST, KIND_RESPONSE, LARGE_BYTES, LINE_BYTES,
        LargeBytes, MESSAGE_ALIGN, RequestTail, low_bits,
    },
    violation::Violation,
};
use crate::Status;

/// Registered memory of a peer that holds a large body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Large {
    /// In the peer's address space.
    pub addr: u64,
    /// Key of the region.
    pub rkey: u32,
    /// Length of the body.
    pub len_bytes: u32,
}

/// The head of a message that is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outgoing {
    pub(crate) kind: u8,
    pub(crate) token: u32,
    /// Of requests.
    pub(crate) request: Option<RequestFields>,
    pub(crate) body_bytes: usize,
}

/// What a request says besides its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestFields {
    pub(crate) method: u16,
    pub(crate) budget_lines: u16,
    pub(crate) timeout_us: u32,
}

impl Outgoing {
    /// Without body.
    pub(crate) fn control(kind: u8, token: u32) -> Self {
        Self { kind, token, request: None, body_bytes: 0 }
    }

    /// Bytes it takes in a batch.
    pub(crate) fn len_bytes(&self) -> usize {
        let tail = if self.request.is_some() { size_of::<RequestTail>() } else { 0 };
        (size_of::<Head>() + tail + self.body_bytes).next_multiple_of(MESSAGE_ALIGN)
    }
}

/// A batch that is being built. The first bytes are kept for its header.
#[derive(Debug)]
pub(crate) struct Batch {
    bytes: Vec<u8>,
    pub(crate) count: u16,
    /// Lines that were set aside for the responses in it.
    pub(crate) response_lines: u32,
}

impl Batch {
    pub(crate) fn new() -> Self {
        Self { bytes: Vec::new(), count: 0, response_lines: 0 }
    }

    /// Empties it and keeps its memory.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        (self.count, self.response_lines) = (0, 0);
    }

    /// Lines it takes of the ring.
    pub(crate) fn lines(&self) -> u64 {
        self.bytes.len().div_ceil(LINE_BYTES) as u64
    }

    /// Lines it will take with another message of `len_bytes`.
    pub(crate) fn lines_with(&self, len_bytes: usize) -> u64 {
        (self.bytes.len().max(BATCH_HEADER_BYTES) + len_bytes).div_ceil(LINE_BYTES) as u64
    }

    /// Appends a message and returns the place of its body, zeroed.
    pub(crate) fn push(&mut self, message: &Outgoing) -> &mut [u8] {
        if self.bytes.is_empty() {
            self.bytes.resize(BATCH_HEADER_BYTES, 0);
        }
        self.count += 1;
        let end = self.bytes.len() + message.len_bytes();
        let head = Head::new(message.kind, message.body_bytes, message.token);
        self.bytes.extend_from_slice(head.as_bytes());
        if let Some(fields) = message.request {
            let tail = RequestTail {
                method: fields.method.into(),
                budget_lines: fields.budget_lines.into(),
                timeout_us: fields.timeout_us.into(),
            };
            self.bytes.extend_from_slice(tail.as_bytes());
        }
        let body = self.bytes.len();
        self.bytes.resize(end, 0);
        &mut self.bytes[body..body + message.body_bytes]
    }

    /// Writes the header and returns all bytes.
    pub(crate) fn seal(&mut self, consumed: u32, epoch: u32, sequence: u16) -> &[u8] {
        let len_bytes = low_bits((self.bytes.len() - BATCH_HEADER_BYTES) as u64);
        let header = BatchHeader {
            consumed: consumed.into(),
            epoch: epoch.into(),
            sequence: sequence.into(),
            count: self.count.into(),
            len_bytes: len_bytes.into(),
        };
        self.bytes[..BATCH_HEADER_BYTES].copy_from_slice(header.as_bytes());
        &self.bytes
    }
}

/// A message as it arrived, checked for its own consistency only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// The caller's name of the call.
    pub token: u32,
    /// What it is.
    pub kind: MessageKind<'a>,
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind<'a> {
    /// A call.
    Request {
        /// Which method.
        method: u16,
        /// Lines of the reverse ring that its response may take.
        budget_lines: u16,
        /// Time that the caller will wait.
        timeout_us: u32,
        /// Its body.
        body: Body<'a>,
    },
    /// An answer.
    Response {
        /// How the call ended.
        status: Status,
        /// Its body.
        body: Body<'a>,
    },
    /// The caller has fetched the large response.
    Release,
    /// The caller does not wait any more.
    Cancel,
}

/// Where a body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// Here.
    Inline(&'a [u8]),
    /// In memory that the peer registered; to be fetched by READ.
    Large(Large),
}

impl MessageKind<'_> {
    /// Its number, for errors.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Request { body: Body::Inline(_), .. } => KIND_REQUEST,
            Self::Request { body: Body::Large(_), .. } => KIND_LARGE_REQUEST,
            Self::Response { status, body: Body::Inline(_) } => KIND_RESPONSE | status.code(),
            Self::Response { body: Body::Large(_), .. } => KIND_LARGE_RESPONSE,
            Self::Release => KIND_RELEASE,
            Self::Cancel => KIND_CANCEL,
        }
    }
}

/// The messages of a batch, in order.
///
/// After a violation, and after the last message, it yields nothing.
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    bytes: &'a [u8],
    count: u16,
    index: u16,
}

impl<'a> Messages<'a> {
    /// `batch` is a private copy of all lines of a batch.
    pub(crate) fn open(batch: &'a [u8]) -> Result<(BatchHeader, Self), Violation> {
        let no_room = Violation::BatchLength { claimed: 0, room: batch.len() };
        let (header, rest) = BatchHeader::read_from_prefix(batch).map_err(|_| no_room)?;
        let claimed = header.len_bytes.get() as usize;
        let is_exact = claimed <= rest.len() && rest.len() - claimed < LINE_BYTES;
        if !is_exact {
            return Err(Violation::BatchLength { claimed, room: rest.len() });
        }
        let count = header.count.get();
        // A batch without messages would be a way to send credit that takes ring space.
        if count == 0 || !claimed.is_multiple_of(MESSAGE_ALIGN) {
            return Err(Violation::Count { claimed: count });
        }
        Ok((header, Self { bytes: &rest[..claimed], count, index: 0 }))
    }

    fn parse(&mut self) -> Result<Message<'a>, Violation> {
        let short = Violation::MessageLength { index: self.index };
        let (head, rest) = Head::read_from_prefix(self.bytes).map_err(|_| short)?;
        let (kind, token) = (head.kind(), head.token.get());
        let is_request = matches!(kind, KIND_REQUEST | KIND_LARGE_REQUEST);
        let (tail, rest) = if is_request {
            let (tail, rest) = RequestTail::read_from_prefix(rest).map_err(|_| short)?;
            (Some(tail), rest)
        } else {
            (None, rest)
        };
        let len_bytes = head.body_bytes();
        let body = rest.get(..len_bytes).ok_or(short)?;
        let heads = self.bytes.len() - rest.len();
        let end = (heads + len_bytes).next_multiple_of(MESSAGE_ALIGN);
        self.bytes = self.bytes.get(end..).ok_or(short)?;
        let kind = match (kind, tail) {
            (KIND_REQUEST, Some(tail)) => request(&tail, Body::Inline(body)),
            (KIND_LARGE_REQUEST, Some(tail)) => request(&tail, large(kind, body)?),
            (KIND_LARGE_RESPONSE, _) => {
                MessageKind::Response { status: Status::Ok, body: large(kind, body)? }
            }
            (KIND_RELEASE | KIND_CANCEL, _) if len_bytes > 0 => {
                return Err(Violation::Body { kind, len_bytes });
            }
            (KIND_RELEASE, _) => MessageKind::Release,
            (KIND_CANCEL, _) => MessageKind::Cancel,
            (KIND_RESPONSE.., _) => {
                // A status that only a newer peer knows is still an answer.
                let status = Status::from_code(kind & !KIND_RESPONSE).unwrap_or(Status::Unknown);
                MessageKind::Response { status, body: Body::Inline(body) }
            }
            _ => return Err(Violation::Kind(kind)),
        };
        Ok(Message { token, kind })
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, Violation>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.index == self.count {
            // Bytes that no message claims: the count and the length disagree.
            let is_rest = !core::mem::take(&mut self.bytes).is_empty();
            return is_rest.then_some(Err(Violation::Count { claimed: self.count }));
        }
        let message = self.parse();
        self.index = if message.is_ok() { self.index + 1 } else { self.count };
        if message.is_err() {
            self.bytes = &[];
        }
        Some(message)
    }
}

fn request<'a>(tail: &RequestTail, body: Body<'a>) -> MessageKind<'a> {
    MessageKind::Request {
        method: tail.method.get(),
        budget_lines: tail.budget_lines.get(),
        timeout_us: tail.timeout_us.get(),
        body,
    }
}

fn large<'a>(kind: u8, body: &[u8]) -> Result<Body<'a>, Violation> {
    let bytes = LargeBytes::read_from_bytes(body)
        .map_err(|_| Violation::Body { kind, len_bytes: body.len() })?;
    Ok(Body::Large(Large {
        addr: bytes.addr.get(),
        rkey: bytes.rkey.get(),
        len_bytes: bytes.len_bytes.get(),
    }))
}

/// The bytes that name a large body.
pub(crate) fn large_bytes(large: Large) -> [u8; LARGE_BYTES] {
    let bytes = LargeBytes {
        addr: large.addr.into(),
        rkey: large.rkey.into(),
        len_bytes: large.len_bytes.into(),
    };
    zerocopy::transmute!(bytes)
}

#[cfg(test)]
mod tests {
    use hex_literal::hex;

    use super::*;

    fn sample() -> Batch {
        let mut batch = Batch::new();
        let fields = RequestFields { method: 0x0102, budget_lines: 3, timeout_us: 0x0004_0506 };
        let request =
            Outgoing { kind: KIND_REQUEST, token: 7, request: Some(fields), body_bytes: 3 };
        batch.push(&request).copy_from_slice(b"abc");
        let response =
            Outgoing { kind: KIND_RESPONSE | 5, token: 0x0a0b, request: None, body_bytes: 1 };
        batch.push(&response).copy_from_slice(b"z");
        batch
    }

    /// Rules C2.1 and C2.6 to C2.8.
    #[test]
    fn golden_batch_in_both_directions() {
        let golden = hex!(
            "10000000 efbeadde 0900 0200 28000000"
            "03000001 07000000 0201 0300 06050400 616263 0000000000"
            "01000085 0b0a0000 7a 00000000000000"
        );
        let mut batch = sample();
        assert_eq!(batch.seal(16, 0xdead_beef, 9), golden);
        let mut lines = golden.to_vec();
        lines.resize(64, 0xa5);
        let (header, mut messages) = Messages::open(&lines).unwrap();
        assert_eq!((header.consumed.get(), header.epoch.get()), (16, 0xdead_beef));
        assert_eq!(header.sequence.get(), 9);
        let request = messages.next().unwrap().unwrap();
        let body = Body::Inline(b"abc");
        let (method, budget_lines, timeout_us) = (0x0102, 3, 0x0004_0506);
        let kind = MessageKind::Request { method, budget_lines, timeout_us, body };
        assert_eq!(request, Message { token: 7, kind });
        let response = messages.next().unwrap().unwrap();
        let kind = MessageKind::Response { status: Status::NotFound, body: Body::Inline(b"z") };
        assert_eq!(response, Message { token: 0x0a0b, kind });
        assert_eq!(messages.next(), None);
    }

    fn first_error(bytes: &[u8]) -> Option<Violation> {
        match Messages::open(bytes) {
            Ok((_, messages)) => messages.filter_map(Result::err).next(),
            Err(violation) => Some(violation),
        }
    }

    /// Pitfall 13, fault D5: no length or count of a peer is believed.
    #[test]
    fn every_wrong_length_and_count_is_a_violation() {
        let mut batch = sample();
        let good = {
            let mut bytes = batch.seal(0, 1, 0).to_vec();
            bytes.resize(64, 0);
            bytes
        };
        assert_eq!(first_error(&good), None);
        assert_eq!(first_error(&[0; 8]), Some(Violation::BatchLength { claimed: 0, room: 8 }));
        for (at, value) in [(12, 0), (12, 49), (12, 200), (15, 0xff), (10, 0), (10, 1), (10, 3)] {
            let mut bad = good.clone();
            bad[at] = value;
            assert!(first_error(&bad).is_some(), "byte {at} = {value}");
        }
        for (at, value) in [(16, 200), (18, 0xff), (19, 0), (19, 6), (19, 0x7f), (32 + 8, 0xff)] {
            let mut bad = good.clone();
            bad[at] = value;
            assert!(first_error(&bad).is_some(), "byte {at} = {value}");
        }
    }

    #[test]
    fn a_status_of_the_future_is_unknown_not_wrong() {
        let mut batch = Batch::new();
        batch.push(&Outgoing::control(KIND_RESPONSE | 99, 1));
        let mut bytes = batch.seal(0, 1, 0).to_vec();
        bytes.resize(64, 0);
        let (_, mut messages) = Messages::open(&bytes).unwrap();
        let kind = MessageKind::Response { status: Status::Unknown, body: Body::Inline(&[]) };
        assert_eq!(messages.next(), Some(Ok(Message { token: 1, kind })));
    }
}
