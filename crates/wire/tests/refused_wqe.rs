//! WQEs that readers refuse, each with its error, and WQEs that writers refuse to build.

use copyrpc_wire::{
    ids::{Lkey, Qpn, Rkey},
    wqe::{
        CtrlFlags, END_OF_LIST, Octoword, Opcode, RecvWqe, RecvWqeError, RecvWqeWriter, SendWqe,
        Transport, WqeError, WqeWriter, peek_ctrl,
    },
};
use hex_literal::hex;

/// `mlx5dv_set_data_seg(seg, 64, 0x01020304, 0x7fff00001000)`
const SGE_BYTES: [u8; 16] = hex!("00000040 01020304 00007fff00001000");
/// `struct mlx5_wqe_raddr_seg`
const RADDR_BYTES: [u8; 16] = hex!("1122334455667788 99aabbcc 00000000");

fn qpn(raw: u32) -> Qpn {
    Qpn::new(raw).unwrap()
}

#[test]
fn malformed_receive_wqes_have_typed_errors() {
    let inline = hex!("00000040 01020304 00007fff00001000" "80000010 01020304 00007fff00001000");
    assert_eq!(RecvWqe::parse_rq(&inline), Err(RecvWqeError::Inline { entry: 1 }));
    assert_eq!(RecvWqe::parse_rq(&inline[..31]), Err(RecvWqeError::Stride { len_bytes: 31 }));
    assert_eq!(RecvWqe::parse_srq(&inline[..15]), Err(RecvWqeError::NoNextSegment));
    assert_eq!(RecvWqe::parse_rq(&[]).map(|wqe| wqe.capacity_bytes()), Ok(0));
}

/// A control segment with `code` and a length of `octowords`, and what follows it.
fn raw_wqe(code: u8, octowords: u8, rest: &[[u8; 16]]) -> Vec<u8> {
    let mut ctrl = hex!("00 0000 00  000009 00  00 0000 00  00000000");
    (ctrl[3], ctrl[7]) = (code, octowords);
    [&[ctrl], rest].concat().as_flattened().to_vec()
}

#[test]
fn malformed_lengths_have_typed_errors() {
    let parse = |bytes: &[u8], transport| SendWqe::parse(bytes, transport).unwrap_err();
    let whole = raw_wqe(0x0a, 2, &[SGE_BYTES]);
    for have_bytes in 0..32 {
        let need_bytes = if have_bytes < 16 { 16 } else { 32 };
        assert_eq!(
            parse(&whole[..have_bytes], Transport::Rc),
            WqeError::Truncated { have_bytes, need_bytes }
        );
    }
    assert_eq!(parse(&raw_wqe(0x0a, 0, &[]), Transport::Rc), WqeError::ZeroLength);
    assert_eq!(
        parse(&raw_wqe(0x08, 1, &[]), Transport::Rc),
        WqeError::TooShort { opcode: Opcode::RdmaWrite, octowords: 1 }
    );
    assert_eq!(
        parse(&raw_wqe(0x12, 2, &[RADDR_BYTES]), Transport::Rc),
        WqeError::TooShort { opcode: Opcode::AtomicFa, octowords: 2 }
    );
    let extended = hex!("11223344 00000000  80 000123  03 00 0045");
    assert_eq!(
        parse(&raw_wqe(0x0a, 3, &[extended, [0; 16]]), Transport::Ud),
        WqeError::TooShort { opcode: Opcode::Send, octowords: 3 }
    );
}

#[test]
fn unknown_operations_have_typed_errors() {
    let parse = |bytes: &[u8], transport| SendWqe::parse(bytes, transport).unwrap_err();
    assert_eq!(
        parse(&raw_wqe(0x01, 1, &[]), Transport::Rc),
        WqeError::UnsupportedOpcode(0x01),
        "SEND_INVAL"
    );
    assert_eq!(parse(&raw_wqe(0x7f, 1, &[]), Transport::Rc), WqeError::UnknownOpcode(0x7f));
    let opcode = Opcode::RdmaRead;
    let transport = Transport::Ud;
    assert_eq!(
        parse(&raw_wqe(0x10, 1, &[]), transport),
        WqeError::WrongTransport { opcode, transport }
    );
    let mut masked = raw_wqe(0x11, 1, &[]);
    masked[0] = 8;
    assert_eq!(
        parse(&masked, Transport::Rc),
        WqeError::UnsupportedOpmod { opcode: Opcode::AtomicCs, opmod: 8 }
    );
}

#[test]
fn malformed_payload_has_typed_errors() {
    let parse = |bytes: &[u8]| SendWqe::parse(bytes, Transport::Rc).unwrap_err();
    let inline = |len: u32| -> [u8; 16] {
        let mut octoword = [0; 16];
        octoword[..4].copy_from_slice(&(1 << 31 | len).to_be_bytes());
        octoword
    };
    for len_bytes in [13, 1023, 1024, 0x7fff_ffff] {
        assert_eq!(
            parse(&raw_wqe(0x0a, 2, &[inline(len_bytes)])),
            WqeError::InlineTooLong { len_bytes, room_bytes: 12 }
        );
    }
    assert_eq!(
        parse(&raw_wqe(0x10, 3, &[RADDR_BYTES, inline(8)])),
        WqeError::InlineNotAllowed(Opcode::RdmaRead)
    );
    let no_result = WqeError::AtomicResult(Opcode::AtomicCs);
    let eight = hex!("00000008 01020304 00007fff00001000");
    assert_eq!(parse(&raw_wqe(0x11, 3, &[RADDR_BYTES, [0; 16]])), no_result);
    assert_eq!(parse(&raw_wqe(0x11, 4, &[RADDR_BYTES, [0; 16], SGE_BYTES])), no_result);
    assert_eq!(parse(&raw_wqe(0x11, 5, &[RADDR_BYTES, [0; 16], eight, eight])), no_result);
}

#[test]
fn malformed_wqe_still_names_its_queue() {
    let bytes = raw_wqe(0x7f, 0, &[]);
    let ctrl = peek_ctrl(bytes.first_chunk().unwrap());
    assert_eq!((ctrl.qpn, ctrl.code, ctrl.octowords), (qpn(9), 0x7f, 0));
}

/// Bits 6 and 7 of the length byte are reserved.
#[test]
fn reserved_length_bits_are_ignored() {
    assert!(SendWqe::parse(&raw_wqe(0x0a, 0xc2, &[SGE_BYTES]), Transport::Rc).is_ok());
}

mod misuse {
    use super::*;

    fn writer() -> WqeWriter<[Octoword; 64]> {
        WqeWriter::new([[0xa5; 16]; 64])
    }

    fn finish(wqe: WqeWriter<[Octoword; 64]>, opcode: Opcode) -> u8 {
        wqe.finish(opcode, 0, qpn(9), CtrlFlags::NONE, 0)
    }

    #[test]
    #[should_panic(expected = "RdmaWrite: remote address")]
    fn write_without_a_target() {
        finish(writer().inline(b"x"), Opcode::RdmaWrite);
    }

    #[test]
    #[should_panic(expected = "Send: remote address")]
    fn send_with_a_target() {
        finish(writer().raddr(0, Rkey::new(0)), Opcode::Send);
    }

    #[test]
    #[should_panic(expected = "RdmaRead: inline payload")]
    fn read_into_the_wqe() {
        finish(writer().raddr(0, Rkey::new(0)).inline(b"x"), Opcode::RdmaRead);
    }

    #[test]
    #[should_panic(expected = "nowhere to put the old value")]
    fn atomic_without_a_result() {
        finish(writer().raddr(0, Rkey::new(0)).atomic(0, 0), Opcode::AtomicFa);
    }

    #[test]
    #[should_panic(expected = "out of order")]
    fn target_after_data() {
        let _ = writer().data(0, Lkey::new(0), 1).raddr(0, Rkey::new(0));
    }

    #[test]
    #[should_panic(expected = "longer than 63 octowords")]
    fn too_many_gather_entries() {
        let _ = (0..63).fold(writer(), |wqe, _| wqe.data(0, Lkey::new(0), 1));
    }

    #[test]
    #[should_panic(expected = "989 B of inline payload")]
    fn too_much_inline_payload() {
        let _ = writer().inline(&[0; 989]);
    }

    #[test]
    #[should_panic(expected = "longer than 2 octowords")]
    fn receive_list_longer_than_its_stride() {
        let wqe = RecvWqeWriter::srq([[0xa5; 16]; 4], 2, 0);
        wqe.data(0, Lkey::new(0), 1).data(0, Lkey::new(0), 1).finish();
    }

    #[test]
    #[should_panic(expected = "a list's end in its middle")]
    fn terminator_as_an_entry() {
        let _ = RecvWqeWriter::rq([[0xa5; 16]; 4], 4).data(0, END_OF_LIST, 1);
    }
}
