//! CQE bytes computed by hand from `struct mlx5_cqe64` and `struct mlx5_err_cqe` of rdma-core
//! `providers/mlx5/mlx5dv.h`: written and compared, then read back.

use copyrpc_wire::{
    cqe::{
        Cqe, Cqe128, CqeError, CqeView, ErrorCqe, OP_OWN_INVALID, RequesterCqe, ResponderCqe,
        ResponderKind, Scatter, Source, Syndrome, is_written, op_own_of_last_word, owner_bit,
    },
    ids::{Lid, Qpn, UserIndex},
    wqe::Opcode,
};
use hex_literal::hex;

const TIMESTAMP: u64 = 0x0102_0304_0506_0708;

fn qpn(raw: u32) -> Qpn {
    Qpn::new(raw).unwrap()
}

fn index(raw: u32) -> UserIndex {
    UserIndex::new(raw).unwrap()
}

#[track_caller]
fn assert_both_ways(view: CqeView<'_>, owner: u8, golden: [u8; 64]) {
    assert_eq!(view.encode(owner).to_bytes(), golden);
    assert_eq!(Cqe::from_bytes(golden).parse(), Ok(view));
}

fn send_done() -> RequesterCqe<'static> {
    RequesterCqe {
        opcode: Opcode::RdmaWriteImm,
        qpn: qpn(0x12_3456),
        wqe_counter: 0xbeef,
        user_index: index(0xab_cdef),
        byte_cnt: 0,
        scatter: Scatter::Memory,
        timestamp: TIMESTAMP,
    }
}

fn received() -> ResponderCqe<'static> {
    ResponderCqe {
        kind: ResponderKind::SendImm(0xdead_beef),
        qpn: qpn(0x12_3456),
        wqe_counter: 0x0007,
        user_index: index(0xab_cdef),
        byte_cnt: 0x0001_0203,
        scatter: Scatter::Memory,
        source: Some(Source::default()),
        solicited: false,
        timestamp: TIMESTAMP,
    }
}

/// `srqn_uidx` at 32, `timestamp` at 48, `sop_drop_qpn` at 56, `wqe_counter` at 60; opcode 0 (REQ)
#[test]
fn requester() {
    assert_both_ways(
        CqeView::Requester(send_done()),
        0,
        hex!(
            "0000000000000000 0000000000000000 0000000000000000 0000000000000000"
            "00abcdef 00000000 00000000 00000000"
            "0102030405060708 09 123456 beef 00 00"
        ),
    );
}

/// An atomic's old value comes back in the CQE: format 1, `MLX5_INLINE_SCATTER_32` (0x4).
#[test]
fn requester_with_a_result_of_8_bytes() {
    let done = RequesterCqe {
        opcode: Opcode::AtomicFa,
        byte_cnt: 8,
        scatter: Scatter::InCqe(&hex!("1122334455667788")),
        ..send_done()
    };
    assert_both_ways(
        CqeView::Requester(done),
        1,
        hex!(
            "1122334455667788 0000000000000000 0000000000000000 0000000000000000"
            "00abcdef 00000000 00000000 00000008"
            "0102030405060708 12 123456 beef 00 05"
        ),
    );
}

/// `MLX5_CQE_RESP_SEND_IMM` (3): `imm_inval_pkey` at 36, `byte_cnt` at 44
#[test]
fn receive_of_send_imm() {
    assert_both_ways(
        CqeView::Responder(received()),
        1,
        hex!(
            "0000000000000000 0000000000000000 0000000000000000 0000000000000000"
            "00abcdef deadbeef 00000000 00010203"
            "0102030405060708 00 123456 0007 00 31"
        ),
    );
}

/// UD: `ml_path` at 17, `slid` at 22, `flags_rqpn` at 24 = GRH 1 << 28 | SL 5 << 24 | QPN
#[test]
fn receive_of_send_names_its_source() {
    let source = Source {
        qpn: qpn(0x0a_0b0c),
        service_level: 5,
        grh: 1,
        slid: Lid::new(0x4546),
        ml_path: 0x83,
    };
    let done = ResponderCqe {
        kind: ResponderKind::Send,
        source: Some(source),
        solicited: true,
        ..received()
    };
    assert_both_ways(
        CqeView::Responder(done),
        0,
        hex!(
            "0000000000000000 0000000000000000 00 83 00000000 4546 150a0b0c 00000000"
            "00abcdef 00000000 00000000 00010203"
            "0102030405060708 00 123456 0007 00 22"
        ),
    );
}

/// `MLX5_CQE_RESP_WR_IMM` (1)
#[test]
fn receive_of_write_imm() {
    let done = ResponderCqe { kind: ResponderKind::WriteImm(0x0c0f_fee0), ..received() };
    assert_both_ways(
        CqeView::Responder(done),
        0,
        hex!(
            "0000000000000000 0000000000000000 0000000000000000 0000000000000000"
            "00abcdef 0c0ffee0 00000000 00010203"
            "0102030405060708 00 123456 0007 00 10"
        ),
    );
}

/// `MLX5_INLINE_SCATTER_32`: the message starts at byte 0 and hides the source.
/// Whatever the format says: the bytes of a WRITE go where its sender wants them.
#[test]
fn bytes_of_a_write_are_not_in_its_entry() {
    let arrival = ResponderCqe { kind: ResponderKind::WriteImm(1), ..received() };
    for format in [1, 2] {
        let mut bytes = CqeView::Responder(arrival).encode(0).to_bytes();
        bytes[63] |= format << 2;
        assert_eq!(Cqe::from_bytes(bytes).parse(), Ok(CqeView::Responder(arrival)));
    }
}

#[test]
fn receive_into_the_cqe() {
    let done = ResponderCqe {
        kind: ResponderKind::Send,
        byte_cnt: 32,
        scatter: Scatter::InCqe(&hex!(
            "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
        )),
        source: None,
        ..received()
    };
    assert_both_ways(
        CqeView::Responder(done),
        0,
        hex!(
            "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
            "00abcdef 00000000 00000000 00000020"
            "0102030405060708 00 123456 0007 00 24"
        ),
    );
}

/// `MLX5_INLINE_SCATTER_64`: the message is in the 64 bytes before.
#[test]
fn receive_into_the_first_half_of_128_bytes() {
    let done = ResponderCqe {
        kind: ResponderKind::Send,
        byte_cnt: 3,
        scatter: Scatter::Preceding64,
        ..received()
    };
    let golden = hex!(
        "0000000000000000 0000000000000000 0000000000000000 0000000000000000"
        "00abcdef 00000000 00000000 00000003"
        "0102030405060708 00 123456 0007 00 28"
    );
    assert_both_ways(CqeView::Responder(done), 0, golden);
    let mut payload = [0xa5; 64];
    payload[..3].copy_from_slice(b"hey");
    let entry = Cqe128 { payload, cqe: Cqe::from_bytes(golden) };
    assert_eq!(entry.payload_of(), Ok(Some(&b"hey"[..])));
    let plain = CqeView::Responder(received()).encode(0);
    assert_eq!(Cqe128 { payload, cqe: plain }.payload_of(), Ok(None));
}

/// `struct mlx5_err_cqe`: `vendor_err_synd` at 54, `syndrome` at 55; opcode 13 (REQ_ERR)
#[test]
fn requester_error() {
    let error = ErrorCqe {
        is_requester: true,
        qpn: qpn(0x12_3456),
        wqe_counter: 0x0102,
        user_index: index(0xab_cdef),
        send_opcode: 0x08,
        syndrome: Syndrome::RemoteAccess,
        vendor_syndrome: 0x88,
    };
    assert_both_ways(
        CqeView::Error(error),
        1,
        hex!(
            "0000000000000000 0000000000000000 0000000000000000 0000000000000000"
            "00abcdef 00000000 00000000 00000000"
            "000000000000 88 13 08 123456 0102 00 d1"
        ),
    );
}

/// Opcode 14 (RESP_ERR), `MLX5_CQE_SYNDROME_WR_FLUSH_ERR` (5)
#[test]
fn responder_error() {
    let error = ErrorCqe {
        is_requester: false,
        qpn: qpn(0x12_3456),
        wqe_counter: 0x0102,
        user_index: index(0),
        send_opcode: 0,
        syndrome: Syndrome::Flushed,
        vendor_syndrome: 0,
    };
    assert_both_ways(
        CqeView::Error(error),
        0,
        hex!(
            "0000000000000000 0000000000000000 0000000000000000 0000000000000000"
            "00000000 00000000 00000000 00000000"
            "000000000000 00 05 00 123456 0102 00 e0"
        ),
    );
}

/// `MLX5_CQE_SYNDROME_*`
#[test]
fn syndromes_have_the_manuals_codes() {
    let codes: Vec<u8> = Syndrome::NAMED.iter().map(|syndrome| syndrome.code()).collect();
    assert_eq!(codes, hex!("01 02 04 05 06 10 11 12 13 14 15 16 22"));
    for code in 0..=u8::MAX {
        let syndrome = Syndrome::from_code(code);
        assert_eq!(syndrome.code(), code);
        assert_eq!(matches!(syndrome, Syndrome::Other(_)), !codes.contains(&code));
    }
    assert_eq!(Syndrome::Other(0x7f).to_string(), "unknown syndrome 0x7f");
}

#[test]
fn entries_that_make_no_sense_have_typed_errors() {
    let with = |byte_cnt: u8, send_opcode: u8, op_own: u8| {
        let mut bytes = [0; 64];
        (bytes[47], bytes[56], bytes[63]) = (byte_cnt, send_opcode, op_own);
        Cqe::from_bytes(bytes).parse().map(|_| ()).unwrap_err()
    };
    assert_eq!(with(0, 0, OP_OWN_INVALID), CqeError::NotWritten);
    assert_eq!(with(0, 0, 0x2c), CqeError::Compressed, "format 3 on a receive");
    assert_eq!(with(0, 8, 0x0c), CqeError::Compressed, "format 3 on a send");
    for opcode in [4, 5, 6, 7, 8, 9, 10, 11, 12] {
        assert_eq!(with(0, 0, opcode << 4), CqeError::UnsupportedOpcode(opcode));
    }
    assert_eq!(with(0, 0x25, 0x00), CqeError::UnknownSendOpcode(0x25));
    let too_long = |byte_cnt, room_bytes| CqeError::InlineTooLong { byte_cnt, room_bytes };
    assert_eq!(with(33, 0, 0x24), too_long(33, 32));
    assert_eq!(with(65, 0, 0x28), too_long(65, 64));
    assert_eq!(with(65, 0x10, 0x08), too_long(65, 64));
}

#[test]
fn fresh_queue_holds_nothing() {
    assert_eq!(Cqe::INVALID.parse(), Err(CqeError::NotWritten));
    for consumer_index in [0, 1, 7, 8, 15, 16] {
        assert!(!is_written(Cqe::INVALID.op_own(), consumer_index, 3));
    }
}

/// `mlx5_get_sw_cqe`: an entry is new if its owner bit is `!!(n & cqe_cnt)`.
#[test]
fn owner_bit_flips_on_each_lap() {
    for n in 0..64 {
        assert_eq!(owner_bit(n, 3), u8::from(n & 8 != 0), "entry {n}");
        let written = CqeView::Requester(send_done()).encode(owner_bit(n, 3)).op_own();
        assert!(is_written(written, n, 3), "entry {n}");
        assert!(!is_written(written, n + 8, 3), "entry {n} a lap later");
    }
    assert_eq!(owner_bit(u32::MAX, 24), 1);
    assert_eq!((owner_bit(u32::MAX, 31), owner_bit(u32::MAX, 32)), (1, 0));
}

/// The NIC stores words 0 to 6, then publishes word 7.
#[test]
fn last_word_alone_makes_the_entry_valid() {
    let cqe = CqeView::Responder(received()).encode(1);
    let mut words = Cqe::INVALID.to_words();
    words[..7].copy_from_slice(&cqe.to_words()[..7]);
    assert_eq!(Cqe::from_words(words).parse(), Err(CqeError::NotWritten));
    words[7] = cqe.to_words()[7];
    assert_eq!(Cqe::from_words(words), cqe);
    assert_eq!(op_own_of_last_word(words[7]), 0x31);
    assert_eq!(words[7].to_ne_bytes(), hex!("00 123456 0007 00 31"));
}

#[test]
#[should_panic(expected = "33 B in a CQE")]
fn payload_that_does_not_fit_is_a_bug() {
    let done = ResponderCqe { byte_cnt: 33, scatter: Scatter::InCqe(&[0; 33]), ..received() };
    let _ = CqeView::Responder(done).encode(0);
}

#[test]
#[should_panic(expected = "WRITE payload in a CQE")]
fn write_imm_scatters_nothing() {
    let kind = ResponderKind::WriteImm(0);
    let done = ResponderCqe { kind, byte_cnt: 1, scatter: Scatter::InCqe(&[0]), ..received() };
    let _ = CqeView::Responder(done).encode(0);
}
