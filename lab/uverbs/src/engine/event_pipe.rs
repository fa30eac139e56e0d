//! The pipe from which a program reads events.

use std::{
    io::Write as _,
    os::fd::{AsRawFd as _, BorrowedFd, OwnedFd, RawFd},
};

use rustix::{
    io::{Errno, fcntl_dupfd_cloexec},
    pipe::{PipeFlags, pipe_with},
};

/// Descriptors that the program does not know are numbered from here, where it does not look for its own.
const HIDDEN_FROM: RawFd = 512;

/// `struct ib_uverbs_async_event_desc`
const ASYNC_BYTES: usize = 16;
/// `struct ib_uverbs_comp_event_desc`
const COMPLETION_BYTES: usize = 8;

/// A pipe whose reading end the program has.
#[derive(Debug)]
pub(crate) struct EventPipe {
    reader: RawFd,
    writer: std::fs::File,
}

impl EventPipe {
    /// The pipe, and the reading end, which becomes the program's.
    pub(crate) fn new() -> Result<(Self, OwnedFd), Errno> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        let writer = fcntl_dupfd_cloexec(&writer, HIDDEN_FROM)?;
        rustix::io::ioctl_fionbio(&writer, true)?;
        crate::descriptors::hide(&writer);
        let pipe = Self { reader: reader.as_raw_fd(), writer: writer.into() };
        Ok((pipe, reader))
    }

    /// `false`: it is full.
    pub(super) fn write_completion(&self, user_handle: u64) -> bool {
        self.write(&user_handle.to_ne_bytes())
    }

    /// `false`: it is full.
    pub(super) fn write_async(&self, user_handle: u64, number: u32) -> bool {
        let mut event = [0; ASYNC_BYTES];
        event[..8].copy_from_slice(&user_handle.to_ne_bytes());
        event[8..12].copy_from_slice(&number.to_ne_bytes());
        self.write(&event)
    }

    fn write(&self, bytes: &[u8]) -> bool {
        (&self.writer).write(bytes).is_ok_and(|count| count == bytes.len())
    }

    /// Takes the events back that the program has not read and that `is_of` an object; says how many.
    fn take_unread(&self, event_bytes: usize, is_of: impl Fn(&[u8]) -> bool) -> u32 {
        // SAFETY: the program closes the descriptor only after the objects that use it are gone.
        let reader = unsafe { BorrowedFd::borrow_raw(self.reader) };
        let Ok(bytes) = rustix::io::ioctl_fionread(reader) else { return 0 };
        let mut taken = 0;
        for _ in 0..bytes / event_bytes as u64 {
            let mut event = vec![0; event_bytes];
            if rustix::io::read(reader, &mut event[..]) != Ok(event_bytes) {
                break;
            }
            if is_of(&event) {
                taken += 1;
            } else {
                self.write(&event);
            }
        }
        taken
    }
}

/// Events of one object on one pipe that were written.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Written(u32);

impl Written {
    /// Counts one if it was written.
    pub(super) fn count(&mut self, was_written: bool) {
        self.0 += u32::from(was_written);
    }

    /// How many of them the program has read; the others are taken back.
    pub(crate) fn read(self, pipe: &EventPipe, user_handle: u64, is_async: bool) -> u32 {
        let bytes = if is_async { ASYNC_BYTES } else { COMPLETION_BYTES };
        let name = user_handle.to_ne_bytes();
        self.0.saturating_sub(pipe.take_unread(bytes, |event| event[..8] == name))
    }
}
