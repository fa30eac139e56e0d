//! From a WQE to a request: parse, check local memory, address, carry.

use verbs::Transport;
use wire::{
    cqe::Syndrome,
    ids::{Lid, Qpn},
    wqe::{self, Av, AvKey, Ctrl, CtrlFlags, Opcode, Raddr, Segment, SendWqe, peek_ctrl},
};

use super::{
    Chunk, Extent, Key, Reply, Request, Sequence, Verb,
    global_route::GlobalRoute,
    port::{Completed, Done, Port},
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

/// What a WQE asks for, checked.
enum Prepared {
    /// Nothing.
    Nop,
    /// What cannot be asked for.
    Refused(Syndrome),
    /// What nobody can be asked for.
    NoAddress,
    /// This, of that port; its local memory is in `chunks`.
    Request(Lid, Request),
}

/// Carries one WQE out; with a sequence number by [`Port::send`], and otherwise by [`Port::carry`].
#[inline(always)]
pub(super) fn issue<P: Port>(
    wqe: &SendWqe<'_>,
    ctrl: &Ctrl,
    sequence: Option<Sequence>,
    peer: Option<(Lid, Qpn)>,
    qpn: Qpn,
    chunks: &mut Vec<Chunk>,
    port: &mut P,
) -> (Done, Reply) {
    let Some(sequence) = sequence else {
        return issue_as(Extent::Whole, wqe, ctrl, peer, qpn, chunks, port);
    };
    let (done, prepared) = prepare(wqe, ctrl, peer, qpn, chunks, port);
    let reply = match prepared {
        Prepared::Nop => Reply::Ack,
        Prepared::Refused(syndrome) => Reply::Refused(syndrome),
        Prepared::NoAddress => Reply::Later,
        Prepared::Request(lid, request) => {
            port.send(lid, &request, sequence, chunks);
            Reply::Later
        }
    };
    (done, reply)
}

/// [`issue`] by [`Port::carry`], as far as `extent`.
#[inline(always)]
pub(super) fn issue_as<P: Port>(
    extent: Extent,
    wqe: &SendWqe<'_>,
    ctrl: &Ctrl,
    peer: Option<(Lid, Qpn)>,
    qpn: Qpn,
    chunks: &mut Vec<Chunk>,
    port: &mut P,
) -> (Done, Reply) {
    let (done, prepared) = prepare(wqe, ctrl, peer, qpn, chunks, port);
    let reply = match prepared {
        Prepared::Nop => return (done, Reply::Ack),
        Prepared::Refused(syndrome) => Reply::Refused(syndrome),
        Prepared::NoAddress => Reply::Silence,
        Prepared::Request(lid, request) => port.carry(lid, &Request { extent, ..request }, chunks),
    };
    if let (Reply::Value(old), Some(result)) = (reply, chunks.first()) {
        // SAFETY: `gather` checked the result's memory.
        unsafe { store(&[*result], &old.to_ne_bytes()) };
    }
    (done, reply)
}

/// Stores what an answer has brought where `wqe` wants it, whose keys are checked now.
pub(super) fn place<P: Port>(
    wqe: &SendWqe<'_>,
    bytes: &[u8],
    chunks: &mut Vec<Chunk>,
    port: &mut P,
) -> Result<(), Syndrome> {
    gather(wqe, chunks, port)?;
    // SAFETY: `gather` checked the memory.
    unsafe { store(chunks, bytes) };
    Ok(())
}

/// Copies private bytes to checked memory.
///
/// # Safety
///
/// All chunks are mapped and writable, and no reference to plain data covers them.
#[inline(always)]
unsafe fn store(to: &[Chunk], bytes: &[u8]) {
    let source = Chunk { ptr: bytes.as_ptr().cast_mut(), len: bytes.len(), is_inline: false };
    // SAFETY: by contract; `bytes` is only read.
    unsafe { super::copy(to, &[source], super::Order::Ascending) };
}

#[inline(always)]
fn prepare<P: Port>(
    wqe: &SendWqe<'_>,
    ctrl: &Ctrl,
    peer: Option<(Lid, Qpn)>,
    qpn: Qpn,
    chunks: &mut Vec<Chunk>,
    port: &mut P,
) -> (Done, Prepared) {
    let signaled = ctrl.flags.contains(CtrlFlags::CQ_UPDATE);
    let (opcode, counter) = (wqe.opcode, ctrl.index);
    let mut completed = Completed { opcode, counter, len_bytes: 0, failure: None };
    let Some(verb) = verb_of(wqe) else {
        return (Done { completed, signaled }, Prepared::Nop);
    };
    let prepared = match gather(wqe, chunks, port) {
        Err(syndrome) => Prepared::Refused(syndrome),
        Ok(len_bytes) if is_ud(wqe) && len_bytes > UD_BYTES_MAX => {
            Prepared::Refused(Syndrome::LocalLength)
        }
        Ok(len_bytes) => {
            completed.len_bytes = len_bytes;
            address(wqe, peer, port).map_or(Prepared::NoAddress, |to| {
                let header = Header {
                    from: (port.lid(), qpn),
                    av: wqe.av(),
                    is_roce: port.is_roce(),
                    raddr: wqe.raddr(),
                    flags: ctrl.flags,
                    imm: opcode.has_imm().then_some(ctrl.imm),
                };
                Prepared::Request(to.lid, request(verb, &to, header, len_bytes))
            })
        }
    };
    (Done { completed, signaled }, prepared)
}

/// A datagram is one packet: the largest path MTU.
pub(super) const UD_BYTES_MAX: u32 = 4096;

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

/// Port and queue pair that a WQE is for, and the key that it shows there.
pub(super) struct SendAddress {
    pub(super) lid: Lid,
    pub(super) qpn: Qpn,
    pub(super) key: Key,
}

#[inline(always)]
fn address<P: Port>(wqe: &SendWqe<'_>, peer: Option<(Lid, Qpn)>, port: &P) -> Option<SendAddress> {
    let Some(av) = &wqe.av() else {
        return peer.map(|(lid, qpn)| SendAddress { lid, qpn, key: Key::Connected });
    };
    let key = match av.key {
        AvKey::Queue(qkey) => Key::Ud(qkey),
        AvKey::Dc(key) => Key::Dc(key),
    };
    Some(SendAddress { lid: port.destination(av), qpn: av.destination, key })
}

/// What the segments of a WQE tell the responder, beside verb, length and address.
pub(super) struct Header {
    /// The sender.
    pub(super) from: (Lid, Qpn),
    pub(super) av: Option<Av>,
    /// The port is on Ethernet: packets always have a global route header.
    pub(super) is_roce: bool,
    pub(super) raddr: Option<Raddr>,
    pub(super) flags: CtrlFlags,
    pub(super) imm: Option<u32>,
}

/// The request of a WQE, to be run in one piece.
#[inline(always)]
pub(super) fn request(verb: Verb, to: &SendAddress, header: Header, len_bytes: u32) -> Request {
    let Header { from, av, is_roce, raddr, flags, imm } = header;
    let extension = av.and_then(|av| av.extension).filter(|e| is_roce || e.has_grh());
    let route = extension.filter(|_| matches!(to.key, Key::Ud(_)));
    let route = route.map_or(0, |e| GlobalRoute::new(to.lid, is_roce, &e).to_word());
    Request {
        verb,
        extent: Extent::Whole,
        key: to.key,
        from,
        to: to.qpn,
        service_level: av.map_or(0, |av| av.stat_rate_sl & 0xf),
        has_grh: extension.is_some(),
        solicited: flags.contains(CtrlFlags::SOLICITED),
        imm,
        len_bytes,
        addr: raddr.map_or(route, |r| r.addr),
        rkey: raddr.map_or_else(Default::default, |r| r.rkey),
    }
}
