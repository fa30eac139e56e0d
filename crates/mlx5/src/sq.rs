//! Send queue: a ring of 64-byte WQE basic blocks (WQEBBs).
//!
//! ```text
//! block     0      1      2      3      4      5      6      7
//!        ┌──────┬──────┬──────┬──────┬──────┬──────┬──────┬──────┐
//!        │ …of D│ free │ free │ A    │ B    : of B │ C    │ D…   │   D wraps, at an octoword
//!        └──────┴──────┴──────┴──────┴──────┴──────┴──────┴──────┘
//!                 posted        retired                     last
//! ```
//!
//! *Blocks* are counted modulo 2¹⁶, as in the control segment, the doorbell record and the completion:
//! `rung ≤ posted`. *Requests* are counted modulo 2¹⁶ as well: `retired ≤ posted ≤ retired + requests`.
//! The ring takes the queue's number of requests even if all of them have the longest WQE, so a count of
//! requests says whether there is room.
//!
//! *Signaling* is accounted per queue, whoever posts: before more than half of the queue's requests go
//! without a completion request, one is signaled although nobody asked. A full queue has more than half
//! of its requests outstanding, and a signaled WQE is among them: its completion will come.
//!
//! Source: rdma-core `providers/mlx5/qp.c`, `_mlx5_post_send`.

use memory::barrier;
use verbs::{Op, Payload, PostSendError, Qpn, SendFlags, Sge};
use wire::{
    doorbell,
    wqe::{
        ATOMIC_BYTES, Av, CtrlFlags, OCTOWORD_BYTES, OCTOWORDS_MAX, OCTOWORDS_PER_WQEBB, Opcode,
        WQEBB_BYTES, WqeSink, WqeWriter, inline_octowords, wqebbs,
    },
};

use crate::{
    device::{DeviceQp, WqeBlocks},
    ring::{Record, WORD_BYTES, Words},
};

/// Octowords per basic block.
const OCTOWORDS_PER_BLOCK: u16 = OCTOWORDS_PER_WQEBB as u16;

/// Words per basic block.
const BLOCK_WORDS: usize = WQEBB_BYTES / WORD_BYTES;

/// Octowords of an address vector in its long form, which `libmlx5` always writes.
const AV_OCTOWORDS: u16 = 3;

/// Most blocks that a BlueFlame register takes.
const BLUEFLAME_BLOCKS_MAX: usize = doorbell::BLUEFLAME_HALF_BYTES / WQEBB_BYTES;

/// Most blocks of a queue: half the range of its counters, so that "before" and "after" differ.
pub(crate) const BLOCKS_MAX: u32 = 1 << 15;

/// Geometry of a send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SendShape {
    /// Base-2 logarithm of the blocks.
    pub(crate) log_blocks: u8,
    /// Requests that can be outstanding. The ring has room for that many of the longest WQE.
    pub(crate) requests: u16,
    /// Gather entries per request.
    pub(crate) sges_max: u8,
    /// Inline bytes per request.
    pub(crate) inline_bytes_max: u16,
}

/// Octowords of the longest WQE of any operation.
pub(crate) fn longest_octowords(has_av: bool, sges_max: u8, inline_bytes_max: u16) -> u16 {
    let payload = inline_octowords(usize::from(inline_bytes_max));
    let payload = u16::try_from(payload).unwrap_or(u16::MAX);
    let inline = fixed_octowords(&Opcode::RdmaWrite, has_av).saturating_add(payload);
    inline.max(gather_octowords(has_av, sges_max))
}

/// Octowords of the longest gathering WQE, or of an atomic.
pub(crate) fn gather_octowords(has_av: bool, sges_max: u8) -> u16 {
    let atomic = fixed_octowords(&Opcode::AtomicCs, has_av) + 1;
    atomic.max(fixed_octowords(&Opcode::RdmaWrite, has_av) + u16::from(sges_max))
}

/// Octowords in front of the payload of a WRITE with an address vector: nothing is longer but atomics.
const WRITE_OCTOWORDS: u16 = 1 + AV_OCTOWORDS + 1;

/// Gather entries of the longest WQE.
pub(crate) const SGES_MAX: u8 = OCTOWORDS_MAX - WRITE_OCTOWORDS.to_le_bytes()[0];

/// Inline bytes of the longest WQE, which begin with four bytes of length.
pub(crate) const INLINE_BYTES_MAX: u16 = (SGES_MAX as u16) * 16 - 4;

const _: () = assert!(OCTOWORD_BYTES == 16, "as counted above");

/// Octowords in front of the payload.
#[inline]
fn fixed_octowords(opcode: &Opcode, has_av: bool) -> u16 {
    let av = if has_av { AV_OCTOWORDS } else { 0 };
    1 + av + u16::from(opcode.has_raddr()) + u16::from(opcode.is_atomic())
}

/// Half the range of the request counters: more requests than a queue has outstanding.
const NO_START: u16 = 1 << 15;

/// A 16-bit counter in a word of its own: neighbours in one word would be loaded together right after
/// one of them was stored alone, which stalls the load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counter(u32);

impl Counter {
    #[inline(always)]
    fn new(value: u16) -> Self {
        Self(u32::from(value))
    }

    #[inline(always)]
    fn get(self) -> u16 {
        let [low, high, ..] = self.0.to_le_bytes();
        u16::from_le_bytes([low, high])
    }
}

/// Software's end of a send queue.
#[derive(Debug)]
pub(crate) struct SendQueue {
    ring: Words,
    record: Record,
    qpn: Qpn,
    /// By block: number of the request whose WQE starts there. Elsewhere a number half the range away,
    /// which no outstanding request has.
    starts: Box<[u16]>,
    /// Number of blocks, a power of two up to [`BLOCKS_MAX`], less one.
    mask: u16,
    /// Blocks ever posted.
    posted: Counter,
    /// Requests ever posted.
    posted_requests: Counter,
    /// Requests ever given back.
    retired_requests: Counter,
    /// Blocks that the device knows of.
    rung: Counter,
    /// First block of the WQE that was posted last.
    last: Counter,
    /// Requests posted since the last one that asked for a completion.
    unsignaled: Counter,
    /// Most requests that ask for none: half of them.
    unsignaled_max: u16,
    requests: u16,
    inline_bytes_max: u16,
    sges_max: u8,
    /// Blocks that may go through BlueFlame; 0: none.
    blueflame_blocks: u8,
}

impl SendQueue {
    /// Takes over a ring and its record of zero.
    ///
    /// `blueflame_bytes` is the most that may be written through BlueFlame; 0 turns it off.
    pub(crate) fn new(
        ring: Words,
        record: Record,
        qpn: Qpn,
        shape: SendShape,
        blueflame_bytes: usize,
    ) -> Self {
        assert!(1 << shape.log_blocks <= BLOCKS_MAX, "send queue of 2^{} blocks", shape.log_blocks);
        let blocks = 1usize << shape.log_blocks;
        let blueflame_blocks = (blueflame_bytes / WQEBB_BYTES).min(BLUEFLAME_BLOCKS_MAX);
        Self {
            ring,
            record,
            qpn,
            starts: vec![NO_START; blocks].into_boxed_slice(),
            mask: u16::try_from(blocks - 1).expect("checked above"),
            posted: Counter::default(),
            posted_requests: Counter::default(),
            retired_requests: Counter::default(),
            rung: Counter::default(),
            last: Counter::default(),
            unsignaled: Counter::default(),
            unsignaled_max: shape.requests / 2,
            requests: shape.requests,
            inline_bytes_max: shape.inline_bytes_max,
            sges_max: shape.sges_max,
            blueflame_blocks: u8::try_from(blueflame_blocks).expect("at most four"),
        }
    }

    pub(crate) fn words(&self) -> &Words {
        &self.ring
    }

    /// First word of the block with this counter.
    pub(crate) fn word_of(index: u16) -> usize {
        usize::from(index) * BLOCK_WORDS
    }

    /// Requests that can be posted now.
    #[inline]
    pub(crate) fn free(&self) -> u16 {
        self.requests - self.outstanding()
    }

    #[inline(always)]
    fn outstanding(&self) -> u16 {
        self.posted_requests.get().wrapping_sub(self.retired_requests.get())
    }

    /// Writes one WQE and returns the counter of its first block. Rings nothing.
    ///
    /// # Panics
    ///
    /// If a gather entry exceeds 2 GiB; nothing is queued then.
    #[inline(always)]
    pub(crate) fn post(
        &mut self,
        op: &Op<'_>,
        flags: SendFlags,
        av: Option<&Av>,
    ) -> Result<u16, PostSendError> {
        let octowords = self.octowords(op, av.is_some())?;
        let blocks = octowords.div_ceil(OCTOWORDS_PER_BLOCK);
        if self.outstanding() == self.requests {
            return Err(PostSendError::QueueFull { requests: self.requests.into() });
        }
        let index = self.posted.get();
        let (flags, unsignaled) = self.signal(flags);

        let mut writer = WqeWriter::new(self.ring.wqe_at(usize::from(index) * BLOCK_WORDS));
        if let Some(av) = av {
            writer = writer.av(av);
        }
        let (opcode, imm) = describe(op);
        let written = write_body(writer, op).finish(opcode, index, self.qpn, flags, imm);
        debug_assert_eq!((u16::from(written), wqebbs(written)), (octowords, blocks));

        self.note_wqe(index, blocks);
        self.unsignaled = Counter::new(unsignaled);
        self.last = self.posted;
        self.posted = Counter::new(index.wrapping_add(blocks));
        self.posted_requests = Counter::new(self.posted_requests.get().wrapping_add(1));
        Ok(index)
    }

    /// Length of the WQE for `op`, if this queue can hold it.
    #[inline(always)]
    fn octowords(&self, op: &Op<'_>, has_av: bool) -> Result<u16, PostSendError> {
        let (opcode, _) = describe(op);
        let fixed = fixed_octowords(&opcode, has_av);
        let payload = match op {
            Op::Send { payload: Payload::Inline(parts), .. }
            | Op::Write { payload: Payload::Inline(parts), .. } => {
                let asked_bytes = parts.iter().map(|part| part.len()).sum();
                if asked_bytes > usize::from(self.inline_bytes_max) {
                    let max_bytes = self.inline_bytes_max;
                    return Err(PostSendError::InlineTooLong { asked_bytes, max_bytes });
                }
                inline_octowords(asked_bytes)
            }
            Op::Send { payload: Payload::Gather(sges), .. }
            | Op::Write { payload: Payload::Gather(sges), .. }
            | Op::Read { into: sges, .. } => {
                let asked = entries(sges);
                if asked > usize::from(self.sges_max) {
                    return Err(PostSendError::TooManySges { asked, max: self.sges_max });
                }
                asked
            }
            Op::CompareSwap { into, .. } | Op::FetchAdd { into, .. } => {
                if into.len_bytes != ATOMIC_BYTES {
                    return Err(PostSendError::AtomicLength(into.len_bytes));
                }
                1
            }
            Op::Nop => 0,
        };
        // Lossless: the longest WQE, which each limit above allows, has 63 octowords.
        let [low, high, ..] = payload.to_le_bytes();
        Ok(fixed + u16::from_le_bytes([low, high]))
    }

    /// Control flags of the next WQE, and the unsignaled requests once it is posted.
    #[inline(always)]
    fn signal(&self, flags: SendFlags) -> (CtrlFlags, u16) {
        let mut ctrl = CtrlFlags::NONE;
        if flags.contains(SendFlags::SOLICITED) {
            ctrl |= CtrlFlags::SOLICITED;
        }
        if flags.contains(SendFlags::FENCE) {
            ctrl |= CtrlFlags::FENCE;
        }
        let unsignaled = self.unsignaled.get() + 1;
        if flags.contains(SendFlags::SIGNALED) || unsignaled > self.unsignaled_max {
            (ctrl | CtrlFlags::CQ_UPDATE, 0)
        } else {
            (ctrl, unsignaled)
        }
    }

    /// Remembers which request's WQE starts there, and that its other blocks start none.
    #[inline(always)]
    fn note_wqe(&mut self, index: u16, blocks: u16) {
        let request = self.posted_requests.get();
        self.starts[usize::from(index & self.mask)] = request;
        for behind in 1..blocks {
            let block = usize::from(index.wrapping_add(behind) & self.mask);
            self.starts[block] = request ^ NO_START;
        }
    }

    /// Tells the device about everything posted since the last call, with one doorbell.
    #[inline(always)]
    pub(crate) fn ring(&mut self, device: &mut impl DeviceQp) {
        if self.rung == self.posted {
            return;
        }
        barrier::before_dbrec();
        self.record.publish(doorbell::counter_word(self.posted.get()));
        barrier::before_doorbell();

        let pending = self.posted.get().wrapping_sub(self.rung.get());
        if self.rung == self.last && pending <= u16::from(self.blueflame_blocks) {
            device.blueflame(&self.last_wqe(pending));
        } else {
            device.ring(self.last_wqe(0).first_word().to_ne_bytes());
        }
        self.rung = self.posted;
    }

    /// The WQE that was posted last, of `blocks`.
    #[inline(always)]
    fn last_wqe(&self, blocks: u16) -> PostedWqe<'_> {
        let first = usize::from(self.last.get()) * BLOCK_WORDS;
        PostedWqe { ring: &self.ring, first, blocks: usize::from(blocks) }
    }

    /// Gives back the request whose WQE has `counter`, and all before it.
    ///
    /// A counter that names no outstanding WQE, such as that of a completion from before a reset,
    /// changes nothing.
    #[inline]
    pub(crate) fn retire(&mut self, counter: u16) {
        let request = self.starts[usize::from(counter & self.mask)];
        let ahead = request.wrapping_sub(self.retired_requests.get());
        // Blocks of the ring that the device knows of, counted from the end of what is posted.
        let behind = self.posted.get().wrapping_sub(counter);
        let unknown = self.posted.get().wrapping_sub(self.rung.get());
        if ahead >= self.outstanding() || behind <= unknown || behind > self.mask + 1 {
            return;
        }
        self.retired_requests = Counter::new(request.wrapping_add(1));
    }

    /// Forgets everything, ring and record included. The device must have stopped.
    pub(crate) fn reset(&mut self) {
        self.ring.fill(0);
        self.record.publish(0);
        self.starts.fill(NO_START);
        let zero = Counter::default();
        (self.posted, self.rung, self.last) = (zero, zero, zero);
        (self.posted_requests, self.retired_requests) = (zero, zero);
        self.unsignaled = zero;
    }
}

/// A WQE in the ring, which it may wrap around.
struct PostedWqe<'a> {
    ring: &'a Words,
    first: usize,
    blocks: usize,
}

impl WqeBlocks for PostedWqe<'_> {
    #[inline(always)]
    fn count(&self) -> usize {
        self.blocks
    }

    #[inline(always)]
    fn first_word(&self) -> u64 {
        self.ring.load(self.first)
    }

    #[inline(always)]
    fn block(&self, index: usize) -> [u64; BLOCK_WORDS] {
        assert!(index < self.blocks, "block {index} of {}", self.blocks);
        core::array::from_fn(|word| self.ring.load(self.first + index * BLOCK_WORDS + word))
    }
}

/// Gather or scatter entries that a WQE needs: empty ones are left out, because the device takes
/// length 0 for 2 GiB.
#[inline]
pub(crate) fn entries(sges: &[Sge]) -> usize {
    sges.iter().filter(|sge| sge.len_bytes > 0).count()
}

/// The device's opcode and immediate data.
#[inline(always)]
fn describe(op: &Op<'_>) -> (Opcode, u32) {
    match *op {
        Op::Send { imm: None, .. } => (Opcode::Send, 0),
        Op::Send { imm: Some(imm), .. } => (Opcode::SendImm, imm),
        Op::Write { imm: None, .. } => (Opcode::RdmaWrite, 0),
        Op::Write { imm: Some(imm), .. } => (Opcode::RdmaWriteImm, imm),
        Op::Read { .. } => (Opcode::RdmaRead, 0),
        Op::CompareSwap { .. } => (Opcode::AtomicCs, 0),
        Op::FetchAdd { .. } => (Opcode::AtomicFa, 0),
        Op::Nop => (Opcode::Nop, 0),
    }
}

/// Appends what follows the address vector.
#[inline(always)]
fn write_body<S: WqeSink>(writer: WqeWriter<S>, op: &Op<'_>) -> WqeWriter<S> {
    match *op {
        Op::Send { payload, .. } => write_payload(writer, payload),
        Op::Write { remote, payload, .. } => {
            write_payload(writer.raddr(remote.addr, remote.rkey), payload)
        }
        Op::Read { remote, into } => write_sges(writer.raddr(remote.addr, remote.rkey), into),
        Op::CompareSwap { remote, into, compare, swap } => writer
            .raddr(remote.addr, remote.rkey)
            .atomic(swap, compare)
            .data(into.addr, into.lkey, into.len_bytes),
        Op::FetchAdd { remote, into, add } => writer
            .raddr(remote.addr, remote.rkey)
            .atomic(add, 0)
            .data(into.addr, into.lkey, into.len_bytes),
        Op::Nop => writer,
    }
}

#[inline(always)]
fn write_payload<S: WqeSink>(writer: WqeWriter<S>, payload: Payload<'_>) -> WqeWriter<S> {
    match payload {
        Payload::Gather(sges) => write_sges(writer, sges),
        Payload::Inline(parts) => writer.inline_parts(parts),
    }
}

#[inline(always)]
fn write_sges<S: WqeSink>(writer: WqeWriter<S>, sges: &[Sge]) -> WqeWriter<S> {
    sges.iter().fold(writer, |writer, sge| writer.data(sge.addr, sge.lkey, sge.len_bytes))
}

#[cfg(test)]
mod tests {
    use wire::wqe::{SendWqe, Transport};

    use super::*;
    use crate::ring::heap::Heap;

    fn shape(log_blocks: u8, requests: u16) -> SendShape {
        SendShape { log_blocks, requests, sges_max: 1, inline_bytes_max: 220 }
    }

    /// Wraps of the ring and of the 16-bit counter, together and apart, inside one WQE.
    #[test]
    fn counters_wrap_inside_a_wqe() {
        for start in 0xfff0..=0xffff {
            let (ring, record) = (Heap::zeroed(8 * 64), Heap::zeroed(8));
            let shape = shape(3, 2);
            let qpn = Qpn::new(0x12_3456).unwrap();
            let mut sq = SendQueue::new(ring.ring(), record.record(), qpn, shape, 0);
            let at = Counter::new(start);
            (sq.posted, sq.rung, sq.last) = (at, at, at);
            (sq.posted_requests, sq.retired_requests) = (at, at);
            let payload = [0x3c; 150];
            let op = Op::Send { payload: Payload::Inline(&[&payload]), imm: None };
            assert_eq!(sq.post(&op, SendFlags::SIGNALED, None), Ok(start));
            assert_eq!(sq.free(), 1);

            let bytes: Vec<u8> = (0..3 * BLOCK_WORDS)
                .flat_map(|word| {
                    sq.ring.load(usize::from(start) * BLOCK_WORDS + word).to_ne_bytes()
                })
                .collect();
            let wqe = SendWqe::parse(&bytes, Transport::Rc).unwrap();
            assert_eq!((wqe.ctrl().index, wqe.len_bytes()), (start, 150));

            assert_eq!(sq.post(&Op::Nop, SendFlags::empty(), None), Ok(start.wrapping_add(3)));
            sq.rung = sq.posted;
            sq.retire(start.wrapping_add(1));
            assert_eq!(sq.free(), 0, "no WQE starts there");
            sq.retire(start.wrapping_add(3));
            assert_eq!(sq.free(), 2);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "a ring of 2 MiB")]
    fn the_largest_queue_counts_its_blocks() {
        let (ring, record) = (Heap::zeroed(64 << 15), Heap::zeroed(8));
        let shape = shape(15, 1 << 15);
        let mut sq = SendQueue::new(ring.ring(), record.record(), Qpn::default(), shape, 0);
        assert_eq!(sq.free(), 1 << 15);
        for index in 0..0x7fff {
            assert_eq!(sq.post(&Op::Nop, SendFlags::empty(), None), Ok(index));
        }
        assert_eq!(sq.post(&Op::Nop, SendFlags::empty(), None), Ok(0x7fff));
        let full = PostSendError::QueueFull { requests: 1 << 15 };
        assert_eq!(sq.post(&Op::Nop, SendFlags::empty(), None), Err(full));
        sq.rung = sq.posted;
        sq.retire(0x7fff);
        assert_eq!(sq.free(), 1 << 15);
    }

    /// Requests are signaled unasked exactly when the unsignaled ones would exceed half.
    #[test]
    fn half_a_queue_may_go_unsignaled() {
        let (ring, record) = (Heap::zeroed(8 * 64), Heap::zeroed(8));
        let shape = shape(3, 8);
        let mut sq = SendQueue::new(ring.ring(), record.record(), Qpn::default(), shape, 0);
        let signaled: Vec<bool> = (0..20usize)
            .map(|turn| {
                let index = sq.post(&Op::Nop, SendFlags::empty(), None).unwrap();
                sq.rung = sq.posted;
                sq.retire(index);
                // Byte 11 of the control segment.
                let flags = sq.ring.load((turn & 7) * BLOCK_WORDS + 1).to_ne_bytes()[3];
                flags == CtrlFlags::CQ_UPDATE.bits()
            })
            .collect();
        let expected: Vec<bool> = (0..20).map(|turn| turn % 5 == 4).collect();
        assert_eq!(signaled, expected);
    }
}
