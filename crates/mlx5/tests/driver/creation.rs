//! Sizes, limits, and the completions that a CQ must have room for.

use copyrpc_mlx5::{Nic, Options};
use verbs::{
    CompletionQueue as _, CqConfig, CreateError, Nic as _, QueuePair as _, RecvSize, SendSize,
    SrqConfig, Transport,
};

use crate::device::{Config, Cq, Qp, Srq, TestDevice, make_ready};

const fn assert_send<T: Send>() {}
const _: () = {
    assert_send::<Cq>();
    assert_send::<Qp>();
    assert_send::<Srq>();
};

fn sends(requests: u32) -> SendSize {
    SendSize { requests, sges_max: 1, inline_bytes_max: 28 }
}

fn recvs(requests: u32) -> RecvSize {
    RecvSize { requests, sges_max: 1 }
}

fn setup(cqes: u32) -> (Nic<TestDevice>, TestDevice, Cq) {
    let device = TestDevice::new();
    let nic = Nic::new(device.clone());
    let cq = nic.create_cq(&CqConfig::new(cqes), None).unwrap();
    (nic, device, cq)
}

fn is_too_small(result: Result<Qp, CreateError>, asked: u32) -> bool {
    matches!(result, Err(CreateError::CqTooSmall { needed, .. }) if needed == asked)
}

#[test]
fn rings_are_rounded_up_to_powers_of_two() {
    let (nic, device, cq) = setup(200);
    assert_eq!(cq.entries(), 256);
    let config = Config { send: sends(33), recv: recvs(9), ..Config::new(Transport::Rc, &cq) };
    let qp = nic.create_qp(&(), &config).unwrap();
    assert_eq!(qp.send_free(), 33, "no more than the completion queue was asked for");
    assert_eq!(device.send_ring(qp.qpn()).all().len(), 64 * 64);
    assert_eq!(device.recv_ring(qp.qpn()).all().len(), 16 * 16);
}

/// A device may put payload into completions unless it is told not to: each queue pair says yes or no. What
/// precedes a datagram would be taken for its payload.
#[test]
fn payload_in_completions_is_declined_unless_it_is_asked_for() {
    let (_, device, _) = setup(256);
    for asks in [false, true] {
        let options = Options { scatter_to_cqe: asks, ..Options::default() };
        let nic = Nic::new(device.clone()).with_options(options);
        let cq = nic.create_cq(&CqConfig::new(64), None).unwrap();
        for transport in [Transport::Rc, Transport::Ud, Transport::Dci] {
            let config = Config { send: sends(4), recv: recvs(4), ..Config::new(transport, &cq) };
            let qp = nic.create_qp(&(), &config).unwrap();
            let told = device.qp(qp.qpn(), |side| side.scatter_to_cqe);
            assert_eq!(told, asks && transport != Transport::Ud, "{transport:?}");
        }
    }
    assert!(!Options::default().scatter_to_cqe);
}

/// Blocks of the ring for five requests.
#[test]
fn a_ring_takes_all_requests_of_a_queue_even_if_each_is_the_longest() {
    let (nic, device, cq) = setup(256);
    for (transport, sges_max, inline_bytes_max, blocks) in [
        (Transport::Rc, 1, 28, 8),
        (Transport::Rc, 1, 29, 16),
        (Transport::Rc, 3, 0, 16),
        (Transport::Rc, 1, 220, 32),
        (Transport::Dci, 1, 0, 16),
        (Transport::Dci, 30, 0, 64),
        (Transport::Dci, 58, 924, 128),
    ] {
        let send = SendSize { requests: 5, sges_max, inline_bytes_max };
        let config = Config { send, recv: RecvSize::NONE, ..Config::new(transport, &cq) };
        let qp = nic.create_qp(&(), &config).unwrap();
        let ring = device.send_ring(qp.qpn()).blocks();
        assert_eq!((qp.send_free(), ring), (5, blocks), "{transport:?} with {send:?}");
    }
}

/// What the attributes promise is possible on every transport, and they promise no more than formats have.
#[test]
fn attributes_are_what_every_queue_pair_can_have() {
    let (nic, _, cq) = setup(256);
    let attributes = nic.attributes();
    assert_eq!((attributes.sges_max, attributes.inline_bytes_max), (58, 924));
    for transport in [Transport::Rc, Transport::Ud, Transport::Dci] {
        let &verbs::NicAttributes { sges_max, inline_bytes_max, .. } = attributes;
        let send = SendSize { requests: 4, sges_max, inline_bytes_max };
        let config = Config { send, recv: recvs(4), ..Config::new(transport, &cq) };
        assert!(nic.create_qp(&(), &config).is_ok(), "{transport:?}");
    }
}

#[test]
fn sizes_that_are_not_possible_are_errors() {
    let device = TestDevice::new().with(|limits| {
        (limits.cqes_max, limits.requests_max, limits.srq_entries_max) = (256, 64, 63);
    });
    let nic = Nic::new(device);
    for entries in [0, 257, u32::MAX] {
        let error = nic.create_cq(&CqConfig::new(entries), None).unwrap_err();
        assert!(matches!(error, CreateError::Size { what: "completion queue", .. }), "{error}");
    }
    let cq = nic.create_cq(&CqConfig::new(256), None).unwrap();
    let refused = |config: &Config<'_>| nic.create_qp(&(), config).is_err();
    let config = || Config::new(Transport::Rc, &cq);
    let wide = |sges_max| SendSize { requests: 4, sges_max, inline_bytes_max: 0 };
    let long = |inline_bytes_max| SendSize { requests: 4, sges_max: 1, inline_bytes_max };
    let recv = |sges_max| RecvSize { requests: 4, sges_max };
    for send in [sends(65), sends(u32::MAX), wide(62), long(973), long(u16::MAX)] {
        assert!(refused(&Config { send, recv: recvs(1), ..config() }), "{send:?}");
    }
    for recv in [recvs(65), recv(64)] {
        assert!(refused(&Config { send: sends(1), recv, ..config() }), "{recv:?}");
    }
    assert!(!refused(&Config { send: wide(61), recv: recv(63), ..config() }));
    assert!(!refused(&Config { send: long(972), recv: recv(63), ..config() }));
    for (entries, sges_max) in [(0, 1), (64, 1), (4, 63)] {
        assert!(nic.create_srq(&(), &SrqConfig { entries, sges_max }).is_err());
    }
    assert!(nic.create_srq(&(), &SrqConfig { entries: 63, sges_max: 62 }).is_ok());
}

/// The list that the device follows ends in an entry that is not posted: 2¹⁵ entries hold a buffer less.
#[test]
#[cfg_attr(miri, ignore = "32,767 entries, written one by one, take Miri ten minutes")]
fn a_shared_receive_queue_is_as_long_as_its_counters_allow() {
    let nic = Nic::new(TestDevice::new());
    assert_eq!(nic.attributes().srq_entries_max, 32_767);
    let asked = |entries| nic.create_srq(&(), &SrqConfig { entries, sges_max: 1 });
    for entries in [16_385, 32_767] {
        assert!(asked(entries).is_ok(), "{entries}");
    }
    let refused = asked(32_768).map(drop).unwrap_err();
    assert!(matches!(refused, CreateError::Size { asked: 32_768, .. }), "{refused}");
}

#[test]
fn queue_pairs_have_the_queues_of_their_transport() {
    let (nic, device, cq) = setup(256);
    let srq = nic.create_srq(&(), &SrqConfig { entries: 4, sges_max: 1 }).unwrap();
    let with_srq = |transport| Config { srq: Some(&srq), ..Config::new(transport, &cq) };
    assert!(nic.create_qp(&(), &Config::new(Transport::Dct, &cq)).is_err());
    assert!(nic.create_qp(&(), &with_srq(Transport::Dci)).is_err());

    let rc = nic.create_qp(&(), &with_srq(Transport::Rc)).unwrap();
    assert!(device.qp(rc.qpn(), |qp| qp.send.is_some() && qp.recv.is_none()));
    let dci = nic.create_qp(&(), &Config::new(Transport::Dci, &cq)).unwrap();
    assert!(device.qp(dci.qpn(), |qp| qp.send.is_some() && qp.recv.is_none()));

    let mut dct = nic.create_qp(&(), &with_srq(Transport::Dct)).unwrap();
    assert_eq!((dct.qpn().get(), dct.send_free()), (0, 0), "no number before RTR");
    make_ready(&mut dct);
    assert!(device.qp(dct.qpn(), |qp| qp.send.is_none() && qp.recv.is_none()));
}

#[test]
fn pitfall_14_a_completion_queue_is_never_overcommitted() {
    let (nic, _, cq) = setup(128);
    let small = || Config { send: sends(32), recv: recvs(32), ..Config::new(Transport::Rc, &cq) };
    let first = nic.create_qp(&(), &small()).unwrap();
    let second = nic.create_qp(&(), &small()).unwrap();
    let receives = Config { send: sends(0), recv: recvs(1), ..small() };
    assert!(is_too_small(nic.create_qp(&(), &receives), 129));
    let one_send = Config { send: sends(1), recv: recvs(0), ..small() };
    assert!(is_too_small(nic.create_qp(&(), &one_send), 129));

    // A failed creation gives back what it had already reserved.
    drop(first);
    let half = Config { send: sends(32), recv: recvs(64), ..small() };
    assert!(is_too_small(nic.create_qp(&(), &half), 160));
    let third = nic.create_qp(&(), &small()).unwrap();
    drop((second, third));
    assert!(
        nic.create_qp(&(), &Config { recv: recvs(64), ..Config::new(Transport::Rc, &cq) }).is_ok()
    );
}

#[test]
fn pitfall_14_a_shared_receive_queue_counts_once_per_completion_queue() {
    let (nic, _, cq) = setup(128);
    let other = nic.create_cq(&CqConfig::new(64), None).unwrap();
    let srq = nic.create_srq(&(), &SrqConfig { entries: 64, sges_max: 1 }).unwrap();
    let config = || Config { srq: Some(&srq), send: sends(16), ..Config::new(Transport::Rc, &cq) };
    let mut users: Vec<_> = (0..4).map(|_| nic.create_qp(&(), &config()).unwrap()).collect();
    assert!(is_too_small(nic.create_qp(&(), &config()), 144), "64 receives, 5 x 16 sends");
    assert!(nic.create_qp(&(), &Config { recv_cq: &other, send: sends(0), ..config() }).is_ok());

    let last = users.pop().unwrap();
    drop(users);
    let plain = |count| Config { srq: None, send: sends(count), recv: recvs(0), ..config() };
    assert!(is_too_small(nic.create_qp(&(), &plain(64)), 144), "one user left: 64 + 16");
    drop(last);
    assert!(nic.create_qp(&(), &plain(128)).is_ok());
}

#[test]
fn overcommitment_has_to_be_asked_for() {
    let (nic, ..) = setup(1);
    let config = CqConfig { allow_overcommit: true, ..CqConfig::new(16) };
    let cq = nic.create_cq(&config, None).unwrap();
    assert!(nic.create_qp(&(), &Config::new(Transport::Rc, &cq)).is_ok());
}

#[test]
fn shares_are_given_back_from_other_threads() {
    let (nic, device, cq) = setup(128);
    let queue_pairs: Vec<_> = (0..2)
        .map(|_| Config { send: sends(32), recv: recvs(32), ..Config::new(Transport::Ud, &cq) })
        .map(|config| nic.create_qp(&(), &config).unwrap())
        .collect();
    std::thread::scope(|scope| {
        for qp in queue_pairs {
            scope.spawn(move || drop(qp));
        }
    });
    assert_eq!(device.dropped(), 2);
    let config = Config { send: sends(64), recv: recvs(64), ..Config::new(Transport::Rc, &cq) };
    assert!(nic.create_qp(&(), &config).is_ok());
}
