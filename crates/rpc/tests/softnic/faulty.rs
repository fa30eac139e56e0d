//! A NIC that refuses to change the state of queue pairs while it is told to.

use std::{cell::Cell, rc::Rc, time::Duration};

use copyrpc_rpc::{
    Call, CloseReason, Config, ConnectError, Handler, PeerId, Range, Request, Status,
    TransportKind, Worker,
};
use verbs::{
    Access, AddressVector, AsyncEvent, Completion, CqConfig, CreateError, MemoryError, ModifyError,
    Nic, NicAttributes, PortAttributes, PostRecvError, PostSendError, QpConfig, QpState, Qpn,
    QueuePair, SendRequest, SrqConfig, Transition, Transport,
};

use crate::rig::{ECHO, Node, fabric, soft, tight};

type Soft = softnic::Nic;

#[derive(Clone)]
struct Faulty {
    nic: Soft,
    is_refusing: Rc<Cell<bool>>,
}

struct FaultyQp {
    qp: <Soft as Nic>::Qp,
    is_refusing: Rc<Cell<bool>>,
}

impl Nic for Faulty {
    type Pd = <Soft as Nic>::Pd;
    type Mr = <Soft as Nic>::Mr;
    type Cq = <Soft as Nic>::Cq;
    type Srq = <Soft as Nic>::Srq;
    type Qp = FaultyQp;
    type Channel = <Soft as Nic>::Channel;

    fn attributes(&self) -> &NicAttributes {
        self.nic.attributes()
    }
    fn port(&self) -> PortAttributes {
        self.nic.port()
    }
    fn address(&self) -> AddressVector {
        self.nic.address()
    }
    fn alloc_pd(&self) -> Result<Self::Pd, CreateError> {
        self.nic.alloc_pd()
    }
    fn alloc_mr(
        &self,
        pd: &Self::Pd,
        len_bytes: usize,
        access: Access,
    ) -> Result<Self::Mr, MemoryError> {
        self.nic.alloc_mr(pd, len_bytes, access)
    }
    fn create_channel(&self) -> Result<Self::Channel, CreateError> {
        self.nic.create_channel()
    }
    fn create_cq(
        &self,
        config: &CqConfig,
        channel: Option<&Self::Channel>,
    ) -> Result<Self::Cq, CreateError> {
        self.nic.create_cq(config, channel)
    }
    fn create_srq(&self, pd: &Self::Pd, config: &SrqConfig) -> Result<Self::Srq, CreateError> {
        self.nic.create_srq(pd, config)
    }
    fn create_qp(
        &self,
        pd: &Self::Pd,
        config: &QpConfig<'_, Self>,
    ) -> Result<FaultyQp, CreateError> {
        let QpConfig { send_cq, recv_cq, srq, send, recv, access_key, .. } = *config;
        let of_soft = QpConfig::new(config.transport, send_cq);
        let of_soft = QpConfig { recv_cq, srq, send, recv, access_key, ..of_soft };
        let is_refusing = Rc::clone(&self.is_refusing);
        Ok(FaultyQp { qp: self.nic.create_qp(pd, &of_soft)?, is_refusing })
    }
    fn poll_event(&self) -> Option<AsyncEvent> {
        self.nic.poll_event()
    }
    fn poll_timeout(&self) -> Option<Duration> {
        self.nic.poll_timeout()
    }
}

impl QueuePair for FaultyQp {
    fn qpn(&self) -> Qpn {
        self.qp.qpn()
    }
    fn transport(&self) -> Transport {
        self.qp.transport()
    }
    fn state(&self) -> QpState {
        self.qp.state()
    }
    fn modify(&mut self, to: &Transition) -> Result<(), ModifyError> {
        if self.is_refusing.get() {
            return Err(ModifyError::Device { to: QpState::Reset, cause: "a test".into() });
        }
        self.qp.modify(to)
    }
    fn post_send(&mut self, request: &SendRequest<'_>) -> Result<u16, PostSendError> {
        self.qp.post_send(request)
    }
    fn ring_send(&mut self) {
        self.qp.ring_send();
    }
    fn post_recv(&mut self, into: &[verbs::Sge]) -> Result<u16, PostRecvError> {
        self.qp.post_recv(into)
    }
    fn ring_recv(&mut self) {
        self.qp.ring_recv();
    }
    fn send_free(&self) -> u16 {
        self.qp.send_free()
    }
    fn retire(&mut self, completion: &Completion) {
        self.qp.retire(completion);
    }
}

/// How calls and connections ended.
#[derive(Default)]
struct Ends {
    ended: Vec<(u64, Status)>,
    closed: Vec<PeerId>,
}

impl Handler<Faulty> for Ends {
    fn request(&mut self, _: &mut Worker<Faulty>, _: Request<'_>) {}
    fn response(&mut self, _: &mut Worker<Faulty>, cookie: u64, status: Status, _: &[u8]) {
        self.ended.push((cookie, status));
    }
    fn closed(&mut self, _: &mut Worker<Faulty>, peer: PeerId, _: CloseReason) {
        self.closed.push(peer);
    }
}

/// A caller whose NIC may refuse, and two that it calls over one initiator.
struct Scene {
    caller: Worker<Faulty>,
    is_refusing: Rc<Cell<bool>>,
    ends: Ends,
    others: [Node; 2],
}

impl Scene {
    fn new() -> Self {
        let config = Config { transport: TransportKind::Dc, dcis: 1, ..tight() };
        let fabric = fabric();
        let is_refusing = Rc::new(Cell::new(false));
        let nic = softnic::open(&soft(&fabric, None)).unwrap();
        let nic = Faulty { nic, is_refusing: Rc::clone(&is_refusing) };
        let caller = Worker::open(nic, config.clone(), os::clock::now_ns()).unwrap();
        let others = [0, 1].map(|_| Node::open(&fabric, &config));
        Self { caller, is_refusing, ends: Ends::default(), others }
    }

    fn join(&mut self, other: usize) -> PeerId {
        let (to, from_caller) = self.caller.invite().unwrap();
        let (back, from_other) = self.others[other].worker.invite().unwrap();
        self.caller.connect(to, &from_other).unwrap();
        self.others[other].worker.connect(back, &from_caller).unwrap();
        to
    }

    fn until_ended(&mut self, count: usize) {
        let start = std::time::Instant::now();
        while self.ends.ended.len() < count {
            self.caller.poll(os::clock::now_ns(), &mut self.ends);
            self.others.iter_mut().for_each(|other| _ = other.poll());
            assert!(start.elapsed().as_secs() < 30, "{:?}", self.ends.ended);
        }
        self.ends.ended.sort_by_key(|(cookie, _)| *cookie);
    }
}

/// Fault D4: an initiator that fails and cannot be restarted ends everything that it was to move, and
/// every connection that it served. There is another one as soon as the NIC makes one.
#[test]
fn fault_d4_an_initiator_that_cannot_be_restarted_ends_what_it_served_and_is_replaced() {
    let mut scene = Scene::new();
    let [to_b, to_c] = [0, 1].map(|other| scene.join(other));
    let theirs = scene.others[0].worker.expose(64).unwrap();
    let dead = scene.others[1].worker.expose(64).unwrap().remote();
    let ours = scene.caller.expose(64).unwrap();
    let range = |at| Range { remote_offset: 0, local_offset: at, len_bytes: 4 };
    let call = |cookie| Call { method: ECHO, cookie, ..Call::default() };
    scene.caller.read(to_c, &dead, &ours, range(0), 0).unwrap();
    scene.caller.read(to_b, &theirs.remote(), &ours, range(8), 1).unwrap();
    scene.caller.call(to_b, &call(2), b"behind").unwrap();
    scene.is_refusing.set(true);
    scene.until_ended(3);
    let lost = [0, 1, 2].map(|cookie| (cookie, Status::Unavailable));
    assert_eq!(scene.ends.ended, lost);
    assert_eq!((scene.ends.closed.len(), scene.caller.peers()), (2, 0));
    let (to_b, from_caller) = scene.caller.invite().unwrap();
    let (back, from_b) = scene.others[0].worker.invite().unwrap();
    let refused = scene.caller.connect(to_b, &from_b);
    assert!(matches!(refused, Err(ConnectError::Modify(_))), "{refused:?}");
    scene.is_refusing.set(false);
    scene.caller.connect(to_b, &from_b).unwrap();
    scene.others[0].worker.connect(back, &from_caller).unwrap();
    scene.caller.call(to_b, &call(3), b"again").unwrap();
    scene.until_ended(4);
    assert_eq!(scene.ends.ended[3], (3, Status::Ok));
}

/// A connection that has nothing to move when its initiator fails for good is told, too: it does not
/// wait for its next call to find out.
#[test]
fn fault_d4_an_initiator_that_cannot_be_restarted_ends_idle_connections_too() {
    let mut scene = Scene::new();
    let [to_idle, to_c] = [0, 1].map(|other| scene.join(other));
    let dead = scene.others[1].worker.expose(64).unwrap().remote();
    let ours = scene.caller.expose(64).unwrap();
    let range = Range { remote_offset: 0, local_offset: 0, len_bytes: 4 };
    scene.caller.read(to_c, &dead, &ours, range, 0).unwrap();
    scene.is_refusing.set(true);
    scene.until_ended(1);
    assert!(scene.ends.closed.contains(&to_idle), "{:?}", scene.ends.closed);
}
