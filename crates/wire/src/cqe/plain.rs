//! The completions that nearly all traffic brings, recognized by a few of their eight words.

use super::{
    FORMAT_PLAIN, OPCODE_RESP_SEND, OPCODE_RESP_SEND_IMM, OPCODE_RESP_WR_IMM, ResponderKind,
    SOLICITED_BIT, Source,
};
use crate::ids::{Lid, Qpn};

/// A message has arrived, and its bytes are in memory: what [`Cqe::parse`](super::Cqe::parse) says of
/// it, but for the sender, whom [`read_source`] tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainArrival {
    /// The kind of message.
    pub kind: ResponderKind,
    /// Queue pair at which it arrived.
    pub qpn: Qpn,
    /// Receive WQE that it took, modulo 2¹⁶; in a shared queue, the WQE's index.
    pub wqe_counter: u16,
    /// Bytes of the message.
    pub byte_cnt: u32,
    /// The sender asked for an event.
    pub solicited: bool,
}

impl PlainArrival {
    /// Whether the entry that ends in this word, in memory order, is one.
    #[must_use]
    #[inline(always)]
    pub const fn ends_in(last_word: u64) -> bool {
        let kind = super::op_own_of_last_word(last_word) >> 2;
        const { assert!(OPCODE_RESP_WR_IMM + 2 == OPCODE_RESP_SEND_IMM && FORMAT_PLAIN == 0) };
        kind & 3 == FORMAT_PLAIN && (kind >> 2).wrapping_sub(OPCODE_RESP_WR_IMM) <= 2
    }

    /// Whether the entry that ends in this word is one, of an RDMA WRITE.
    #[must_use]
    #[inline(always)]
    pub const fn write_ends_in(last_word: u64) -> bool {
        let kind = super::op_own_of_last_word(last_word) >> 2;
        kind == OPCODE_RESP_WR_IMM << 2 | FORMAT_PLAIN
    }

    /// Decodes the entry whose words number 4, 5 and 7 are these.
    #[must_use]
    #[inline(always)]
    pub fn read(imm_word: u64, length_word: u64, last_word: u64) -> Self {
        let [.., op_own] = last_word.to_ne_bytes();
        let (sop_qpn, last) = split(last_word);
        let [high, low, ..] = last.to_be_bytes();
        let (_, imm) = split(imm_word);
        Self {
            kind: match op_own >> 4 {
                OPCODE_RESP_SEND => ResponderKind::Send,
                OPCODE_RESP_SEND_IMM => ResponderKind::SendImm(imm),
                _ => ResponderKind::WriteImm(imm),
            },
            qpn: Qpn::from_low_bits(sop_qpn),
            wqe_counter: u16::from_be_bytes([high, low]),
            byte_cnt: split(length_word).1,
            solicited: op_own & SOLICITED_BIT != 0,
        }
    }
}

/// The sender of the message that has arrived by the entry whose words number 2 and 3 are these.
#[must_use]
#[inline(always)]
pub fn read_source(path_word: u64, sender_word: u64) -> Source {
    let [_, ml_path, _, _, _, _, slid @ ..] = path_word.to_ne_bytes();
    let (flags, _) = split(sender_word);
    let [flags_byte, ..] = flags.to_be_bytes();
    Source {
        qpn: Qpn::from_low_bits(flags),
        service_level: flags_byte & 0xf,
        grh: flags_byte >> 4 & 3,
        slid: Lid::new(u16::from_be_bytes(slid)),
        ml_path,
    }
}

/// The two big-endian halves of a word.
#[expect(clippy::cast_possible_truncation, reason = "takes a word apart")]
const fn split(word: u64) -> (u32, u32) {
    let word = u64::from_be(word);
    ((word >> 32) as u32, word as u32)
}
