//! The NIC: what is made of an open device.

use core::time::Duration;
use std::os::fd::OwnedFd;

use memory::sync::Arc;
use verbs::{
    Access, AddressVector, AsyncEvent, CqConfig, CreateError, MemoryError, NicAttributes,
    PortAttributes, QpConfig, RecvSize, Registration, SendSize, SrqConfig, Transport,
};

use crate::{
    ah::Pd, api::Api, channel::Channel, context::Context, cq::Cq, error::OpenError, mr::Mr,
    nearest::Places, options::Config, qp::Qp, srq::Srq,
};

/// Inline payloads that are tried, longest first: the library does not tell what a device takes.
const INLINE_BYTES: [u16; 8] = [512, 400, 256, 220, 128, 64, 32, 0];

/// A port of an RDMA device.
#[derive(Clone, Debug)]
pub struct Nic {
    context: Arc<Context>,
}

/// Opens the port that `config` names.
///
/// # Errors
///
/// [`OpenError`].
pub fn open(config: &Config) -> Result<Nic, OpenError> {
    open_with(Api::load()?, config)
}

pub(crate) fn open_with(api: Api, config: &Config) -> Result<Nic, OpenError> {
    let mut context = Context::open(api, config, &Places::here(), |_| true)?;
    // As large as is tried, so that the probe may ask for it.
    context.attributes.inline_bytes_max = INLINE_BYTES[0];
    let context = Arc::new(context);
    let nic = Nic { context };
    let inline_bytes_max = nic.probe_inline().map_err(|error| OpenError::Probe {
        device: nic.context.attributes.name.clone(),
        cause: error.to_string(),
    })?;
    let mut context = Arc::into_inner(nic.context).expect("the probe has dropped its objects");
    context.attributes.inline_bytes_max = inline_bytes_max;
    Ok(Nic { context: Arc::new(context) })
}

impl Nic {
    /// The longest inline payload of a queue pair with a short gather list.
    fn probe_inline(&self) -> Result<u16, CreateError> {
        use verbs::Nic as _;
        let pd = self.alloc_pd()?;
        let cq = self.create_cq(&CqConfig::new(4), None)?;
        let sges_max = self.context.attributes.sges_max.min(4);
        let mut last = None;
        for inline_bytes_max in INLINE_BYTES {
            let mut config = QpConfig::<Self>::new(Transport::Rc, &cq);
            config.send = SendSize { requests: 1, sges_max, inline_bytes_max };
            config.recv = RecvSize { requests: 1, sges_max: 1 };
            match self.create_qp(&pd, &config) {
                Ok(_) => return Ok(inline_bytes_max),
                Err(error) => last = Some(error),
            }
        }
        let none = CreateError::System { object: "queue pair", cause: String::new() };
        Err(last.unwrap_or(none))
    }
}

impl verbs::Nic for Nic {
    type Pd = Pd;
    type Mr = Mr;
    type Cq = Cq;
    type Srq = Srq;
    type Qp = Qp;
    type Channel = Channel;

    fn attributes(&self) -> &NicAttributes {
        &self.context.attributes
    }

    fn port(&self) -> PortAttributes {
        self.context.port_attributes()
    }

    fn address(&self) -> AddressVector {
        self.context.address()
    }

    fn alloc_pd(&self) -> Result<Pd, CreateError> {
        Pd::new(&self.context)
    }

    fn alloc_mr(&self, pd: &Pd, len_bytes: usize, access: Access) -> Result<Mr, MemoryError> {
        Mr::alloc(&pd.0, len_bytes, access)
    }

    fn register_memfd(
        &self,
        pd: &Pd,
        fd: OwnedFd,
        len_bytes: usize,
        access: Access,
    ) -> Result<Mr, MemoryError> {
        Mr::of_memfd(&pd.0, fd, len_bytes, access)
    }

    fn begin_register_memfd(
        &self,
        pd: &Pd,
        fd: OwnedFd,
        len_bytes: usize,
        access: Access,
    ) -> Registration<Mr> {
        Mr::begin_of_memfd(&pd.0, fd, len_bytes, access)
    }

    fn create_channel(&self) -> Result<Channel, CreateError> {
        Channel::new(&self.context)
    }

    fn create_cq(&self, config: &CqConfig, channel: Option<&Channel>) -> Result<Cq, CreateError> {
        Cq::new(&self.context, config, channel.map(|channel| channel.0.clone()))
    }

    fn create_srq(&self, pd: &Pd, config: &SrqConfig) -> Result<Srq, CreateError> {
        Srq::new(&pd.0, config)
    }

    fn create_qp(&self, pd: &Pd, config: &QpConfig<'_, Self>) -> Result<Qp, CreateError> {
        Qp::new(&pd.0, config)
    }

    fn poll_event(&self) -> Option<AsyncEvent> {
        self.context.poll_event()
    }

    /// The device works by itself.
    fn poll_timeout(&self) -> Option<Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;
    use std::{os::fd::AsFd as _, time::Instant};

    use verbs::{
        Arm, Channel as _, CompletionKind, CompletionQueue as _, MemoryRegion as _, Nic as _, Op,
        Payload, PostRecvError, QpState, QueuePair as _, SendRequest, SharedReceiveQueue as _,
        Transition, WcStatus,
    };

    use super::*;
    use crate::{
        abi::{RawGid, Wc, port_state},
        fake,
    };

    fn fake() -> Nic {
        open_with(fake::API, &Config::default()).unwrap()
    }

    fn refusal(config: &Config) -> String {
        open_with(fake::API, config).map(drop).unwrap_err().to_string()
    }

    fn is_one(text: &str, parts: &[&str]) -> bool {
        parts.iter().all(|part| text.contains(part))
    }

    /// A queue pair of the fake device in RTS.
    fn ready(nic: &Nic, cq: &Cq, srq: Option<&Srq>) -> Qp {
        use verbs::{InitAttr, QKey, RtrAttr, RtsAttr};
        let pd = nic.alloc_pd().unwrap();
        let mut config = QpConfig::<Nic>::new(Transport::Ud, cq);
        config.srq = srq;
        (config.send.requests, config.recv.requests) = (8, 8);
        let mut qp = nic.create_qp(&pd, &config).unwrap();
        let init = InitAttr { access: Access::empty(), qkey: QKey::new(1) };
        qp.modify(&Transition::Init(init)).unwrap();
        let rtr = RtrAttr {
            path_mtu: nic.port().mtu,
            peer: None,
            rnr_timer: verbs::RnrTimer::from_code(0),
            reads_in_max: 0,
        };
        qp.modify(&Transition::Rtr(rtr)).unwrap();
        qp.modify(&Transition::Rts(RtsAttr::default())).unwrap();
        qp
    }

    fn send(nic: &Nic, qp: &mut Qp) -> u16 {
        let to = verbs::Destination::Ud { to: nic.endpoint(qp), qkey: verbs::QKey::new(1) };
        let op = Op::Send { payload: Payload::Inline(&[b"x"]), imm: None };
        qp.post_send(&SendRequest::signaled(op).to(&to)).unwrap()
    }

    #[test]
    fn a_device_is_asked_for_its_limits_and_everything_ends() {
        let nic = fake();
        let attributes = nic.attributes();
        assert_eq!(attributes.name, "fake0");
        assert_eq!((attributes.sges_max, attributes.requests_max), (4, 64));
        assert_eq!((attributes.reads_max, attributes.inline_bytes_max), (16, 220));
        let pd = nic.alloc_pd().unwrap();
        let mr = nic.alloc_mr(&pd, 100, Access::LOCAL_WRITE).unwrap();
        assert!(nic.poll_event().is_none());
        drop((nic, pd, mr));
        fake::with(|fake| assert_eq!(fake.live, 0, "objects are left"));
    }

    #[test]
    fn a_completion_queue_is_on_a_vector_that_the_device_has() {
        let nic = fake();
        for vector in [0, 2, 3, 7] {
            drop(nic.create_cq(&CqConfig { vector, ..CqConfig::new(4) }, None).unwrap());
        }
        // The device was tried with a queue of its own.
        fake::with(|fake| assert!(fake.vectors.ends_with(&[0, 2, 0, 1]), "{:?}", fake.vectors));
    }

    /// A shared receive queue has limits of its own.
    #[test]
    fn shared_receive_queues_are_as_the_device_makes_them() {
        let nic = fake();
        let pd = nic.alloc_pd().unwrap();
        let asked = |entries, sges_max| nic.create_srq(&pd, &SrqConfig { entries, sges_max });
        assert!(asked(48, 2).is_ok());
        let refused = asked(49, 1).map(drop).unwrap_err();
        assert!(matches!(refused, CreateError::Size { asked: 49, .. }), "{refused}");
        let refused = asked(4, 3).map(drop).unwrap_err();
        assert!(matches!(refused, CreateError::Size { asked: 3, .. }), "{refused}");
    }

    /// An interface that was down has its addresses in other rows.
    #[test]
    fn a_port_goes_on_with_its_address_in_whichever_row_it_comes_back() {
        use crate::abi::event;
        let nic = fake();
        let happens = |event, gids: Vec<RawGid>| {
            fake::with(|fake| (fake.gids, fake.port_events) = (gids, [event].into()));
            let told = nic.poll_event();
            (told, nic.port().gid.to_bytes()[0], nic.port().gid_index)
        };
        let [none, own, other] = [[0; 16], [1; 16], [2; 16]].map(RawGid);
        let changed = Some(AsyncEvent::AddressChanged);
        assert_eq!(happens(event::GID_CHANGE, vec![none]), (changed, 1, 0), "it may come back");
        assert_eq!(happens(event::GID_CHANGE, vec![none, other, own]), (changed, 1, 2));
        let sent_from = nic.context.ah_attr(&nic.address()).grh.sgid_index;
        assert_eq!(sent_from, 2);
        assert_eq!(happens(event::GID_CHANGE, vec![other]), (changed, 2, 0), "it is gone");
        assert_eq!(happens(event::GID_CHANGE, vec![other, none, none, own]), (changed, 1, 3));
        let up = Some(AsyncEvent::PortUp);
        assert_eq!(happens(event::PORT_ACTIVE, vec![none, other]), (up, 2, 1));
        let fatal = Some(AsyncEvent::DeviceFatal);
        assert_eq!(happens(event::SRQ_ERR, vec![other]).0, fatal);
    }

    /// A subnet manager has changed the table of partitions.
    #[test]
    fn a_port_stays_in_its_partition_in_whichever_row_that_is() {
        use crate::abi::event;
        let nic = fake();
        let happens = |event, pkeys: Vec<u16>| {
            fake::with(|fake| (fake.pkeys, fake.port_events) = (pkeys, [event].into()));
            (nic.poll_event(), nic.context.rows().pkey_index)
        };
        let changed = Some(AsyncEvent::AddressChanged);
        assert_eq!(happens(event::PKEY_CHANGE, vec![0x8001, 0xffff]), (changed, 1));
        assert_eq!(happens(event::CLIENT_REREGISTER, vec![0x8001, 0x8002]), (changed, 1), "gone");
        assert_eq!(happens(event::PKEY_CHANGE, vec![0xffff, 0xffff]), (changed, 1), "still there");
        assert_eq!(happens(event::LID_CHANGE, vec![0xffff, 0x8001]), (changed, 0));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_remedy() {
        let named = Config { device: "mlx5_0".into(), ..Config::default() };
        assert!(is_one(&refusal(&named), &["`mlx5_0`", "there are: fake0"]));
        let port = Config { port: 2, ..Config::default() };
        assert!(is_one(&refusal(&port), &["ports 1 to 1, not 2", "COPYRPC_NIC_PORT"]));
        let row = Config { gid_index: Some(3), ..Config::default() };
        assert!(is_one(&refusal(&row), &["row 3", "in use: 0", "COPYRPC_NIC_GID_INDEX"]));
        let key = Config { pkey_index: 1, ..Config::default() };
        assert!(is_one(&refusal(&key), &["row 1", "COPYRPC_NIC_PKEY_INDEX"]));

        let any = Config::default();
        fake::with(|fake| fake.pkeys = vec![0x7fff]);
        assert!(is_one(&refusal(&any), &["0x7fff", "limited member"]));
        fake::with(|fake| fake.gids = vec![RawGid::default()]);
        fake::with(|fake| fake.pkeys = vec![0xffff]);
        assert!(is_one(&refusal(&any), &["no GID", "IP address"]));
        fake::with(|fake| fake.port_state = port_state::DOWN);
        assert!(is_one(&refusal(&any), &["port 1", "down", "interface"]));
        fake::with(|fake| fake.devices = 0);
        assert!(is_one(&refusal(&any), &["no RDMA device", "ibverbs-providers"]));
        fake::with(|fake| assert_eq!(fake.live, 0, "objects are left"));
    }

    #[test]
    fn requests_that_the_library_refuses_complete_and_end_their_queue_pair() {
        let nic = fake();
        let mut cq = nic.create_cq(&CqConfig::new(64), None).unwrap();
        let mut qp = ready(&nic, &cq, None);
        fake::with(|fake| fake.takes = 1);
        let sent: Vec<u16> = (0..3).map(|_| send(&nic, &mut qp)).collect();
        qp.ring_send();
        assert_eq!(qp.state(), QpState::Err);
        let statuses = [None, Some(WcStatus::LocalQpOperation), Some(WcStatus::Flushed)];
        for (wqe, status) in sent.into_iter().zip(statuses) {
            let done = cq.poll().unwrap();
            assert_eq!((done.wqe, done.failure.map(|failure| failure.status)), (wqe, status));
            qp.retire(&done);
        }
        assert_eq!((qp.send_free(), cq.poll()), (8, None));
    }

    #[test]
    fn a_queue_pair_takes_its_completions_along_and_leaves_shared_buffers() {
        let nic = fake();
        let pd = nic.alloc_pd().unwrap();
        let mut cq = nic.create_cq(&CqConfig::new(64), None).unwrap();
        let mut srq = nic.create_srq(&pd, &SrqConfig { entries: 1, sges_max: 1 }).unwrap();
        let mut qp = ready(&nic, &cq, Some(&srq));
        let index = srq.post(&[]).unwrap();
        srq.ring();
        assert_eq!(srq.post(&[]), Err(PostRecvError::QueueFull { requests: 1 }));
        let wr_id = fake::with(|fake| fake.buffers.pop_front()).unwrap();
        let received = Wc { wr_id, qp_num: 77, opcode: 128, byte_len: 48, ..Wc::default() };
        fake::complete(cq.0.raw(), received);
        fake::complete(cq.0.raw(), Wc { qp_num: 78, ..received });
        send(&nic, &mut qp);
        qp.ring_send();
        drop(qp);
        let left = cq.poll().unwrap();
        assert_eq!((left.qpn.get(), left.kind), (78, CompletionKind::Recv), "of another one");
        assert_eq!(cq.poll(), None);
        assert_eq!(srq.post(&[]), Ok(index), "the buffer came back");
    }

    #[test]
    fn an_armed_queue_fires_once() {
        let nic = fake();
        let channel = nic.create_channel().unwrap();
        let mut cq = nic.create_cq(&CqConfig::new(64), Some(&channel)).unwrap();
        let mut qp = ready(&nic, &cq, None);
        let has_fired = || channel.wait(Duration::ZERO);
        cq.arm(Arm::Next).unwrap();
        assert!(!has_fired(), "nothing has completed");
        send(&nic, &mut qp);
        qp.ring_send();
        assert!(has_fired() && !has_fired());
        // In the stash, which the device knows nothing of.
        send(&nic, &mut qp);
        qp.ring_send();
        assert!(cq.poll().is_some() && cq.poll().is_some());
        send(&nic, &mut qp);
        qp.ring_send();
        cq.arm(Arm::Next).unwrap();
        assert!(has_fired() && !has_fired());
        // The device's event for that arming comes late, and means nothing.
        send(&nic, &mut qp);
        qp.ring_send();
        assert!(!has_fired());
        fake::with(|fake| fake.takes = 0);
        while cq.poll().is_some() {}
        cq.arm(Arm::Next).unwrap();
        send(&nic, &mut qp);
        qp.ring_send();
        assert!(has_fired(), "a request that did not leave is news, too");
    }

    #[test]
    fn queues_whose_completions_do_not_fit_are_refused() {
        let nic = fake();
        let cq = nic.create_cq(&CqConfig::new(16), None).unwrap();
        let first = ready(&nic, &cq, None);
        let pd = nic.alloc_pd().unwrap();
        let config = QpConfig::<Nic>::new(Transport::Rc, &cq);
        let refused = nic.create_qp(&pd, &config).map(drop).unwrap_err();
        assert!(matches!(refused, CreateError::CqTooSmall { entries: 16, .. }), "{refused}");
        drop(first);
        drop(ready(&nic, &cq, None));
        let refused = nic.create_cq(&CqConfig::new(300), None).map(drop).unwrap_err();
        assert!(matches!(refused, CreateError::Size { asked: 300, .. }), "{refused}");
    }

    /// The thread that carries calls goes on while the kernel pins the memory of a process.
    #[test]
    fn memory_of_another_process_is_registered_by_another_thread() {
        let nic = fake();
        let pd = nic.alloc_pd().unwrap();
        let memory = memory::Region::memfd("copyrpc-test", fake::SLOW_BYTES).unwrap();
        let begin = || {
            let fd = memory.fd().unwrap().as_fd().try_clone_to_owned().unwrap();
            nic.begin_register_memfd(&pd, fd, fake::SLOW_BYTES, Access::LOCAL_WRITE)
        };
        let pinning = fake::PINNING.lock().unwrap();
        let (mut registration, abandoned) = (begin(), begin());
        assert!(registration.poll().is_none() && registration.poll().is_none());
        drop((pinning, abandoned));
        let end = Instant::now() + Duration::from_secs(60);
        let mr = loop {
            if let Some(ended) = registration.poll() {
                break ended.unwrap();
            }
            assert!(Instant::now() < end, "the registration does not end");
            std::thread::yield_now();
        };
        assert_eq!(mr.len_bytes(), fake::SLOW_BYTES);
        assert_eq!(
            fake::with(|fake| fake.live),
            2,
            "context and domain: the rest is another thread's"
        );
        // Its end, too, is on the other thread, which has the domain until then.
        drop(mr);
    }

    /// Rings lie beside each other on huge pages, each with its own key, zeroed, and none reaches another one.
    #[test]
    fn rings_share_huge_pages_and_no_byte() {
        const RING_BYTES: usize = (256 << 10) + 64;
        let nic = fake();
        let pd = nic.alloc_pd().unwrap();
        let alloc = || nic.alloc_mr(&pd, RING_BYTES, Access::LOCAL_WRITE).unwrap();
        let mut rings: Vec<Mr> = (0..14).map(|_| alloc()).collect();
        let mut spans: Vec<_> = rings.iter().map(|mr| (mr.addr(), mr.len_bytes() as u64)).collect();
        spans.sort_unstable();
        assert!(spans.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0), "{spans:?}");
        let apart = spans.windows(2).filter(|two| two[1].0 - two[0].0 > (260 << 10));
        assert!(apart.count() <= 1, "two pages: {spans:?}");
        assert!(spans.iter().all(|span| span.0.is_multiple_of(4096)));
        for (mark, ring) in (1..).zip(&rings) {
            ring.write(0, &[mark; 8]);
            ring.write(RING_BYTES - 8, &[mark; 8]);
        }
        let words = |ring: &Mr| [0, RING_BYTES - 8].map(|at| ring.load_u64(at));
        for (mark, ring) in (1..).zip(&rings) {
            assert_eq!(words(ring), [u64::from_ne_bytes([mark; 8]); 2]);
        }
        let gone = rings.remove(3).addr();
        let again = alloc();
        assert_eq!((again.addr(), words(&again)), (gone, [0; 2]), "its place, without its bytes");
        drop((again, rings));
    }
}
