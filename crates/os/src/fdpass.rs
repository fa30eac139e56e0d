//! Datagrams with descriptors over connected `SOCK_SEQPACKET` Unix sockets (`unix(7)`,
//! `SCM_RIGHTS`).
//!
//! Received descriptors are close-on-exec, at most [`FDS_MAX`] at a time, and closed again if
//! anything about their datagram is wrong.

use core::mem::MaybeUninit;
use std::{
    io::{IoSlice, IoSliceMut},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    cmsg_space,
    event::PollFlags,
    io::Errno,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, recv as recv_bytes, recvmsg, sendmsg,
    },
};

use crate::ready;

/// Most descriptors in one datagram.
pub const FDS_MAX: usize = 16;

const CONTROL_BYTES: usize = cmsg_space!(ScmRights(FDS_MAX));

/// Why a datagram was not sent. Nothing of it was.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The receiver's queue was full until the deadline. Retry later.
    #[error("the receiver did not take a datagram before the deadline")]
    TimedOut,
    /// The receiver is gone.
    #[error("the receiver closed the socket")]
    Closed,
    /// An empty datagram could not be told from a closed socket.
    #[error("a datagram needs at least one byte")]
    Empty,
    /// More descriptors than a receiver accepts.
    #[error("{count} descriptors exceed the {FDS_MAX} of one datagram; send several")]
    TooManyFds {
        /// Descriptors given.
        count: usize,
    },
    /// Larger than the socket's send buffer.
    #[error("a datagram of {len_bytes} B exceeds the socket's buffer; put bulk data in a region")]
    TooLong {
        /// Bytes given.
        len_bytes: usize,
    },
    /// Anything else the kernel says.
    #[error("sending a datagram failed: {0}")]
    Os(Errno),
}

/// Why no datagram was received.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecvError {
    /// None came before the deadline. Retry later.
    #[error("no datagram came before the deadline")]
    TimedOut,
    /// The sender is gone, and everything it sent was received.
    #[error("the sender closed the socket")]
    Closed,
    /// Longer than the buffer: the sender speaks another protocol. It was dropped.
    #[error("a datagram exceeds {max_bytes} B; the sender breaks the protocol")]
    TooLong {
        /// Length of the buffer.
        max_bytes: usize,
    },
    /// Carried more descriptors than asked for. All were closed, and it was dropped.
    #[error("a datagram carries more than {max} descriptors; the sender breaks the protocol")]
    TooManyFds {
        /// Descriptors asked for.
        max: usize,
    },
    /// The process or the machine is out of descriptors. The datagram waits: retry once some are free.
    #[error("no file descriptor left for those of a datagram; raise `ulimit -n`")]
    NoDescriptor,
    /// Anything else the kernel says.
    #[error("receiving a datagram failed: {0}")]
    Os(Errno),
}

/// A received datagram; its bytes are in the buffer.
#[derive(Debug)]
pub struct Datagram {
    /// Bytes of the buffer that were filled.
    pub len_bytes: usize,
    /// Descriptors, in the order in which they were sent.
    pub fds: Vec<OwnedFd>,
}

/// Sends one datagram, and copies of `fds` with it.
///
/// # Errors
///
/// [`SendError`].
pub fn send(
    socket: impl AsFd,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    deadline_ns: u64,
) -> Result<(), SendError> {
    if bytes.is_empty() {
        return Err(SendError::Empty);
    }
    if fds.len() > FDS_MAX {
        return Err(SendError::TooManyFds { count: fds.len() });
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    loop {
        let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            let pushed = control.push(SendAncillaryMessage::ScmRights(fds));
            debug_assert!(pushed, "the space is for FDS_MAX descriptors");
        }
        match sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, flags) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                if !ready::wait(&socket, PollFlags::OUT, deadline_ns).map_err(SendError::Os)? {
                    return Err(SendError::TimedOut);
                }
            }
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => return Err(SendError::Closed),
            Err(Errno::MSGSIZE) => return Err(SendError::TooLong { len_bytes: bytes.len() }),
            Err(errno) => return Err(SendError::Os(errno)),
        }
    }
}

/// Receives one datagram of at most `buffer.len()` bytes and `fds_max` descriptors. One thread at a time
/// receives from a socket.
///
/// # Errors
///
/// [`RecvError`].
pub fn recv(
    socket: impl AsFd,
    buffer: &mut [u8],
    fds_max: usize,
    deadline_ns: u64,
) -> Result<Datagram, RecvError> {
    loop {
        match try_recv(socket.as_fd(), buffer, fds_max) {
            Err(RecvError::TimedOut) => {}
            done => return done,
        }
        if !ready::wait(&socket, PollFlags::IN, deadline_ns).map_err(RecvError::Os)? {
            return Err(RecvError::TimedOut);
        }
    }
}

fn try_recv(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    fds_max: usize,
) -> Result<Datagram, RecvError> {
    let max_bytes = buffer.len();
    // Where none are expected, the kernel drops what comes. Elsewhere the datagram stays until its
    // descriptors are here: a process that has none left loses them for good.
    let (room, peeks) = if fds_max == 0 { (0, false) } else { (CONTROL_BYTES, true) };
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = RecvAncillaryBuffer::new(&mut space[..room]);
    let mut flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    flags.set(RecvFlags::PEEK, peeks);
    let received = rustix::io::retry_on_intr(|| {
        recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags)
    });
    let received = received.map_err(|errno| match errno {
        Errno::AGAIN => RecvError::TimedOut,
        Errno::CONNRESET | Errno::NOTCONN => RecvError::Closed,
        errno => RecvError::Os(errno),
    })?;
    // Owned from here on: every early return closes them.
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    let is_cut = received.flags.contains(ReturnFlags::CTRUNC);
    if is_cut && peeks && fds.len() < FDS_MAX {
        return Err(RecvError::NoDescriptor);
    }
    if received.bytes == 0 {
        return Err(RecvError::Closed);
    }
    if peeks {
        let taken =
            rustix::io::retry_on_intr(|| recv_bytes(socket, &mut [0u8; 1], RecvFlags::DONTWAIT));
        taken.map_err(RecvError::Os)?;
    }
    if is_cut || fds.len() > fds_max {
        Err(RecvError::TooManyFds { max: fds_max })
    } else if received.flags.contains(ReturnFlags::TRUNC) {
        Err(RecvError::TooLong { max_bytes })
    } else {
        Ok(Datagram { len_bytes: received.bytes, fds })
    }
}
