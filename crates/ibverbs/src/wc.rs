//! Completions: what the library says about a finished request.

use verbs::{Completion, CompletionKind, Lid, Qpn, Source, WcFailure, WcStatus};

use crate::abi::{Wc, status, wc, wc_flags};

/// Bytes at the start of a UD receive buffer that are not payload.
const GRH_BYTES: u32 = 40;

/// Bytes that an atomic returns.
const ATOMIC_BYTES: u32 = 8;

/// The number that a request carries through the device: its index, and what its completion cannot tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WrId {
    pub(crate) index: u16,
    pub(crate) of: RequestKind,
}

/// What a completion cannot tell about its request: nothing but status and queue pair are valid if it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestKind {
    Send,
    /// A WRITE of zero bytes.
    Nop,
    /// Of the queue pair's own queue.
    Recv,
    /// Of a queue pair whose messages follow a header.
    UdRecv,
    /// Of a shared queue.
    SrqRecv,
}

impl WrId {
    pub(crate) fn to_word(self) -> u64 {
        let kind = match self.of {
            RequestKind::Send => 0,
            RequestKind::Nop => 1,
            RequestKind::Recv => 2,
            RequestKind::UdRecv => 3,
            RequestKind::SrqRecv => 4,
        };
        u64::from(self.index) | kind << 16
    }

    pub(crate) fn from_word(word: u64) -> Self {
        let [low, high, kind, ..] = word.to_le_bytes();
        let of = match kind {
            0 => RequestKind::Send,
            1 => RequestKind::Nop,
            2 => RequestKind::Recv,
            3 => RequestKind::UdRecv,
            _ => RequestKind::SrqRecv,
        };
        Self { index: u16::from_le_bytes([low, high]), of }
    }

    /// Whether it is of a receive.
    pub(crate) fn is_receive(self) -> bool {
        !matches!(self.of, RequestKind::Send | RequestKind::Nop)
    }
}

/// Translates a completion. `is_ud` tells whether its queue pair is one of datagrams.
pub(crate) fn completion(wc: &Wc, is_ud: impl FnOnce(u32) -> bool) -> Completion {
    let id = WrId::from_word(wc.wr_id);
    let mut done = Completion {
        qpn: Qpn::from_low_bits(wc.qp_num),
        wqe: id.index,
        kind: CompletionKind::Send,
        failure: None,
        len_bytes: 0,
        imm: None,
        source: None,
        solicited: false,
        in_cqe: false,
    };
    if wc.status != status::SUCCESS {
        let is_receive = id.is_receive();
        done.kind = if is_receive { CompletionKind::RecvError } else { CompletionKind::SendError };
        done.failure = Some(WcFailure { status: failure(wc.status), vendor: wc.vendor_err });
        return done;
    }
    if !id.is_receive() {
        (done.kind, done.len_bytes) = sent(wc, id);
        return done;
    }
    done.kind = match wc.opcode {
        wc::RECV_RDMA_WITH_IMM => CompletionKind::RecvWriteImm,
        _ => CompletionKind::Recv,
    };
    done.len_bytes = wc.byte_len;
    if wc.wc_flags & wc_flags::WITH_IMM != 0 {
        done.imm = Some(u32::from_be(wc.imm_data));
    }
    let is_datagram = match id.of {
        RequestKind::UdRecv => true,
        RequestKind::SrqRecv => is_ud(wc.qp_num),
        _ => false,
    };
    if is_datagram {
        done.len_bytes = wc.byte_len.saturating_sub(GRH_BYTES);
        done.source = Some(Source {
            qpn: Qpn::from_low_bits(wc.src_qp),
            lid: Lid::new(wc.slid),
            has_grh: wc.wc_flags & wc_flags::GRH != 0,
        });
    }
    done
}

/// The operation that was sent, and the bytes it has brought.
fn sent(wc: &Wc, id: WrId) -> (CompletionKind, u32) {
    match wc.opcode {
        _ if id.of == RequestKind::Nop => (CompletionKind::Nop, 0),
        wc::RDMA_WRITE => (CompletionKind::Write, 0),
        wc::RDMA_READ => (CompletionKind::Read, wc.byte_len),
        wc::COMP_SWAP => (CompletionKind::CompareSwap, ATOMIC_BYTES),
        wc::FETCH_ADD => (CompletionKind::FetchAdd, ATOMIC_BYTES),
        wc::SEND => (CompletionKind::Send, 0),
        // Nothing else is ever posted.
        _ => (CompletionKind::Send, 0),
    }
}

/// `enum ibv_wc_status`. End-to-end contexts, which nobody makes, are errors without a code.
fn failure(status: i32) -> WcStatus {
    match status {
        1 => WcStatus::LocalLength,
        status::LOC_QP_OP_ERR => WcStatus::LocalQpOperation,
        4 => WcStatus::LocalProtection,
        status::WR_FLUSH_ERR => WcStatus::Flushed,
        6 => WcStatus::MemoryWindowBind,
        7 => WcStatus::BadResponse,
        8 => WcStatus::LocalAccess,
        9 => WcStatus::RemoteInvalidRequest,
        10 => WcStatus::RemoteAccess,
        11 => WcStatus::RemoteOperation,
        12 => WcStatus::RetryExceeded,
        13 => WcStatus::RnrRetryExceeded,
        16 => WcStatus::RemoteAborted,
        19 => WcStatus::Fatal,
        20 => WcStatus::ResponseTimeout,
        _ => WcStatus::General,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [RequestKind; 5] = [
        RequestKind::Send,
        RequestKind::Nop,
        RequestKind::Recv,
        RequestKind::UdRecv,
        RequestKind::SrqRecv,
    ];

    fn id(index: u16, of: RequestKind) -> u64 {
        WrId { index, of }.to_word()
    }

    #[test]
    fn numbers_of_requests_survive_the_device() {
        for of in KINDS {
            for index in [0, 1, 0x8000, u16::MAX] {
                assert_eq!(WrId::from_word(id(index, of)), WrId { index, of });
            }
        }
    }

    #[test]
    fn a_failure_is_of_the_side_that_its_number_says() {
        // Whatever the opcode: it is not valid then.
        let wc = Wc { status: 10, opcode: 128, vendor_err: 0x1_0001, qp_num: 9, ..Wc::default() };
        for of in KINDS {
            let done = completion(&Wc { wr_id: id(3, of), ..wc }, |_| false);
            assert_eq!(done.kind.is_receive(), !matches!(of, RequestKind::Send | RequestKind::Nop));
            let failure = done.failure.unwrap();
            assert_eq!((failure.status, failure.vendor), (WcStatus::RemoteAccess, 0x1_0001));
            assert_eq!((done.wqe, done.qpn.get()), (3, 9));
        }
    }

    #[test]
    fn datagrams_follow_a_header_and_name_their_sender() {
        let wc = Wc { opcode: 128, byte_len: 48, src_qp: 17, wc_flags: 3, ..Wc::default() };
        let wc = Wc { imm_data: 0x0102_0304_u32.to_be(), ..wc };
        let done = completion(&Wc { wr_id: id(0, RequestKind::UdRecv), ..wc }, |_| false);
        assert_eq!((done.len_bytes, done.imm), (8, Some(0x0102_0304)));
        let source = done.source.unwrap();
        assert_eq!((source.qpn.get(), source.has_grh), (17, true));
        let done = completion(&Wc { wr_id: id(0, RequestKind::SrqRecv), ..wc }, |_| true);
        assert_eq!((done.len_bytes, done.source.is_some()), (8, true));
        let done = completion(&Wc { wr_id: id(0, RequestKind::SrqRecv), ..wc }, |_| false);
        assert_eq!((done.len_bytes, done.source), (48, None));
    }

    #[test]
    fn sends_are_told_by_their_opcode_and_nops_by_their_number() {
        let of = |opcode, of| {
            let wc = Wc { wr_id: id(1, of), opcode, byte_len: 100, ..Wc::default() };
            let done = completion(&wc, |_| false);
            (done.kind, done.len_bytes)
        };
        assert_eq!(of(1, RequestKind::Nop), (CompletionKind::Nop, 0));
        assert_eq!(of(1, RequestKind::Send), (CompletionKind::Write, 0));
        assert_eq!(of(2, RequestKind::Send), (CompletionKind::Read, 100));
        assert_eq!(of(3, RequestKind::Send), (CompletionKind::CompareSwap, 8));
        assert_eq!(of(4, RequestKind::Send), (CompletionKind::FetchAdd, 8));
        assert_eq!(of(129, RequestKind::Recv), (CompletionKind::RecvWriteImm, 100));
    }
}
