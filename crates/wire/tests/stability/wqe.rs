//! Whatever the WQE readers accept, the writers can say again.

use copyrpc_wire::{
    ids::Qpn,
    wqe::{
        ENTRY_BYTES_MAX, OCTOWORD_BYTES, OCTOWORDS_MAX, Octoword, Opcode, PlainKind, PlainPayload,
        PlainSend, RecvWqe, RecvWqeWriter, Segment, SendWqe, Transport, WqeWriter, plain_receive,
    },
};

/// The first byte picks the transport, the rest is a send WQE; then the same bytes as receive WQEs.
pub(crate) fn check(bytes: &[u8]) {
    let Some((&choice, wqe)) = bytes.split_first() else { return };
    let transport = [Transport::Rc, Transport::Ud, Transport::Dci][usize::from(choice % 3)];
    check_send_wqe(wqe, transport);
    check_plain_send(wqe, transport);
    let stride = &wqe[..wqe.len().min(usize::from(OCTOWORDS_MAX) * OCTOWORD_BYTES)];
    check_plain_receive(&stride[..stride.len() / OCTOWORD_BYTES * OCTOWORD_BYTES]);
    check_recv_wqe(stride, RecvWqe::parse_rq(stride));
    check_recv_wqe(stride, RecvWqe::parse_srq(stride));
}

fn check_send_wqe(bytes: &[u8], transport: Transport) {
    let Ok(parsed) = SendWqe::parse(bytes, transport) else { return };
    let (once, octowords) = encode_send(&parsed);
    let again = SendWqe::parse(once.as_flattened(), transport).expect("own encoding");

    assert!(octowords <= parsed.ctrl().octowords, "an encoding never grows");
    assert_eq!(octowords, again.ctrl().octowords);
    assert_eq!(
        (again.opcode, again.av(), again.raddr(), again.atomic()),
        (parsed.opcode, parsed.av(), parsed.raddr(), parsed.atomic())
    );
    assert_eq!(
        (again.ctrl().index, again.ctrl().qpn, again.ctrl().flags, again.ctrl().imm),
        (parsed.ctrl().index, parsed.ctrl().qpn, parsed.ctrl().flags, parsed.ctrl().imm)
    );
    assert!(again.segments().eq(parsed.segments()), "segments differ");
    assert_eq!(again.len_bytes(), parsed.len_bytes());
    assert_eq!(encode_send(&again), (once, octowords));
}

/// The result of the short reader for the WQE at the start of `bytes`, in its own place.
pub(crate) fn plain_send(bytes: &[u8], transport: Transport) -> Option<PlainSend> {
    let ctrl = copyrpc_wire::wqe::peek_ctrl(bytes.first_chunk()?);
    read_short(bytes, transport, ctrl.index, ctrl.qpn)
}

/// Words behind the end are zero.
fn read_short(bytes: &[u8], transport: Transport, index: u16, qpn: Qpn) -> Option<PlainSend> {
    let (words, _) = bytes.as_chunks();
    let word = |at: usize| words.get(at).map_or(0, |word| u64::from_ne_bytes(*word));
    let kind = PlainKind::of(word(0))?;
    let other = if kind == PlainKind::Send { PlainKind::Write } else { PlainKind::Send };
    assert_eq!(PlainSend::read(word, transport, other, index, qpn), None);
    PlainSend::read(word, transport, kind, index, qpn)
}

/// The long reader agrees on each WQE that the short one accepts; a WQE of another queue pair is refused.
fn check_plain_send(bytes: &[u8], transport: Transport) {
    let Some(plain) = plain_send(bytes, transport) else { return };
    let len_bytes = usize::from(plain.octowords) * OCTOWORD_BYTES;
    let parsed = SendWqe::parse(bytes, transport);
    if bytes.len() < len_bytes {
        return assert!(parsed.is_err(), "it is not all there");
    }
    let parsed = parsed.expect("the short reader accepts it");
    let ctrl = parsed.ctrl();
    assert_eq!((plain.octowords, plain.flags), (ctrl.octowords, ctrl.flags));
    assert_eq!(
        (plain.opcode(), plain.av, plain.raddr),
        (parsed.opcode, parsed.av(), parsed.raddr())
    );
    assert_eq!(plain.imm, parsed.opcode.has_imm().then_some(ctrl.imm));
    assert_eq!(u64::from(plain.payload.len_bytes()), parsed.len_bytes());
    let mut segments = parsed.segments();
    match (plain.payload, segments.next()) {
        (PlainPayload::Gather(sge), Some(Segment::Sge(found))) => assert_eq!(sge, found),
        (PlainPayload::Inline { len_bytes }, Some(Segment::Inline(found))) => {
            let from = plain.inline_offset();
            assert_eq!(&bytes[from..from + usize::try_from(len_bytes).unwrap()], found);
        }
        pair => panic!("{pair:?}"),
    }
    assert_eq!(segments.next(), None);
    assert_eq!(read_short(bytes, transport, ctrl.index ^ 1, ctrl.qpn), None);
    let other = Qpn::from_low_bits(ctrl.qpn.get() ^ 1);
    assert_eq!(read_short(bytes, transport, ctrl.index, other), None);
}

/// The short reader accepts a WQE that has one entry and fills its octowords, and reads the same entry.
pub(crate) fn check_plain_receive(list: &[u8]) {
    let (words, _) = list.as_chunks();
    let mut words = words.iter().map(|word| u64::from_ne_bytes(*word));
    let (Some(lengths), Some(addr)) = (words.next(), words.next()) else { return };
    let found = plain_receive([lengths, addr], words.next());
    let mut sges = RecvWqe::parse_rq(list).into_iter().flat_map(|wqe| wqe.sges());
    let only = sges.next().filter(|_| sges.next().is_none());
    if found.is_some() {
        assert_eq!(found, only);
    } else {
        // Left to the long one: length zero, which means 2 GiB.
        assert!(only.is_none_or(|sge| sge.len_bytes == ENTRY_BYTES_MAX), "{only:?}");
    }
}

fn encode_send(wqe: &SendWqe<'_>) -> ([Octoword; 63], u8) {
    let mut slots = [[0xa5; OCTOWORD_BYTES]; 63];
    let mut writer = WqeWriter::new(&mut slots);
    if let Some(av) = wqe.av() {
        writer = writer.av(&av);
    }
    if let Some(raddr) = wqe.raddr() {
        writer = writer.raddr(raddr.addr, raddr.rkey);
    }
    if let Some(atomic) = wqe.atomic() {
        writer = writer.atomic(atomic.swap_or_add, atomic.compare);
    }
    for segment in wqe.segments() {
        writer = match segment {
            Segment::Sge(sge) => writer.data(sge.addr, sge.lkey, sge.len_bytes),
            Segment::Inline(payload) => writer.inline(payload),
        };
    }
    let ctrl = wqe.ctrl();
    let octowords = writer.finish(wqe.opcode, ctrl.index, ctrl.qpn, ctrl.flags, ctrl.imm);
    assert!(wqe.opcode != Opcode::Nop || octowords == 1);
    (slots, octowords)
}

fn check_recv_wqe<E>(stride: &[u8], parsed: Result<RecvWqe<'_>, E>) {
    let Ok(parsed) = parsed else { return };
    let mut slots = [[0xa5; OCTOWORD_BYTES]; 63];
    let octowords = u8::try_from(stride.len() / OCTOWORD_BYTES).expect("bounded by the caller");
    let mut writer = match parsed.next_wqe_index {
        Some(next) => RecvWqeWriter::srq(&mut slots, octowords, next),
        None => RecvWqeWriter::rq(&mut slots, octowords),
    };
    for sge in parsed.sges() {
        writer = writer.data(sge.addr, sge.lkey, sge.len_bytes);
    }
    writer.finish();

    let (written, beyond) = slots.as_flattened().split_at(stride.len());
    assert!(beyond.iter().all(|&byte| byte == 0xa5), "written past the stride");
    let again = match parsed.next_wqe_index {
        Some(_) => RecvWqe::parse_srq(written),
        None => RecvWqe::parse_rq(written),
    };
    let again = again.expect("own encoding");
    assert_eq!(again.next_wqe_index, parsed.next_wqe_index);
    assert!(again.sges().eq(parsed.sges()), "lists differ");
    assert_eq!(again.capacity_bytes(), parsed.capacity_bytes());
}
