//! The completion that nearly all traffic brings, told by three of its eight words.

use super::{FORMAT_PLAIN, OPCODE_RESP_WR_IMM, SOLICITED_BIT};
use crate::ids::Qpn;

/// An RDMA WRITE with immediate data has arrived: what [`Cqe::parse`](super::Cqe::parse) says of it,
/// but for the sender, which means nothing on a reliable connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteArrival {
    /// Queue pair at which it arrived.
    pub qpn: Qpn,
    /// Receive WQE that it took, modulo 2¹⁶; in a shared queue, the WQE's index.
    pub wqe_counter: u16,
    /// Immediate data.
    pub imm: u32,
    /// Bytes that were written.
    pub byte_cnt: u32,
    /// The sender asked for an event.
    pub solicited: bool,
}

impl WriteArrival {
    /// Whether the entry that ends in this word, in memory order, is one.
    #[must_use]
    #[inline(always)]
    pub const fn is_told_by(last_word: u64) -> bool {
        let op_own = super::op_own_of_last_word(last_word);
        op_own >> 2 == OPCODE_RESP_WR_IMM << 2 | FORMAT_PLAIN
    }

    /// What the entry says whose words number 4, 5 and 7 are these.
    #[must_use]
    #[inline(always)]
    pub fn read(imm_word: u64, length_word: u64, last_word: u64) -> Self {
        let [.., op_own] = last_word.to_ne_bytes();
        let (sop_qpn, last) = split(last_word);
        let [high, low, ..] = last.to_be_bytes();
        Self {
            qpn: Qpn::from_low_bits(sop_qpn),
            wqe_counter: u16::from_be_bytes([high, low]),
            imm: split(imm_word).1,
            byte_cnt: split(length_word).1,
            solicited: op_own & SOLICITED_BIT != 0,
        }
    }
}

/// The two big-endian halves of a word.
#[expect(clippy::cast_possible_truncation, reason = "takes a word apart")]
const fn split(word: u64) -> (u32, u32) {
    let word = u64::from_be(word);
    ((word >> 32) as u32, word as u32)
}
