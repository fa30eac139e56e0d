//! The meaning of a CQE, and its encoding.

use zerocopy::IntoBytes;

use super::{
    Cqe, Cqe128, CqeError, FORMAT_COMPRESSED, FORMAT_INLINE_32, FORMAT_INLINE_64, FORMAT_PLAIN,
    INLINE_32_BYTES, INLINE_64_BYTES, OPCODE_INVALID, OPCODE_REQ, OPCODE_REQ_ERR, OPCODE_RESP_ERR,
    OPCODE_RESP_SEND, OPCODE_RESP_SEND_IMM, OPCODE_RESP_WR_IMM, OWNER_BIT, SOLICITED_BIT, Syndrome,
};
use crate::{
    ids::{Lid, Qpn, UserIndex},
    wqe::Opcode,
};

/// The place of the bytes that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scatter<'a> {
    /// Into the memory that the WQE lists.
    Memory,
    /// Into this very CQE: here they are, at most [`INLINE_32_BYTES`].
    InCqe(&'a [u8]),
    /// Into the 64 bytes before this CQE: only in queues of 128-byte entries, see [`Cqe128`].
    Preceding64,
}

/// Completion of a send WQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequesterCqe<'a> {
    /// Operation that completed.
    pub opcode: Opcode,
    /// Send queue that it was in.
    pub qpn: Qpn,
    /// Position of its first WQEBB, modulo 2¹⁶. Everything before it has completed as well.
    pub wqe_counter: u16,
    /// The queue pair's. With CQE version 0 there is none.
    pub user_index: UserIndex,
    /// Bytes that a READ brought, or an atomic whose result is in the entry; otherwise unspecified.
    pub byte_cnt: u32,
    /// The place of these bytes.
    pub scatter: Scatter<'a>,
    /// In ticks of the device clock.
    pub timestamp: u64,
}

/// The kind of message that arrived at a receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResponderKind {
    /// An RDMA WRITE with this immediate data; it took a receive WQE and wrote nothing there.
    WriteImm(u32),
    /// A SEND.
    Send,
    /// A SEND with this immediate data.
    SendImm(u32),
}

/// Sender of a message: meaningful on UD and DC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Source {
    /// Sending queue pair.
    pub qpn: Qpn,
    /// InfiniBand service level, four bits.
    pub service_level: u8,
    /// Two bits; non-zero if the packet had a global route header.
    pub grh: u8,
    /// Sending port.
    pub slid: Lid,
    /// `loopback << 7 | path bits` of the destination.
    pub ml_path: u8,
}

/// Completion of a receive WQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponderCqe<'a> {
    /// The kind of message.
    pub kind: ResponderKind,
    /// Queue pair, or DC target, at which it arrived.
    pub qpn: Qpn,
    /// Receive WQE that it took, modulo 2¹⁶; in a shared queue, the WQE's index.
    pub wqe_counter: u16,
    /// The queue pair's, even if the WQE came from a shared receive queue. With CQE version 0, the
    /// number of that shared queue.
    pub user_index: UserIndex,
    /// Length of the message; on UD, with the 40 bytes reserved for the route header.
    pub byte_cnt: u32,
    /// The place of the message.
    pub scatter: Scatter<'a>,
    /// The sender: `None` where the message itself takes that place in the CQE.
    pub source: Option<Source>,
    /// The sender asked for an event.
    pub solicited: bool,
    /// In ticks of the device clock.
    pub timestamp: u64,
}

/// Failure of a send or receive WQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ErrorCqe {
    /// The WQE was in a send queue, else in a receive queue.
    pub is_requester: bool,
    /// Queue pair.
    pub qpn: Qpn,
    /// As in [`RequesterCqe`] or [`ResponderCqe`].
    pub wqe_counter: u16,
    /// As in [`ResponderCqe`].
    pub user_index: UserIndex,
    /// Code of the send operation. Not judged: an unknown code may be the very error.
    pub send_opcode: u8,
    /// The syndrome.
    pub syndrome: Syndrome,
    /// Detail for the vendor's support.
    pub vendor_syndrome: u8,
}

/// A CQE that makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CqeView<'a> {
    /// A send WQE completed.
    Requester(RequesterCqe<'a>),
    /// A receive WQE completed.
    Responder(ResponderCqe<'a>),
    /// A WQE failed.
    Error(ErrorCqe),
}

impl Cqe {
    /// Reads the entry. Whether it is new is for [`is_written`](super::is_written) to say.
    ///
    /// # Errors
    ///
    /// [`CqeError`] if the entry was never written, or is of a kind that was never asked for.
    #[inline]
    pub fn parse(&self) -> Result<CqeView<'_>, CqeError> {
        let opcode = self.op_own >> 4;
        if opcode == OPCODE_INVALID {
            return Err(CqeError::NotWritten);
        }
        if self.format() == FORMAT_COMPRESSED {
            return Err(CqeError::Compressed);
        }
        let kind = match opcode {
            OPCODE_REQ => return self.parse_requester().map(CqeView::Requester),
            OPCODE_REQ_ERR => return Ok(CqeView::Error(self.parse_error(true))),
            OPCODE_RESP_ERR => return Ok(CqeView::Error(self.parse_error(false))),
            OPCODE_RESP_WR_IMM => ResponderKind::WriteImm(self.imm.get()),
            OPCODE_RESP_SEND => ResponderKind::Send,
            OPCODE_RESP_SEND_IMM => ResponderKind::SendImm(self.imm.get()),
            other => return Err(CqeError::UnsupportedOpcode(other)),
        };
        self.parse_responder(kind).map(CqeView::Responder)
    }

    fn parse_requester(&self) -> Result<RequesterCqe<'_>, CqeError> {
        let code = self.send_opcode();
        Ok(RequesterCqe {
            opcode: Opcode::from_code(code).ok_or(CqeError::UnknownSendOpcode(code))?,
            qpn: self.qpn(),
            wqe_counter: self.wqe_counter.get(),
            user_index: self.user_index(),
            byte_cnt: self.byte_cnt.get(),
            scatter: self.scatter()?,
            timestamp: u64::from_be_bytes(self.timestamp),
        })
    }

    #[inline(always)]
    fn parse_responder(&self, kind: ResponderKind) -> Result<ResponderCqe<'_>, CqeError> {
        let scatter = match kind {
            ResponderKind::WriteImm(_) => Scatter::Memory,
            ResponderKind::Send | ResponderKind::SendImm(_) => self.scatter()?,
        };
        let flags = self.head.flags_rqpn.get();
        let [flags_byte, ..] = flags.to_be_bytes();
        let source = Source {
            qpn: Qpn::from_low_bits(flags),
            service_level: flags_byte & 0xf,
            grh: flags_byte >> 4 & 3,
            slid: Lid::new(self.head.slid.get()),
            ml_path: self.head.ml_path,
        };
        Ok(ResponderCqe {
            kind,
            qpn: self.qpn(),
            wqe_counter: self.wqe_counter.get(),
            user_index: self.user_index(),
            byte_cnt: self.byte_cnt.get(),
            scatter,
            source: (!matches!(scatter, Scatter::InCqe(_))).then_some(source),
            solicited: self.op_own & SOLICITED_BIT != 0,
            timestamp: u64::from_be_bytes(self.timestamp),
        })
    }

    fn parse_error(&self, is_requester: bool) -> ErrorCqe {
        let [.., vendor_syndrome, syndrome] = self.timestamp;
        ErrorCqe {
            is_requester,
            qpn: self.qpn(),
            wqe_counter: self.wqe_counter.get(),
            user_index: self.user_index(),
            send_opcode: self.send_opcode(),
            syndrome: Syndrome::from_code(syndrome),
            vendor_syndrome,
        }
    }

    #[inline(always)]
    fn scatter(&self) -> Result<Scatter<'_>, CqeError> {
        let byte_cnt = self.byte_cnt.get();
        let fits = |room_bytes: usize| match usize::try_from(byte_cnt) {
            Ok(len) if len <= room_bytes => Ok(len),
            _ => Err(CqeError::InlineTooLong { byte_cnt, room_bytes }),
        };
        Ok(match self.format() {
            FORMAT_INLINE_32 => {
                let len = fits(INLINE_32_BYTES)?;
                Scatter::InCqe(self.head.as_bytes().get(..len).unwrap_or_default())
            }
            FORMAT_INLINE_64 => fits(INLINE_64_BYTES).map(|_| Scatter::Preceding64)?,
            _ => Scatter::Memory,
        })
    }

    fn format(&self) -> u8 {
        self.op_own >> 2 & 3
    }

    fn qpn(&self) -> Qpn {
        Qpn::from_low_bits(self.sop_qpn.get())
    }

    fn user_index(&self) -> UserIndex {
        UserIndex::from_low_bits(self.srqn_uidx.get())
    }

    fn send_opcode(&self) -> u8 {
        let [code, ..] = self.sop_qpn.get().to_be_bytes();
        code
    }
}

impl Cqe128 {
    /// The bytes that arrived, where they are in the payload half of the entry.
    ///
    /// # Errors
    ///
    /// Those of [`Cqe::parse`].
    pub fn payload_of(&self) -> Result<Option<&[u8]>, CqeError> {
        let (scatter, byte_cnt) = match self.cqe.parse()? {
            CqeView::Requester(done) => (done.scatter, done.byte_cnt),
            CqeView::Responder(done) => (done.scatter, done.byte_cnt),
            CqeView::Error(_) => return Ok(None),
        };
        let len = usize::try_from(byte_cnt).unwrap_or(usize::MAX);
        Ok(if scatter == Scatter::Preceding64 { self.payload.get(..len) } else { None })
    }
}

impl CqeView<'_> {
    /// Lays the completion out for a lap of the queue on which `owner` marks entries as written:
    /// see [`owner_bit`](super::owner_bit). Fields that do not apply are zero.
    ///
    /// # Panics
    ///
    /// If [`Scatter::InCqe`] has more than [`INLINE_32_BYTES`] or not `byte_cnt` bytes, if
    /// [`Scatter::Preceding64`] is too short for `byte_cnt`, if an RDMA WRITE claims payload in the
    /// CQE, if a field of [`Source`] exceeds its bits, or if `owner` is neither 0 nor 1.
    #[must_use]
    #[inline(always)]
    pub fn encode(&self, owner: u8) -> Cqe {
        assert!(owner <= OWNER_BIT, "owner {owner} is not a bit");
        match self {
            Self::Requester(done) => done.encode(owner),
            Self::Responder(done) => done.encode(owner),
            Self::Error(error) => error.encode(owner),
        }
    }
}

/// The fields of a CQE, as words rather than bytes: narrow stores that are then loaded as words, as
/// a NIC does to publish them, would stall.
struct Fields {
    /// Bytes 0 to 31.
    head: [u64; 4],
    user_index: UserIndex,
    imm: u32,
    byte_cnt: u32,
    /// Time, or syndromes in the low bytes.
    timestamp: u64,
    /// `opcode << 24 | QPN`.
    sop_qpn: u32,
    wqe_counter: u16,
    op_own: u8,
}

impl Fields {
    #[inline(always)]
    fn lay_out(self) -> Cqe {
        let pair = |high: u32, low: u32| (u64::from(high) << 32 | u64::from(low)).to_be();
        let last = u32::from(self.wqe_counter) << 16 | u32::from(self.op_own);
        let [a, b, c, d] = self.head;
        Cqe::from_words([
            a,
            b,
            c,
            d,
            pair(self.user_index.get(), self.imm),
            pair(0, self.byte_cnt),
            self.timestamp.to_be(),
            pair(self.sop_qpn, last),
        ])
    }
}

impl RequesterCqe<'_> {
    #[inline(always)]
    fn encode(&self, owner: u8) -> Cqe {
        let (format, head) = scatter_head(self.scatter, self.byte_cnt);
        Fields {
            head,
            user_index: self.user_index,
            imm: 0,
            byte_cnt: self.byte_cnt,
            timestamp: self.timestamp,
            sop_qpn: u32::from(self.opcode.code()) << 24 | self.qpn.get(),
            wqe_counter: self.wqe_counter,
            op_own: OPCODE_REQ << 4 | format << 2 | owner,
        }
        .lay_out()
    }
}

impl ResponderCqe<'_> {
    #[inline(always)]
    fn encode(&self, owner: u8) -> Cqe {
        let (opcode, imm) = match self.kind {
            ResponderKind::WriteImm(imm) => (OPCODE_RESP_WR_IMM, imm),
            ResponderKind::Send => (OPCODE_RESP_SEND, 0),
            ResponderKind::SendImm(imm) => (OPCODE_RESP_SEND_IMM, imm),
        };
        let in_memory = self.scatter == Scatter::Memory;
        assert!(in_memory || opcode != OPCODE_RESP_WR_IMM, "WRITE payload in a CQE");
        let (format, mut head) = scatter_head(self.scatter, self.byte_cnt);
        if let (FORMAT_PLAIN | FORMAT_INLINE_64, Some(source)) = (format, self.source) {
            let Source { grh, service_level, .. } = source;
            assert!(grh < 1 << 2 && service_level < 1 << 4, "GRH {grh}, SL {service_level}");
            let flags = u32::from(grh << 4 | service_level);
            head[2] = (u64::from(source.ml_path) << 48 | u64::from(source.slid.get())).to_be();
            head[3] = (u64::from(flags << 24 | source.qpn.get()) << 32).to_be();
        }
        let solicited = if self.solicited { SOLICITED_BIT } else { 0 };
        Fields {
            head,
            user_index: self.user_index,
            imm,
            byte_cnt: self.byte_cnt,
            timestamp: self.timestamp,
            sop_qpn: self.qpn.get(),
            wqe_counter: self.wqe_counter,
            op_own: opcode << 4 | format << 2 | solicited | owner,
        }
        .lay_out()
    }
}

impl ErrorCqe {
    #[inline(always)]
    fn encode(&self, owner: u8) -> Cqe {
        let opcode = if self.is_requester { OPCODE_REQ_ERR } else { OPCODE_RESP_ERR };
        let syndromes = u16::from_be_bytes([self.vendor_syndrome, self.syndrome.code()]);
        Fields {
            head: [0; 4],
            user_index: self.user_index,
            imm: 0,
            byte_cnt: 0,
            timestamp: u64::from(syndromes),
            sop_qpn: u32::from(self.send_opcode) << 24 | self.qpn.get(),
            wqe_counter: self.wqe_counter,
            op_own: opcode << 4 | owner,
        }
        .lay_out()
    }
}

/// The format that says where the payload is, and the bytes of it that are in the CQE.
#[inline(always)]
fn scatter_head(scatter: Scatter<'_>, byte_cnt: u32) -> (u8, [u64; 4]) {
    let len = usize::try_from(byte_cnt).unwrap_or(usize::MAX);
    match scatter {
        Scatter::Memory => (FORMAT_PLAIN, [0; 4]),
        Scatter::InCqe(payload) => {
            assert!(payload.len() == len && len <= INLINE_32_BYTES, "{byte_cnt} B in a CQE");
            let mut head = [0; INLINE_32_BYTES];
            head[..len].copy_from_slice(payload);
            (FORMAT_INLINE_32, zerocopy::transmute!(head))
        }
        Scatter::Preceding64 => {
            assert!(len <= INLINE_64_BYTES, "{byte_cnt} B in half a CQE");
            (FORMAT_INLINE_64, [0; 4])
        }
    }
}
