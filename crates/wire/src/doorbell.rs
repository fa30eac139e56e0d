//! Doorbells: how software tells a NIC that a queue moved.
//!
//! ```text
//! doorbell record, in memory (two words)     UAR page, 4096 B of MMIO
//!   QP: receive counter │ send counter         0x020  CQ arm doorbell, 8 B
//!   CQ: consumer index  │ arm record           0x800  BlueFlame register, 2 x 256 B, and every
//!                                                     0x200 further on
//! ```
//!
//! A send queue publishes its WQEs, then its record, then writes the first 8 bytes of the last
//! WQE's control segment to a BlueFlame register, half by half in turn. A receive queue has its
//! record alone. The order between these stores is the driver's duty.
//!
//! Functions here return and take *native words*: store one as an integer and memory holds the
//! big-endian bytes that the NIC expects.
//!
//! Source: rdma-core `providers/mlx5/mlx5dv.h` (`MLX5_RCV_DBR`, `MLX5_SND_DBR`,
//! `MLX5_CQ_DOORBELL`), `providers/mlx5/cq.c` (`mlx5_arm_cq`), `providers/mlx5/mlx5.h`.

use crate::{
    ids::Cqn,
    wqe::{Ctrl, Octoword, peek_ctrl},
};

/// Word of a queue pair's record that counts receive WQEs (`MLX5_RCV_DBR`).
pub const RECV_COUNTER_WORD: usize = 0;

/// Word of a queue pair's record that counts send WQEBBs (`MLX5_SND_DBR`).
pub const SEND_COUNTER_WORD: usize = 1;

/// Word of a completion queue's record with the consumer index.
pub const CQ_CONSUMER_WORD: usize = 0;

/// Word of a completion queue's record with the arm request.
pub const CQ_ARM_WORD: usize = 1;

/// Size of a doorbell record. Records of different queues do not share a cache line.
pub const RECORD_BYTES: usize = 8;

/// Size of a UAR page: the window through which a process rings doorbells.
pub const UAR_BYTES: usize = 4096;

/// Offset in a UAR page of the completion-queue arm doorbell (`MLX5_CQ_DOORBELL`).
pub const UAR_CQ_ARM_OFFSET: usize = 0x20;

/// Offset in a UAR page of the first BlueFlame register.
pub const UAR_BLUEFLAME_OFFSET: usize = 0x800;

/// Distance from one BlueFlame register to the next.
pub const BLUEFLAME_STRIDE_BYTES: usize = 0x200;

/// Size of one of the two halves of a BlueFlame register, used in turn; the longest WQE that can be
/// written there whole.
pub const BLUEFLAME_HALF_BYTES: usize = 0x100;

/// Consumer indices have 24 bits.
const CONSUMER_INDEX_MASK: u32 = (1 << 24) - 1;

/// Bit 24: only solicited completions raise an event (`MLX5_CQ_DB_REQ_NOT_SOL`).
const ARM_SOLICITED: u32 = 1 << 24;

const ARM_SEQUENCE_SHIFT: u32 = 28;
const ARM_SEQUENCE_MASK: u8 = CqArm::SEQUENCES - 1;

/// Record word for a send or receive queue that has posted `counter` units, modulo 2¹⁶.
#[must_use]
#[inline]
pub const fn counter_word(counter: u16) -> u32 {
    (counter as u32).to_be()
}

/// Reads [`counter_word`]; the upper half of the word is reserved.
#[must_use]
#[inline]
pub const fn counter_of_word(word: u32) -> u16 {
    let [_, _, high, low] = word.to_ne_bytes();
    u16::from_be_bytes([high, low])
}

/// Record word for a completion queue that has consumed `consumer_index` entries.
#[must_use]
#[inline]
pub const fn consumer_word(consumer_index: u32) -> u32 {
    (consumer_index & CONSUMER_INDEX_MASK).to_be()
}

/// Reads [`consumer_word`]: the consumer index modulo 2²⁴.
#[must_use]
#[inline]
pub const fn consumer_of_word(word: u32) -> u32 {
    u32::from_be(word) & CONSUMER_INDEX_MASK
}

/// Request for one event at the next completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CqArm {
    /// Counts the events that this queue has delivered, modulo 4, so that a NIC can tell a new
    /// request from an old one.
    pub sequence: u8,
    /// Only a solicited completion, or an error, raises the event.
    pub solicited_only: bool,
    /// Entries consumed when the request was made, modulo 2²⁴.
    pub consumer_index: u32,
}

impl CqArm {
    /// Numbers of requests: [`sequence`](Self::sequence) is less.
    pub const SEQUENCES: u8 = 4;

    /// Word for the queue's record; written before the doorbell.
    #[must_use]
    #[inline]
    pub const fn record_word(self) -> u32 {
        self.bits().to_be()
    }

    /// Value for the doorbell at [`UAR_CQ_ARM_OFFSET`].
    #[must_use]
    #[inline]
    pub const fn doorbell_word(self, cqn: Cqn) -> u64 {
        ((self.bits() as u64) << 32 | cqn.get() as u64).to_be()
    }

    /// Reads [`record_word`](Self::record_word).
    #[must_use]
    #[inline]
    pub const fn of_record_word(word: u32) -> Self {
        Self::from_bits(u32::from_be(word))
    }

    /// Reads [`doorbell_word`](Self::doorbell_word).
    #[must_use]
    #[inline]
    pub const fn of_doorbell_word(word: u64) -> (Self, Cqn) {
        let [a, b, c, d, e, f, g, h] = word.to_ne_bytes();
        let cqn = Cqn::from_low_bits(u32::from_be_bytes([e, f, g, h]));
        (Self::from_bits(u32::from_be_bytes([a, b, c, d])), cqn)
    }

    const fn bits(self) -> u32 {
        let sequence = (self.sequence & ARM_SEQUENCE_MASK) as u32;
        let solicited = if self.solicited_only { ARM_SOLICITED } else { 0 };
        sequence << ARM_SEQUENCE_SHIFT | solicited | self.consumer_index & CONSUMER_INDEX_MASK
    }

    const fn from_bits(bits: u32) -> Self {
        Self {
            sequence: bits.to_be_bytes()[0] >> (ARM_SEQUENCE_SHIFT - 24) & ARM_SEQUENCE_MASK,
            solicited_only: bits & ARM_SOLICITED != 0,
            consumer_index: bits & CONSUMER_INDEX_MASK,
        }
    }
}

/// Value that rings a send queue: the first 8 bytes of the last WQE's control segment.
#[must_use]
#[inline]
pub const fn send_doorbell_word(ctrl: &Octoword) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = *ctrl;
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

/// Reads [`send_doorbell_word`]; flags and immediate data are not part of it and come back zero.
#[must_use]
#[inline]
pub fn ctrl_of_send_doorbell_word(word: u64) -> Ctrl {
    let mut ctrl = [0; 16];
    ctrl[..8].copy_from_slice(&word.to_ne_bytes());
    peek_ctrl(&ctrl)
}

#[cfg(test)]
mod tests {
    use hex_literal::hex;

    use super::*;

    /// `qp->db[MLX5_SND_DBR] = htobe32(cur_post & 0xffff)`
    #[test]
    fn queue_counter_is_16_bits_big_endian() {
        assert_eq!(counter_word(0x1234).to_ne_bytes(), hex!("00001234"));
        assert_eq!(counter_of_word(u32::from_ne_bytes(hex!("a5a51234"))), 0x1234);
    }

    /// `cq->dbrec[0] = htobe32(cons_index & 0xffffff)`
    #[test]
    fn consumer_index_is_24_bits_big_endian() {
        assert_eq!(consumer_word(0xab12_3456).to_ne_bytes(), hex!("00123456"));
        assert_eq!(consumer_of_word(u32::from_ne_bytes(hex!("a5123456"))), 0x12_3456);
    }

    /// `mlx5_arm_cq`: `doorbell = sn << 28 | cmd | ci`, then `doorbell << 32 | cqn`
    #[test]
    fn arm_request_both_ways() {
        let cqn = Cqn::new(0x00_0789).unwrap();
        let any = CqArm { sequence: 2, solicited_only: false, consumer_index: 0x12_3456 };
        assert_eq!(any.record_word().to_ne_bytes(), hex!("20123456"));
        assert_eq!(any.doorbell_word(cqn).to_ne_bytes(), hex!("20123456 00000789"));

        let solicited = CqArm { sequence: 3, solicited_only: true, ..any };
        assert_eq!(solicited.record_word().to_ne_bytes(), hex!("31123456"));
        assert_eq!(CqArm::of_record_word(solicited.record_word()), solicited);
        assert_eq!(CqArm::of_doorbell_word(solicited.doorbell_word(cqn)), (solicited, cqn));
    }

    #[test]
    fn arm_request_wraps_its_counters() {
        let arm = CqArm { sequence: 5, solicited_only: false, consumer_index: 0x0100_0007 };
        assert_eq!(arm.record_word().to_ne_bytes(), hex!("10000007"));
    }

    #[test]
    fn send_doorbell_is_the_head_of_the_control_segment() {
        let ctrl = hex!("00 1234 09  abcdef 03  00 0000 08  deadbeef");
        let word = send_doorbell_word(&ctrl);
        assert_eq!(word.to_ne_bytes(), hex!("00 1234 09  abcdef 03"));
        let rung = ctrl_of_send_doorbell_word(word);
        assert_eq!((rung.index, rung.code, rung.octowords), (0x1234, 9, 3));
        assert_eq!(rung.qpn.get(), 0xab_cdef);
    }
}
