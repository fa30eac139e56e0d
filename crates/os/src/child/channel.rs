//! Whole messages between two processes over a stream socket.
//!
//! ```text
//! 0        4
//! │ length │ bytes │     length: u32, little endian
//! ```

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    event::PollFlags,
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send,
        shutdown, socketpair,
    },
};

use crate::ready;

/// Longest message. A stranger at the other end cannot make this process allocate more than twice that.
pub const MESSAGE_BYTES_MAX: usize = 64 << 20;

const LEN_BYTES: usize = size_of::<u32>();
const READ_BYTES: usize = 64 << 10;

/// Why no message was sent or received.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The other process has ended, or has closed its end.
    #[error("the other process is gone")]
    Gone,
    /// The deadline passed. Receiving may be tried again: nothing is lost. After a message that could not be
    /// sent in time the channel is shut down.
    #[error("no message passed before the deadline")]
    TimedOut,
    /// A message is longer than [`MESSAGE_BYTES_MAX`], or what arrived is no message.
    #[error("a message of {0} B exceeds {MESSAGE_BYTES_MAX} B")]
    TooLong(usize),
    /// Anything else the kernel says.
    #[error("the channel failed: {0}")]
    Os(io::Error),
}

/// One end of a channel. Both ends may send at the same time.
#[derive(Debug)]
pub struct ChildChannel {
    socket: OwnedFd,
    /// The bytes that have arrived and were not yet received.
    input: Vec<u8>,
    /// The other end has closed: `input` is all that will ever come.
    is_at_end: bool,
}

impl ChildChannel {
    /// A channel over a connected stream socket.
    #[must_use]
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket, input: Vec::new(), is_at_end: false }
    }

    /// This end, and the socket of the other end.
    pub(super) fn pair() -> io::Result<(Self, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        Ok((Self::new(ours), theirs))
    }

    /// Sends one message. Takes in what arrives meanwhile, so that two ends that send to each other do not
    /// wait for each other.
    ///
    /// # Errors
    ///
    /// [`ChannelError`].
    pub fn send(&mut self, message: &[u8], deadline_ns: u64) -> Result<(), ChannelError> {
        let too_long = ChannelError::TooLong(message.len());
        let len = u32::try_from(message.len()).ok().filter(|_| message.len() <= MESSAGE_BYTES_MAX);
        let len = len.ok_or(too_long)?;
        let bytes = [&len.to_le_bytes(), message].concat();
        let sent = self.send_all(&bytes, deadline_ns);
        if sent.is_err() {
            // What was sent of the message cannot be taken back. A socket that is gone is shut down already.
            let _ = shutdown(&self.socket, Shutdown::Write);
        }
        sent
    }

    fn send_all(&mut self, mut bytes: &[u8], deadline_ns: u64) -> Result<(), ChannelError> {
        while !bytes.is_empty() {
            match send(&self.socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(count) => bytes = &bytes[count..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let takes_in = !self.is_at_end && self.input.len() <= MESSAGE_BYTES_MAX;
                    let wanted = if takes_in { PollFlags::IN } else { PollFlags::empty() };
                    self.wait(PollFlags::OUT | wanted, deadline_ns)?;
                    while takes_in && self.fill()? {}
                }
                Err(errno) => return Err(failure(errno)),
            }
        }
        Ok(())
    }

    /// Waits for the next message.
    ///
    /// # Errors
    ///
    /// [`ChannelError`].
    pub fn recv(&mut self, deadline_ns: u64) -> Result<Vec<u8>, ChannelError> {
        loop {
            if let Some(message) = self.next_message()? {
                return Ok(message);
            }
            if self.is_at_end {
                return Err(ChannelError::Gone);
            }
            if !self.fill()? && !self.is_at_end {
                self.wait(PollFlags::IN, deadline_ns)?;
            }
        }
    }

    /// The next message, if it has arrived as a whole.
    fn next_message(&mut self) -> Result<Option<Vec<u8>>, ChannelError> {
        let Some(len) = self.input.first_chunk::<LEN_BYTES>() else { return Ok(None) };
        let len_bytes = u32::from_le_bytes(*len) as usize;
        if len_bytes > MESSAGE_BYTES_MAX {
            return Err(ChannelError::TooLong(len_bytes));
        }
        let end = LEN_BYTES + len_bytes;
        let Some(message) = self.input.get(LEN_BYTES..end) else { return Ok(None) };
        let message = message.to_vec();
        self.input.drain(..end);
        Ok(Some(message))
    }

    /// Takes in what has arrived; `false` if there is nothing for now, or at the end.
    fn fill(&mut self) -> Result<bool, ChannelError> {
        let mut chunk = [0; READ_BYTES];
        match recv(&self.socket, &mut chunk[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) | Err(Errno::CONNRESET) => {
                self.is_at_end = true;
                Ok(false)
            }
            Ok((count, _)) => {
                self.input.extend_from_slice(&chunk[..count]);
                Ok(true)
            }
            Err(Errno::INTR) => Ok(true),
            Err(Errno::AGAIN) => Ok(false),
            Err(errno) => Err(failure(errno)),
        }
    }

    fn wait(&self, flags: PollFlags, deadline_ns: u64) -> Result<(), ChannelError> {
        match ready::wait(&self.socket, flags, deadline_ns) {
            Ok(true) => Ok(()),
            Ok(false) => Err(ChannelError::TimedOut),
            Err(errno) => Err(failure(errno)),
        }
    }
}

impl AsFd for ChildChannel {
    /// Readable when something arrives. What [`recv`](ChildChannel::recv) has taken in is not seen here: call that
    /// with [`clock::NOW`](crate::clock::NOW) until it times out before waiting elsewhere.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn failure(errno: Errno) -> ChannelError {
    match errno {
        Errno::PIPE | Errno::CONNRESET => ChannelError::Gone,
        errno => ChannelError::Os(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::{thread, time::Duration};

    use super::*;
    use crate::clock;

    fn pair() -> (ChildChannel, ChildChannel) {
        let (ours, theirs) = ChildChannel::pair().unwrap();
        (ours, ChildChannel::new(theirs))
    }

    fn soon() -> u64 {
        clock::deadline_ns(Duration::from_secs(20))
    }

    #[test]
    fn messages_of_any_length_arrive_whole_and_in_order_before_the_end() {
        let (mut ours, mut theirs) = pair();
        let messages = [vec![], vec![7; 1 << 20], b"end".to_vec()];
        let sender = thread::spawn({
            let messages = messages.clone();
            move || messages.iter().for_each(|message| theirs.send(message, soon()).unwrap())
        });
        for message in messages {
            assert!(ours.recv(soon()).unwrap() == message);
        }
        sender.join().unwrap();
        for _ in 0..2 {
            assert!(matches!(ours.recv(soon()), Err(ChannelError::Gone)));
        }
        assert!(matches!(ours.send(b"late", soon()), Err(ChannelError::Gone)));
    }

    #[test]
    fn two_ends_that_send_to_each_other_do_not_wait_for_each_other() {
        let (mut ours, mut theirs) = pair();
        let long = vec![7; 4 << 20];
        thread::scope(|scope| {
            for end in [&mut ours, &mut theirs] {
                let long = &long;
                scope.spawn(move || {
                    end.send(long, soon()).unwrap();
                    assert!(end.recv(soon()).unwrap() == *long);
                });
            }
        });
    }

    #[test]
    fn silence_loses_nothing_and_a_message_that_was_not_taken_shuts_the_channel_down() {
        let (mut ours, mut theirs) = pair();
        assert!(matches!(ours.recv(clock::NOW), Err(ChannelError::TimedOut)));
        send(&theirs.socket, &[2, 0, 0, 0, b'o'], SendFlags::empty()).unwrap();
        assert!(matches!(ours.recv(clock::NOW), Err(ChannelError::TimedOut)));
        send(&theirs.socket, b"k", SendFlags::empty()).unwrap();
        assert_eq!(ours.recv(clock::NOW).unwrap(), b"ok");
        let long = vec![7; 16 << 20];
        assert!(matches!(theirs.send(&long, clock::NOW), Err(ChannelError::TimedOut)));
        assert!(matches!(ours.recv(soon()), Err(ChannelError::Gone)), "not part of a message");
    }

    #[test]
    fn what_is_no_message_is_refused_before_it_fills_memory() {
        let (mut ours, theirs) = pair();
        send(&theirs.socket, b"GET / HTTP/1.1", SendFlags::empty()).unwrap();
        assert!(matches!(ours.recv(soon()), Err(ChannelError::TooLong(_))));
        let long = vec![0; MESSAGE_BYTES_MAX + 1];
        assert!(matches!(ours.send(&long, soon()), Err(ChannelError::TooLong(_))));
    }
}
