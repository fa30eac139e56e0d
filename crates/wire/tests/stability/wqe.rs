//! Whatever the WQE readers accept, the writers can say again.

use copyrpc_wire::wqe::{
    OCTOWORD_BYTES, OCTOWORDS_MAX, Octoword, Opcode, PlainPayload, PlainWrite, RecvWqe,
    RecvWqeWriter, Segment, SendWqe, Transport, WqeWriter,
};

/// The first byte picks the transport, the rest is a send WQE; then the same bytes as receive WQEs.
pub(crate) fn check(bytes: &[u8]) {
    let Some((&choice, wqe)) = bytes.split_first() else { return };
    let transport = [Transport::Rc, Transport::Ud, Transport::Dci][usize::from(choice % 3)];
    check_send_wqe(wqe, transport);
    check_plain_write(wqe);
    let stride = &wqe[..wqe.len().min(usize::from(OCTOWORDS_MAX) * OCTOWORD_BYTES)];
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

/// What the short reader makes of the WQE at the start of `bytes`, in its own place.
pub(crate) fn plain_write(bytes: &[u8]) -> Option<PlainWrite> {
    let words: &[[u8; 8]; 6] = bytes.as_chunks().0.first_chunk()?;
    let ctrl = copyrpc_wire::wqe::peek_ctrl(bytes.first_chunk()?);
    PlainWrite::read(words.map(u64::from_ne_bytes), ctrl.index, ctrl.qpn)
}

/// What the short reader accepts, the long one reads alike; and nobody else's WQE is accepted.
fn check_plain_write(bytes: &[u8]) {
    let Some(plain) = plain_write(bytes) else { return };
    let len_bytes = usize::from(plain.octowords) * OCTOWORD_BYTES;
    let parsed = SendWqe::parse(bytes, Transport::Rc);
    if bytes.len() < len_bytes {
        return assert!(parsed.is_err(), "it is not all there");
    }
    let parsed = parsed.expect("the short reader accepts it");
    let ctrl = parsed.ctrl();
    assert_eq!((plain.octowords, plain.flags), (ctrl.octowords, ctrl.flags));
    assert_eq!(Some(plain.raddr), parsed.raddr());
    assert_eq!(plain.imm, parsed.opcode.has_imm().then_some(ctrl.imm));
    let mut segments = parsed.segments();
    match (plain.payload, segments.next()) {
        (PlainPayload::Gather(sge), Some(Segment::Sge(found))) => assert_eq!(sge, found),
        (PlainPayload::Inline { len_bytes }, Some(Segment::Inline(found))) => {
            let from = PlainWrite::INLINE_OFFSET;
            assert_eq!(&bytes[from..from + usize::try_from(len_bytes).unwrap()], found);
        }
        pair => panic!("{pair:?}"),
    }
    assert_eq!(segments.next(), None);
    let words: &[[u8; 8]; 6] = bytes.as_chunks().0.first_chunk().expect("read above");
    let words = words.map(u64::from_ne_bytes);
    assert_eq!(PlainWrite::read(words, ctrl.index ^ 1, ctrl.qpn), None);
    let other = copyrpc_wire::ids::Qpn::from_low_bits(ctrl.qpn.get() ^ 1);
    assert_eq!(PlainWrite::read(words, ctrl.index, other), None);
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
