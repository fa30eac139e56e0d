//! Send queue: requests with their inline payload, and which of them report.

use core::ffi::c_int;

use verbs::{Op, Payload, PostSendError, RemoteSlice, SendFlags, SendSize};

use crate::{
    abi::{self, Atomic, Rdma, SendWr, Sge, Target, Ud},
    posts::{Posts, Request as _, entries},
    wc::{RequestKind, WrId},
};

/// Length of what an atomic works on.
const ATOMIC_BYTES: u32 = 8;

/// A send queue.
#[derive(Debug)]
pub(crate) struct SendQueue {
    posts: Posts<SendWr>,
    /// `inline_bytes_max` of each request.
    inline: Box<[u8]>,
    inline_bytes_max: u16,
    /// Requests posted since the last one that reports.
    unsignaled: u16,
}

/// A request's kind, and where it goes.
struct Described {
    opcode: c_int,
    kind: RequestKind,
    target: Target,
    imm: Option<u32>,
}

impl SendQueue {
    /// A queue of `size.requests`, 1 to 2¹⁵.
    pub(crate) fn new(size: SendSize) -> Self {
        let requests = u16::try_from(size.requests).unwrap_or(1 << 15);
        // Inline payload has an entry, too.
        let posts = Posts::new(requests, size.sges_max.max(1));
        let inline_bytes =
            usize::from(requests).next_power_of_two() * usize::from(size.inline_bytes_max);
        let inline = vec![0; inline_bytes].into_boxed_slice();
        Self { posts, inline, inline_bytes_max: size.inline_bytes_max, unsignaled: 0 }
    }

    /// Requests that can be posted.
    #[inline]
    pub(crate) fn free(&self) -> u16 {
        self.posts.free()
    }

    /// Posts a request; `ud` is its destination on a queue pair of datagrams.
    pub(crate) fn post(
        &mut self,
        op: &Op<'_>,
        flags: SendFlags,
        ud: Option<Ud>,
    ) -> Result<u16, PostSendError> {
        self.check(op)?;
        if self.posts.free() == 0 {
            return Err(PostSendError::QueueFull { requests: self.posts.requests().into() });
        }
        let index = self.posts.next_index();
        let mut described = describe(op);
        if let Some(ud) = ud {
            described.target = Target { ud };
        }
        let Described { opcode, kind, target, imm } = described;
        let mut wr = SendWr {
            wr_id: WrId { index, of: kind }.to_word(),
            opcode,
            send_flags: self.flags(flags),
            imm_data: imm.unwrap_or(0).to_be(),
            target,
            ..SendWr::EMPTY
        };
        match payload(op) {
            Parts::Inline(parts) => {
                let sge = self.keep(parts);
                wr.num_sge = c_int::from(sge.length > 0);
                wr.send_flags |= if sge.length > 0 { abi::send::INLINE } else { 0 };
                self.posts.post(wr, [sge].into_iter().filter(|sge| sge.length > 0));
            }
            Parts::Gather(sges) => {
                let sges = entries(sges);
                wr.num_sge = c_int::try_from(sges.clone().count()).unwrap_or(c_int::MAX);
                self.posts.post(wr, sges);
            }
        }
        Ok(index)
    }

    /// Whether the queue can hold `op`.
    fn check(&self, op: &Op<'_>) -> Result<(), PostSendError> {
        if let Op::CompareSwap { into, .. } | Op::FetchAdd { into, .. } = op
            && into.len_bytes != ATOMIC_BYTES
        {
            return Err(PostSendError::AtomicLength(into.len_bytes));
        }
        match payload(op) {
            Parts::Inline(parts) => {
                let asked_bytes = parts.iter().map(|part| part.len()).sum();
                let max_bytes = self.inline_bytes_max;
                if asked_bytes > usize::from(max_bytes) {
                    return Err(PostSendError::InlineTooLong { asked_bytes, max_bytes });
                }
            }
            Parts::Gather(sges) => {
                let (asked, max) = (entries(sges).count(), self.posts.sges_max());
                if asked > usize::from(max) {
                    return Err(PostSendError::TooManySges { asked, max });
                }
            }
        }
        Ok(())
    }

    /// Flags of the next request, which reports also if half of the queue would not otherwise.
    fn flags(&mut self, flags: SendFlags) -> u32 {
        let mut word = 0;
        if flags.contains(SendFlags::SOLICITED) {
            word |= abi::send::SOLICITED;
        }
        if flags.contains(SendFlags::FENCE) {
            word |= abi::send::FENCE;
        }
        let unsignaled = self.unsignaled + 1;
        if flags.contains(SendFlags::SIGNALED) || unsignaled > self.posts.requests() / 2 {
            self.unsignaled = 0;
            word | abi::send::SIGNALED
        } else {
            self.unsignaled = unsignaled;
            word
        }
    }

    /// Copies inline payload into the slot of the next request.
    fn keep(&mut self, parts: &[&[u8]]) -> Sge {
        let begin = self.posts.next_slot() * usize::from(self.inline_bytes_max);
        let room = &mut self.inline[begin..begin + usize::from(self.inline_bytes_max)];
        let mut used = 0;
        for part in parts {
            room[used..used + part.len()].copy_from_slice(part);
            used += part.len();
        }
        let addr = room.as_mut_ptr().expose_provenance() as u64;
        Sge { addr, length: u32::try_from(used).unwrap_or(u32::MAX), lkey: 0 }
    }

    /// See [`Posts::ring`].
    #[inline]
    pub(crate) fn ring(
        &mut self,
        hand_over: impl FnOnce(*mut SendWr, *mut *mut SendWr) -> c_int,
    ) -> Vec<u64> {
        self.posts.ring(hand_over)
    }

    /// See [`Posts::retire`].
    #[inline]
    pub(crate) fn retire(&mut self, index: u16) {
        self.posts.retire(index);
    }

    /// Forgets everything.
    pub(crate) fn reset(&mut self) {
        self.posts.reset();
        self.unsignaled = 0;
    }
}

/// The local bytes of an operation.
enum Parts<'a> {
    Inline(&'a [&'a [u8]]),
    Gather(&'a [verbs::Sge]),
}

fn payload<'a>(op: &'a Op<'a>) -> Parts<'a> {
    match op {
        Op::Send { payload: Payload::Inline(parts), .. }
        | Op::Write { payload: Payload::Inline(parts), .. } => Parts::Inline(parts),
        Op::Send { payload: Payload::Gather(sges), .. }
        | Op::Write { payload: Payload::Gather(sges), .. }
        | Op::Read { into: sges, .. } => Parts::Gather(sges),
        Op::CompareSwap { into, .. } | Op::FetchAdd { into, .. } => {
            Parts::Gather(core::slice::from_ref(into))
        }
        Op::Nop => Parts::Gather(&[]),
    }
}

fn describe(op: &Op<'_>) -> Described {
    let rdma = |remote: RemoteSlice| Target {
        rdma: Rdma { remote_addr: remote.addr, rkey: remote.rkey.get() },
    };
    let nothing = Target { none: [0; 4] };
    let (opcode, target, imm) = match *op {
        Op::Send { imm: None, .. } => (abi::wr::SEND, nothing, None),
        Op::Send { imm, .. } => (abi::wr::SEND_WITH_IMM, nothing, imm),
        Op::Write { remote, imm: None, .. } => (abi::wr::RDMA_WRITE, rdma(remote), None),
        Op::Write { remote, imm, .. } => (abi::wr::RDMA_WRITE_WITH_IMM, rdma(remote), imm),
        Op::Read { remote, .. } => (abi::wr::RDMA_READ, rdma(remote), None),
        Op::CompareSwap { remote, compare, swap, .. } => {
            let (remote_addr, rkey) = (remote.addr, remote.rkey.get());
            let atomic = Atomic { remote_addr, compare_add: compare, swap, rkey };
            (abi::wr::ATOMIC_CMP_AND_SWP, Target { atomic }, None)
        }
        Op::FetchAdd { remote, add, .. } => {
            let (remote_addr, rkey) = (remote.addr, remote.rkey.get());
            let atomic = Atomic { remote_addr, compare_add: add, swap: 0, rkey };
            (abi::wr::ATOMIC_FETCH_AND_ADD, Target { atomic }, None)
        }
        // Of zero bytes: no key is looked at (IBTA 10.6.3.2, C9-88).
        Op::Nop => (abi::wr::RDMA_WRITE, nothing, None),
    };
    let kind = if matches!(op, Op::Nop) { RequestKind::Nop } else { RequestKind::Send };
    Described { opcode, kind, target, imm }
}

#[cfg(test)]
mod tests {
    use verbs::{Lkey, Rkey};

    use super::*;

    const SIZE: SendSize = SendSize { requests: 8, sges_max: 2, inline_bytes_max: 16 };

    /// The one request that was posted, as the library gets it, with its entries.
    fn posted(op: &Op<'_>, flags: SendFlags) -> (SendWr, Vec<Sge>) {
        let mut queue = SendQueue::new(SIZE);
        queue.post(op, flags, None).unwrap();
        let mut seen = None;
        queue.ring(|list, _| {
            // SAFETY: the list of the queue.
            let wr = unsafe { *list };
            let count = usize::try_from(wr.num_sge).unwrap();
            // SAFETY: its entries.
            let sges = (0..count).map(|at| unsafe { *wr.sg_list.wrapping_add(at) }).collect();
            seen = Some((wr, sges));
            0
        });
        seen.unwrap()
    }

    #[test]
    fn payload_is_gathered_or_copied() {
        let sge = |addr, len_bytes| verbs::Sge { addr, len_bytes, lkey: Lkey::new(7) };
        let sges = [sge(64, 8), sge(96, 0), sge(128, 4)];
        let op = Op::Send { payload: Payload::Gather(&sges), imm: Some(0x0102_0304) };
        let (wr, sges) = posted(&op, SendFlags::SIGNALED | SendFlags::SOLICITED);
        assert_eq!((wr.opcode, wr.imm_data), (3, 0x0102_0304_u32.to_be()));
        assert_eq!(wr.send_flags, abi::send::SIGNALED | abi::send::SOLICITED);
        assert_eq!(
            sges,
            [Sge { addr: 64, length: 8, lkey: 7 }, Sge { addr: 128, length: 4, lkey: 7 }]
        );

        let op = Op::Send { payload: Payload::Inline(&[b"in", b"line"]), imm: None };
        let (wr, sges) = posted(&op, SendFlags::FENCE);
        assert_eq!((wr.opcode, wr.send_flags), (2, abi::send::INLINE | abi::send::FENCE));
        assert_eq!((sges.len(), sges[0].length), (1, 6));
        let op = Op::Send { payload: Payload::Inline(&[b""]), imm: None };
        let (wr, _) = posted(&op, SendFlags::empty());
        assert_eq!((wr.num_sge, wr.send_flags), (0, 0));
    }

    #[test]
    fn remote_operations_say_where() {
        let remote = RemoteSlice { addr: 0x1000, rkey: Rkey::new(9) };
        let into = verbs::Sge { addr: 64, len_bytes: 8, lkey: Lkey::new(7) };
        let (wr, sges) = posted(&Op::Read { remote, into: &[into] }, SendFlags::empty());
        // SAFETY: a READ has an address and a key.
        let rdma = unsafe { wr.target.rdma };
        assert_eq!((wr.opcode, rdma.remote_addr, rdma.rkey, sges.len()), (4, 0x1000, 9, 1));
        let op = Op::CompareSwap { remote, into, compare: 3, swap: 4 };
        let (wr, _) = posted(&op, SendFlags::empty());
        // SAFETY: an atomic has these.
        let atomic = unsafe { wr.target.atomic };
        assert_eq!((wr.opcode, atomic.compare_add, atomic.swap, atomic.rkey), (5, 3, 4, 9));
        let (wr, sges) = posted(&Op::Nop, SendFlags::SIGNALED);
        assert_eq!((wr.opcode, sges.len()), (0, 0));
        assert_eq!(WrId::from_word(wr.wr_id).of, RequestKind::Nop);
    }

    #[test]
    fn what_does_not_fit_is_refused_and_half_a_queue_may_stay_silent() {
        let mut queue = SendQueue::new(SIZE);
        let long = [0; 17];
        let op = Op::Send { payload: Payload::Inline(&[&long]), imm: None };
        let refused = PostSendError::InlineTooLong { asked_bytes: 17, max_bytes: 16 };
        assert_eq!(queue.post(&op, SendFlags::empty(), None), Err(refused));
        let sge = verbs::Sge { addr: 0, len_bytes: 4, lkey: Lkey::new(0) };
        let op = Op::Send { payload: Payload::Gather(&[sge; 3]), imm: None };
        let refused = PostSendError::TooManySges { asked: 3, max: 2 };
        assert_eq!(queue.post(&op, SendFlags::empty(), None), Err(refused));
        let remote = RemoteSlice { addr: 0, rkey: Rkey::new(0) };
        let op = Op::FetchAdd { remote, into: sge, add: 1 };
        assert_eq!(queue.post(&op, SendFlags::empty(), None), Err(PostSendError::AtomicLength(4)));

        let told: Vec<bool> =
            (0..10).map(|_| queue.flags(SendFlags::empty()) & abi::send::SIGNALED != 0).collect();
        let expected: Vec<bool> = (0..10).map(|nth| nth % 5 == 4).collect();
        assert_eq!(told, expected);
        for index in 0..8 {
            assert_eq!(queue.post(&Op::Nop, SendFlags::empty(), None), Ok(index));
        }
        let full = PostSendError::QueueFull { requests: 8 };
        assert_eq!(queue.post(&Op::Nop, SendFlags::empty(), None), Err(full));
    }
}
