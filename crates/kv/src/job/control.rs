//! Messages between coordinator and children: JSON, each after its length in four bytes.

use std::{
    io::{self, ErrorKind, Read as _, Write as _},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    time::Duration,
};

use serde::{Serialize, de::DeserializeOwned};

const LEN_BYTES: usize = 4;
/// Longest message, so that garbage does not fill memory.
const MESSAGE_BYTES_MAX: usize = 64 << 20;
const READ_BYTES: usize = 64 << 10;
/// Longest wait for the other side to take a message.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Why no message came or went.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The other side is gone.
    #[error("the other process is gone")]
    Gone,
    /// It sent nothing in time.
    #[error("the other process sent nothing for {0:?}")]
    Silent(Duration),
    /// It sent something else.
    #[error("the other process sent a message that makes no sense: {0}")]
    Message(#[from] serde_json::Error),
    /// It sent a length that no message has.
    #[error("the other process announced a message of {0} B")]
    Length(usize),
    /// The socket does not do what sockets do.
    #[error("the control socket failed: {0}")]
    Socket(io::Error),
}

/// One end.
#[derive(Debug)]
pub(super) struct Control {
    stream: UnixStream,
    /// What has arrived and was not yet read.
    input: Vec<u8>,
}

impl Control {
    pub(super) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
        Ok(Self { stream, input: Vec::new() })
    }

    /// Takes over a socket that was inherited.
    pub(super) fn from_descriptor(descriptor: OwnedFd) -> io::Result<Self> {
        Self::new(UnixStream::from(descriptor))
    }

    pub(super) fn send(&mut self, message: &impl Serialize) -> Result<(), ControlError> {
        let body = serde_json::to_vec(message)?;
        let len = u32::try_from(body.len()).map_err(|_| ControlError::Length(body.len()))?;
        if body.len() > MESSAGE_BYTES_MAX {
            return Err(ControlError::Length(body.len()));
        }
        let bytes = [&len.to_le_bytes()[..], &body].concat();
        self.stream.write_all(&bytes).map_err(|_| ControlError::Gone)
    }

    /// Waits for the next message.
    pub(super) fn receive<T: DeserializeOwned>(
        &mut self,
        timeout: Duration,
    ) -> Result<T, ControlError> {
        let begin = std::time::Instant::now();
        loop {
            if let Some(message) = self.next()? {
                return Ok(message);
            }
            let left = timeout.saturating_sub(begin.elapsed());
            if left.is_zero() || !self.fill(left)? {
                return Err(ControlError::Silent(timeout));
            }
        }
    }

    /// Takes in what arrives within `timeout`; `false` if nothing did.
    pub(super) fn fill(&mut self, timeout: Duration) -> Result<bool, ControlError> {
        self.stream
            .set_read_timeout(Some(timeout.max(Duration::from_micros(1))))
            .map_err(ControlError::Socket)?;
        let mut chunk = [0; READ_BYTES];
        match self.stream.read(&mut chunk) {
            Ok(0) => Err(ControlError::Gone),
            Ok(count) => {
                self.input.extend_from_slice(&chunk[..count]);
                Ok(true)
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => Ok(false),
                ErrorKind::Interrupted => Ok(true),
                ErrorKind::ConnectionReset => Err(ControlError::Gone),
                _ => Err(ControlError::Socket(error)),
            },
        }
    }

    /// The next message, if it has arrived as a whole.
    pub(super) fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, ControlError> {
        let Some(len) = self.input.first_chunk::<LEN_BYTES>() else { return Ok(None) };
        let len_bytes = u32::from_le_bytes(*len) as usize;
        if len_bytes > MESSAGE_BYTES_MAX {
            return Err(ControlError::Length(len_bytes));
        }
        let Some(body) = self.input.get(LEN_BYTES..LEN_BYTES + len_bytes) else { return Ok(None) };
        let message = serde_json::from_slice(body)?;
        self.input.drain(..LEN_BYTES + len_bytes);
        Ok(Some(message))
    }
}

impl AsFd for Control {
    /// Readable when something has arrived.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Control, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Control::new(ours).unwrap(), theirs)
    }

    #[test]
    fn messages_of_any_length_arrive_in_order() {
        let (mut ours, theirs) = pair();
        let mut theirs = Control::new(theirs).unwrap();
        let long = "x".repeat(100_000);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for text in ["", &long, "end"] {
                    theirs.send(&text).unwrap();
                }
            });
            for text in ["", &long, "end"] {
                assert_eq!(ours.receive::<String>(Duration::from_secs(10)).unwrap(), text);
            }
        });
        drop(theirs);
        let gone = ours.receive::<String>(Duration::from_secs(10));
        assert!(matches!(gone, Err(ControlError::Gone)));
    }

    #[test]
    fn silence_and_garbage_are_errors() {
        let (mut ours, mut theirs) = pair();
        let silent = ours.receive::<String>(Duration::from_millis(1));
        assert!(matches!(silent, Err(ControlError::Silent(_))));
        theirs.write_all(&[4, 0, 0, 0, b'"', b'o', b'k', b'x']).unwrap();
        let garbage = ours.receive::<String>(Duration::from_secs(10));
        assert!(matches!(garbage, Err(ControlError::Message(_))));
        let (mut ours, mut theirs) = pair();
        theirs.write_all(b"GET / HTTP/1.1").unwrap();
        let garbage = ours.receive::<String>(Duration::from_secs(10));
        assert!(matches!(garbage, Err(ControlError::Length(_))));
    }
}
