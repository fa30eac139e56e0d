//! A stream to a port: a socket that never blocks, and the bytes read from it.

use std::{
    io::{self, Read as _},
    net::TcpStream,
};

use crate::frame::{Assembler, FRAME_BYTES_MAX, FrameError, HEADER_BYTES, Header};

/// Bytes that are read at a time, at most.
const BUFFER_BYTES: usize = 256 << 10;
const _: () = assert!(BUFFER_BYTES >= 2 * FRAME_BYTES_MAX);

/// A socket behind its handshake.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) socket: TcpStream,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// It is watched for room to write.
    pub(crate) is_watched: bool,
    /// A write has failed: what can still be read counts.
    pub(crate) is_broken: bool,
}

/// How a look at the socket went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Came {
    /// Something.
    Bytes,
    /// Nothing now.
    Nothing,
    /// Nothing any more.
    End,
}

impl Stream {
    pub(crate) fn new(socket: TcpStream) -> Self {
        let buffer = vec![0; BUFFER_BYTES].into_boxed_slice();
        Self { socket, buffer, start: 0, end: 0, is_watched: false, is_broken: false }
    }

    /// Reads once.
    pub(crate) fn read(&mut self) -> Came {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.buffer.len() - self.start < FRAME_BYTES_MAX {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        loop {
            match self.socket.read(&mut self.buffer[self.end..]) {
                Ok(0) => return Came::End,
                Ok(count) => {
                    self.end += count;
                    return Came::Bytes;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !self.is_broken => {
                    return Came::Nothing;
                }
                Err(_) => return Came::End,
            }
        }
    }

    /// The next frame that has been read: its header, and where the rest of it is in
    /// [`bytes`](Self::bytes).
    pub(crate) fn next(&mut self) -> Result<Option<(Header, core::ops::Range<usize>)>, FrameError> {
        let Some((header, len)) = Assembler::peek(&self.buffer[self.start..self.end])? else {
            return Ok(None);
        };
        let rest = self.start + HEADER_BYTES..self.start + len;
        self.start += len;
        Ok(Some((header, rest)))
    }

    pub(crate) fn bytes(&self, range: core::ops::Range<usize>) -> &[u8] {
        &self.buffer[range]
    }
}
