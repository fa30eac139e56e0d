//! Completion queue: turns what the device wrote into completions.
//!
//! Source: rdma-core `providers/mlx5/cq.c`.

use memory::{barrier, sync::Arc};
use verbs::{
    Arm, ArmError, Completion, CompletionKind, CompletionQueue, Cqn, Qpn, Source, Transport,
    WcFailure, WcStatus,
};
use wire::{
    cqe::{self, Cqe, CqeView, RequesterCqe, ResponderCqe, ResponderKind, Scatter, Syndrome},
    doorbell::CqArm,
    wqe::{ATOMIC_BYTES, Opcode},
};

use crate::{
    attached::{Attached, Known},
    device::{Device, DeviceCq},
    entries::{Entries, PAYLOAD_WORDS, Written},
    ring::Record,
};

/// A request for an event.
#[derive(Clone, Copy, Debug)]
enum Armed {
    /// For the entry at this consumer index.
    Next(u32),
    /// For a solicited entry; whether one was polled since.
    Solicited { is_polled: bool },
}

/// Entries that make no sense and are passed over in one call of `poll`.
const MALFORMED_PER_POLL_MAX: u64 = 16;

/// Completions between two chances for the device.
const POLLS_PER_IDLE: u32 = 16;

/// Bytes at the start of a UD receive buffer that are not payload.
const GRH_BYTES: u32 = 40;

/// A completion queue.
#[derive(Debug)]
pub struct Cq<D: Device> {
    pub(crate) entries: Entries,
    arm_record: Record,
    cqn: Cqn,
    has_channel: bool,
    /// Entries passed over because they made no sense.
    malformed: u64,
    /// Payload of the last completion, where it was in the entry.
    inline: [u64; PAYLOAD_WORDS],
    inline_len: u8,
    /// Events that the device has raised, modulo 4: see [`arm`](CompletionQueue::arm).
    events: u8,
    /// The last request for an event.
    armed: Option<Armed>,
    pub(crate) attached: Arc<Attached>,
    known: Known,
    /// Keeps the memory above alive.
    pub(crate) device: D::Cq,
}

impl<D: Device> Cq<D> {
    /// A queue of entries that nothing has been attached to yet.
    pub(crate) fn new(
        entries: Entries,
        arm_record: Record,
        has_channel: bool,
        attached: Attached,
        device: D::Cq,
    ) -> Self {
        Self {
            entries,
            arm_record,
            cqn: attached.cqn(),
            has_channel,
            malformed: 0,
            inline: [0; PAYLOAD_WORDS],
            inline_len: 0,
            events: 0,
            armed: None,
            attached: Arc::new(attached),
            known: Known::default(),
            device,
        }
    }

    /// Entries that made no sense and were passed over. A queue whose completions were lost like
    /// that waits for ever, so anything but 0 is worth a report.
    #[must_use]
    pub fn malformed(&self) -> u64 {
        self.malformed
    }

    /// The next entry, if it is a plain arrival, and its queue pair has not departed. What
    /// [`take`](Self::take) does with such a one, but for what it cannot need.
    #[inline(always)]
    fn take_plain(&mut self, next: Written) -> Option<Completion> {
        let done = self.entries.arrival(next)?;
        let (source, len_bytes) = match self.transport(done.qpn) {
            Transport::Rc => (None, done.byte_cnt),
            Transport::Ud => {
                let len_bytes = done.byte_cnt.checked_sub(GRH_BYTES)?;
                (Some(source(&self.entries.source(next))), len_bytes)
            }
            Transport::Dci | Transport::Dct => {
                (Some(source(&self.entries.source(next))), done.byte_cnt)
            }
        };
        let (kind, imm) = arrival_kind(done.kind);
        self.entries.consume();
        Some(Completion {
            len_bytes,
            imm,
            source,
            solicited: done.solicited,
            ..completion(done.qpn, done.wqe_counter, kind)
        })
    }

    /// The next entry, which was not there before the device got on with its work.
    #[cold]
    fn take_late(&mut self) -> Option<Completion> {
        let next = self.entries.written()?;
        self.take(next)
    }

    /// Whether it is time to give the device a chance: a queue that is never empty must not keep an
    /// embedded one from its work.
    #[inline(always)]
    fn is_idle_due(&self) -> bool {
        self.entries.consumer().is_multiple_of(POLLS_PER_IDLE)
    }

    /// Takes entries, the first of which is `next`, up to one that tells something.
    #[inline(never)]
    fn take(&mut self, mut next: Written) -> Option<Completion> {
        let malformed_max = self.malformed + MALFORMED_PER_POLL_MAX;
        loop {
            if self.is_idle_due() {
                self.device.idle();
            }
            self.attached.refresh(&mut self.known);
            if self.known.is_watched && next.is_solicited() {
                self.armed = Some(Armed::Solicited { is_polled: true });
                self.known.is_watched = false;
            }
            if self.known.departed.is_empty()
                && let Some(completion) = self.take_plain(next)
            {
                return Some(completion);
            }
            let cqe = self.entries.copy(next);
            let completion = self.interpret(&cqe);
            // Each turn consumes an entry, and the queue ends.
            let is_stale = !self.known.departed.is_empty() && self.is_stale(completion.as_ref());
            self.entries.consume();
            if completion.is_none() {
                self.malformed += 1;
            } else if !is_stale {
                return completion;
            }
            self.inline_len = 0;
            if self.malformed == malformed_max {
                return None;
            }
            next = self.entries.written()?;
        }
    }

    /// Whether the next entry is of a queue pair that was reset or destroyed since.
    #[cold]
    fn is_stale(&mut self, completion: Option<&Completion>) -> bool {
        let entries = &self.entries;
        self.known.departed.retain(|departed| entries.is_before(departed.until));
        let Some(completion) = completion else { return false };
        let departed = self.known.departed.iter().find(|departed| departed.qpn == completion.qpn);
        let Some(departed) = departed else { return false };
        if let (true, Some(returned)) = (completion.kind.is_receive(), &departed.srq) {
            returned.push(completion.wqe);
        }
        true
    }

    /// Decodes the next entry; `None` if it is malformed.
    #[inline(always)]
    fn interpret(&mut self, cqe: &Cqe) -> Option<Completion> {
        match cqe.parse().ok()? {
            CqeView::Requester(done) => self.requester(&done),
            CqeView::Responder(done) => self.responder(&done),
            CqeView::Error(error) => {
                let kind = if error.is_requester {
                    CompletionKind::SendError
                } else {
                    CompletionKind::RecvError
                };
                let failure = Some(failure(&error));
                let done = completion(error.qpn, error.wqe_counter, kind);
                Some(Completion { failure, ..done })
            }
        }
    }

    #[inline(always)]
    fn requester(&mut self, done: &RequesterCqe<'_>) -> Option<Completion> {
        // An atomic's length is no news: rdma-core `handle_good_req` does not look at the entry's either.
        let (kind, brings_bytes) = match done.opcode {
            Opcode::Send | Opcode::SendImm => (CompletionKind::Send, None),
            Opcode::RdmaWrite | Opcode::RdmaWriteImm => (CompletionKind::Write, None),
            Opcode::RdmaRead => (CompletionKind::Read, Some(done.byte_cnt)),
            Opcode::AtomicCs => (CompletionKind::CompareSwap, Some(ATOMIC_BYTES)),
            Opcode::AtomicFa => (CompletionKind::FetchAdd, Some(ATOMIC_BYTES)),
            Opcode::Nop => (CompletionKind::Nop, None),
        };
        let mut completion = completion(done.qpn, done.wqe_counter, kind);
        if let Some(len_bytes) = brings_bytes {
            completion.len_bytes = len_bytes;
            completion.in_cqe = self.keep_inline(done.scatter, done.byte_cnt)?;
        }
        Some(completion)
    }

    #[inline(always)]
    fn responder(&mut self, done: &ResponderCqe<'_>) -> Option<Completion> {
        let (kind, imm) = arrival_kind(done.kind);
        let in_cqe = self.keep_inline(done.scatter, done.byte_cnt)?;
        let transport = self.transport(done.qpn);
        let is_ud = transport == Transport::Ud;
        let len_bytes = if is_ud { done.byte_cnt.checked_sub(GRH_BYTES)? } else { done.byte_cnt };
        let sender = done.source.filter(|_| transport != Transport::Rc);
        let source = sender.as_ref().map(source);
        let completion = completion(done.qpn, done.wqe_counter, kind);
        Some(Completion { len_bytes, imm, source, solicited: done.solicited, in_cqe, ..completion })
    }

    /// Service type of the queue pair `qpn` that received something.
    #[inline(always)]
    fn transport(&self, qpn: Qpn) -> Transport {
        let known = self.known.receivers.iter().find(|receiver| receiver.qpn == qpn);
        known.map_or(Transport::Rc, |receiver| receiver.transport)
    }

    /// Keeps payload that is in the entry; returns whether it is. `None`: it is said to be where
    /// this queue has no room for it.
    #[inline(always)]
    fn keep_inline(&mut self, scatter: Scatter<'_>, byte_cnt: u32) -> Option<bool> {
        match scatter {
            Scatter::Memory => return Some(false),
            Scatter::InCqe(payload) => {
                for (word, bytes) in self.inline.iter_mut().zip(payload.chunks(8)) {
                    let mut padded = [0; 8];
                    padded[..bytes.len()].copy_from_slice(bytes);
                    *word = u64::from_ne_bytes(padded);
                }
            }
            Scatter::Preceding64 => self.inline = self.entries.copy_payload()?,
        }
        // Lossless: `Cqe::parse` has checked that the payload fits where it is said to be.
        self.inline_len = byte_cnt.to_le_bytes()[0];
        Some(true)
    }
}

impl<D: Device> Drop for Cq<D> {
    fn drop(&mut self) {
        // Queue pairs may live on; they look at the ring no more.
        self.attached.close();
    }
}

/// The verbs code of a syndrome. A syndrome that the manual does not list becomes
/// [`WcStatus::General`], and is the second byte of the vendor code.
fn failure(error: &cqe::ErrorCqe) -> WcFailure {
    let vendor = u32::from(error.vendor_syndrome);
    let status = match error.syndrome {
        Syndrome::LocalLength => WcStatus::LocalLength,
        Syndrome::LocalQpOperation => WcStatus::LocalQpOperation,
        Syndrome::LocalProtection => WcStatus::LocalProtection,
        Syndrome::Flushed => WcStatus::Flushed,
        Syndrome::MemoryWindowBind => WcStatus::MemoryWindowBind,
        Syndrome::BadResponse => WcStatus::BadResponse,
        Syndrome::LocalAccess => WcStatus::LocalAccess,
        Syndrome::RemoteInvalidRequest => WcStatus::RemoteInvalidRequest,
        Syndrome::RemoteAccess => WcStatus::RemoteAccess,
        Syndrome::RemoteOperation => WcStatus::RemoteOperation,
        Syndrome::RetryExceeded => WcStatus::RetryExceeded,
        Syndrome::RnrRetryExceeded => WcStatus::RnrRetryExceeded,
        Syndrome::RemoteAborted => WcStatus::RemoteAborted,
        Syndrome::Other(code) => {
            return WcFailure { status: WcStatus::General, vendor: u32::from(code) << 8 | vendor };
        }
    };
    WcFailure { status, vendor }
}

/// The kind of a received message, and its immediate data.
#[inline(always)]
fn arrival_kind(kind: ResponderKind) -> (CompletionKind, Option<u32>) {
    match kind {
        ResponderKind::Send => (CompletionKind::Recv, None),
        ResponderKind::SendImm(imm) => (CompletionKind::Recv, Some(imm)),
        ResponderKind::WriteImm(imm) => (CompletionKind::RecvWriteImm, Some(imm)),
    }
}

#[inline(always)]
fn source(source: &cqe::Source) -> Source {
    Source { qpn: source.qpn, lid: source.slid, has_grh: source.grh != 0 }
}

/// A completion that worked and says nothing more.
#[inline(always)]
fn completion(qpn: Qpn, wqe: u16, kind: CompletionKind) -> Completion {
    Completion {
        qpn,
        wqe,
        kind,
        failure: None,
        len_bytes: 0,
        imm: None,
        source: None,
        solicited: false,
        in_cqe: false,
    }
}

impl<D: Device> CompletionQueue for Cq<D> {
    fn cqn(&self) -> Cqn {
        self.cqn
    }

    fn entries(&self) -> u32 {
        self.entries.count()
    }

    /// The frequent cases are inline: an empty queue, and a plain entry.
    #[inline(always)]
    fn poll(&mut self) -> Option<Completion> {
        self.inline_len = 0;
        let Some(next) = self.entries.written() else {
            return if self.device.idle() { self.take_late() } else { None };
        };
        if next.is_write_arrival()
            && !self.is_idle_due()
            && self.attached.is_known(&self.known)
            && self.known.is_plain()
            && let Some(completion) = self.take_plain(next)
        {
            return Some(completion);
        }
        self.take(next)
    }

    #[inline]
    fn inline_data(&self) -> &[u8] {
        // SAFETY: words without padding, borrowed for as long as the result; any byte is valid.
        let bytes = unsafe { self.inline.align_to::<u8>().1 };
        &bytes[..usize::from(self.inline_len)]
    }

    /// See the trait.
    ///
    /// A request carries the number of events that the device has raised, so that the device can
    /// tell a new request from a late one. Since the last request it has raised one if an entry
    /// that the request waited for has been written: polled since, or not yet polled.
    fn arm(&mut self, which: Arm) -> Result<(), ArmError> {
        if !self.has_channel {
            return Err(ArmError::NoChannel);
        }
        let consumer_index = self.entries.consumer();
        let is_raised = match self.armed {
            None => false,
            Some(Armed::Next(at)) => at != consumer_index || self.entries.written().is_some(),
            Some(Armed::Solicited { is_polled }) => {
                is_polled || self.entries.unpolled().any(Written::is_solicited)
            }
        };
        if is_raised {
            self.events = self.events.wrapping_add(1);
        }
        self.known.is_watched = which == Arm::Solicited;
        self.armed = Some(match which {
            Arm::Next => Armed::Next(consumer_index),
            Arm::Solicited => Armed::Solicited { is_polled: false },
        });
        let request = CqArm {
            sequence: self.events,
            solicited_only: which == Arm::Solicited,
            consumer_index,
        };
        self.arm_record.publish(request.record_word());
        barrier::before_doorbell();
        self.device.arm(u64::from_be(request.doorbell_word(self.cqn)));
        Ok(())
    }
}
