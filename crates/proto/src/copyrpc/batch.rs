//! Building a batch in private memory, and reading one from a private copy.

use alloc::vec::Vec;

use zerocopy::{FromBytes as _, IntoBytes as _};

use super::{
    layout::{
        BATCH_HEADER_BYTES, BatchHeader, HEAD_BYTES, Head, KIND_CANCEL, KIND_LARGE_REQUEST,
        KIND_LARGE_RESPONSE, KIND_RELEASE, KIND_REQUEST, KIND_RESPONSE, LARGE_BYTES, LINE_BYTES,
        LargeBytes, MESSAGE_ALIGN, REQUEST_HEAD_BYTES, RequestHead, RequestTail, lines,
        number_bits, padded,
    },
    violation::Violation,
};
const TAIL_BYTES: usize = size_of::<RequestTail>();
/// Steps in which the memory of a batch grows.
const GROWTH_BYTES: usize = 1 << 10;

/// The fields of a batch's header and immediate that concern the receiver and the other direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    pub(crate) slot: u16,
    pub(crate) epoch: u32,
    pub(crate) consumed: u32,
    pub(crate) handled: u16,
}

/// Registered memory of a peer that holds a large body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Large {
    /// In the peer's address space.
    pub addr: u64,
    /// Key of the region.
    pub rkey: u32,
    /// Length of the body; one of none has nothing to fetch and goes through the ring.
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

/// The fields of a request other than its body.
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
    #[inline]
    pub(crate) fn len_bytes(&self) -> usize {
        let head = if self.request.is_some() { REQUEST_HEAD_BYTES } else { HEAD_BYTES };
        padded(head + self.body_bytes)
    }
}

/// A batch that is being built. The first bytes are kept for its header.
#[derive(Debug)]
pub(crate) struct Batch {
    /// Grows to the longest batch so far. Behind `len_bytes` lies what earlier batches were made of.
    bytes: Vec<u8>,
    len_bytes: usize,
    pub(crate) count: u16,
    /// Lines that were set aside for the responses in it.
    pub(crate) response_lines: u32,
}

impl Batch {
    pub(crate) fn new() -> Self {
        Self { bytes: Vec::new(), len_bytes: BATCH_HEADER_BYTES, count: 0, response_lines: 0 }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Empties it and keeps its memory. Returns how many messages it had, and the lines that were set
    /// aside for them.
    #[inline]
    pub(crate) fn take(&mut self) -> (u16, u32) {
        let taken = (self.count, self.response_lines);
        (self.len_bytes, self.count, self.response_lines) = (BATCH_HEADER_BYTES, 0, 0);
        taken
    }

    /// Lines it takes of the ring.
    #[inline]
    pub(crate) fn lines(&self) -> u64 {
        if self.is_empty() { 0 } else { self.lines_with(0) }
    }

    /// Lines it will take with another message of `len_bytes`.
    #[inline]
    pub(crate) fn lines_with(&self, len_bytes: usize) -> u64 {
        lines(self.len_bytes + len_bytes)
    }

    /// Appends a message and returns the place of its body, which is to be overwritten: there are bytes
    /// of earlier messages to the same peer.
    #[inline(always)]
    pub(crate) fn push(&mut self, message: &Outgoing) -> &mut [u8] {
        let start = self.len_bytes;
        let end = start + message.len_bytes();
        if end > self.bytes.len() {
            self.grow(end);
        }
        self.len_bytes = end;
        self.count += 1;
        let place = &mut self.bytes[start..end];
        if let Some(padding) = place.last_chunk_mut::<MESSAGE_ALIGN>() {
            *padding = [0; MESSAGE_ALIGN];
        }
        let head = Head::new(message.kind, message.body_bytes, message.token);
        let body = if let Some(fields) = message.request {
            let tail = RequestTail {
                method: fields.method.into(),
                budget_lines: fields.budget_lines.into(),
                timeout_us: fields.timeout_us.into(),
            };
            place[..REQUEST_HEAD_BYTES].copy_from_slice(RequestHead { head, tail }.as_bytes());
            &mut place[REQUEST_HEAD_BYTES..]
        } else {
            place[..HEAD_BYTES].copy_from_slice(head.as_bytes());
            &mut place[HEAD_BYTES..]
        };
        &mut body[..message.body_bytes]
    }

    /// By doubling to [`GROWTH_BYTES`], then in steps of these: a longest batch is a little longer than a power of two.
    #[cold]
    fn grow(&mut self, end: usize) {
        let len_bytes = end.next_power_of_two().min(end.next_multiple_of(GROWTH_BYTES));
        self.bytes.reserve_exact(len_bytes - self.bytes.len());
        self.bytes.resize(len_bytes, 0);
    }

    /// Writes the header and returns all bytes.
    pub(crate) fn seal(&mut self, to: &Address, sequence: u16) -> &[u8] {
        let unused_bytes = self.len_bytes.wrapping_neg() % LINE_BYTES;
        let header = BatchHeader {
            consumed: to.consumed.into(),
            epoch: to.epoch.into(),
            sequence: sequence.into(),
            count: self.count.into(),
            handled: to.handled.into(),
            unused_bytes: number_bits(unused_bytes as u64).into(),
        };
        let bytes = &mut self.bytes[..self.len_bytes];
        bytes[..BATCH_HEADER_BYTES].copy_from_slice(header.as_bytes());
        bytes
    }
}

/// A message as it arrived, checked for its own consistency only.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    pub(crate) kind: u8,
    /// The caller's name of the call.
    pub(crate) token: u32,
    /// Of requests; otherwise the bytes are of no meaning.
    pub(crate) tail: RequestTail,
    pub(crate) body: &'a [u8],
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
        let no_room = Violation::BatchLength { unused: 0, room: batch.len() };
        let (header, rest) = BatchHeader::read_from_prefix(batch).map_err(|_| no_room)?;
        let unused = usize::from(header.unused_bytes.get());
        if unused >= LINE_BYTES || unused > rest.len() || !unused.is_multiple_of(MESSAGE_ALIGN) {
            return Err(Violation::BatchLength { unused, room: rest.len() });
        }
        let count = header.count.get();
        // A batch without messages would be a way to send credit that takes ring space.
        if count == 0 {
            return Err(Violation::Count { claimed: count });
        }
        Ok((header, Self { bytes: &rest[..rest.len() - unused], count, index: 0 }))
    }

    /// Whether a batch ends where its announcement says, as far as its messages are some: `batch` as for
    /// [`open_batch`](super::Connection::open_batch), before that. To be asked where the transport does
    /// not tell who announced it.
    ///
    /// # Errors
    ///
    /// [`Violation`], which [is of the announcement](Violation::is_of_announcement).
    pub fn check_extent(batch: &'a [u8]) -> Result<(), Violation> {
        let (_, mut messages) = Self::open(batch)?;
        while messages.following().is_some() {}
        messages.end().or_else(
            |violation| {
                if violation.is_of_announcement() { Err(violation) } else { Ok(()) }
            },
        )
    }

    /// The number of lines of the batch at the front of `bytes`; `None`: no messages lie there. Needed
    /// where the announced length is unknown.
    #[must_use]
    pub fn lines(bytes: &'a [u8]) -> Option<u16> {
        let (header, rest) = BatchHeader::read_from_prefix(bytes).ok()?;
        let mut messages = Self { bytes: rest, count: header.count.get(), index: 0 };
        while messages.following().is_some() {}
        let is_some = messages.index > 0 && messages.index == messages.count;
        let lines = lines(bytes.len() - messages.bytes.len());
        u16::try_from(lines).ok().filter(|_| is_some)
    }

    /// The next message, and the rest.
    #[inline(always)]
    fn parse(&self) -> Option<(Message<'a>, &'a [u8])> {
        let (head, after) = self.bytes.split_first_chunk::<HEAD_BYTES>()?;
        let head: Head = zerocopy::transmute!(*head);
        let kind = head.kind();
        let body_bytes = head.body_bytes();
        let is_request = matches!(kind, KIND_REQUEST | KIND_LARGE_REQUEST);
        let tail_bytes = if is_request { TAIL_BYTES } else { 0 };
        let end = tail_bytes + body_bytes;
        let (message, rest) = after.split_at_checked(padded(end))?;
        let tail = message.first_chunk::<TAIL_BYTES>().copied().unwrap_or_default();
        let body = &message[tail_bytes..end];
        Some((
            Message { kind, token: head.token.get(), tail: zerocopy::transmute!(tail), body },
            rest,
        ))
    }

    /// The next message. `None`: there is none, or it is not a message; [`end`](Self::end) tells.
    #[inline(always)]
    pub fn following(&mut self) -> Option<Message<'a>> {
        if self.index == self.count {
            return None;
        }
        let (message, rest) = self.parse()?;
        let Message { kind, body, .. } = message;
        if !matches!(kind, KIND_REQUEST | KIND_RESPONSE..) && check_rare(kind, body.len()).is_err()
        {
            return None;
        }
        (self.bytes, self.index) = (rest, self.index + 1);
        Some(message)
    }

    /// Whether all messages that the batch claims to hold were yielded, and are all that it holds.
    ///
    /// # Errors
    ///
    /// [`Violation`]: the fault of the next message, or of the bytes behind the last one.
    #[inline]
    pub fn end(&self) -> Result<(), Violation> {
        let is_whole = self.index == self.count && self.bytes.is_empty();
        if is_whole { Ok(()) } else { Err(self.violation()) }
    }

    #[cold]
    fn violation(&self) -> Violation {
        if self.index == self.count {
            return Violation::Count { claimed: self.count };
        }
        let Some((Message { kind, body, .. }, _)) = self.parse() else {
            return Violation::MessageLength { index: self.index };
        };
        // A message that could be yielded: the batch was not read to its end.
        check_rare(kind, body.len()).err().unwrap_or(Violation::Count { claimed: self.count })
    }

    /// Messages that the batch claims to hold.
    #[inline]
    #[must_use]
    pub fn claimed(&self) -> u16 {
        self.count
    }

    /// The part not yet yielded: its bytes, and the number of messages that they claim to hold.
    #[inline(always)]
    #[must_use]
    pub fn rest(&self) -> (&'a [u8], u16) {
        (self.bytes, self.count - self.index)
    }

    /// Goes on with a [`rest`](Self::rest), or a copy of it.
    #[must_use]
    pub fn resumed(bytes: &'a [u8], count: u16) -> Self {
        Self { bytes, count, index: 0 }
    }

    /// Messages that it has yielded.
    #[inline]
    #[must_use]
    pub fn taken(&self) -> u16 {
        self.index
    }
}

/// Refuses a message of a rare kind whose body is not of the length of that kind (rule C2.8).
#[cold]
fn check_rare(kind: u8, len_bytes: usize) -> Result<(), Violation> {
    match kind {
        KIND_LARGE_REQUEST | KIND_LARGE_RESPONSE if len_bytes == LARGE_BYTES => Ok(()),
        KIND_RELEASE | KIND_CANCEL if len_bytes == 0 => Ok(()),
        KIND_LARGE_REQUEST | KIND_LARGE_RESPONSE | KIND_RELEASE | KIND_CANCEL => {
            Err(Violation::Body { kind, len_bytes })
        }
        _ => Err(Violation::Kind(kind)),
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, Violation>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(message) = self.following() {
            return Some(Ok(message));
        }
        let violation = self.end().err();
        (self.index, self.bytes) = (self.count, &[]);
        violation.map(Err)
    }
}

impl Message<'_> {
    /// Of requests: number of the method.
    #[inline(always)]
    pub(crate) fn method(&self) -> u16 {
        self.tail.method.get()
    }

    /// Of requests: time that the caller will wait.
    #[inline(always)]
    pub(crate) fn timeout_us(&self) -> u32 {
        self.tail.timeout_us.get()
    }

    /// The memory that it names instead of carrying a body; its kind says that it does.
    pub(crate) fn large(&self) -> Result<Large, Violation> {
        let bytes = LargeBytes::read_from_bytes(self.body)
            .map_err(|_| Violation::Body { kind: self.kind, len_bytes: self.body.len() })?;
        Ok(Large {
            addr: bytes.addr.get(),
            rkey: bytes.rkey.get(),
            len_bytes: bytes.len_bytes.get(),
        })
    }
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

    #[test]
    fn memory_is_at_most_a_step_longer_than_the_longest_batch() {
        let mut batch = Batch::new();
        let memory = |batch: &Batch| (batch.bytes.len(), batch.bytes.capacity());
        batch.push(&Outgoing::control(KIND_CANCEL, 1));
        assert_eq!(memory(&batch), (32, 32));
        for body_bytes in [700, 16_000, 16_400] {
            batch.take();
            let response = Outgoing { kind: KIND_RESPONSE, token: 1, request: None, body_bytes };
            assert_eq!(batch.push(&response).len(), body_bytes);
            let (len_bytes, capacity_bytes) = memory(&batch);
            assert!(len_bytes < batch.len_bytes + GROWTH_BYTES, "{len_bytes}");
            assert_eq!(capacity_bytes, len_bytes);
        }
    }

    /// Rules C2.1, C2.6, C2.7 and C2.8.
    #[test]
    fn golden_batch_in_both_directions() {
        let golden = hex!(
            "10000000 efbeadde 0900 0200 0b00 0800"
            "03000001 07000000 0201 0300 06050400 616263 0000000000"
            "01000085 0b0a0000 7a 00000000000000"
        );
        let mut batch = sample();
        let to = Address { slot: 0, epoch: 0xdead_beef, consumed: 16, handled: 11 };
        assert_eq!(batch.seal(&to, 9), golden);
        let mut lines = golden.to_vec();
        lines.resize(64, 0xa5);
        let (header, mut messages) = Messages::open(&lines).unwrap();
        assert_eq!((header.consumed.get(), header.epoch.get()), (16, 0xdead_beef));
        assert_eq!((header.sequence.get(), header.handled.get()), (9, 11));
        let request = messages.next().unwrap().unwrap();
        assert_eq!((request.kind, request.token), (KIND_REQUEST, 7));
        let RequestTail { method, budget_lines, timeout_us } = request.tail;
        assert_eq!((method.get(), budget_lines.get(), timeout_us.get()), (0x0102, 3, 0x0004_0506));
        assert_eq!(request.body, b"abc");
        let response = messages.next().unwrap().unwrap();
        assert_eq!((response.kind, response.token), (KIND_RESPONSE | 5, 0x0a0b));
        assert_eq!(response.body, b"z");
        assert!(messages.next().is_none());
    }

    /// Rule C2.6: where the messages end is in the batch's last line, and where a message can end.
    #[test]
    fn what_is_unused_lies_in_the_last_line_behind_whole_messages() {
        let mut batch = sample();
        let to = Address { slot: 0, epoch: 1, consumed: 0, handled: 0 };
        let mut bytes = batch.seal(&to, 0).to_vec();
        bytes.resize(128, 0);
        for unused in [64, 120, 1, 4, 63, u16::MAX] {
            bytes[14..16].copy_from_slice(&unused.to_le_bytes());
            let wrong = Violation::BatchLength { unused: unused.into(), room: 112 };
            assert_eq!(first_error(&bytes), Some(wrong));
        }
        bytes.truncate(24);
        bytes[14..16].copy_from_slice(&16_u16.to_le_bytes());
        assert_eq!(first_error(&bytes), Some(Violation::BatchLength { unused: 16, room: 8 }));
    }

    /// Refuses a message of a rare kind whose body is not of the length of that kind (rule C2.8).
    #[test]
    fn a_body_has_the_length_that_its_kind_has() {
        let kinds = [
            (KIND_LARGE_REQUEST, 16),
            (KIND_LARGE_RESPONSE, 16),
            (KIND_RELEASE, 0),
            (KIND_CANCEL, 0),
        ];
        for (kind, len_bytes) in kinds {
            assert_eq!(check_rare(kind, len_bytes), Ok(()));
            for len_bytes in [len_bytes + 1, 8, 24] {
                assert_eq!(check_rare(kind, len_bytes), Err(Violation::Body { kind, len_bytes }));
            }
        }
    }

    /// A batch of a length that was not announced is found by its messages.
    #[test]
    fn a_batch_says_how_many_lines_it_takes() {
        let mut bytes = [0; 256];
        assert_eq!(Messages::lines(&bytes), None, "nothing was written");
        let mut batch = sample();
        let to = Address { slot: 0, epoch: 1, consumed: 0, handled: 0 };
        for lines in [1, 2] {
            let sealed = batch.seal(&to, 0);
            bytes[..sealed.len()].copy_from_slice(sealed);
            assert_eq!(Messages::lines(&bytes), Some(lines));
            let more = Outgoing { kind: KIND_RESPONSE, token: 1, request: None, body_bytes: 9 };
            batch.push(&more).fill(0);
        }
        bytes[10] = 200;
        assert_eq!(Messages::lines(&bytes), None, "fewer messages than it claims");
    }

    fn first_error(bytes: &[u8]) -> Option<Violation> {
        match Messages::open(bytes) {
            Ok((_, messages)) => messages.filter_map(Result::err).next(),
            Err(violation) => Some(violation),
        }
    }

    /// Rules C2.6, C2.7 and C2.8, pitfall 13, fault D5: no length or count of a peer is believed.
    #[test]
    fn pitfall_13_every_wrong_length_and_count_is_a_violation() {
        let mut batch = sample();
        let good = {
            let to = Address { slot: 0, epoch: 1, consumed: 0, handled: 0 };
            let mut bytes = batch.seal(&to, 0).to_vec();
            bytes.resize(64, 0);
            bytes
        };
        assert_eq!(first_error(&good), None);
        assert_eq!(first_error(&[0; 8]), Some(Violation::BatchLength { unused: 0, room: 8 }));
        let mut empty = [0; 64];
        empty[14] = 48;
        assert_eq!(
            first_error(&empty),
            Some(Violation::Count { claimed: 0 }),
            "credit, and nothing"
        );
        for (at, value) in
            [(14, 0), (14, 7), (14, 16), (14, 64), (15, 1), (10, 0), (10, 1), (10, 3)]
        {
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
}
