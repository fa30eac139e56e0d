//! Events that programs read from descriptors: completions of armed queues, and what happens to objects.

use std::{
    io::Write as _,
    os::fd::{AsRawFd as _, BorrowedFd, OwnedFd, RawFd},
};

use memory::sync::{AtomicU32, AtomicU64, Ordering};
use mlx5::device::{Device as _, DeviceCq as _};
use rustix::{
    io::{Errno, fcntl_dupfd_cloexec},
    pipe::{PipeFlags, pipe_with},
};
use verbs::AsyncEvent;

use super::Engine;

/// Descriptors that the program does not know are numbered from here, where it does not look for its own.
pub(crate) const HIDDEN_FROM: RawFd = 512;

/// A pipe whose reading end the program has.
#[derive(Debug)]
pub(crate) struct EventPipe {
    reader: RawFd,
    writer: std::fs::File,
}

/// `enum ib_event_type`
const QP_FATAL: u32 = 1;
const CQ_ERR: u32 = 0;
const QP_LAST_WQE_REACHED: u32 = 16;

/// `struct ib_uverbs_async_event_desc`
const ASYNC_BYTES: usize = 16;
/// `struct ib_uverbs_comp_event_desc`
const COMPLETION_BYTES: usize = 8;

impl EventPipe {
    /// The pipe, and the reading end, which becomes the program's.
    pub(crate) fn new() -> Result<(Self, OwnedFd), Errno> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        let writer = fcntl_dupfd_cloexec(&writer, HIDDEN_FROM)?;
        rustix::io::ioctl_fionbio(&writer, true)?;
        crate::process::hide(&writer);
        let pipe = Self { reader: reader.as_raw_fd(), writer: writer.into() };
        Ok((pipe, reader))
    }

    /// `false`: it is full.
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
    /// How many of them the program has read; the others are taken back.
    pub(crate) fn read(self, pipe: &EventPipe, user_handle: u64, is_async: bool) -> u32 {
        let bytes = if is_async { ASYNC_BYTES } else { COMPLETION_BYTES };
        let name = user_handle.to_ne_bytes();
        self.0.saturating_sub(pipe.take_unread(bytes, |event| event[..8] == name))
    }
}

impl super::Cq {
    /// Arms the queue if its record says so anew. A first request may be a record of zero, and look like none: after
    /// a doorbell of any queue it counts as one.
    fn arm(&mut self) {
        if self.channel.is_none() {
            return;
        }
        let at = core::ptr::with_exposed_provenance::<AtomicU32>(self.arm_record);
        // SAFETY: the program's driver keeps the record until the queue is destroyed, and changes it as a word.
        let record = unsafe { &*at }.load(Ordering::Acquire);
        if self.arm_seen != Some(record) {
            self.arm_seen = Some(record);
            let request = u64::from(u32::from_be(record)) << 32;
            self.device.arm(request | u64::from(self.device.number().get()));
            self.is_armed = true;
        }
    }

    /// Reports an event that the queue has raised.
    fn report(&mut self) {
        let Some(channel) = &self.channel else { return };
        if self.is_armed && !self.device.is_armed() {
            self.is_armed = false;
            if channel.write(&self.user_handle.to_ne_bytes()) {
                self.written.0 += 1;
            }
        }
    }
}

impl Engine {
    pub(super) fn raise_events(&mut self) {
        if self.take_arm_doorbells() {
            self.cqs.values_mut().for_each(super::Cq::arm);
        }
        self.cqs.values_mut().for_each(super::Cq::report);
        while let Some(event) = self.device.poll_event() {
            self.raise(event);
        }
    }

    /// Whether a completion queue's doorbell was rung: all of them share a register in each page.
    fn take_arm_doorbells(&self) -> bool {
        const ARM_OFFSET: usize = 0x20;
        let rung = |region: &memory::Region| {
            let at = region.as_ptr().as_ptr().wrapping_add(ARM_OFFSET).cast::<u64>();
            // SAFETY: in the region, aligned; program and engine access it as a word.
            let register = unsafe { AtomicU64::from_ptr(at) };
            register.load(Ordering::Relaxed) != 0 && register.swap(0, Ordering::AcqRel) != 0
        };
        self.doorbells.iter().filter(|region| rung(region)).count() > 0
    }

    fn raise(&mut self, event: AsyncEvent) {
        let (qpn, number) = match event {
            AsyncEvent::QpFatal(qpn) => (qpn, QP_FATAL),
            AsyncEvent::LastWqeReached(qpn) => (qpn, QP_LAST_WQE_REACHED),
            AsyncEvent::CqOverrun(cqn) => {
                let cq = self.cqs.values_mut().find(|cq| cq.device.number() == cqn);
                if let Some(cq) = cq
                    && let Some(context) = self.contexts.get(&cq.context)
                {
                    let name = cq.user_handle;
                    cq.written_async.0 += u32::from(write_async(&context.events, name, CQ_ERR));
                }
                return;
            }
            _ => return,
        };
        let qp = self.qps.values_mut().find(|qp| qp.device.number() == qpn);
        if let Some(qp) = qp
            && let Some(context) = self.contexts.get(&qp.context)
        {
            qp.written.0 += u32::from(write_async(&context.events, qp.user_handle, number));
        }
    }
}

fn write_async(pipe: &EventPipe, user_handle: u64, number: u32) -> bool {
    let mut event = [0; ASYNC_BYTES];
    event[..8].copy_from_slice(&user_handle.to_ne_bytes());
    event[8..12].copy_from_slice(&number.to_ne_bytes());
    pipe.write(&event)
}
