//! Ethernet addresses of next hops, and what a port knows of itself: asked once, and again when they change.

use copyrpc_mlx5::device::PortRows;
use verbs::{
    AddressVector, AsyncEvent, DcKey, Destination, Gid, GidRoute, Lid, Nic as _, Op, Payload,
    PortRoute, PostSendError, QpAddress, Qpn, QueuePair as _, SendRequest, Transport,
};
use wire::wqe::{Av, SendWqe, Transport as Reader};

use crate::device::{Config, PKEY_INDEX, Qp, TestDevice, nic, ready};

fn gid(first: u8) -> Gid {
    Gid::new([first; 16])
}

fn route(first: u8) -> PortRoute {
    let gid = gid(first);
    PortRoute::Gid(GidRoute { gid, hop_limit: 64, traffic_class: 0, flow_label: 0 })
}

fn post(qp: &mut Qp, route: PortRoute, service_level: u8) -> Result<u16, PostSendError> {
    let address = AddressVector { route, service_level };
    let to = QpAddress { address, qpn: Qpn::from_low_bits(9) };
    let to = Destination::Dc { to, key: DcKey::new(4) };
    let op = Op::Send { payload: Payload::Inline(&[]), imm: None };
    qp.post_send(&SendRequest::signaled(op).to(&to))
}

fn av(device: &TestDevice, qp: &Qp, index: u16) -> Av {
    let bytes = device.send_ring(qp.qpn()).bytes(usize::from(index) * 64, 256);
    SendWqe::parse(&bytes, Reader::Dci).unwrap().av().unwrap()
}

#[test]
fn a_next_hop_is_asked_for_once_by_all_queue_pairs() {
    let (nic, device, cq) = nic(TestDevice::new().ethernet());
    let [mut a, mut b] = [(); 2].map(|()| ready(&nic, &Config::new(Transport::Dci, &cq)));
    for _ in 0..3 {
        for first in [1, 2] {
            for qp in [&mut a, &mut b] {
                let index = post(qp, route(first), 0).unwrap();
                assert_eq!(av(&device, qp, index).extension.unwrap().rmac, [first; 6]);
            }
        }
    }
    assert_eq!(device.resolved(), [gid(1), gid(2)]);
}

#[test]
fn an_address_without_a_way_there_is_refused_and_asked_for_again() {
    let (nic, device, cq) = nic(TestDevice::new().ethernet());
    let mut qp = ready(&nic, &Config::new(Transport::Dci, &cq));
    let free = qp.send_free();
    for _ in 0..2 {
        assert_eq!(post(&mut qp, route(0xff), 0), Err(PostSendError::Unreachable(gid(0xff))));
    }
    assert_eq!((qp.send_free(), device.resolved().len()), (free, 2));
    assert_eq!(post(&mut qp, route(1), 0), Ok(0));
}

/// A queue pair that lives through it sends from the new row, and asks for next hops anew.
#[test]
fn an_event_of_the_port_reaches_queue_pairs() {
    let (nic, device, cq) = nic(TestDevice::new().ethernet());
    let mut qp = ready(&nic, &Config::new(Transport::Dci, &cq));
    let source = |device: &TestDevice, qp: &Qp, index| {
        av(device, qp, index).extension.unwrap().grh_gid_fl >> 20 & 0xff
    };
    let before = post(&mut qp, route(1), 0).unwrap();
    assert_eq!(source(&device, &qp, before), 5);
    device.move_gid(9);
    assert_eq!(nic.poll_event(), Some(AsyncEvent::AddressChanged));
    assert_eq!((nic.poll_event(), nic.port().gid_index), (None, 9));
    let after = post(&mut qp, route(1), 0).unwrap();
    assert_eq!(source(&device, &qp, after), 9);
    assert_eq!(device.resolved(), [gid(1), gid(1)]);
}

/// As `ibv_modify_qp(3)` wants it. A queue pair is never in another row than its address vectors say.
#[test]
fn every_transition_names_the_port_and_the_rows_of_its_tables() {
    let (nic, device, cq) = nic(TestDevice::new().ethernet());
    let rows = |gid_index| PortRows { port: 2, gid_index, pkey_index: PKEY_INDEX };
    for transport in [Transport::Rc, Transport::Ud, Transport::Dci] {
        let qp = ready(&nic, &Config::new(transport, &cq));
        device.qp(qp.qpn(), |side| {
            assert!(side.rows.len() >= 3, "INIT, RTR and RTS");
            assert!(side.rows.iter().all(|found| *found == rows(5)), "{:?}", side.rows);
        });
    }
    device.move_gid(9);
    let last = |qp: &Qp| device.qp(qp.qpn(), |side| *side.rows.last().unwrap());
    let qp = ready(&nic, &Config::new(Transport::Dci, &cq));
    assert_eq!(last(&qp), rows(5), "nobody has read the event, so requests name the old row, too");
    assert_eq!(nic.poll_event(), Some(AsyncEvent::AddressChanged));
    let qp = ready(&nic, &Config::new(Transport::Dci, &cq));
    assert_eq!(last(&qp), rows(9));
}

/// Source: rdma-core `providers/mlx5/verbs.c`, `mlx5_create_ah`.
#[test]
fn a_port_that_requires_a_global_route_header_is_sent_one() {
    let (nic, device, cq) = nic(TestDevice::new());
    let mut qp = ready(&nic, &Config::new(Transport::Dci, &cq));
    let route = GidRoute { gid: gid(3), hop_limit: 9, traffic_class: 106, flow_label: 0xa_bcde };
    let index = post(&mut qp, PortRoute::Global(Lid::new(0x1234), route), 3).unwrap();
    let av = av(&device, &qp, index);
    let extension = av.extension.unwrap();
    assert_eq!((av.rlid, av.stat_rate_sl), (0x1234, 3));
    assert_eq!(extension.grh_gid_fl, 1 << 30 | 5 << 20 | 0xa_bcde);
    assert_eq!((extension.tclass, extension.hop_limit, extension.rgid), (106, 9, gid(3)));
    assert_eq!(device.resolved(), []);
}

/// Flows without a label, to several peers, take several paths; with one the label says which.
#[test]
fn the_udp_source_port_is_drawn_for_each_address() {
    let (nic, device, cq) = nic(TestDevice::new().ethernet());
    let [mut a, mut b] = [(); 2].map(|()| ready(&nic, &Config::new(Transport::Dci, &cq)));
    let port = |qp: &mut Qp, first| {
        let index = post(qp, route(first), 0).unwrap();
        av(&device, qp, index).rlid
    };
    let ports: Vec<_> = (1..20).map(|first| port(&mut a, first)).collect();
    assert_eq!((1..20).map(|first| port(&mut b, first)).collect::<Vec<_>>(), ports);
    let different: std::collections::BTreeSet<_> = ports.iter().collect();
    assert!(different.len() > 15 && ports.iter().all(|port| *port >= 0xc000), "{ports:x?}");
}

/// What a peer says of itself comes over the network.
#[test]
fn service_levels_that_a_link_does_not_have_are_refused() {
    for (device, route, level_max, stat_rate_sl) in [
        (TestDevice::new(), PortRoute::Lid(Lid::new(3)), 15, 15),
        (TestDevice::new().ethernet(), route(1), 7, 7 << 1),
    ] {
        let (nic, device, cq) = nic(device);
        let mut qp = ready(&nic, &Config::new(Transport::Dci, &cq));
        let index = post(&mut qp, route, level_max).unwrap();
        assert_eq!(av(&device, &qp, index).stat_rate_sl, stat_rate_sl, "`mlx5_create_ah`");
        for level in [level_max + 1, u8::MAX] {
            let refused = post(&mut qp, route, level);
            assert!(matches!(refused, Err(PostSendError::Transport { .. })), "{refused:?}");
        }
    }
}
