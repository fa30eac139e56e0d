//! Whatever the CQE reader accepts, the writer can say again.

use copyrpc_wire::cqe::{Cqe, Cqe128, CqeView, PlainArrival, ResponderKind, Scatter, read_source};

/// Any bytes as a CQE, and as an entry of 128 bytes if there are as many.
pub(crate) fn check(bytes: &[u8]) {
    if let Some(&bytes) = bytes.first_chunk() {
        let cqe = Cqe::from_bytes(bytes);
        assert_eq!(cqe.to_bytes(), bytes);
        assert_eq!(Cqe::from_words(cqe.to_words()), cqe);
        check_plain_arrival(&cqe);
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

/// The long reader agrees on each entry that the short one accepts.
fn check_plain_arrival(cqe: &Cqe) {
    let words = cqe.to_words();
    if !PlainArrival::ends_in(words[7]) {
        return;
    }
    let found = PlainArrival::read(words[4], words[5], words[7]);
    let Ok(CqeView::Responder(done)) = cqe.parse() else { panic!("{cqe:?}") };
    assert_eq!(done.scatter, Scatter::Memory);
    assert_eq!(found.kind, done.kind);
    let is_write = matches!(found.kind, ResponderKind::WriteImm(_));
    assert_eq!(PlainArrival::write_ends_in(words[7]), is_write);
    assert_eq!(Some(read_source(words[2], words[3])), done.source);
    let long = (done.qpn, done.wqe_counter, done.byte_cnt, done.solicited);
    assert_eq!((found.qpn, found.wqe_counter, found.byte_cnt, found.solicited), long);
}
