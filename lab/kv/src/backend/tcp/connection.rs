//! One connection that does not block: frames in, frames out.

use std::{
    io::{self, ErrorKind, Read as _, Write as _},
    net::TcpStream,
};

use crate::backend::{CallToken, Counters};

const LEN_BYTES: usize = 4;
const TOKEN_BYTES: usize = 8;
/// Bytes of a frame before its message.
pub(super) const FRAME_HEAD_BYTES: usize = LEN_BYTES + TOKEN_BYTES;
/// Of each direction; more if a message needs it.
const BUFFER_BYTES: usize = 256 << 10;

/// The peer broke a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a frame claims {len_bytes} B; 8 to {max_bytes} B are possible")]
pub(super) struct FrameError {
    len_bytes: usize,
    max_bytes: usize,
}

/// What a read found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// Perhaps something, perhaps nothing.
    Open,
    /// The peer has closed.
    Closed,
}

/// A connection and its buffers.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    /// `input[begin..end]` has been received and not yet been handed out.
    input: Box<[u8]>,
    begin: usize,
    end: usize,
    /// `output[sent..]` is to be sent.
    output: Vec<u8>,
    sent: usize,
    message_bytes_max: usize,
}

impl Connection {
    pub(super) fn new(
        stream: TcpStream,
        message_bytes_max: usize,
        is_nodelay: bool,
    ) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(is_nodelay)?;
        let buffer_bytes = BUFFER_BYTES.max(2 * (message_bytes_max + FRAME_HEAD_BYTES));
        Ok(Self {
            stream,
            input: vec![0; buffer_bytes].into_boxed_slice(),
            begin: 0,
            end: 0,
            output: Vec::with_capacity(buffer_bytes),
            sent: 0,
            message_bytes_max,
        })
    }

    pub(super) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Whether a message of any length can be pushed.
    pub(super) fn has_room(&self) -> bool {
        self.output.capacity() - self.output.len() >= self.message_bytes_max + FRAME_HEAD_BYTES
    }

    /// Whether something is left to send.
    pub(super) fn is_pending(&self) -> bool {
        self.sent < self.output.len()
    }

    /// Appends a frame; the caller has seen that there is room.
    pub(super) fn push(&mut self, token: CallToken, message: &[u8]) {
        let len_bytes = u32::try_from(TOKEN_BYTES + message.len()).unwrap_or(u32::MAX);
        self.output.extend_from_slice(&len_bytes.to_le_bytes());
        self.output.extend_from_slice(&token.0.to_le_bytes());
        self.output.extend_from_slice(message);
    }

    /// Sends as much as the kernel takes.
    pub(super) fn flush(&mut self, counters: &mut TcpCounters) -> io::Result<()> {
        while self.is_pending() {
            counters.writes += 1;
            match self.stream.write(&self.output[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.sent == self.output.len() {
            self.output.clear();
            self.sent = 0;
        } else if !self.has_room() {
            self.output.drain(..self.sent);
            self.sent = 0;
        }
        Ok(())
    }

    /// Takes in what is there, by one read.
    pub(super) fn receive(&mut self, counters: &mut TcpCounters) -> io::Result<Received> {
        if self.begin == self.end {
            (self.begin, self.end) = (0, 0);
        } else if self.input.len() - self.begin < self.message_bytes_max + FRAME_HEAD_BYTES {
            self.input.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, self.end - self.begin);
        }
        if self.end == self.input.len() {
            return Ok(Received::Open); // full of frames that nobody has taken yet
        }
        counters.reads += 1;
        match self.stream.read(&mut self.input[self.end..]) {
            Ok(0) => Ok(Received::Closed),
            Ok(count) => {
                self.end += count;
                Ok(Received::Open)
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                Ok(Received::Open)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether a frame is complete.
    pub(super) fn peek(&self) -> Result<bool, FrameError> {
        self.frame_len().map(|len| len.is_some())
    }

    /// Length of the message that is complete, if one is.
    fn frame_len(&self) -> Result<Option<usize>, FrameError> {
        let input = &self.input[self.begin..self.end];
        let Some(len) = input.first_chunk::<LEN_BYTES>() else { return Ok(None) };
        let len_bytes = u32::from_le_bytes(*len) as usize;
        let max_bytes = TOKEN_BYTES + self.message_bytes_max;
        if !(TOKEN_BYTES..=max_bytes).contains(&len_bytes) {
            return Err(FrameError { len_bytes, max_bytes });
        }
        Ok((input.len() >= LEN_BYTES + len_bytes).then_some(len_bytes - TOKEN_BYTES))
    }

    /// Hands out the next frame that is complete.
    pub(super) fn next_frame(&mut self) -> Result<Option<(CallToken, &[u8])>, FrameError> {
        let Some(message_bytes) = self.frame_len()? else { return Ok(None) };
        let frame = &self.input[self.begin..][..FRAME_HEAD_BYTES + message_bytes];
        self.begin += frame.len();
        let (head, message) = frame.split_at(FRAME_HEAD_BYTES);
        let token = head.last_chunk::<TOKEN_BYTES>().map_or(0, |token| u64::from_le_bytes(*token));
        Ok(Some((CallToken(token), message)))
    }
}

/// What one end counts, cheaply.
#[derive(Clone, Debug, Default)]
pub(super) struct TcpCounters {
    pub(super) reads: u64,
    pub(super) writes: u64,
    pub(super) waits: u64,
    /// Looks at all sockets without waiting.
    pub(super) looks: u64,
    /// Messages per turn that had any, by their binary logarithm: see [`Self::turn`].
    turns: [u64; BATCH_SIZES],
}

const BATCH_SIZES: usize = 17;

impl TcpCounters {
    /// A turn that received `messages`.
    pub(super) fn turn(&mut self, messages: usize) {
        if let Some(log) = messages.checked_ilog2() {
            self.turns[(log as usize).min(BATCH_SIZES - 1)] += 1;
        }
    }

    /// With batch sizes rounded down to powers of two.
    pub(super) fn to_counters(&self, side: &str) -> Counters {
        let mut counters = Counters::default();
        let Self { reads, writes, waits, looks, .. } = *self;
        let named = [("reads", reads), ("writes", writes), ("waits", waits), ("looks", looks)];
        for (name, count) in named {
            counters.named.insert(format!("{side} {name}"), count);
        }
        let turns = self.turns.iter().zip(0_u32..).filter(|&(&count, _)| count > 0);
        counters.batch_sizes = turns.map(|(&count, log)| (1 << log, count)).collect();
        counters
    }
}
