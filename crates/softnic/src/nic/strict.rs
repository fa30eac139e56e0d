//! Strict mode: does, at random but reproducibly, whatever hardware may do, and refuses whatever
//! hardware refuses.

use wire::doorbell::CqArm;

/// A small generator (SplitMix64); the seed makes a run reproducible on one thread.
///
/// Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below `limit`, which is not zero.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "the remainder is below a usize")]
        let remainder = (self.next() % limit as u64) as usize;
        remainder
    }

    /// True once in `n` times.
    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// Something a ConnectX would not have accepted. Strict mode moves the queue pair to ERR, if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The doorbell names a WQE that the doorbell record does not announce as the last one.
    #[error(
        "QP {qpn:#x}: doorbell for WQE {index} of {blocks} blocks, but the doorbell record says \
         {record}: write the record before the doorbell"
    )]
    DoorbellRecord {
        /// The queue pair.
        qpn: u32,
        /// WQE index in the doorbell.
        index: u16,
        /// Its length in 64-byte blocks.
        blocks: u16,
        /// Counter in the record.
        record: u16,
    },
    /// The bytes at the send doorbell are not the control segment of a WQE in this send queue.
    #[error(
        "QP {qpn:#x}: doorbell {doorbell:#018x} is not what the send ring holds there \
         ({ring:#018x}): only send WQEs are rung, and BlueFlame WQEs must be in the ring too"
    )]
    NotInRing {
        /// The queue pair.
        qpn: u32,
        /// First 8 bytes rung, as a big-endian number.
        doorbell: u64,
        /// First 8 bytes of the same WQE in the ring.
        ring: u64,
    },
    /// A WQE in the send ring makes no sense.
    #[error("QP {qpn:#x}: bad WQE at {counter}: {cause}")]
    BadWqe {
        /// The queue pair.
        qpn: u32,
        /// Counter of the WQE.
        counter: u16,
        /// Cause of the refusal.
        cause: &'static str,
    },
    /// The arm doorbell of a completion queue says something else than its doorbell record.
    #[error(
        "CQ {cqn:#x}: arm doorbell says {request:?}, but the doorbell record {recorded:?}: write the \
         record before the doorbell"
    )]
    ArmRecord {
        /// The completion queue.
        cqn: u32,
        /// What the doorbell says.
        request: CqArm,
        /// What the record says.
        recorded: CqArm,
    },
    /// A request for an event has the number of one that was answered.
    #[error(
        "CQ {cqn:#x}: armed with number {sequence} again after its event: count the events, modulo 4"
    )]
    ArmSequence {
        /// The completion queue.
        cqn: u32,
        /// The number.
        sequence: u8,
    },
    /// A request for an event counts one that was not raised.
    #[error("CQ {cqn:#x}: armed with number {sequence} after {events} events, modulo 4")]
    ArmAhead {
        /// The completion queue.
        cqn: u32,
        /// The number.
        sequence: u8,
        /// How many there were.
        events: u8,
    },
    /// The doorbell record of a send queue is further ahead of what was executed than the ring is long.
    #[error(
        "QP {qpn:#x}: {ahead} blocks are posted and not executed, in a ring of {blocks}: count the completions"
    )]
    SendOverrun {
        /// The queue pair.
        qpn: u32,
        /// Blocks between execution and record.
        ahead: u16,
        /// Blocks of the ring.
        blocks: u32,
    },
    /// The doorbell record of a receive queue is further ahead of what was taken than the ring is long.
    #[error(
        "{queue} {number:#x}: {ahead} receives are posted and not taken, in a ring of {entries}"
    )]
    ReceiveOverrun {
        /// `QP` or `SRQ`.
        queue: &'static str,
        /// Its number.
        number: u32,
        /// Receives between the first that is not taken and the record.
        ahead: u16,
        /// Entries of the ring.
        entries: u32,
    },
    /// The consumer of a completion queue says that it has polled what was not there yet.
    #[error("CQ {cqn:#x}: the consumer is {ahead} entries ahead of what was completed")]
    ConsumerAhead {
        /// The completion queue.
        cqn: u32,
        /// Entries.
        ahead: u64,
    },
    /// A BlueFlame write that is no whole number of blocks, or longer than the register.
    #[error("QP {qpn:#x}: BlueFlame write of {len_bytes} B")]
    BlueFlameLength {
        /// The queue pair.
        qpn: u32,
        /// Its length.
        len_bytes: usize,
    },
}
