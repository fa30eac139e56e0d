//! Messages for a stream, of many channels, which take turns by pieces.

use std::{
    collections::{BTreeMap, VecDeque},
    io::{self, IoSlice, Write},
    sync::Arc,
};

use crate::frame::{FrameKind, Header, PIECE_BYTES_MAX};

/// Bodies up to this length are copied behind their header; longer ones are written from where they are.
const COPY_BYTES_MAX: usize = 2048;
/// A piece of staged bytes grows up to about this length.
const STAGED_BYTES: usize = 64 << 10;
/// Bytes that are cut into frames ahead of the socket.
const AHEAD_BYTES: usize = 256 << 10;
/// Pieces of memory of one write.
const SLICES_MAX: usize = 64;

type Channel = (FrameKind, u32);

#[derive(Debug)]
struct Queued {
    head: Vec<u8>,
    body: Arc<Vec<u8>>,
    /// Bytes of the body that have been cut off.
    cut: usize,
    is_begun: bool,
}

#[derive(Debug)]
enum Staged {
    Bytes(Vec<u8>),
    Body { body: Arc<Vec<u8>>, from: usize, to: usize },
}

impl Staged {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Body { body, from, to } => &body[*from..*to],
        }
    }
}

/// Messages on their way to a socket. A partial write leaves a cursor.
#[derive(Debug, Default)]
pub struct Outbox {
    channels: BTreeMap<Channel, VecDeque<Queued>>,
    turns: VecDeque<Channel>,
    staged: VecDeque<Staged>,
    staged_bytes: usize,
    /// Bytes of the first staged piece that are written.
    written: usize,
    queued_bytes: usize,
}

impl Outbox {
    /// Whether there is nothing to write.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.staged.is_empty() && self.turns.is_empty()
    }

    /// Bytes that are not written yet.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.queued_bytes + self.staged_bytes
    }

    /// Appends a message of a channel, behind those that it has.
    pub fn push(
        &mut self,
        kind: FrameKind,
        channel: u32,
        head: Vec<u8>,
        body: Vec<u8>,
        taken: u64,
    ) {
        let is_short = body.len() <= PIECE_BYTES_MAX && self.staged_bytes < AHEAD_BYTES;
        let mut message = Queued { head, body: Arc::new(body), cut: 0, is_begun: false };
        if is_short && self.turns.is_empty() {
            self.stage((kind, channel), &mut message, taken);
            return;
        }
        self.queued_bytes += message.body.len() + message.head.len();
        let queue = self.channels.entry((kind, channel)).or_default();
        if queue.is_empty() {
            self.turns.push_back((kind, channel));
        }
        queue.push_back(message);
    }

    /// Appends a frame that tells `taken` and nothing else.
    pub fn push_taken(&mut self, taken: u64) {
        let header = Header {
            kind: FrameKind::Taken,
            is_first: false,
            is_last: false,
            head_bytes: 0,
            body_bytes: 0,
            channel: 0,
            taken,
        };
        self.stage_bytes(&[&header.to_bytes()]);
    }

    /// Cuts the next piece off; `true` if that was the last one.
    #[expect(clippy::cast_possible_truncation, reason = "heads and pieces are short")]
    fn stage(&mut self, (kind, channel): Channel, message: &mut Queued, taken: u64) -> bool {
        let from = message.cut;
        let to = message.body.len().min(message.cut + PIECE_BYTES_MAX);
        let is_first = !message.is_begun;
        let head = if is_first { &message.head[..] } else { &[] };
        let is_last = to == message.body.len();
        let header = Header {
            kind,
            is_first,
            is_last,
            head_bytes: head.len() as u16,
            body_bytes: (to - from) as u32,
            channel,
            taken,
        };
        (message.cut, message.is_begun) = (to, true);
        if to - from <= COPY_BYTES_MAX {
            self.stage_bytes(&[&header.to_bytes(), head, &message.body[from..to]]);
        } else {
            self.stage_bytes(&[&header.to_bytes(), head]);
            self.staged_bytes += to - from;
            self.staged.push_back(Staged::Body { body: message.body.clone(), from, to });
        }
        is_last
    }

    fn stage_bytes(&mut self, parts: &[&[u8]]) {
        if !matches!(self.staged.back(), Some(Staged::Bytes(last)) if last.len() < STAGED_BYTES) {
            self.staged.push_back(Staged::Bytes(Vec::with_capacity(512)));
        }
        if let Some(Staged::Bytes(last)) = self.staged.back_mut() {
            for part in parts {
                last.extend_from_slice(part);
                self.staged_bytes += part.len();
            }
        }
    }

    /// Lets channels take turns until enough is staged.
    fn fill(&mut self, taken: u64) {
        while self.staged_bytes < AHEAD_BYTES {
            let Some(channel) = self.turns.pop_front() else { break };
            let Some(queue) = self.channels.get_mut(&channel) else { continue };
            let Some(mut message) = queue.pop_front() else { continue };
            let cut = message.cut;
            let was_begun = message.is_begun;
            let is_last = self.stage(channel, &mut message, taken);
            let head_bytes = if was_begun { 0 } else { message.head.len() };
            self.queued_bytes -= message.cut - cut + head_bytes;
            let Some(queue) = self.channels.get_mut(&channel) else { continue };
            if !is_last {
                queue.push_front(message);
            }
            if queue.is_empty() {
                self.channels.remove(&channel);
            } else {
                self.turns.push_back(channel);
            }
        }
    }

    /// Writes as much as `socket` takes; frames that begin say `taken`. `Ok(false)`: it takes no more now.
    ///
    /// # Errors
    ///
    /// Those of the socket.
    pub fn write(&mut self, socket: &mut impl Write, taken: u64) -> io::Result<bool> {
        loop {
            self.fill(taken);
            if self.staged.is_empty() {
                return Ok(true);
            }
            let slices: Vec<_> = self
                .staged
                .iter()
                .enumerate()
                .take(SLICES_MAX)
                .map(|(at, staged)| {
                    IoSlice::new(&staged.bytes()[if at == 0 { self.written } else { 0 }..])
                })
                .collect();
            match socket.write_vectored(&slices) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.advance(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn advance(&mut self, mut count: usize) {
        self.staged_bytes -= count;
        while let Some(first) = self.staged.front() {
            let left = first.bytes().len() - self.written;
            if count < left {
                self.written += count;
                return;
            }
            count -= left;
            self.written = 0;
            self.staged.pop_front();
        }
    }
}
