//! Requests that libmlx5 writes beside those that this project's driver writes, byte by byte: both drive the software
//! NIC by libmlx5, one posts by `ibv_post_send` and its like, the other by itself.
//!
//! On both link layers.
//!
//! | what may differ | why |
//! |---|---|
//! | the queue pair's number in the control segment | they are two queue pairs |
//! | what follows the entry that ends a scatter list | nobody reads it, and nobody writes it |
//!
//! Requests of a DC initiator are posted by `ibv_wr_*` and `mlx5dv_wr_set_dc_addr`. No interface of the library has NOP.
#![cfg(not(any(loom, miri)))]

mod common;

use common::{has_library, run_tests};
use ibverbs::{
    Config,
    mlx5dv::{self, DcPeer, LibraryInitiator, LibraryRings, LibrarySrqRing},
};
use verbs::{
    Access, CqConfig, DcKey, Destination, InitAttr, LinkLayer, Lkey, Mtu, Nic, Op, Payload,
    PortRoute, Psn, QKey, QpAddress, QpConfig, QueuePair as _, RcPeer, RecvSize, RemoteSlice, Rkey,
    RnrTimer, RtrAttr, RtsAttr, SendFlags, SendRequest, SendSize, Sge, SharedReceiveQueue as _,
    SrqConfig, Transition, Transport,
};

type Ours = mlx5::Nic<mlx5dv::Device>;

/// Bytes of the control segment that hold the queue pair's number.
const QPN: core::ops::Range<usize> = 4..7;

/// What ends a scatter list: an entry with this key.
const LIST_END: [u8; 16] = {
    let mut entry = [0; 16];
    entry[6] = 1;
    entry
};

fn sge(nth: u64, len_bytes: u32) -> Sge {
    let lkey = Lkey::new(0x0a0b_0c00 + u32::try_from(nth).unwrap());
    Sge { addr: 0x7f00_1234_5000 + nth * 0x1_0001, len_bytes, lkey }
}

const REMOTE: RemoteSlice =
    RemoteSlice { addr: 0x7fff_0102_0304_0508, rkey: Rkey::new(0x5566_7788) };

/// A queue pair in RTS, connected to itself, and its completion queue.
fn ready<N: Nic>(nic: &N, transport: Transport) -> (N::Qp, N::Cq) {
    let pd = nic.alloc_pd().unwrap();
    let cq = nic.create_cq(&CqConfig::new(512), None).unwrap();
    let mut config = QpConfig::<N>::new(transport, &cq);
    config.send = SendSize { requests: 128, sges_max: 4, inline_bytes_max: 200 };
    config.recv = RecvSize { requests: 64, sges_max: 4 };
    let mut qp = nic.create_qp(&pd, &config).unwrap();
    let init = InitAttr { access: Access::empty(), qkey: QKey::new(0x1234_5678) };
    qp.modify(&Transition::Init(init)).unwrap();
    let rq_psn = Psn::from_low_bits(0);
    let peer = RcPeer { qpn: qp.qpn(), address: nic.address(), rq_psn };
    let rtr = RtrAttr {
        path_mtu: Mtu::B1024,
        peer: (transport == Transport::Rc).then_some(peer),
        rnr_timer: RnrTimer::from_code(1),
        reads_in_max: 1,
    };
    qp.modify(&Transition::Rtr(rtr)).unwrap();
    qp.modify(&Transition::Rts(RtsAttr { reads_out_max: 1, ..RtsAttr::default() })).unwrap();
    (qp, cq)
}

/// Both drivers on the device.
fn both() -> (ibverbs::Nic, Ours) {
    let config = Config::default();
    let ours = Ours::new(mlx5dv::open(&config).unwrap());
    (ibverbs::open(&config).unwrap(), ours)
}

/// Posts the same to both; compares the bytes.
fn compare_sends(transport: Transport, requests: &[(&str, SendRequest<'_>)]) {
    let (library, ours) = both();
    let (mut by_library, _cq) = ready(&library, transport);
    let (mut by_us, _our_cq) = ready(&ours, transport);
    let mut block = 0;
    for (name, request) in requests {
        by_library.post_send(request).unwrap();
        by_library.ring_send();
        let index = by_us.post_send(request).unwrap();
        by_us.ring_send();
        assert_eq!(index, block, "{name}: where it begins");
        let mut expected = LibraryRings::of(&by_library).unwrap().send_wqe(index);
        let mut found = by_us.send_wqe(index).unwrap();
        let numbers = [&expected, &found].map(|wqe| wqe[QPN].to_vec());
        let qpns = [by_library.qpn(), by_us.qpn()].map(|qpn| qpn.get().to_be_bytes()[1..].to_vec());
        assert_eq!(numbers, qpns, "{name}");
        expected[QPN].fill(0);
        found[QPN].fill(0);
        assert_eq!(found, expected, "{name}: ours, and libmlx5's");
        block += u16::try_from(found.len().div_ceil(64)).unwrap();
    }
    assert!(block > 0);
}

/// The same operation with each set of flags.
fn with_flags<'a>(
    name: &'a str,
    op: Op<'a>,
) -> impl Iterator<Item = (&'a str, SendRequest<'a>)> + use<'a> {
    let [signaled, solicited, fence] =
        [SendFlags::SIGNALED, SendFlags::SOLICITED, SendFlags::FENCE];
    let unsignaled = SendFlags::empty();
    [signaled, signaled | solicited, signaled | fence, signaled | solicited | fence, unsignaled]
        .into_iter()
        .map(move |flags| (name, SendRequest { op, flags, to: None }))
}

mod on_libmlx5 {
    use super::*;

    #[test]
    #[ignore = "needs a device: `what_we_write_is_what_libmlx5_writes` starts it where there is one"]
    fn messages_and_writes() {
        let three = [sge(0, 7), sge(1, 4096), sge(2, 1)];
        let with_empty = [sge(0, 7), sge(1, 0), sge(2, 9)];
        let bytes: Vec<u8> = (0..200).map(|at| at ^ 0x5a).collect();
        let parts: [&[u8]; 3] = [&bytes[..3], &[], &bytes[3..60]];
        let payloads = [
            ("nothing", Payload::Gather(&[])),
            ("an entry", Payload::Gather(&three[..1])),
            ("three entries", Payload::Gather(&three)),
            ("an empty entry", Payload::Gather(&with_empty)),
            ("1 B inline", Payload::Inline(&[&[7]])),
            ("12 B inline", Payload::Inline(&[&[8; 12]])),
            ("13 B inline", Payload::Inline(&[&[9; 13]])),
            ("parts inline", Payload::Inline(&parts)),
        ];
        let most: [&[u8]; 1] = [&bytes];
        let payloads = payloads.into_iter().chain([("200 B inline", Payload::Inline(&most))]);
        let requests: Vec<_> = payloads
            .flat_map(|(name, payload)| {
                [None, Some(0x0102_0304)].into_iter().flat_map(move |imm| {
                    let write = Op::Write { remote: REMOTE, payload, imm };
                    with_flags(name, Op::Send { payload, imm }).chain(with_flags(name, write))
                })
            })
            .collect();
        // Few enough to be posted to a queue that nothing is retired from.
        for part in requests.chunks(45) {
            compare_sends(Transport::Rc, part);
        }
    }

    #[test]
    #[ignore = "needs a device: `what_we_write_is_what_libmlx5_writes` starts it where there is one"]
    fn reads_and_atomics() {
        let into = [sge(0, 8), sge(1, 4000)];
        let (compare, swap, add) = (0x0102_0304_0506_0708, 0x1112_1314_1516_1718, u64::MAX - 1);
        let requests: Vec<_> = [
            ("READ", Op::Read { remote: REMOTE, into: &into[..1] }),
            ("READ of two entries", Op::Read { remote: REMOTE, into: &into }),
            ("CAS", Op::CompareSwap { remote: REMOTE, into: into[0], compare, swap }),
            ("FADD", Op::FetchAdd { remote: REMOTE, into: into[0], add }),
        ]
        .into_iter()
        .flat_map(|(name, op)| with_flags(name, op))
        .collect();
        compare_sends(Transport::Rc, &requests);
    }

    #[test]
    #[ignore = "needs a device: `what_we_write_is_what_libmlx5_writes` starts it where there is one"]
    fn datagrams() {
        let (library, _) = both();
        let entries = [sge(0, 100), sge(1, 3)];
        let mut address = library.address();
        for level in [0, 5] {
            address.service_level = level;
            if let PortRoute::Gid(route) = &mut address.route {
                // Without one each driver chooses a UDP port by itself.
                route.flow_label = 0x1_2345;
            }
            let to = QpAddress { address, qpn: verbs::Qpn::from_low_bits(0x12_3456) };
            let to = Destination::Ud { to, qkey: QKey::new(0x0a0b_0c0d) };
            let payloads = [Payload::Gather(&entries), Payload::Inline(&[b"seventeen bytes ."])];
            let requests: Vec<_> = payloads
                .into_iter()
                .flat_map(|payload| [None, Some(7)].map(|imm| Op::Send { payload, imm }))
                .flat_map(|op| with_flags("SEND", op))
                .map(|(name, request)| (name, request.to(&to)))
                .collect();
            compare_sends(Transport::Ud, &requests);
        }
    }

    /// What brings an initiator to RTS.
    fn steps() -> [Transition; 3] {
        let init = InitAttr { access: Access::empty(), qkey: QKey::new(0) };
        let rtr = RtrAttr {
            path_mtu: Mtu::B1024,
            peer: None,
            rnr_timer: RnrTimer::from_code(1),
            reads_in_max: 1,
        };
        let rts = RtsAttr { reads_out_max: 1, ..RtsAttr::default() };
        [Transition::Init(init), Transition::Rtr(rtr), Transition::Rts(rts)]
    }

    #[test]
    #[ignore = "needs a device: `what_we_write_is_what_libmlx5_writes` starts it where there is one"]
    fn requests_of_a_dc_initiator() {
        let device = mlx5dv::open(&Config::default()).unwrap();
        let ours = Ours::new(device.clone());
        let mut address = ours.address();
        if let PortRoute::Gid(route) = &mut address.route {
            route.flow_label = 0x1_2345;
        }
        let (dctn, key) = (verbs::Qpn::from_low_bits(0x65_4321), DcKey::new(0x0102_0304_0506_0708));
        let peer = DcPeer { address, dctn, key };
        let to = Destination::Dc { to: QpAddress { address, qpn: dctn }, key };
        let (entries, parts): (_, [&[u8]; 2]) =
            ([sge(0, 8), sge(1, 4000)], [b"seven B", b"and some more, which wraps"]);
        let payloads = [
            Payload::Gather(&[]),
            Payload::Gather(&entries[..1]),
            Payload::Gather(&entries),
            Payload::Inline(&parts[..1]),
            Payload::Inline(&parts),
        ];
        let (remote, into) = (REMOTE, entries[0]);
        let messages = payloads.into_iter().flat_map(|payload| {
            [None, Some(0x0102_0304)].into_iter().flat_map(move |imm| {
                [Op::Send { payload, imm }, Op::Write { remote, payload, imm }]
            })
        });
        let others = [
            Op::Read { remote, into: &entries },
            Op::CompareSwap { remote, into, compare: 1, swap: u64::MAX - 1 },
            Op::FetchAdd { remote, into, add: 0x0102_0304_0506_0708 },
        ];
        for op in messages.chain(others) {
            // A request that goes nowhere stops its queue: each has a queue of its own.
            for (name, request) in with_flags("", op) {
                let mut by_library = LibraryInitiator::new(&device, &steps()).unwrap();
                let mut by_us = initiator(&ours);
                let mut expected = by_library.post(&op, request.flags, &peer).unwrap();
                let index = by_us.post_send(&request.to(&to)).unwrap();
                let mut found = by_us.send_wqe(index).unwrap();
                let qpns = [by_library.qpn(), by_us.qpn()].map(|qpn| qpn.get().to_be_bytes());
                let numbers = [&expected, &found].map(|wqe| wqe[QPN].to_vec());
                assert_eq!(numbers, qpns.map(|qpn| qpn[1..].to_vec()), "{name}{op:?}");
                expected[QPN].fill(0);
                found[QPN].fill(0);
                assert_eq!(found, expected, "{op:?}: ours, and libmlx5's");
            }
        }
    }

    fn initiator(nic: &Ours) -> <Ours as Nic>::Qp {
        let pd = nic.alloc_pd().unwrap();
        let cq = nic.create_cq(&CqConfig::new(64), None).unwrap();
        let mut config = QpConfig::<Ours>::new(Transport::Dci, &cq);
        config.send = SendSize { requests: 16, sges_max: 4, inline_bytes_max: 64 };
        let mut qp = nic.create_qp(&pd, &config).unwrap();
        steps().iter().for_each(|step| qp.modify(step).unwrap());
        qp
    }

    /// The entries in front of the one that ends the list, and that one.
    fn scatter_list(wqe: &[u8], header: usize) -> Vec<u8> {
        let end = (header..wqe.len()).step_by(16).find(|at| wqe[*at..*at + 16] == LIST_END);
        wqe[..end.map_or(wqe.len(), |end| end + 16)].to_vec()
    }

    const LISTS: [&[u32]; 5] = [&[64], &[1, 2], &[5, 0, 6], &[1, 2, 3, 4], &[]];

    fn lists() -> Vec<Vec<Sge>> {
        let entries = |lens: &[u32]| (0..).zip(lens).map(|(nth, len)| sge(nth, *len)).collect();
        LISTS.into_iter().map(entries).collect()
    }

    #[test]
    #[ignore = "needs a device: `what_we_write_is_what_libmlx5_writes` starts it where there is one"]
    fn receives() {
        let (library, ours) = both();
        let (mut by_library, _cq) = ready(&library, Transport::Rc);
        let (mut by_us, _our_cq) = ready(&ours, Transport::Rc);
        for into in lists() {
            by_library.post_recv(&into).unwrap();
            by_library.ring_recv();
            let index = by_us.post_recv(&into).unwrap();
            by_us.ring_recv();
            let expected = LibraryRings::of(&by_library).unwrap().recv_wqe(index);
            let found = by_us.recv_wqe(index).unwrap();
            assert_eq!(found.len(), expected.len());
            assert_eq!(scatter_list(&found, 0), scatter_list(&expected, 0), "{into:?}");
        }
    }

    #[test]
    #[ignore = "needs a device: `what_we_write_is_what_libmlx5_writes` starts it where there is one"]
    fn shared_receives() {
        let (library, ours) = both();
        let config = SrqConfig { entries: 15, sges_max: 4 };
        let mut by_library = library.create_srq(&library.alloc_pd().unwrap(), &config).unwrap();
        let mut by_us = ours.create_srq(&ours.alloc_pd().unwrap(), &config).unwrap();
        for (index, into) in (0..).zip(lists()) {
            by_library.post(&into).unwrap();
            by_library.ring();
            assert_eq!(by_us.post(&into), Ok(index));
            by_us.ring();
            let expected = LibrarySrqRing::of(&by_library).unwrap().wqe(index);
            let found = by_us.wqe(index);
            assert_eq!(found.len(), expected.len());
            assert_eq!(scatter_list(&found, 16), scatter_list(&expected, 16), "{into:?}");
        }
    }
}

#[test]
fn what_we_write_is_what_libmlx5_writes() {
    if has_library() {
        for link in [LinkLayer::InfiniBand, LinkLayer::Ethernet] {
            assert_eq!(run_tests("on_libmlx5::", link), 6, "{link:?}");
        }
    }
}
