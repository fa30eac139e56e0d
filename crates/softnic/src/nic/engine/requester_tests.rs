//! The sending half against a port that answers as told, at times that the test chooses.

use core::time::Duration;
use std::collections::VecDeque;

use verbs::{RtsAttr, Transport};
use wire::{
    cqe::Syndrome,
    ids::{DcKey, Lid, Lkey, QKey, Qpn, Rkey},
    wqe::{
        self, Av, AvKey, Ctrl, CtrlFlags, Octoword, Opcode, PlainKind, PlainSend, Sge, WqeWriter,
        peek_ctrl,
    },
};

use super::{
    Activity, Carried, Chunk, Completed, Extent, Key, Port, Reply, Request, Requester, Scratch,
    SendQueue, SendState, Sequence, Verb, WQE_BYTES_MAX,
};

const QPN: Qpn = Qpn::from_low_bits(0x42);
const IMM: u32 = 0x1234_5678;
const PEER: (Lid, Qpn) = (Lid::new(7), Qpn::from_low_bits(0x44));
const ACK_NS: u64 = 1 << 20;
const RNR_NS: u64 = 10_000;

/// WQEs of one block each, and whether some of them are taken for plain ones.
#[derive(Default)]
struct Wqes(Vec<[Octoword; 4]>, bool);

impl Wqes {
    fn push(
        &mut self,
        flags: CtrlFlags,
        opcode: Opcode,
        av: Option<&Av>,
        payload: impl FnOnce(WqeWriter<&mut [Octoword]>) -> WqeWriter<&mut [Octoword]>,
    ) {
        let mut block = [[0; 16]; 4];
        let mut writer = WqeWriter::new(&mut block[..]);
        if let Some(av) = av {
            writer = writer.av(av);
        }
        if opcode.has_raddr() {
            writer = writer.raddr(0x1000, Rkey::new(1));
        }
        payload(writer).finish(opcode, self.posted(), QPN, flags, IMM);
        self.0.push(block);
    }

    fn posted(&self) -> u16 {
        u16::try_from(self.0.len()).unwrap()
    }

    fn word(&self, counter: u16, at: usize) -> u64 {
        let words = self.0[usize::from(counter)].as_flattened();
        u64::from_ne_bytes(words[8 * at..][..8].try_into().unwrap())
    }
}

impl SendQueue for Wqes {
    fn fetch(&self, counter: u16, into: &mut [u8; WQE_BYTES_MAX]) -> (Ctrl, usize) {
        let bytes = self.0[usize::from(counter)].as_flattened();
        into[..bytes.len()].copy_from_slice(bytes);
        let ctrl = peek_ctrl(bytes.first_chunk().unwrap());
        (ctrl, usize::from(ctrl.octowords) * wqe::OCTOWORD_BYTES)
    }

    fn plain_kind(&self, counter: u16) -> Option<PlainKind> {
        PlainKind::of(self.word(counter, 0)).filter(|_| self.1)
    }

    fn plain(
        &self,
        counter: u16,
        transport: wqe::Transport,
        kind: PlainKind,
        qpn: Qpn,
    ) -> Option<(PlainSend, *const u8)> {
        let wqe = PlainSend::read(|at| self.word(counter, at), transport, kind, counter, qpn)?;
        let inline = self.0[usize::from(counter)].as_flattened()[wqe.inline_offset()..].as_ptr();
        Some((wqe, inline))
    }
}

/// Answers with `replies`, one after the other, and then acknowledges.
#[derive(Default)]
struct Scripted {
    replies: VecDeque<Reply>,
    now_ns: u64,
    /// READs and datagrams wait until `resumes`.
    defers: bool,
    resumes: bool,
    is_plain: bool,
    carried: Vec<Request>,
    /// Local entries that were asked for: their lengths, and whether the device stores there.
    located: Vec<(u32, bool)>,
    malformed: Vec<(u16, &'static str)>,
    completed: Vec<Completed>,
    /// Completions that were there when the queue pair fell.
    fell_after: Option<usize>,
}

impl Port for Scripted {
    fn lid(&self) -> Lid {
        Lid::new(1)
    }

    fn local(&mut self, sge: &Sge, write: bool) -> Result<Chunk, Syndrome> {
        self.located.push((sge.len_bytes, write));
        // Nobody looks at it: requests are carried nowhere.
        Ok(Chunk { ptr: core::ptr::null_mut(), len: sge.len_bytes as usize, is_inline: false })
    }

    fn destination(&self, av: &Av) -> Lid {
        Lid::new(av.rlid)
    }

    fn carry(&mut self, _: Lid, request: &Request, _: &[Chunk]) -> Reply {
        self.carried.push(*request);
        self.replies.pop_front().unwrap_or(Reply::Ack)
    }

    fn answers_later(&self) -> bool {
        false
    }

    fn send(&mut self, _: Lid, _: &Request, _: Sequence, _: &[Chunk]) {
        unreachable!("answers do not come later")
    }

    fn new_connection(&mut self) -> u32 {
        unreachable!("answers do not come later")
    }

    fn carry_plain(&mut self, _: Lid, request: Request, _: Chunk) -> Carried {
        if self.replies.front() != Some(&Reply::Ack) {
            return Carried::Declined;
        }
        self.replies.pop_front();
        self.carried.push(request);
        Carried::Done
    }

    fn complete(&mut self, completed: &Completed) {
        self.completed.push(*completed);
    }

    fn fell(&mut self) {
        self.fell_after = Some(self.completed.len());
    }

    fn defers(&mut self) -> bool {
        self.defers
    }

    fn is_plain(&self) -> bool {
        self.is_plain
    }

    fn resumes(&mut self) -> bool {
        self.resumes
    }

    fn malformed(&mut self, counter: u16, cause: &'static str) {
        self.malformed.push((counter, cause));
    }

    fn now_ns(&mut self) -> u64 {
        self.now_ns
    }
}

/// A send queue in RTS.
struct Sender {
    requester: Requester,
    wqes: Wqes,
    port: Scripted,
    scratch: Scratch,
}

impl Sender {
    fn new(transport: Transport, attr: &RtsAttr) -> Self {
        let mut requester = Requester::new(transport, QPN, false);
        if transport == Transport::Rc {
            requester.connect(PEER);
        }
        requester.start(Some(attr));
        let (wqes, port) = (Wqes::default(), Scripted::default());
        Self { requester, wqes, port, scratch: Scratch::new() }
    }

    fn post(&mut self, flags: CtrlFlags, opcode: Opcode, av: Option<&Av>) {
        self.wqes.push(flags, opcode, av, |writer| writer);
    }

    fn send(&mut self) {
        let flags = CtrlFlags::CQ_UPDATE;
        self.wqes.push(flags, Opcode::Send, None, |writer| writer.inline(b"payload"));
    }

    fn run(&mut self) -> Activity {
        let posted = self.wqes.posted();
        self.requester.advance(posted, &self.wqes, &mut self.port, &mut self.scratch, 100)
    }

    /// Runs at each time at which the queue wants to, until it wants nothing more; returns how long it
    /// waited each time.
    fn run_on(&mut self) -> Vec<u64> {
        let mut waits = Vec::new();
        while let Activity::WaitUntil { at_ns } = self.run() {
            waits.push(at_ns - self.port.now_ns);
            self.port.now_ns = at_ns;
            assert!(waits.len() < 100, "it waits for ever: {waits:?}");
        }
        waits
    }

    fn failures(&self) -> Vec<Option<Syndrome>> {
        self.port.completed.iter().map(|completed| completed.failure).collect()
    }
}

fn attr(retry_count: u8, rnr_retry: u8) -> RtsAttr {
    let ack_timeout = Duration::from_nanos(ACK_NS);
    RtsAttr { ack_timeout, retry_count, rnr_retry, ..RtsAttr::default() }
}

const NOT_READY: Reply = Reply::NotReady { wait_ns: RNR_NS };

#[test]
fn each_kind_of_retry_is_counted_to_its_end() {
    let cases = [
        // The last attempt is waited for, too.
        (Reply::Silence, attr(3, 7), 4, vec![ACK_NS; 4], Syndrome::RetryExceeded),
        (Reply::Silence, attr(0, 7), 1, vec![ACK_NS], Syndrome::RetryExceeded),
        (NOT_READY, attr(7, 2), 3, vec![RNR_NS; 2], Syndrome::RnrRetryExceeded),
        (NOT_READY, attr(7, 0), 1, vec![], Syndrome::RnrRetryExceeded),
    ];
    for (reply, attr, attempts, waits, syndrome) in cases {
        let mut sender = Sender::new(Transport::Rc, &attr);
        sender.port.replies.extend([reply; 20]);
        (0..3).for_each(|_| sender.send());
        assert_eq!(sender.run_on(), waits, "{reply:?}");
        let flushed = Some(Syndrome::Flushed);
        assert_eq!(sender.failures(), [Some(syndrome), flushed, flushed]);
        assert_eq!(sender.port.carried.len(), attempts, "what is flushed is not sent");
        assert_eq!(sender.port.fell_after, Some(0), "the state is there before the completion");
    }
}

#[test]
fn seven_retries_after_receiver_not_ready_are_for_ever() {
    let mut sender = Sender::new(Transport::Rc, &attr(0, 7));
    sender.port.replies.extend([NOT_READY; 50]);
    sender.send();
    assert_eq!(sender.run_on(), [RNR_NS; 50]);
    assert_eq!(sender.failures(), [None]);
}

#[test]
fn a_success_gives_all_retries_back() {
    for is_plain in [false, true] {
        let mut sender = Sender::new(Transport::Rc, &attr(1, 1));
        (sender.port.is_plain, sender.wqes.1) = (is_plain, is_plain);
        sender.port.replies.extend([Reply::Silence, NOT_READY, Reply::Ack].repeat(4));
        (0..4).for_each(|_| sender.send());
        assert_eq!(sender.run_on(), [ACK_NS, RNR_NS].repeat(4), "by the short way: {is_plain}");
        assert_eq!(sender.failures(), [None; 4]);
    }
}

/// A doorbell, or a poll, comes at any time.
#[test]
fn nothing_is_retried_before_its_time() {
    let mut sender = Sender::new(Transport::Rc, &attr(1, 7));
    sender.port.replies.extend([Reply::Silence]);
    sender.send();
    assert_eq!(sender.run(), Activity::WaitUntil { at_ns: ACK_NS });
    sender.port.now_ns = ACK_NS - 1;
    assert_eq!(sender.run(), Activity::WaitUntil { at_ns: ACK_NS });
    assert_eq!(sender.port.carried.len(), 1);
    sender.port.now_ns = ACK_NS;
    assert_eq!(sender.run(), Activity::Idle);
}

/// What was waited for does not hold the flush up.
#[test]
fn who_waits_for_a_retry_is_flushed_at_once() {
    let mut sender = Sender::new(Transport::Rc, &attr(7, 7));
    sender.port.replies.extend([Reply::Silence]);
    sender.send();
    sender.run();
    sender.requester.set_state(SendState::Flushing);
    assert_eq!(sender.run(), Activity::Idle);
    assert_eq!(sender.failures(), [Some(Syndrome::Flushed)]);
}

fn datagram(lid: u16) -> Av {
    Av::infiniband(AvKey::Queue(QKey::new(1)), PEER.1, Lid::new(lid), 0)
}

/// Short, so that every WQE is one block.
fn initiator(target: u32) -> Av {
    let long = Av::infiniband(AvKey::Dc(DcKey::new(1)), Qpn::from_low_bits(target), PEER.0, 0);
    Av { extension: None, ..long }
}

/// However long the last one was waited for.
#[test]
fn each_port_that_a_datagram_goes_to_has_its_own_time_to_connect() {
    let second_ns = 1_000_000_000;
    for ends in [Reply::Silence, Reply::Connecting] {
        let mut sender = Sender::new(Transport::Ud, &RtsAttr::default());
        sender.port.replies.extend([Reply::Connecting, ends, Reply::Connecting]);
        sender.post(CtrlFlags::CQ_UPDATE, Opcode::Send, Some(&datagram(2)));
        assert!(matches!(sender.run(), Activity::WaitUntil { .. }));
        sender.port.now_ns = 11 * second_ns;
        assert_eq!(sender.run(), Activity::Idle, "{ends:?}: this one is lost");
        sender.post(CtrlFlags::CQ_UPDATE, Opcode::Send, Some(&datagram(3)));
        assert!(matches!(sender.run(), Activity::WaitUntil { .. }), "{ends:?}: this one waits");
        sender.port.now_ns += second_ns;
        assert_eq!(sender.run(), Activity::Idle);
        assert_eq!((sender.port.carried.len(), sender.failures()), (4, vec![None; 2]));
    }
}

/// Strict mode lets WRITEs and SENDs overtake READs, but not those that must not.
#[test]
fn what_must_not_overtake_a_read_waits_for_it() {
    let (none, fence) = (CtrlFlags::CQ_UPDATE, CtrlFlags::CQ_UPDATE | CtrlFlags::FENCE);
    let (here, there) = (initiator(1), initiator(2));
    let cases = [
        ("overtakes", none, Opcode::Send, &here, false),
        ("a fence", fence, Opcode::Send, &here, true),
        ("another target", none, Opcode::Send, &there, true),
        ("as many READs as there may be", none, Opcode::RdmaRead, &here, true),
    ];
    for (name, flags, opcode, to, waits) in cases {
        let mut sender =
            Sender::new(Transport::Dci, &RtsAttr { reads_out_max: 1, ..RtsAttr::default() });
        sender.port.defers = true;
        sender.post(CtrlFlags::CQ_UPDATE, Opcode::RdmaRead, Some(&here));
        sender.post(flags, opcode, Some(to));
        assert_eq!(sender.run(), Activity::More, "{name}");
        let Request { to: target, extent, .. } = sender.port.carried[0];
        assert_eq!((target, extent), (here.destination, Extent::Checks { outstanding: 1 }));
        assert_eq!(sender.port.carried.len() == 1, waits, "{name}");
        assert_eq!(sender.port.completed, [], "{name}: completions are in order");
        sender.port.resumes = true;
        while sender.run() == Activity::More {}
        assert_eq!(sender.failures(), [None; 2], "{name}");
        assert_eq!(sender.port.completed.iter().map(|c| c.counter).collect::<Vec<_>>(), [0, 1]);
    }
}

/// A peer refuses more than it has agreed to.
#[test]
fn reads_that_are_outstanding_are_counted() {
    let attr = RtsAttr { reads_out_max: 3, ..RtsAttr::default() };
    let mut sender = Sender::new(Transport::Rc, &attr);
    sender.port.defers = true;
    (0..5).for_each(|_| sender.post(CtrlFlags::CQ_UPDATE, Opcode::RdmaRead, None));
    sender.run();
    let extents = |sender: &Sender| -> Vec<_> {
        sender.port.carried.iter().map(|request| request.extent).collect()
    };
    let checks = [1, 2, 3].map(|outstanding| Extent::Checks { outstanding });
    assert_eq!(extents(&sender), checks);
    (sender.port.defers, sender.port.resumes) = (false, true);
    sender.port.carried.clear();
    while sender.run() == Activity::More {}
    assert_eq!(extents(&sender), [Extent::Whole; 5]);
}

/// Strict mode: behind a READ or atomic that is deferred, none runs at once.
#[test]
fn reads_and_atomics_do_not_overtake_each_other() {
    let mut sender = Sender::new(Transport::Rc, &RtsAttr::default());
    sender.port.defers = true;
    sender.post(CtrlFlags::CQ_UPDATE, Opcode::RdmaRead, None);
    sender.run();
    sender.port.defers = false;
    sender.post(CtrlFlags::CQ_UPDATE, Opcode::RdmaRead, None);
    sender.run();
    assert_eq!(sender.port.carried[1].extent, Extent::Checks { outstanding: 2 });
}

/// What overtook a READ that fails later was done, but is reported as flushed, as by a device.
#[test]
fn what_overtook_a_failure_is_flushed() {
    let mut sender = Sender::new(Transport::Rc, &RtsAttr::default());
    sender.port.defers = true;
    let refused = Reply::Refused(Syndrome::RemoteAccess);
    sender.port.replies.extend([Reply::Ack, Reply::Ack, refused]);
    sender.post(CtrlFlags::NONE, Opcode::RdmaRead, None);
    sender.post(CtrlFlags::NONE, Opcode::Send, None);
    sender.run();
    sender.port.resumes = true;
    while sender.run() == Activity::More {}
    assert_eq!(sender.failures(), [Some(Syndrome::RemoteAccess), Some(Syndrome::Flushed)]);
    assert_eq!(sender.port.fell_after, Some(0));
}

/// The first request learns why, whether it has left the ring or not.
#[test]
fn the_death_of_the_peer_is_told_once() {
    for defers in [false, true] {
        let mut sender = Sender::new(Transport::Rc, &RtsAttr::default());
        sender.port.defers = defers;
        sender.port.replies.extend([if defers { Reply::Ack } else { Reply::Silence }]);
        (0..3).for_each(|_| sender.post(CtrlFlags::NONE, Opcode::RdmaRead, None));
        sender.run();
        sender.requester.lose_peer();
        assert_eq!(sender.run(), Activity::Idle);
        let [dead, flushed] = [Syndrome::RetryExceeded, Syndrome::Flushed].map(Some);
        assert_eq!(sender.failures(), [dead, flushed, flushed], "deferred: {defers}");
    }
}

#[test]
fn a_drained_queue_starts_nothing_and_ends_what_it_started() {
    let mut sender = Sender::new(Transport::Rc, &RtsAttr::default());
    sender.port.defers = true;
    sender.post(CtrlFlags::CQ_UPDATE, Opcode::RdmaRead, None);
    sender.run();
    sender.requester.set_state(SendState::Drained);
    sender.send();
    assert_eq!(sender.run(), Activity::More, "the READ is still to be carried");
    sender.port.resumes = true;
    assert_eq!(sender.run(), Activity::Idle, "what waits for RTS is no work");
    assert_eq!(sender.port.completed.len(), 1);
}

#[test]
fn a_stopped_queue_forgets_what_it_started() {
    let mut sender = Sender::new(Transport::Rc, &RtsAttr::default());
    sender.port.defers = true;
    sender.post(CtrlFlags::CQ_UPDATE, Opcode::RdmaRead, None);
    sender.run();
    sender.requester.stop();
    sender.port.resumes = true;
    assert_eq!((sender.run(), sender.port.completed.len()), (Activity::Idle, 0));
}

/// Datagrams may overtake each other, but not without end.
#[test]
fn few_datagrams_wait_at_once() {
    let mut sender = Sender::new(Transport::Ud, &RtsAttr::default());
    sender.port.defers = true;
    (0..20).for_each(|_| sender.post(CtrlFlags::CQ_UPDATE, Opcode::Send, Some(&datagram(2))));
    assert_eq!((sender.run(), sender.requester.next()), (Activity::More, 16));
    sender.port.resumes = true;
    while sender.run() == Activity::More {}
    assert_eq!(sender.port.carried.len(), 20);
}

#[test]
fn a_request_says_what_its_wqe_says() {
    let flags = CtrlFlags::CQ_UPDATE | CtrlFlags::SOLICITED;
    let av = Av::infiniband(AvKey::Queue(QKey::new(9)), PEER.1, PEER.0, 5);
    for (av, has_grh) in [(av, false), (av.with_grh(wire::ids::Gid::default(), 0, 1), true)] {
        let mut sender = Sender::new(Transport::Ud, &RtsAttr::default());
        sender.post(flags, Opcode::SendImm, Some(&av));
        sender.run();
        let said = Request {
            verb: Verb::Send,
            extent: Extent::Whole,
            key: Key::Ud(QKey::new(9)),
            from: (Lid::new(1), QPN),
            to: PEER.1,
            service_level: 5,
            has_grh,
            solicited: true,
            imm: Some(IMM),
            len_bytes: 0,
            // With a hop limit of 1, to that port.
            addr: if has_grh { u64::from(PEER.0.get()) << 48 | 1 << 8 } else { 0 },
            rkey: Rkey::new(0),
        };
        assert_eq!(sender.port.carried, [said]);
    }
}

#[test]
fn memory_that_a_device_stores_to_is_checked_for_that() {
    let cases = [
        (Opcode::Send, false),
        (Opcode::RdmaWrite, false),
        (Opcode::RdmaRead, true),
        (Opcode::AtomicCs, true),
        (Opcode::AtomicFa, true),
    ];
    for (opcode, write) in cases {
        let mut sender = Sender::new(Transport::Rc, &RtsAttr::default());
        sender.wqes.push(CtrlFlags::CQ_UPDATE, opcode, None, |mut writer| {
            if opcode.is_atomic() {
                writer = writer.atomic(1, 2);
            }
            writer.data(0x1000, Lkey::new(1), 8)
        });
        sender.run();
        assert_eq!(sender.port.located, [(8, write)], "{opcode:?}");
    }
}

#[test]
fn messages_that_are_too_long_do_not_leave() {
    const HALF: u32 = 1 << 29;
    let cases = [
        (Transport::Rc, vec![HALF, HALF], None),
        (Transport::Rc, vec![HALF, 1, HALF], Some(Syndrome::LocalLength)),
        (Transport::Ud, vec![4096], None),
        (Transport::Ud, vec![4096, 1], Some(Syndrome::LocalLength)),
    ];
    for (transport, parts, failure) in cases {
        let mut sender = Sender::new(transport, &RtsAttr::default());
        let av = (transport == Transport::Ud).then(|| Av { extension: None, ..datagram(2) });
        sender.wqes.push(CtrlFlags::CQ_UPDATE, Opcode::Send, av.as_ref(), |writer| {
            let data = |writer: WqeWriter<_>, &len| writer.data(0x1000, Lkey::new(1), len);
            parts.iter().fold(writer, data)
        });
        sender.run();
        assert_eq!(sender.failures(), [failure], "{transport:?} {parts:?}");
        assert_eq!(sender.port.carried.is_empty(), failure.is_some());
    }
}

/// What lies behind it is of the last lap.
#[test]
fn a_request_longer_than_what_was_posted_is_not_carried() {
    for is_plain in [false, true] {
        let mut sender = Sender::new(Transport::Rc, &RtsAttr::default());
        (sender.port.is_plain, sender.wqes.1) = (is_plain, is_plain);
        sender.port.replies.extend([Reply::Ack]);
        sender.send();
        let [control, header, ..] = &mut sender.wqes.0[0];
        // 50 bytes of payload: five octowords, two blocks.
        control[7] = 5;
        header[..4].copy_from_slice(&(1u32 << 31 | 50).to_be_bytes());
        sender.run();
        assert_eq!(sender.port.malformed, [(0, "longer than what was posted")]);
        assert_eq!(sender.port.carried, [], "by the short way: {is_plain}");
        assert_eq!(sender.failures(), [Some(Syndrome::LocalQpOperation)]);
    }
}
