//! What libmlx5, or a program that was written on hardware, would notice.
#![cfg(not(any(loom, miri)))]

mod common;

use copyrpc_softnic::Nic;
use mlx5::{
    CqeSize, Options,
    device::{CqRequest, Device as _, QpRequest, RqRequest},
};
use verbs::{
    Completion, CompletionQueue as _, CqConfig, DcKey, Destination, GidRoute, MemoryRegion as _,
    Nic as _, Op, Payload, PortRoute, QpConfig, QueuePair as _, SendRequest, SendSize, Sge,
    SharedReceiveQueue as _, SrqConfig, Transport, WcStatus,
};

use common::{End, QKEY, completion, nic, pair, ready, target, until};

const GRH_BYTES: usize = 40;

/// Rings of libmlx5 have a least size. The device says what it made, and programs may use all of it.
#[test]
fn small_rings_come_back_as_large_as_they_were_made() {
    let nic = nic("small", None);
    let device = nic.device();
    let request = CqRequest { log_entries: 0, cqe_bytes: 64, vector: 0 };
    let (cq, memory) = device.create_cq(&request, None).unwrap();
    assert_eq!(memory.log_entries, 1);
    let pd = device.alloc_pd().unwrap();
    for (transport, log_blocks, log_made) in [
        (Transport::Rc, 0, 0),
        (Transport::Ud, 0, 1),
        (Transport::Dci, 0, 1),
        (Transport::Dci, 3, 3),
    ] {
        for (log_entries, log_receives_made) in [(0, 2), (1, 2), (2, 2), (3, 3)] {
            let request = QpRequest {
                transport,
                send_cq: &cq,
                recv_cq: &cq,
                srq: None,
                log_send_blocks: Some(log_blocks),
                recv: Some(RqRequest { log_entries, log_stride: 5 }),
                scatter_to_cqe: false,
                access_key: DcKey::default(),
            };
            let (_, memory) = device.create_qp(&pd, &request).unwrap();
            assert_eq!(memory.send.unwrap().log_blocks, log_made, "{transport:?}");
            assert_eq!(memory.recv.unwrap().log_entries, log_receives_made, "{transport:?}");
        }
    }
    assert_eq!(nic.create_cq(&CqConfig::new(1), None).unwrap().entries(), 2);
}

/// What a DC target receives: of 16 and of 60 bytes.
fn dc_arrivals(name: &str, options: Options) -> Vec<(Completion, Vec<u8>)> {
    let receiver = nic(name, None).with_options(options);
    let pd = receiver.alloc_pd().unwrap();
    let mut cq = receiver.create_cq(&CqConfig::new(256), None).unwrap();
    let mut srq = receiver.create_srq(&pd, &SrqConfig { entries: 16, sges_max: 1 }).unwrap();
    let key = DcKey::new(9);
    let config = QpConfig {
        srq: Some(&srq),
        access_key: key,
        send: SendSize::NONE,
        ..QpConfig::new(Transport::Dct, &cq)
    };
    let mut dct = receiver.create_qp(&pd, &config).unwrap();
    target(&mut dct);
    let mr = receiver.alloc_mr(&pd, 4096, verbs::Access::LOCAL_WRITE).unwrap();
    let mut initiator = End::new(&nic(name, None), Transport::Dci);
    initiator.ready(None);
    let to = Destination::Dc { to: receiver.endpoint(&dct), key };
    let mut arrived = Vec::new();
    for len in [16, 60] {
        srq.post(&[mr.sge(0, 64)]).unwrap();
        srq.ring();
        let bytes = vec![len; usize::from(len)];
        let op = Op::Send { payload: Payload::Inline(&[&bytes]), imm: None };
        initiator
            .qp
            .post_send(&SendRequest { to: Some(&to), ..SendRequest::signaled(op) })
            .unwrap();
        initiator.qp.ring_send();
        let (mut sent, before) = (None, arrived.len());
        until("the SEND", || {
            if let Some(done) = cq.poll() {
                let mut bytes = cq.inline_data().to_vec();
                if !done.in_cqe {
                    bytes = vec![0; usize::from(len)];
                    mr.read(0, &mut bytes);
                }
                srq.retire(&done);
                arrived.push((done, bytes));
            }
            sent = sent.or_else(|| initiator.cq.poll());
            (sent.is_some() && arrived.len() > before).then_some(())
        });
        let sent = sent.unwrap();
        assert_eq!(sent.failure, None);
        assert_eq!(arrived.last().unwrap().0.source.unwrap().qpn, initiator.qp.qpn());
        initiator.qp.retire(&sent);
    }
    arrived
}

/// In 64 bytes the payload would take the place of who sent it.
#[test]
fn a_dc_target_puts_payload_into_long_entries_only_and_always_tells_the_sender() {
    for (name, cqe_size, in_cqe) in
        [("dc-64", CqeSize::B64, false), ("dc-128", CqeSize::B128, true)]
    {
        let options = Options { scatter_to_cqe: true, cqe_size, ..Options::default() };
        for ((done, bytes), len) in dc_arrivals(name, options).into_iter().zip([16u8, 60]) {
            assert_eq!((done.in_cqe, done.len_bytes), (in_cqe, len.into()), "{cqe_size:?}");
            assert_eq!(bytes, vec![len; len.into()], "{cqe_size:?}");
        }
    }
}

/// libmlx5 puts payload there unless it is told not to, so a program that does not ask for it says no.
#[test]
fn no_payload_is_in_an_entry_unless_it_was_asked_for() {
    for (name, cqe_size) in [("no-64", CqeSize::B64), ("no-128", CqeSize::B128)] {
        let options = Options { cqe_size, ..Options::default() };
        for ((done, bytes), len) in dc_arrivals(name, options).into_iter().zip([16u8, 60]) {
            assert!(!done.in_cqe, "DC, {cqe_size:?}");
            assert_eq!(bytes, vec![len; len.into()]);
        }
        let nics = [(); 2].map(|()| nic(name, None).with_options(options));
        let mut ends = nics.each_ref().map(|nic| End::new(nic, Transport::Rc));
        let [a, b] = [0, 1].map(|nth: usize| ends[nth].endpoint());
        ends[0].ready(Some(b));
        ends[1].ready(Some(a));
        let [a, b] = &mut ends;
        let mr = b.mr(64);
        b.qp.post_recv(&[mr.sge(0, 64)]).unwrap();
        b.qp.ring_recv();
        send(a, None, &[7; 16]);
        let done = until("the arrival", || {
            let _ = a.cq.poll();
            b.cq.poll()
        });
        assert!(!done.in_cqe, "RC, {cqe_size:?}");
        let mut bytes = [0; 16];
        mr.read(0, &mut bytes);
        assert_eq!(bytes, [7; 16]);
    }
}

fn send(from: &mut End, to: Option<&Destination>, bytes: &[u8]) {
    let op = Op::Send { payload: Payload::Inline(&[bytes]), imm: None };
    from.qp.post_send(&SendRequest { to, ..SendRequest::signaled(op) }).unwrap();
    from.qp.ring_send();
}

/// Where a global route header came, it lies before the datagram. Where none came, InfiniBand leaves there what was
/// there, or not.
#[test]
fn strict_mode_leaves_nothing_before_a_datagram_as_it_was() {
    for (strict, has_grh) in [(None, true), (None, false), (Some(5), true), (Some(5), false)] {
        let nics: [Nic; 2] = [(); 2].map(|()| nic("header", strict));
        let [mut from, mut to] = nics.each_ref().map(|nic| End::new(nic, Transport::Ud));
        [&mut from, &mut to].into_iter().for_each(|end| ready(&mut end.qp, None));
        let mr = to.mr(256);
        mr.write(0, &[0xaa; 256]);
        let mut endpoint = to.endpoint();
        let PortRoute::Lid(lid) = endpoint.address.route else { panic!("{endpoint:?}") };
        let [source, gid] = [&from, &to].map(|end| end.nic.port().gid);
        if has_grh {
            let route = GidRoute { gid, hop_limit: 9, traffic_class: 0, flow_label: 0 };
            endpoint.address.route = PortRoute::Global(lid, route);
        }
        let destination = Destination::Ud { to: endpoint, qkey: QKEY };
        to.qp.post_recv(&[mr.sge(0, 20), mr.sge(20, 200)]).unwrap();
        to.qp.ring_recv();
        // A datagram may be dropped while the ports meet.
        let done = until("a datagram", || {
            if from.qp.send_free() > 8 {
                send(&mut from, Some(&destination), b"payload");
            }
            while let Some(done) = from.cq.poll() {
                from.qp.retire(&done);
            }
            to.cq.poll()
        });
        assert_eq!((done.failure, done.len_bytes), (None, 7));
        assert_eq!(done.source.unwrap().has_grh, has_grh);
        let mut bytes = [0; 64];
        mr.read(0, &mut bytes);
        let (header, payload) = bytes.split_at(GRH_BYTES);
        assert_eq!(&payload[..7], b"payload");
        if has_grh {
            // Version 6, nothing of IP behind it, the hop limit, and both GIDs.
            assert_eq!((header[0] >> 4, header[6], header[7]), (6, 0x1b, 9), "{strict:?}");
            assert_eq!(header[8..], [source.to_bytes(), gid.to_bytes()].concat(), "{strict:?}");
        } else {
            assert_eq!(header == [0xaa; GRH_BYTES], strict.is_none(), "{strict:?}: {bytes:?}");
        }
        assert_eq!(payload[7..], [0xaa; 64 - GRH_BYTES - 7]);
    }
}

/// An adapter checks the keys of what it writes, and knows no more of a list.
#[test]
fn of_a_receive_only_what_a_message_touches_has_to_be_registered() {
    for strict in [None, Some(3)] {
        let mut ends = pair("touched", strict);
        let mr = ends[1].mr(64);
        let whole = mr.sge(0, 64);
        let beyond = Sge { len_bytes: 128, ..whole };
        let nowhere = Sge { addr: 0, ..whole };
        // Lists, and what a message of 64 bytes ends in.
        let cases: [(&[Sge], Option<WcStatus>); 5] = [
            (&[whole], None),
            (&[beyond], None),
            (&[whole, nowhere], None),
            (&[beyond, nowhere], None),
            (&[Sge { len_bytes: 63, ..whole }, nowhere], Some(WcStatus::LocalProtection)),
        ];
        for (list, expected) in cases {
            let [a, b] = &mut ends;
            b.qp.post_recv(list).unwrap();
            b.qp.ring_recv();
            send(a, None, &[7; 64]);
            let mut arrived = Vec::new();
            let sent = completion(&mut a.cq, &mut b.cq, &mut arrived);
            let done = arrived.pop().unwrap_or_else(|| until("the arrival", || b.cq.poll()));
            assert_eq!(done.failure.map(|failure| failure.status), expected, "{list:?}");
            assert_eq!(sent.failure.is_some(), expected.is_some(), "{list:?}");
            a.qp.retire(&sent);
            b.qp.retire(&done);
        }
    }
}

/// `max_msg_sz` of a ConnectX.
#[test]
fn a_message_has_at_most_a_gibibyte() {
    assert_eq!(nic("gibibyte", None).attributes().message_bytes_max, 1 << 30);
}
