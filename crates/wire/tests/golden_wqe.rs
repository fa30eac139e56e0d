//! WQE bytes computed by hand from the setters of rdma-core `providers/mlx5/mlx5dv.h`.
//!
//! Each test writes into poisoned memory, compares with the literal, and reads the literal back.

use copyrpc_wire::{
    ids::{DcKey, Gid, Lid, Lkey, QKey, Qpn, Rkey},
    wqe::{
        Atomic, Av, AvExtension, AvKey, CtrlFlags, ENTRY_BYTES_MAX, OCTOWORD_BYTES, Octoword,
        Opcode, Raddr, RecvWqe, RecvWqeWriter, Segment, SendWqe, Sge, Transport, WqeSink,
        WqeWriter, inline_octowords, wqebbs,
    },
};
use hex_literal::hex;

const POISON: Octoword = [0xa5; OCTOWORD_BYTES];
const SLOTS: usize = 12;
const RADDR: Raddr = Raddr { addr: 0x1122_3344_5566_7788, rkey: Rkey::new(0x99aa_bbcc) };
const SGE: Sge = Sge { addr: 0x7fff_0000_1000, lkey: Lkey::new(0x0102_0304), len_bytes: 64 };
/// `mlx5dv_set_data_seg(seg, 64, 0x01020304, 0x7fff00001000)`
const SGE_BYTES: [u8; 16] = hex!("00000040 01020304 00007fff00001000");

fn qpn(raw: u32) -> Qpn {
    Qpn::new(raw).unwrap()
}

/// Runs `build` on poisoned memory; the result must be `golden`, with nothing else touched.
fn assert_writes<const N: usize>(
    golden: [u8; N],
    build: impl FnOnce(WqeWriter<&mut [Octoword; SLOTS]>) -> u8,
) {
    let mut slots = [POISON; SLOTS];
    let octowords = usize::from(build(WqeWriter::new(&mut slots)));
    assert_eq!(slots.as_flattened()[..N], golden);
    assert_eq!(octowords * OCTOWORD_BYTES, N);
    assert!(slots[octowords..].iter().all(|slot| *slot == POISON), "nothing past the WQE");
}

fn parse<const N: usize>(golden: &[u8; N], transport: Transport) -> SendWqe<'_> {
    SendWqe::parse(golden, transport).expect("golden bytes are well-formed")
}

fn segments<'a>(wqe: &SendWqe<'a>) -> Vec<Segment<'a>> {
    wqe.segments().collect()
}

/// `mlx5dv_set_ctrl_seg(seg, 0x1234, RDMA_WRITE_IMM, 0, 0xabcdef, CQ_UPDATE, 3, 0, imm)`
#[test]
fn rdma_write_imm_on_rc() {
    let golden: [u8; 48] = hex!(
        "00 1234 09  abcdef 03  00 0000 08  deadbeef"
        "1122334455667788 99aabbcc 00000000"
        "00000040 01020304 00007fff00001000"
    );
    assert_writes(golden, |wqe| {
        wqe.raddr(RADDR.addr, RADDR.rkey).data(SGE.addr, SGE.lkey, SGE.len_bytes).finish(
            Opcode::RdmaWriteImm,
            0x1234,
            qpn(0xab_cdef),
            CtrlFlags::CQ_UPDATE,
            0xdead_beef,
        )
    });
    let wqe = parse(&golden, Transport::Rc);
    assert_eq!(wqe.opcode, Opcode::RdmaWriteImm);
    assert_eq!((wqe.ctrl().opmod, wqe.ctrl().index, wqe.ctrl().code), (0, 0x1234, 9));
    assert_eq!((wqe.ctrl().qpn, wqe.ctrl().octowords), (qpn(0xab_cdef), 3));
    assert_eq!((wqe.ctrl().flags, wqe.ctrl().imm), (CtrlFlags::CQ_UPDATE, 0xdead_beef));
    assert_eq!((wqe.av(), wqe.raddr(), wqe.atomic()), (None, Some(RADDR), None));
    assert_eq!(segments(&wqe), [Segment::Sge(SGE)]);
    assert_eq!(wqe.len_bytes(), 64);
}

/// `MLX5_OPCODE_RDMA_WRITE`, no completion, two gather entries
#[test]
fn rdma_write_on_rc_gathers_in_order() {
    let golden: [u8; 64] = hex!(
        "00 ffff 08  000001 04  00 0000 00  00000000"
        "1122334455667788 99aabbcc 00000000"
        "00000040 01020304 00007fff00001000"
        "00000001 00000005 0000000000000006"
    );
    assert_writes(golden, |wqe| {
        wqe.raddr(RADDR.addr, RADDR.rkey)
            .data(SGE.addr, SGE.lkey, SGE.len_bytes)
            .data(6, Lkey::new(5), 1)
            .finish(Opcode::RdmaWrite, 0xffff, qpn(1), CtrlFlags::NONE, 0)
    });
    let second = Sge { addr: 6, lkey: Lkey::new(5), len_bytes: 1 };
    let wqe = parse(&golden, Transport::Rc);
    assert_eq!(segments(&wqe), [Segment::Sge(SGE), Segment::Sge(second)]);
    assert_eq!(wqe.len_bytes(), 65);
}

/// `fm_ce_se` = FENCE (4 << 5) | SMALL_FENCE (1 << 5) | CQ_UPDATE (2 << 2) | SOLICITED (1 << 1)
#[test]
fn send_on_rc_with_every_flag() {
    let golden: [u8; 32] = hex!(
        "00 0002 0a  000203 02  00 0000 aa  00000000"
        "00000040 01020304 00007fff00001000"
    );
    let flags =
        CtrlFlags::FENCE | CtrlFlags::SMALL_FENCE | CtrlFlags::CQ_UPDATE | CtrlFlags::SOLICITED;
    assert_writes(golden, |wqe| {
        wqe.data(SGE.addr, SGE.lkey, SGE.len_bytes).finish(Opcode::Send, 2, qpn(0x203), flags, 0)
    });
    assert_eq!(parse(&golden, Transport::Rc).ctrl().flags, flags);
}

/// `struct mlx5_wqe_inl_data_seg`: `MLX5_INLINE_SEG | length`, then the bytes, padded with zeros
#[test]
fn inline_payload_follows_its_header_and_is_padded() {
    let golden: [u8; 48] = hex!(
        "00 0000 0b  000001 03  00 0000 00  01020304"
        "8000000d 68656c6c 6f2c2077 6f726c64"
        "21000000 00000000 00000000 00000000"
    );
    assert_writes(golden, |wqe| {
        wqe.inline(b"hello, world!").finish(
            Opcode::SendImm,
            0,
            qpn(1),
            CtrlFlags::NONE,
            0x0102_0304,
        )
    });
    assert_writes(golden, |wqe| {
        wqe.inline_parts(&[b"hel", b"", b"lo, world", b"!"]).finish(
            Opcode::SendImm,
            0,
            qpn(1),
            CtrlFlags::NONE,
            0x0102_0304,
        )
    });
    let wqe = parse(&golden, Transport::Rc);
    assert_eq!(segments(&wqe), [Segment::Inline(b"hello, world!")]);
    assert_eq!(wqe.ctrl().imm, 0x0102_0304);
}

/// 12 bytes fill the octoword that the header starts; whole octowords of a part are not staged.
#[test]
fn inline_rdma_write_then_gather_entry() {
    let golden: [u8; 96] = hex!(
        "00 0000 08  000001 06  00 0000 08  00000000"
        "1122334455667788 99aabbcc 00000000"
        "8000001c 00010203 04050607 08090a0b"
        "0c0d0e0f 10111213 14151617 18191a1b"
        "8000000c 00010203 04050607 08090a0b"
        "00000040 01020304 00007fff00001000"
    );
    let bytes: [u8; 28] = std::array::from_fn(|i| u8::try_from(i).unwrap());
    assert_writes(golden, |wqe| {
        wqe.raddr(RADDR.addr, RADDR.rkey)
            .inline(&bytes)
            .inline(&bytes[..12])
            .data(SGE.addr, SGE.lkey, SGE.len_bytes)
            .finish(Opcode::RdmaWrite, 0, qpn(1), CtrlFlags::CQ_UPDATE, 0)
    });
    assert_eq!(
        segments(&parse(&golden, Transport::Rc)),
        [Segment::Inline(&bytes), Segment::Inline(&bytes[..12]), Segment::Sge(SGE)]
    );
}

/// `MLX5_OPCODE_RDMA_READ`
#[test]
fn rdma_read_on_rc() {
    let golden: [u8; 48] = hex!(
        "00 0010 10  000009 03  00 0000 08  00000000"
        "1122334455667788 99aabbcc 00000000"
        "00000040 01020304 00007fff00001000"
    );
    assert_writes(golden, |wqe| {
        wqe.raddr(RADDR.addr, RADDR.rkey).data(SGE.addr, SGE.lkey, SGE.len_bytes).finish(
            Opcode::RdmaRead,
            0x10,
            qpn(9),
            CtrlFlags::CQ_UPDATE,
            0,
        )
    });
    assert_eq!(parse(&golden, Transport::Rc).raddr(), Some(RADDR));
}

/// `struct mlx5_wqe_atomic_seg`: `swap_add`, `compare`
#[test]
fn compare_and_swap_on_rc() {
    let golden: [u8; 64] = hex!(
        "00 0000 11  000009 04  00 0000 08  00000000"
        "1122334455667788 99aabbcc 00000000"
        "0a0b0c0d0e0f1011 0102030405060708"
        "00000008 01020304 00007fff00001000"
    );
    let operands = Atomic { swap_or_add: 0x0a0b_0c0d_0e0f_1011, compare: 0x0102_0304_0506_0708 };
    assert_writes(golden, |wqe| {
        wqe.raddr(RADDR.addr, RADDR.rkey)
            .atomic(operands.swap_or_add, operands.compare)
            .data(SGE.addr, SGE.lkey, 8)
            .finish(Opcode::AtomicCs, 0, qpn(9), CtrlFlags::CQ_UPDATE, 0)
    });
    let wqe = parse(&golden, Transport::Rc);
    assert_eq!((wqe.raddr(), wqe.atomic()), (Some(RADDR), Some(operands)));
    assert_eq!(wqe.len_bytes(), 8);
}

/// `MLX5_OPCODE_ATOMIC_FA` leaves `compare` zero.
#[test]
fn fetch_and_add_on_rc() {
    let golden: [u8; 64] = hex!(
        "00 0000 12  000009 04  00 0000 08  00000000"
        "1122334455667788 99aabbcc 00000000"
        "ffffffffffffffff 0000000000000000"
        "00000008 01020304 00007fff00001000"
    );
    assert_writes(golden, |wqe| {
        wqe.raddr(RADDR.addr, RADDR.rkey).atomic(u64::MAX, 0).data(SGE.addr, SGE.lkey, 8).finish(
            Opcode::AtomicFa,
            0,
            qpn(9),
            CtrlFlags::CQ_UPDATE,
            0,
        )
    });
    let operands = Atomic { swap_or_add: u64::MAX, compare: 0 };
    assert_eq!(parse(&golden, Transport::Rc).atomic(), Some(operands));
}

/// `MLX5_OPCODE_NOP`
#[test]
fn nop_is_a_control_segment_alone() {
    let golden: [u8; 16] = hex!("00 00fe 00  000009 01  00 0000 08  00000000");
    assert_writes(golden, |wqe| wqe.finish(Opcode::Nop, 0xfe, qpn(9), CtrlFlags::CQ_UPDATE, 0));
    for transport in [Transport::Rc, Transport::Ud, Transport::Dci] {
        let wqe = parse(&golden, transport);
        assert_eq!((wqe.opcode, wqe.len_bytes()), (Opcode::Nop, 0));
    }
}

/// A ring's end is filled with one NOP that spans the octowords left there.
#[test]
fn longer_nop_is_read_as_padding() {
    let mut bytes = [0xa5; 64];
    bytes[..16].copy_from_slice(&hex!("00 00fe 00  000009 04  00 0000 00  00000000"));
    assert_eq!(segments(&parse(&bytes, Transport::Rc)), []);
}

/// `mlx5dv_set_dgram_seg(seg, 0x11223344 << 32, 0x000123, 1, 0x03, 0, 0x0045, 0.., 0, 0, 0, 0..)`
#[test]
fn send_on_ud_to_a_lid() {
    let golden: [u8; 80] = hex!(
        "00 0000 0a  000009 05  00 0000 08  00000000"
        "11223344 00000000  80 000123  03 00 0045"
        "00000000 000000000000 00 00 00000000"
        "00000000000000000000000000000000"
        "00000040 01020304 00007fff00001000"
    );
    let key = AvKey::Queue(QKey::new(0x1122_3344));
    let av = Av::infiniband(key, qpn(0x123), Lid::new(0x45), 3);
    assert_writes(golden, |wqe| {
        wqe.av(&av).data(SGE.addr, SGE.lkey, SGE.len_bytes).finish(
            Opcode::Send,
            0,
            qpn(9),
            CtrlFlags::CQ_UPDATE,
            0,
        )
    });
    assert_eq!(parse(&golden, Transport::Ud).av(), Some(av));
}

/// `rmac` at 20, `tclass` at 26, `hop_limit` at 27, `grh_gid_fl` at 28, `rgid` at 32 of the vector
#[test]
fn send_imm_on_ud_over_roce() {
    let golden: [u8; 64] = hex!(
        "00 0000 0b  000009 04  00 0000 00  00c0ffee"
        "11223344 00000000  80 000123  00 00 c001"
        "00000000 0a1b2c3d4e5f 00 40 00500000"
        "00000000000000000000ffff0a000001"
    );
    let rgid = Gid::new(hex!("00000000000000000000ffff0a000001"));
    let key = AvKey::Queue(QKey::new(0x1122_3344));
    let av = Av::roce(key, qpn(0x123), hex!("0a1b2c3d4e5f"), rgid, 5, 64, 0xc001);
    assert_writes(golden, |wqe| {
        wqe.av(&av).finish(Opcode::SendImm, 0, qpn(9), CtrlFlags::NONE, 0x00c0_ffee)
    });
    let wqe = parse(&golden, Transport::Ud);
    assert_eq!(wqe.av(), Some(av));
    let extension = wqe.av().unwrap().extension.unwrap();
    assert!(!extension.has_grh(), "the bit is reserved on RoCE");
    assert_eq!(extension.source_gid_index(), 5);
}

/// `key.dc_key` fills all 64 bits; `grh_gid_fl` = 1 << 30 | GID index 0xab << 20
#[test]
fn rdma_write_on_dci_across_subnets() {
    let golden: [u8; 96] = hex!(
        "00 0000 08  000009 06  00 0000 08  00000000"
        "0102030405060708  80 abcdef  00 00 0045"
        "00000000 000000000000 00 ff 4ab00000"
        "fe800000000000000000000000000001"
        "1122334455667788 99aabbcc 00000000"
        "00000040 01020304 00007fff00001000"
    );
    let rgid = Gid::new(hex!("fe800000000000000000000000000001"));
    let key = AvKey::Dc(DcKey::new(0x0102_0304_0506_0708));
    let av = Av::infiniband(key, qpn(0xab_cdef), Lid::new(0x45), 0).with_grh(rgid, 0xab, 255);
    assert_writes(golden, |wqe| {
        wqe.av(&av).raddr(RADDR.addr, RADDR.rkey).data(SGE.addr, SGE.lkey, SGE.len_bytes).finish(
            Opcode::RdmaWrite,
            0,
            qpn(9),
            CtrlFlags::CQ_UPDATE,
            0,
        )
    });
    let wqe = parse(&golden, Transport::Dci);
    assert_eq!((wqe.av(), wqe.raddr()), (Some(av), Some(RADDR)));
    let extension = wqe.av().unwrap().extension.unwrap();
    assert!(extension.has_grh());
    assert_eq!(extension.source_gid_index(), 0xab);
}

/// Without `MLX5_EXTENDED_UD_AV` the vector ends after 16 bytes.
#[test]
fn compact_address_vector_on_dci() {
    let golden: [u8; 48] = hex!(
        "00 0000 0a  000009 03  00 0000 08  00000000"
        "0102030405060708  00 abcdef  12 07 0045"
        "80000002 6869 0000 00000000 00000000"
    );
    let av = Av {
        key: AvKey::Dc(DcKey::new(0x0102_0304_0506_0708)),
        destination: qpn(0xab_cdef),
        stat_rate_sl: 0x12,
        fl_mlid: 7,
        rlid: 0x45,
        extension: None,
    };
    assert_writes(golden, |wqe| {
        wqe.av(&av).inline(b"hi").finish(Opcode::Send, 0, qpn(9), CtrlFlags::CQ_UPDATE, 0)
    });
    let wqe = parse(&golden, Transport::Dci);
    assert_eq!(wqe.av(), Some(av));
    assert_eq!(segments(&wqe), [Segment::Inline(b"hi")]);
}

/// Every field of the extension has its own place.
#[test]
fn address_vector_extension_field_by_field() {
    let golden: [u8; 64] = hex!(
        "00 0000 0a  000009 04  00 0000 00  00000000"
        "01020304 00000000  80 050607  08 09 0a0b"
        "00000000 0c0d0e0f1011 12 13 14151617"
        "18191a1b1c1d1e1f2021222324252627"
    );
    let av = Av {
        key: AvKey::Queue(QKey::new(0x0102_0304)),
        destination: qpn(0x05_0607),
        stat_rate_sl: 8,
        fl_mlid: 9,
        rlid: 0x0a0b,
        extension: Some(AvExtension {
            rmac: hex!("0c0d0e0f1011"),
            tclass: 0x12,
            hop_limit: 0x13,
            grh_gid_fl: 0x1415_1617,
            rgid: Gid::new(hex!("18191a1b1c1d1e1f2021222324252627")),
        }),
    };
    assert_writes(golden, |wqe| wqe.av(&av).finish(Opcode::Send, 0, qpn(9), CtrlFlags::NONE, 0));
    assert_eq!(parse(&golden, Transport::Ud).av(), Some(av));
}

/// A data segment of length zero would mean 2 GiB.
#[test]
fn empty_pieces_emit_no_segment() {
    let golden: [u8; 16] = hex!("00 0000 0a  000009 01  00 0000 00  00000000");
    assert_writes(golden, |wqe| {
        wqe.data(SGE.addr, SGE.lkey, 0).inline(b"").inline_parts(&[b"", b""]).finish(
            Opcode::Send,
            0,
            qpn(9),
            CtrlFlags::NONE,
            0,
        )
    });
    assert_eq!(segments(&parse(&golden, Transport::Rc)), []);
}

#[test]
fn zero_byte_count_is_two_gib() {
    let golden: [u8; 32] = hex!(
        "00 0000 0a  000009 02  00 0000 00  00000000"
        "00000000 01020304 00007fff00001000"
    );
    assert_writes(golden, |wqe| {
        wqe.data(SGE.addr, SGE.lkey, ENTRY_BYTES_MAX).finish(
            Opcode::Send,
            0,
            qpn(9),
            CtrlFlags::NONE,
            0,
        )
    });
    let sge = Sge { len_bytes: ENTRY_BYTES_MAX, ..SGE };
    assert_eq!(segments(&parse(&golden, Transport::Rc)), [Segment::Sge(sge)]);
}

#[test]
fn longest_inline_payload_fills_63_octowords() {
    let payload = [0x5a; 62 * 16 - 4];
    assert_eq!(inline_octowords(payload.len()), 62);
    assert_eq!(inline_octowords(payload.len() + 1), 63);
    let mut slots = [POISON; 64];
    let octowords = WqeWriter::new(&mut slots).inline(&payload).finish(
        Opcode::Send,
        0,
        qpn(9),
        CtrlFlags::NONE,
        0,
    );
    assert_eq!((octowords, wqebbs(octowords)), (63, 16));
    assert_eq!(slots[0], hex!("00 0000 0a  000009 3f  00 0000 00  00000000"));
    assert_eq!(slots[1][..4], hex!("800003dc"));
    assert_eq!(slots[63], POISON);
    let wqe = SendWqe::parse(slots.as_flattened(), Transport::Rc).unwrap();
    assert_eq!(segments(&wqe), [Segment::Inline(&payload)]);
}

/// The NIC may look at a WQE as soon as its control segment is there.
#[test]
fn control_segment_is_stored_last() {
    struct Order(Vec<usize>);
    impl WqeSink for Order {
        fn put(&mut self, index: usize, _: Octoword) {
            self.0.push(index);
        }
    }
    let mut order = Order(Vec::new());
    let wqe = WqeWriter::new(&mut order).raddr(0, Rkey::new(0)).inline(&[0; 40]);
    assert_eq!(wqe.octowords(), 5);
    wqe.finish(Opcode::RdmaWrite, 0, qpn(9), CtrlFlags::NONE, 0);
    assert_eq!(order.0, [1, 2, 3, 4, 0]);
}

/// `mlx5_post_recv`: a list shorter than the stride ends at `MLX5_INVALID_LKEY`.
#[test]
fn receive_list_ends_at_the_terminator() {
    let golden: [u8; 32] = hex!(
        "00000040 01020304 00007fff00001000"
        "00000000 00000100 0000000000000000"
    );
    let mut slots = [POISON; 4];
    RecvWqeWriter::rq(&mut slots, 4)
        .data(SGE.addr, SGE.lkey, SGE.len_bytes)
        .data(SGE.addr, SGE.lkey, 0)
        .finish();
    assert_eq!(slots.as_flattened()[..32], golden);
    assert_eq!(slots[2..], [POISON; 2]);
    // The poison after the end has bit 31 set, and must not be looked at.
    let wqe = RecvWqe::parse_rq(slots.as_flattened()).unwrap();
    assert_eq!(wqe.next_wqe_index, None);
    assert!(wqe.sges().eq([SGE]));
}

#[test]
fn receive_list_that_fills_its_stride_has_no_terminator() {
    let mut slots = [POISON; 3];
    RecvWqeWriter::rq(&mut slots, 2)
        .data(SGE.addr, SGE.lkey, SGE.len_bytes)
        .data(SGE.addr, SGE.lkey, ENTRY_BYTES_MAX)
        .finish();
    let second = hex!("00000000 01020304 00007fff00001000");
    assert_eq!(slots, [SGE_BYTES, second, POISON]);
    let wqe = RecvWqe::parse_rq(slots[..2].as_flattened()).unwrap();
    assert_eq!(wqe.sges().count(), 2);
    assert_eq!(wqe.capacity_bytes(), 64 + u64::from(ENTRY_BYTES_MAX));
}

/// `struct mlx5_wqe_srq_next_seg`: `next_wqe_index` at 2
#[test]
fn shared_receive_wqe_links_to_the_next() {
    let golden: [u8; 48] = hex!(
        "0000 0708 00 0000000000000000000000"
        "00000040 01020304 00007fff00001000"
        "00000000 00000100 0000000000000000"
    );
    let mut slots = [POISON; 4];
    RecvWqeWriter::srq(&mut slots, 4, 0x0708).data(SGE.addr, SGE.lkey, SGE.len_bytes).finish();
    assert_eq!(slots.as_flattened()[..48], golden);
    assert_eq!(slots[3], POISON);
    let wqe = RecvWqe::parse_srq(slots.as_flattened()).unwrap();
    assert_eq!(wqe.next_wqe_index, Some(0x0708));
    assert!(wqe.sges().eq([SGE]));
}
