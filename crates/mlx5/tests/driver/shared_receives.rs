//! The shared receive queue's linked list, against a device that follows it.

use std::collections::VecDeque;

use copyrpc_mlx5::Nic;
use hex_literal::hex;
use proptest::{collection::vec, prelude::*};
use verbs::{
    Completion, CompletionKind, Nic as _, PostRecvError, Qpn, SharedReceiveQueue as _, SrqConfig,
};
use wire::wqe::RecvWqe;

use crate::device::{Memory, Srq, TestDevice, sge};

fn srq(entries: u32, sges_max: u8) -> (TestDevice, Srq) {
    let device = TestDevice::new();
    let nic = Nic::new(device.clone());
    let srq = nic.create_srq(&(), &SrqConfig { entries, sges_max }).unwrap();
    (device, srq)
}

fn received(wqe: u16) -> Completion {
    Completion {
        qpn: Qpn::new(3).unwrap(),
        wqe,
        kind: CompletionKind::Recv,
        failure: None,
        len_bytes: 0,
        imm: None,
        source: None,
        solicited: false,
        in_cqe: false,
    }
}

/// What an adapter does: from entry 0, follow the links, as far as the counter allows.
struct Follower {
    ring: Memory,
    stride_bytes: usize,
    next: u16,
    taken: u16,
}

impl Follower {
    fn new(device: &TestDevice, srq: &Srq, stride_bytes: usize) -> Self {
        Self { ring: device.srq_ring(srq.srqn()), stride_bytes, next: 0, taken: 0 }
    }

    /// Takes a buffer: its entry, and the address in its scatter list.
    fn take(&mut self, counter: u32) -> Option<(u16, Option<u64>)> {
        let counter = u16::try_from(counter).unwrap();
        if counter == self.taken {
            return None;
        }
        let index = self.next;
        let bytes = self.ring.bytes(usize::from(index) * self.stride_bytes, self.stride_bytes);
        let wqe = RecvWqe::parse_srq(&bytes).unwrap();
        self.next = wqe.next_wqe_index.expect("it is an SRQ");
        self.taken = self.taken.wrapping_add(1);
        Some((index, wqe.sges().next().map(|sge| sge.addr)))
    }
}

/// `mlx5_wqe_srq_next_seg` and `mlx5_wqe_data_seg`, by hand.
#[test]
fn entries_match_the_manual() {
    let (device, mut srq) = srq(4, 2);
    let ring = device.srq_ring(srq.srqn());
    assert_eq!(ring.all().len(), 8 * 64, "twice the entries; link, two buffers: stride 64");
    assert_eq!(srq.post(&[sge(0x1000, 0x11, 64)]), Ok(0));
    assert_eq!(srq.post(&[sge(0x2000, 0x22, 64), sge(0x3000, 0x33, 1)]), Ok(1));
    let expected = hex!(
        "0000 0001 00 0000000000000000000000"
        "00000040 00000011 0000000000001000"
        "00000000 00000100 0000000000000000"
        "00000000 00000000 0000000000000000"
        "0000 0002 00 0000000000000000000000"
        "00000040 00000022 0000000000002000"
        "00000001 00000033 0000000000003000"
        "00000000 00000100 0000000000000000"
    );
    assert_eq!(ring.bytes(0, 128), expected);
    assert_eq!(device.srq_record(srq.srqn()), 0, "posting tells nothing");
    srq.ring();
    assert_eq!(device.srq_record(srq.srqn()), 2);
}

/// With the links zeroed, as they once were, every message would land in buffer 0.
#[test]
fn pitfall_1_eight_messages_land_in_eight_buffers() {
    let (device, mut srq) = srq(8, 1);
    for buffer in 0..8 {
        srq.post(&[sge(0x1000 * (buffer + 1), 7, 64)]).unwrap();
    }
    let full = PostRecvError::QueueFull { requests: 8 };
    assert_eq!(srq.post(&[]), Err(full));
    srq.ring();
    let mut adapter = Follower::new(&device, &srq, 32);
    let counter = device.srq_record(srq.srqn());
    let landed: Vec<_> = std::iter::from_fn(|| adapter.take(counter)).collect();
    let expected: Vec<_> =
        (0..8u16).map(|index| (index, Some(0x1000 * (u64::from(index) + 1)))).collect();
    assert_eq!(landed, expected);
}

#[test]
fn a_list_longer_than_the_limit_is_refused() {
    let (_, mut srq) = srq(4, 1);
    let two = [sge(0, 1, 1), sge(8, 1, 1)];
    assert_eq!(srq.post(&two), Err(PostRecvError::TooManySges { asked: 2, max: 1 }));
    assert_eq!(srq.post(&two[..1]), Ok(0));
}

#[test]
#[should_panic(expected = "buffer is not outstanding")]
fn retiring_a_buffer_twice_is_a_bug() {
    let (_, mut srq) = srq(4, 1);
    srq.post(&[]).unwrap();
    srq.retire(&received(0));
    srq.retire(&received(0));
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Post,
    Ring,
    /// The adapter takes a buffer.
    Take,
    /// Software gives a completed buffer back, by position among the completed.
    Retire(prop::sample::Index),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Post),
        2 => Just(Step::Ring),
        4 => Just(Step::Take),
        4 => any::<prop::sample::Index>().prop_map(Step::Retire),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 4 } else { 256 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Buffers come back in any order; the adapter still finds each posted one once, in the order
    /// in which they were posted.
    #[test]
    fn pitfall_1_an_adapter_that_follows_links_finds_what_was_posted(
        entries in 1u32..9,
        steps in vec(any_step(), 0..if cfg!(miri) { 60 } else { 500 }),
    ) {
        let (device, mut srq) = srq(entries, 1);
        let capacity = entries as usize;
        let mut adapter = Follower::new(&device, &srq, 32);
        let (mut posted, mut completed) = (VecDeque::new(), Vec::new());
        let mut addr = 0;
        for step in steps {
            match step {
                Step::Post => {
                    addr += 0x1000;
                    match srq.post(&[sge(addr, 7, 64)]) {
                        Ok(index) => posted.push_back((index, Some(addr))),
                        Err(error) => {
                            let entries = u32::try_from(capacity).unwrap();
                            prop_assert_eq!(error, PostRecvError::QueueFull { requests: entries });
                            prop_assert_eq!(posted.len() + completed.len(), capacity);
                        }
                    }
                }
                Step::Ring => srq.ring(),
                Step::Take => {
                    if let Some(taken) = adapter.take(device.srq_record(srq.srqn())) {
                        prop_assert_eq!(Some(taken), posted.pop_front());
                        completed.push(taken.0);
                    }
                }
                Step::Retire(which) => {
                    if !completed.is_empty() {
                        let index = completed.swap_remove(which.index(completed.len()));
                        srq.retire(&received(index));
                    }
                }
            }
        }
    }
}
