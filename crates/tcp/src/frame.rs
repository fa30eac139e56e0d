//! Frames: pieces of packets and answers on a stream of bytes. Pure code, without a socket.
//!
//! ```text
//!  header: kind 1 │ flags 1 │ head length 2 │ body length 4 │ channel 4 │ 0: 4 │ taken 8     little endian
//!  then the head (first piece only), then the body
//! ```
//!
//! A message is a *head* (a packet or an answer without its payload, as `softnic` encodes it) and a *body* (its
//! payload). Bodies are cut into pieces of at most [`PIECE_BYTES_MAX`]; pieces of one channel, which is a queue
//! pair of the requester, are in order, and those of different channels may be mixed. `taken` counts the
//! requests of this stream that the sender of the frame has run so far.

use std::collections::BTreeMap;

use softnic::{Packet, ReplyPacket};

/// Bytes of a header.
pub const HEADER_BYTES: usize = 24;
/// Longest head.
pub const HEAD_BYTES_MAX: usize = 128;
/// Longest body of a frame.
pub const PIECE_BYTES_MAX: usize = 64 << 10;
/// Longest frame.
pub const FRAME_BYTES_MAX: usize = HEADER_BYTES + HEAD_BYTES_MAX + PIECE_BYTES_MAX;

/// Messages of one stream that may be incomplete at a time.
const PARTIAL_MAX: usize = 4096;

/// The content of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum FrameKind {
    /// A piece of a request.
    Request = 1,
    /// A piece of an answer.
    Answer = 2,
    /// Nothing but its header.
    Taken = 3,
}

/// How a frame begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Kind of the frame.
    pub kind: FrameKind,
    /// It has the head of a message.
    pub is_first: bool,
    /// It has the end of a body.
    pub is_last: bool,
    /// Length of the head.
    pub head_bytes: u16,
    /// Length of this piece of the body.
    pub body_bytes: u32,
    /// Which messages are in order.
    pub channel: u32,
    /// Requests that its sender has run.
    pub taken: u64,
}

/// Bytes that are no frame of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A field of a header holds no value that exists.
    #[error("field `{0}` of a frame holds no value that exists")]
    Field(&'static str),
    /// A piece without its first one, or a second first one.
    #[error("a piece is not the next one of its message")]
    Order,
    /// More messages are incomplete than a port begins.
    #[error("too many messages are incomplete")]
    Partial,
    /// The assembled bytes are no packet or answer.
    #[error("no packet or answer: {0}")]
    Message(#[from] softnic::DecodeError),
}

impl Header {
    /// As bytes.
    #[must_use]
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = self.kind as u8;
        bytes[1] = u8::from(self.is_first) | u8::from(self.is_last) << 1;
        bytes[2..4].copy_from_slice(&self.head_bytes.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.body_bytes.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.channel.to_le_bytes());
        bytes[16..].copy_from_slice(&self.taken.to_le_bytes());
        bytes
    }

    /// Checks every field.
    ///
    /// # Errors
    ///
    /// [`FrameError::Field`].
    pub fn from_bytes(bytes: &[u8; HEADER_BYTES]) -> Result<Self, FrameError> {
        let [kind, flags, h0, h1, b0, b1, b2, b3, c0, c1, c2, c3, z0, z1, z2, z3, taken @ ..] =
            *bytes;
        let kind = match kind {
            1 => FrameKind::Request,
            2 => FrameKind::Answer,
            3 => FrameKind::Taken,
            _ => return Err(FrameError::Field("kind")),
        };
        if flags > 3 || [z0, z1, z2, z3] != [0; 4] {
            return Err(FrameError::Field("flags"));
        }
        let header = Self {
            kind,
            is_first: flags & 1 != 0,
            is_last: flags & 2 != 0,
            head_bytes: u16::from_le_bytes([h0, h1]),
            body_bytes: u32::from_le_bytes([b0, b1, b2, b3]),
            channel: u32::from_le_bytes([c0, c1, c2, c3]),
            taken: u64::from_le_bytes(taken),
        };
        let is_empty = header.head_bytes == 0 && header.body_bytes == 0;
        let head = usize::from(header.head_bytes);
        let body = header.body_bytes as usize;
        let fits = match kind {
            FrameKind::Taken => is_empty && flags == 0,
            _ => (header.is_first == (head > 0)) && (header.is_first || body > 0),
        };
        if !fits || head > HEAD_BYTES_MAX || body > PIECE_BYTES_MAX {
            return Err(FrameError::Field("length"));
        }
        Ok(header)
    }

    /// Bytes after the header.
    #[must_use]
    pub fn rest_bytes(&self) -> usize {
        usize::from(self.head_bytes) + self.body_bytes as usize
    }
}

/// A message that is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TcpMessage {
    /// To be run.
    Request(Packet),
    /// To be settled.
    Answer(ReplyPacket),
}

impl TcpMessage {
    fn join(kind: FrameKind, head: &[u8], body: Vec<u8>) -> Result<Self, FrameError> {
        Ok(match kind {
            FrameKind::Request => Self::Request(Packet::join(head, body)?),
            _ => Self::Answer(ReplyPacket::join(head, body)?),
        })
    }
}

#[derive(Debug)]
struct Partial {
    head: Vec<u8>,
    body: Vec<u8>,
}

/// Puts pieces together. Memory grows with the bytes that have come, not with what a frame announces.
#[derive(Debug, Default)]
pub struct Assembler {
    partial: BTreeMap<(FrameKind, u32), Partial>,
}

impl Assembler {
    /// The frame at the start of `bytes`: its header, and its length; `None` if it is not all there.
    ///
    /// # Errors
    ///
    /// [`FrameError::Field`].
    pub fn peek(bytes: &[u8]) -> Result<Option<(Header, usize)>, FrameError> {
        let Some(header) = bytes.first_chunk() else { return Ok(None) };
        let header = Header::from_bytes(header)?;
        let len = HEADER_BYTES + header.rest_bytes();
        Ok((bytes.len() >= len).then_some((header, len)))
    }

    /// Takes a frame whose bytes after the header are `rest`. `Some`: it completes a message.
    ///
    /// # Errors
    ///
    /// [`FrameError`].
    pub fn take(&mut self, header: &Header, rest: &[u8]) -> Result<Option<TcpMessage>, FrameError> {
        if header.kind == FrameKind::Taken {
            return Ok(None);
        }
        let (head, piece) = rest.split_at(usize::from(header.head_bytes).min(rest.len()));
        let key = (header.kind, header.channel);
        if header.is_first {
            if self.partial.contains_key(&key) {
                return Err(FrameError::Order);
            }
            if header.is_last {
                return TcpMessage::join(header.kind, head, piece.to_vec()).map(Some);
            }
            if self.partial.len() == PARTIAL_MAX {
                return Err(FrameError::Partial);
            }
            self.partial.insert(key, Partial { head: head.to_vec(), body: piece.to_vec() });
            return Ok(None);
        }
        let partial = self.partial.get_mut(&key).ok_or(FrameError::Order)?;
        partial.body.extend_from_slice(piece);
        if !header.is_last {
            return Ok(None);
        }
        let Partial { head, body } = self.partial.remove(&key).ok_or(FrameError::Order)?;
        TcpMessage::join(header.kind, &head, body).map(Some)
    }
}
