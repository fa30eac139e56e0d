//! From a WQE to a request: parse, check local memory, address, carry.

use verbs::Transport;
use wire::{
    cqe::Syndrome,
    ids::{Lid, Qpn},
    wqe::{self, Av, AvKey, Ctrl, CtrlFlags, Opcode, Raddr, Segment, SendWqe, peek_ctrl},
};

use super::{
    Chunk, Extent, Key, Reply, Request, Verb,
    requester::{Completed, Done, Port},
};

/// Parses a WQE and checks that it is the one that belongs there.
#[inline(always)]
pub(super) fn parse<'a>(
    bytes: &'a [u8],
    ctrl: &Ctrl,
    transport: Transport,
    counter: u16,
    qpn: Qpn,
) -> Result<SendWqe<'a>, &'static str> {
    let transport = match transport {
        Transport::Rc => wqe::Transport::Rc,
        Transport::Ud => wqe::Transport::Ud,
        Transport::Dci => wqe::Transport::Dci,
        Transport::Dct => return Err("a DC target sends nothing"),
    };
    if ctrl.index != counter {
        return Err("bad index");
    }
    if ctrl.qpn != qpn {
        return Err("bad queue pair number");
    }
    SendWqe::parse(bytes, transport).map_err(|_| "bad opcode or length")
}

/// [`parse`] of a private copy, outside the hot path.
#[inline(never)]
pub(super) fn parse_copy(
    bytes: &[u8],
    transport: Transport,
    counter: u16,
    qpn: Qpn,
) -> Result<(Ctrl, SendWqe<'_>), &'static str> {
    let ctrl = bytes.first_chunk().map(peek_ctrl).ok_or("no control segment")?;
    Ok((ctrl, parse(bytes, &ctrl, transport, counter, qpn)?))
}

/// Carries one WQE out.
#[inline(always)]
pub(super) fn issue<P: Port>(
    wqe: &SendWqe<'_>,
    ctrl: &Ctrl,
    extent: Extent,
    peer: Option<(Lid, Qpn)>,
    qpn: Qpn,
    chunks: &mut Vec<Chunk>,
    port: &mut P,
) -> (Done, Reply) {
    let signaled = ctrl.flags.contains(CtrlFlags::CQ_UPDATE);
    let (opcode, counter) = (wqe.opcode, ctrl.index);
    let mut completed = Completed { opcode, counter, len_bytes: 0, failure: None };
    let Some(verb) = verb_of(wqe) else {
        return (Done { completed, signaled }, Reply::Ack);
    };
    let reply = match gather(wqe, chunks, port) {
        Err(syndrome) => Reply::Refused(syndrome),
        Ok(len_bytes) if is_ud(wqe) && len_bytes > UD_BYTES_MAX => {
            Reply::Refused(Syndrome::LocalLength)
        }
        Ok(len_bytes) => {
            completed.len_bytes = len_bytes;
            match address(wqe, peer, port) {
                None => Reply::Silence,
                Some((lid, to, key)) => {
                    let from = (port.lid(), qpn);
                    let places = (wqe.av(), wqe.raddr());
                    let imm = opcode.has_imm().then_some(ctrl.imm);
                    let whole = request(verb, key, (from, to), places, ctrl.flags, imm, len_bytes);
                    port.carry(lid, &Request { extent, ..whole }, chunks)
                }
            }
        }
    };
    if let (Reply::Value(old), Some(result)) = (reply, chunks.first()) {
        let old = old.to_ne_bytes();
        let source = Chunk { ptr: old.as_ptr().cast_mut(), len: old.len(), is_inline: false };
        // SAFETY: `gather` checked the result's memory; `old` lives until the end of the block.
        unsafe { super::copy(&[*result], &[source], super::Order::Ascending) };
    }
    (Done { completed, signaled }, reply)
}

/// A datagram is one packet: the largest path MTU.
const UD_BYTES_MAX: u32 = 4096;

#[inline(always)]
fn is_ud(wqe: &SendWqe<'_>) -> bool {
    wqe.av().is_some_and(|av| matches!(av.key, AvKey::Queue(_)))
}

#[inline(always)]
fn verb_of(wqe: &SendWqe<'_>) -> Option<Verb> {
    let (swap_or_add, compare) = wqe.atomic().map_or((0, 0), |a| (a.swap_or_add, a.compare));
    Some(match wqe.opcode {
        Opcode::Nop => return None,
        Opcode::Send | Opcode::SendImm => Verb::Send,
        Opcode::RdmaWrite | Opcode::RdmaWriteImm => Verb::Write,
        Opcode::RdmaRead => Verb::Read,
        Opcode::AtomicCs => Verb::CompareSwap { compare, swap: swap_or_add },
        Opcode::AtomicFa => Verb::FetchAdd { add: swap_or_add },
    })
}

/// Checks the local entries; returns their total length.
#[inline(always)]
fn gather<P: Port>(
    wqe: &SendWqe<'_>,
    chunks: &mut Vec<Chunk>,
    port: &mut P,
) -> Result<u32, Syndrome> {
    chunks.clear();
    let write = !wqe.opcode.may_inline();
    let mut total = 0u64;
    for segment in wqe.segments() {
        total += segment.len_bytes();
        chunks.push(match segment {
            Segment::Sge(sge) => port.local(&sge, write)?,
            // Private memory of this requester, only ever read.
            Segment::Inline(bytes) => {
                Chunk { ptr: bytes.as_ptr().cast_mut(), len: bytes.len(), is_inline: true }
            }
        });
    }
    let fits = total <= u64::from(wqe::MESSAGE_BYTES_MAX);
    u32::try_from(total).ok().filter(|_| fits).ok_or(Syndrome::LocalLength)
}

/// Port, queue pair and key that a WQE is for.
#[inline(always)]
fn address<P: Port>(
    wqe: &SendWqe<'_>,
    peer: Option<(Lid, Qpn)>,
    port: &P,
) -> Option<(Lid, Qpn, Key)> {
    let Some(av) = &wqe.av() else {
        return peer.map(|(lid, qpn)| (lid, qpn, Key::Connected));
    };
    let key = match av.key {
        AvKey::Queue(qkey) => Key::Ud(qkey),
        AvKey::Dc(key) => Key::Dc(key),
    };
    Some((port.destination(av), av.destination, key))
}

/// What a WQE asks for in one piece, of `from`, at `to`.
#[inline(always)]
pub(super) fn request(
    verb: Verb,
    key: Key,
    (from, to): ((Lid, Qpn), Qpn),
    (av, raddr): (Option<Av>, Option<Raddr>),
    flags: CtrlFlags,
    imm: Option<u32>,
    len_bytes: u32,
) -> Request {
    Request {
        verb,
        extent: Extent::Whole,
        key,
        from,
        to,
        service_level: av.map_or(0, |av| av.stat_rate_sl & 0xf),
        has_grh: av.and_then(|av| av.extension).is_some_and(|e| e.has_grh()),
        solicited: flags.contains(CtrlFlags::SOLICITED),
        imm,
        len_bytes,
        addr: raddr.map_or(0, |r| r.addr),
        rkey: raddr.map_or_else(Default::default, |r| r.rkey),
    }
}
