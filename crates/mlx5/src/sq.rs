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
//! Counters are numbers of blocks modulo 2¹⁶, as in the control segment, the doorbell record and
//! the completion: `retired ≤ rung ≤ posted ≤ retired + blocks`.
//!
//! *Signaling* is accounted per queue, whoever posts: before blocks without a completion request
//! fill more than half of the queue, a request is signaled although nobody asked. No WQE takes more
//! than half of the queue. So whenever a WQE does not fit, more than half of the queue is
//! outstanding, and a signaled WQE is among that: its completion will come.
//!
//! Source: rdma-core `providers/mlx5/qp.c`, `_mlx5_post_send`.

use memory::barrier;
use verbs::{Op, Payload, PostSendError, Qpn, SendFlags, Sge};
use wire::{
    doorbell,
    wqe::{
        ATOMIC_BYTES, Av, CtrlFlags, OCTOWORDS_MAX, OCTOWORDS_PER_WQEBB, Opcode, WQEBB_BYTES,
        WqeSink, WqeWriter, inline_octowords, wqebbs,
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
    /// Gather entries per request.
    pub(crate) sges_max: u8,
}

impl SendShape {
    /// The longest WQE: see the signaling rule above.
    fn octowords_max(self) -> u16 {
        let half_blocks = ((1u16 << self.log_blocks) / 2).max(1);
        (half_blocks.saturating_mul(OCTOWORDS_PER_BLOCK)).min(u16::from(OCTOWORDS_MAX))
    }
}

/// Octowords of the longest gathering WQE, or of an atomic.
pub(crate) fn gather_octowords(has_av: bool, sges_max: u8) -> u16 {
    let atomic = fixed_octowords(&Opcode::AtomicCs, has_av) + 1;
    atomic.max(fixed_octowords(&Opcode::RdmaWrite, has_av) + u16::from(sges_max))
}

/// Octowords in front of the payload.
#[inline]
fn fixed_octowords(opcode: &Opcode, has_av: bool) -> u16 {
    let av = if has_av { AV_OCTOWORDS } else { 0 };
    1 + av + u16::from(opcode.has_raddr()) + u16::from(opcode.is_atomic())
}

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
    /// By block: blocks of the WQE that starts there; 0 where none does.
    wqe_blocks: Box<[u8]>,
    /// Number of blocks, a power of two up to [`BLOCKS_MAX`], less one.
    mask: u16,
    /// Blocks ever posted.
    posted: Counter,
    /// Blocks ever given back.
    retired: Counter,
    /// Blocks that the device knows of.
    rung: Counter,
    /// First block of the WQE that was posted last.
    last: Counter,
    /// Blocks posted since the last request for a completion.
    unsignaled: Counter,
    /// Most blocks without a request for a completion: half of them.
    unsignaled_max: u16,
    octowords_max: u16,
    sges_max: u8,
    /// Blocks that may go through BlueFlame; 0: none.
    blueflame_blocks: u8,
}

impl SendQueue {
    /// Takes over a ring of zeroes and its record.
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
            wqe_blocks: vec![0; blocks].into_boxed_slice(),
            mask: u16::try_from(blocks - 1).expect("checked above"),
            posted: Counter::default(),
            retired: Counter::default(),
            rung: Counter::default(),
            last: Counter::default(),
            unsignaled: Counter::default(),
            unsignaled_max: u16::try_from(blocks / 2).expect("checked above"),
            octowords_max: shape.octowords_max(),
            sges_max: shape.sges_max,
            blueflame_blocks: u8::try_from(blueflame_blocks).expect("at most four"),
        }
    }

    /// Blocks that can be posted now.
    #[inline]
    pub(crate) fn free_blocks(&self) -> u16 {
        self.blocks() - self.outstanding_blocks()
    }

    #[inline]
    fn blocks(&self) -> u16 {
        self.mask + 1
    }

    #[inline]
    fn outstanding_blocks(&self) -> u16 {
        self.posted.get().wrapping_sub(self.retired.get())
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
        let free = self.free_blocks();
        if blocks > free {
            return Err(PostSendError::QueueFull { needed: blocks, free });
        }
        let index = self.posted.get();
        let (flags, unsignaled) = self.signal(flags, blocks);

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
        Ok(index)
    }

    /// Length of the WQE for `op`, if this queue can hold it.
    #[inline(always)]
    fn octowords(&self, op: &Op<'_>, has_av: bool) -> Result<u16, PostSendError> {
        let (opcode, _) = describe(op);
        let fixed = fixed_octowords(&opcode, has_av);
        let (payload, payload_max) = match op {
            Op::Send { payload: Payload::Inline(parts), .. }
            | Op::Write { payload: Payload::Inline(parts), .. } => {
                (inline_octowords(parts.iter().map(|part| part.len()).sum()), u16::MAX)
            }
            Op::Send { payload: Payload::Gather(sges), .. }
            | Op::Write { payload: Payload::Gather(sges), .. }
            | Op::Read { into: sges, .. } => (entries(sges), u16::from(self.sges_max)),
            Op::CompareSwap { into, .. } | Op::FetchAdd { into, .. } => {
                if into.len_bytes != ATOMIC_BYTES {
                    return Err(PostSendError::AtomicLength(into.len_bytes));
                }
                (1, 1)
            }
            Op::Nop => (0, 0),
        };
        let asked = u16::try_from(payload).unwrap_or(u16::MAX).saturating_add(fixed);
        let max = self.octowords_max.min(payload_max.saturating_add(fixed));
        if asked > max {
            return Err(PostSendError::TooLarge { asked, max });
        }
        Ok(asked)
    }

    /// Control flags of a WQE of `blocks`, and the unsignaled blocks once it is posted.
    #[inline(always)]
    fn signal(&self, flags: SendFlags, blocks: u16) -> (CtrlFlags, u16) {
        let mut ctrl = CtrlFlags::NONE;
        if flags.contains(SendFlags::SOLICITED) {
            ctrl |= CtrlFlags::SOLICITED;
        }
        if flags.contains(SendFlags::FENCE) {
            ctrl |= CtrlFlags::FENCE;
        }
        let unsignaled = self.unsignaled.get() + blocks;
        if flags.contains(SendFlags::SIGNALED) || unsignaled > self.unsignaled_max {
            (ctrl | CtrlFlags::CQ_UPDATE, 0)
        } else {
            (ctrl, unsignaled)
        }
    }

    /// Remembers where the WQE starts and how long it is, and that its other blocks start none.
    #[inline(always)]
    fn note_wqe(&mut self, index: u16, blocks: u16) {
        // Lossless: a WQE has at most 16 blocks.
        self.wqe_blocks[usize::from(index & self.mask)] = blocks.to_le_bytes()[0];
        for behind in 1..blocks {
            self.wqe_blocks[usize::from(index.wrapping_add(behind) & self.mask)] = 0;
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

    /// Gives back the blocks of WQE `counter` and of all before it.
    ///
    /// A counter that names no outstanding WQE, such as that of a completion from before a reset,
    /// changes nothing.
    #[inline]
    pub(crate) fn retire(&mut self, counter: u16) {
        let ahead = counter.wrapping_sub(self.retired.get());
        let blocks = u16::from(self.wqe_blocks[usize::from(counter & self.mask)]);
        if blocks == 0 || ahead >= self.rung.get().wrapping_sub(self.retired.get()) {
            return;
        }
        self.retired = Counter::new(counter.wrapping_add(blocks));
    }

    /// Forgets everything, ring and record included. The device must have stopped.
    pub(crate) fn reset(&mut self) {
        self.ring.fill(0);
        self.record.publish(0);
        self.wqe_blocks.fill(0);
        let zero = Counter::default();
        (self.posted, self.retired, self.rung, self.last) = (zero, zero, zero, zero);
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

    /// Wraps of the ring and of the 16-bit counter, together and apart, inside one WQE.
    #[test]
    fn counters_wrap_inside_a_wqe() {
        for start in 0xfff0..=0xffff {
            let (ring, record) = (Heap::zeroed(8 * 64), Heap::zeroed(8));
            let shape = SendShape { log_blocks: 3, sges_max: 1 };
            let qpn = Qpn::new(0x12_3456).unwrap();
            let mut sq = SendQueue::new(ring.ring(), record.record(), qpn, shape, 0);
            let at = Counter::new(start);
            (sq.posted, sq.rung, sq.retired, sq.last) = (at, at, at, at);
            let payload = [0x3c; 150];
            let op = Op::Send { payload: Payload::Inline(&[&payload]), imm: None };
            assert_eq!(sq.post(&op, SendFlags::SIGNALED, None), Ok(start));
            assert_eq!(sq.free_blocks(), 8 - 3);

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
            assert_eq!(sq.free_blocks(), 8 - 4, "no WQE starts there");
            sq.retire(start.wrapping_add(3));
            assert_eq!(sq.free_blocks(), 8);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "a ring of 2 MiB")]
    fn the_largest_queue_counts_its_blocks() {
        let (ring, record) = (Heap::zeroed(64 << 15), Heap::zeroed(8));
        let shape = SendShape { log_blocks: 15, sges_max: 1 };
        let mut sq = SendQueue::new(ring.ring(), record.record(), Qpn::default(), shape, 0);
        assert_eq!(sq.free_blocks(), 1 << 15);
        (sq.posted, sq.rung) = (Counter::new(0x7fff), Counter::new(0x7fff));
        assert_eq!(sq.post(&Op::Nop, SendFlags::empty(), None), Ok(0x7fff));
        let full = PostSendError::QueueFull { needed: 1, free: 0 };
        assert_eq!(sq.post(&Op::Nop, SendFlags::empty(), None), Err(full));
    }

    /// Requests are signaled unasked exactly when the unsignaled blocks would exceed half.
    #[test]
    fn half_a_queue_may_go_unsignaled() {
        let (ring, record) = (Heap::zeroed(8 * 64), Heap::zeroed(8));
        let shape = SendShape { log_blocks: 3, sges_max: 1 };
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
