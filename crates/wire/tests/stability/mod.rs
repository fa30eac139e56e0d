//! Checks over arbitrary bytes, shared by the fuzz targets and by `cargo test`.
//!
//! Whatever a reader accepts, the writer must be able to say again: parse, encode, parse gives the
//! same meaning, and encoding that meaning once more gives the same bytes.

use copyrpc_wire::{
    cqe::{Cqe, Cqe128},
    wqe::{
        OCTOWORD_BYTES, OCTOWORDS_MAX, Octoword, Opcode, RecvWqe, RecvWqeWriter, Segment, SendWqe,
        Transport, WqeWriter,
    },
};

/// The first byte picks the transport, the rest is a send WQE; then the same bytes as receive WQEs.
pub fn check_wqe(bytes: &[u8]) {
    let Some((&choice, wqe)) = bytes.split_first() else { return };
    let transport = [Transport::Rc, Transport::Ud, Transport::Dci][usize::from(choice % 3)];
    check_send_wqe(wqe, transport);
    let stride = &wqe[..wqe.len().min(usize::from(OCTOWORDS_MAX) * OCTOWORD_BYTES)];
    check_recv_wqe(stride, RecvWqe::parse_rq(stride));
    check_recv_wqe(stride, RecvWqe::parse_srq(stride));
}

/// Any bytes as a CQE, and as an entry of 128 bytes if there are as many.
pub fn check_cqe(bytes: &[u8]) {
    if let Some(&bytes) = bytes.first_chunk() {
        let cqe = Cqe::from_bytes(bytes);
        assert_eq!(cqe.to_bytes(), bytes);
        assert_eq!(Cqe::from_words(cqe.to_words()), cqe);
        if let Ok(view) = cqe.parse() {
            let owner = cqe.op_own() & 1;
            let again = view.encode(owner);
            assert_eq!(again.parse(), Ok(view));
            assert_eq!(again.op_own() >> 4, cqe.op_own() >> 4);
            assert_eq!(again.op_own() & 1, owner);
            assert_eq!(again.parse().unwrap().encode(owner), again);
        }
    }
    if let Some((&payload, rest)) = bytes.split_first_chunk()
        && let Some(&cqe) = rest.first_chunk()
    {
        let entry = Cqe128 { payload, cqe: Cqe::from_bytes(cqe) };
        let found = entry.payload_of();
        assert_eq!(found.is_err(), entry.cqe.parse().is_err());
        assert!(found.ok().flatten().is_none_or(|found| payload.starts_with(found)));
    }
}

fn check_send_wqe(bytes: &[u8], transport: Transport) {
    let Ok(parsed) = SendWqe::parse(bytes, transport) else { return };
    let (once, octowords) = encode_send(&parsed);
    let again = SendWqe::parse(once.as_flattened(), transport).expect("own encoding");

    assert!(octowords <= parsed.ctrl.octowords, "an encoding never grows");
    assert_eq!(octowords, again.ctrl.octowords);
    assert_eq!(
        (again.opcode, again.av, again.raddr, again.atomic),
        (parsed.opcode, parsed.av, parsed.raddr, parsed.atomic)
    );
    assert_eq!(
        (again.ctrl.index, again.ctrl.qpn, again.ctrl.flags, again.ctrl.imm),
        (parsed.ctrl.index, parsed.ctrl.qpn, parsed.ctrl.flags, parsed.ctrl.imm)
    );
    assert!(again.segments().eq(parsed.segments()), "segments differ");
    assert_eq!(again.len_bytes(), parsed.len_bytes());
    assert_eq!(encode_send(&again), (once, octowords));
}

fn encode_send(wqe: &SendWqe<'_>) -> ([Octoword; 63], u8) {
    let mut slots = [[0xa5; OCTOWORD_BYTES]; 63];
    let mut writer = WqeWriter::new(&mut slots);
    if let Some(av) = wqe.av {
        writer = writer.av(&av);
    }
    if let Some(raddr) = wqe.raddr {
        writer = writer.raddr(raddr.addr, raddr.rkey);
    }
    if let Some(atomic) = wqe.atomic {
        writer = writer.atomic(atomic.swap_or_add, atomic.compare);
    }
    for segment in wqe.segments() {
        writer = match segment {
            Segment::Sge(sge) => writer.data(sge.addr, sge.lkey, sge.len_bytes),
            Segment::Inline(payload) => writer.inline(payload),
        };
    }
    let ctrl = wqe.ctrl;
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
