//! The byte channel between the two roles of a scenario, beside the NIC under test.
//!
//! ```text
//! one process     two `mpsc` queues
//! two processes   a Unix socket; each message is a `u32` length, little endian, and its bytes
//! ```

use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel},
    thread,
    time::Duration,
};

/// Longest message taken from the other side, in bytes.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// Messages read ahead of the scenario.
const BACKLOG_MAX: usize = 1024;

/// The other role is gone: it ended, failed, or was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other role has ended; see its own report")]
pub struct RoleGone;

/// A reliable, ordered message channel to the other role.
pub trait OutOfBand: Send {
    /// Sends one message.
    ///
    /// # Errors
    ///
    /// [`RoleGone`].
    fn send(&mut self, message: &[u8]) -> Result<(), RoleGone>;

    /// The next message, or `None` after `timeout`.
    ///
    /// # Errors
    ///
    /// [`RoleGone`], after everything that was sent before has been returned.
    fn recv(&mut self, timeout: Duration) -> Result<Option<Vec<u8>>, RoleGone>;
}

/// Both ends in one process.
pub(super) struct InMemory {
    to: Sender<Vec<u8>>,
    from: Receiver<Vec<u8>>,
}

impl InMemory {
    /// Two connected ends.
    pub(super) fn pair() -> (Self, Self) {
        let (to_right, at_right) = channel();
        let (to_left, at_left) = channel();
        (Self { to: to_right, from: at_left }, Self { to: to_left, from: at_right })
    }
}

impl OutOfBand for InMemory {
    fn send(&mut self, message: &[u8]) -> Result<(), RoleGone> {
        self.to.send(message.to_vec()).map_err(|_| RoleGone)
    }

    fn recv(&mut self, timeout: Duration) -> Result<Option<Vec<u8>>, RoleGone> {
        next(&self.from, timeout)
    }
}

/// One end of a socket to another process.
pub(super) struct Socket {
    stream: UnixStream,
    from: Receiver<Vec<u8>>,
}

impl Socket {
    /// Takes over a connected stream. A thread reads it, and ends with it.
    pub(super) fn new(stream: UnixStream) -> io::Result<Self> {
        let reader = stream.try_clone()?;
        let (queue, from) = sync_channel(BACKLOG_MAX);
        thread::Builder::new().name("out-of-band".into()).spawn(move || pump(reader, &queue))?;
        Ok(Self { stream, from })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Already closed by the other side is as good.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

impl OutOfBand for Socket {
    fn send(&mut self, message: &[u8]) -> Result<(), RoleGone> {
        let len = u32::try_from(message.len()).map_err(|_| RoleGone)?;
        self.stream.write_all(&len.to_le_bytes()).map_err(|_| RoleGone)?;
        self.stream.write_all(message).map_err(|_| RoleGone)
    }

    fn recv(&mut self, timeout: Duration) -> Result<Option<Vec<u8>>, RoleGone> {
        next(&self.from, timeout)
    }
}

fn next(from: &Receiver<Vec<u8>>, timeout: Duration) -> Result<Option<Vec<u8>>, RoleGone> {
    match from.recv_timeout(timeout) {
        Ok(message) => Ok(Some(message)),
        Err(RecvTimeoutError::Timeout) => Ok(None),
        Err(RecvTimeoutError::Disconnected) => Err(RoleGone),
    }
}

/// Reads messages until the stream or its consumer ends.
fn pump(mut stream: UnixStream, queue: &SyncSender<Vec<u8>>) {
    loop {
        let mut len = [0; 4];
        if stream.read_exact(&mut len).is_err() {
            return;
        }
        let len = usize::try_from(u32::from_le_bytes(len)).unwrap_or(usize::MAX);
        if len > MESSAGE_BYTES_MAX {
            return;
        }
        let mut message = vec![0; len];
        if stream.read_exact(&mut message).is_err() || queue.send(message).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(1);
    const LONG: Duration = Duration::from_secs(10);

    fn carries_messages_and_reports_the_end(mut a: impl OutOfBand, mut b: impl OutOfBand) {
        assert_eq!(a.recv(SHORT), Ok(None));
        a.send(b"one").unwrap();
        a.send(b"").unwrap();
        b.send(b"back").unwrap();
        assert_eq!(a.recv(LONG), Ok(Some(b"back".to_vec())));
        drop(a);
        assert_eq!(b.recv(LONG), Ok(Some(b"one".to_vec())));
        assert_eq!(b.recv(LONG), Ok(Some(vec![])));
        assert_eq!(b.recv(LONG), Err(RoleGone));
    }

    #[test]
    fn in_memory_carries_messages_and_reports_the_end() {
        let (a, b) = InMemory::pair();
        carries_messages_and_reports_the_end(a, b);
    }

    #[test]
    fn socket_carries_messages_and_reports_the_end() {
        let (a, b) = UnixStream::pair().unwrap();
        carries_messages_and_reports_the_end(Socket::new(a).unwrap(), Socket::new(b).unwrap());
    }
}
