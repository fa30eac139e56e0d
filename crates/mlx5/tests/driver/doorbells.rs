//! What rings, when, and with which bytes.

use copyrpc_mlx5::{DoorbellMode, Options};
use verbs::{Op, Payload, QueuePair as _, RemoteSlice, Rkey, SendRequest, SendSize, Transport};

use crate::{
    device::{Config, Qp, TestDevice, make_ready, nic, ready},
    requests::advance,
};

const NOP: SendRequest<'static> = SendRequest::unsignaled(Op::Nop);

fn post_inline(qp: &mut Qp, len_bytes: usize) -> u16 {
    let bytes = vec![0x77; len_bytes];
    let payload = Payload::Inline(&[&bytes]);
    let remote = RemoteSlice { addr: 0x1000, rkey: Rkey::new(1) };
    qp.post_send(&SendRequest::signaled(Op::Write { remote, payload, imm: Some(1) })).unwrap()
}

#[test]
fn one_doorbell_tells_about_everything_posted() {
    let (nic, device, cq) = nic(TestDevice::new());
    let mut qp = ready(&nic, &Config::new(Transport::Rc, &cq));
    let qpn = qp.qpn();
    qp.ring_send();
    assert_eq!(device.qp_record(qpn), [0, 0]);
    for _ in 0..3 {
        qp.post_send(&NOP).unwrap();
    }
    let last = post_inline(&mut qp, 100);
    assert_eq!(device.qp_record(qpn), [0, 0], "posting tells nothing");
    assert!(device.qp(qpn, |qp| qp.rings.is_empty()));

    qp.ring_send();
    assert_eq!(device.qp_record(qpn), [0, 6], "the counter after three NOPs and three blocks");
    let ctrl = device.send_ring(qpn).bytes(usize::from(last) * 64, 8);
    let rung = device.qp(qpn, |qp| qp.rings.concat());
    assert_eq!(rung, ctrl, "once, with the start of the last WQE");
    qp.ring_send();
    assert_eq!(device.qp(qpn, |qp| (qp.rings.len(), qp.blueflames.len())), (1, 0));
}

/// BlueFlame is a hint: the device may take the WQE from the ring instead.
#[test]
fn pitfall_3_a_blueflame_wqe_is_in_the_ring_as_well() {
    let (nic, device, cq) = nic(TestDevice::new());
    let mut qp = ready(&nic, &Config::new(Transport::Rc, &cq));
    let qpn = qp.qpn();
    device.send_ring(qpn).poison();
    let mut blocks = 0;
    // Payloads for WQEs of 1 to 4 blocks: 32 B of segments, 4 B of header.
    for (len_bytes, wqe_blocks) in [(28, 1), (29, 2), (92, 2), (156, 3), (157, 4), (220, 4)] {
        let index = post_inline(&mut qp, len_bytes);
        qp.ring_send();
        blocks += wqe_blocks;
        assert_eq!(device.qp_record(qpn)[1], u32::try_from(blocks).unwrap());
        let written = device.qp(qpn, |qp| qp.blueflames.last().cloned().unwrap());
        assert_eq!(written.len(), wqe_blocks * 64);
        let in_ring = device.send_ring(qpn).bytes(usize::from(index) * 64, written.len());
        assert_eq!(written, in_ring);
    }
    assert_eq!(device.qp(qpn, |qp| (qp.rings.len(), qp.blueflames.len())), (0, 6));
}

#[test]
fn blueflame_follows_the_wqe_around_the_end_of_the_ring() {
    let (nic, device, cq) = nic(TestDevice::new());
    let send = SendSize { requests: 2, sges_max: 1, inline_bytes_max: 220 };
    let mut qp = ready(&nic, &Config { send, ..Config::new(Transport::Rc, &cq) });
    let qpn = qp.qpn();
    advance(&mut qp, 6);
    let index = post_inline(&mut qp, 200);
    qp.ring_send();
    let written = device.qp(qpn, |qp| qp.blueflames.last().cloned().unwrap());
    assert_eq!(written, device.send_ring(qpn).bytes(usize::from(index) * 64, 256));
}

#[test]
fn blueflame_is_for_one_small_request() {
    for (blueflame_bytes, len_bytes, count, by_blueflame) in [
        (256, 220, 1, true),
        (256, 221, 1, false),
        (256, 20, 2, false),
        (128, 92, 1, true),
        (128, 93, 1, false),
        (64, 28, 1, true),
        (64, 29, 1, false),
        // Half a register takes no more, whatever a device says.
        (512, 220, 1, true),
        (512, 221, 1, false),
    ] {
        let device = TestDevice::new().with_blueflame(blueflame_bytes);
        let (nic, device, cq) = nic(device);
        let send = SendSize { requests: 4, sges_max: 1, inline_bytes_max: 221 };
        let mut qp = ready(&nic, &Config { send, ..Config::new(Transport::Rc, &cq) });
        for _ in 0..count {
            post_inline(&mut qp, len_bytes);
        }
        qp.ring_send();
        let seen = device.qp(qp.qpn(), |qp| (qp.blueflames.len(), qp.rings.len()));
        let expected = if by_blueflame { (1, 0) } else { (0, 1) };
        assert_eq!(seen, expected, "{len_bytes} B of {blueflame_bytes}, {count} times");
    }
}

#[test]
fn pitfall_3_without_blueflame_the_plain_doorbell_rings() {
    let plain = (DoorbellMode::Plain, TestDevice::new());
    let none = (DoorbellMode::Auto, TestDevice::new().with_blueflame(0));
    for (doorbell, device) in [plain, none] {
        let (nic, device, cq) = nic(device);
        let nic = nic.with_options(Options { doorbell, ..Options::default() });
        let mut qp = ready(&nic, &Config::new(Transport::Rc, &cq));
        qp.post_send(&NOP).unwrap();
        qp.ring_send();
        let expected = [[0, 0, 0, 0, 0xab, 0xcd, 0xef, 1]];
        assert_eq!(device.qp(qp.qpn(), |qp| qp.rings.clone()), expected);
        assert!(device.qp(qp.qpn(), |qp| qp.blueflames.is_empty()));
    }
}

#[test]
#[cfg_attr(miri, ignore = "65,536 requests; the unit tests of `sq` start at the wrap")]
fn counters_wrap_at_16_bits() {
    let (nic, device, cq) = nic(TestDevice::new());
    let mut qp = ready(&nic, &Config::new(Transport::Rc, &cq));
    let qpn = qp.qpn();
    advance(&mut qp, 0xffff);
    assert_eq!(device.qp_record(qpn)[1], 0xffff);
    assert_eq!(post_inline(&mut qp, 92), 0xffff, "two blocks, the second with counter 0");
    assert_eq!(qp.post_send(&NOP), Ok(1));
    qp.ring_send();
    assert_eq!(device.qp_record(qpn)[1], 2);
    let ctrl = device.send_ring(qpn).bytes(0xffff * 64, 8);
    assert_eq!(ctrl[..4], [0, 0xff, 0xff, 9]);
    assert_eq!(qp.send_free(), 64 - 2);
}

#[test]
fn reset_clears_rings_records_and_counters() {
    let (nic, device, cq) = nic(TestDevice::new());
    let mut qp = ready(&nic, &Config::new(Transport::Rc, &cq));
    let qpn = qp.qpn();
    let nop = SendRequest::signaled(Op::Nop);
    for _ in 0..5 {
        qp.post_send(&nop).unwrap();
        qp.post_recv(&[]).unwrap();
    }
    qp.ring_send();
    qp.ring_recv();
    assert_eq!(device.qp_record(qpn), [5, 5]);
    qp.modify(&verbs::Transition::Reset).unwrap();
    assert_eq!(device.qp_record(qpn), [0, 0]);
    assert!(device.send_ring(qpn).all().iter().all(|&byte| byte == 0));
    assert!(device.recv_ring(qpn).all().iter().all(|&byte| byte == 0));
    assert_eq!(qp.send_free(), 64);
    make_ready(&mut qp);
    assert_eq!((qp.post_send(&nop), qp.post_recv(&[])), (Ok(0), Ok(0)));
}

#[test]
fn after_a_reset_half_a_queue_may_go_unsignaled_again() {
    let (nic, device, cq) = nic(TestDevice::new());
    let mut qp = ready(&nic, &Config::new(Transport::Rc, &cq));
    (0..20).for_each(|_| assert!(qp.post_send(&NOP).is_ok()));
    qp.modify(&verbs::Transition::Reset).unwrap();
    make_ready(&mut qp);
    (0..33).for_each(|_| assert!(qp.post_send(&NOP).is_ok()));
    let flags = |nth: usize| device.send_ring(qp.qpn()).bytes(64 * nth + 8, 8)[3];
    let signaled: Vec<_> = (0..33).filter(|&nth| flags(nth) != 0).collect();
    assert_eq!(signaled, [32]);
}
