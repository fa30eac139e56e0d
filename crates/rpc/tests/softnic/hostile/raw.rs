//! A peer made of verbs and bytes.

use copyrpc_rpc::{Invitation, TransportKind};
use proto::copyrpc::{
    BATCHES_MAX, Call, Config, Connection, Features, FlushPolicy, Geometry, Hello, LINE_BYTES,
    Large,
};
use softnic::Nic;
use verbs::{
    Access, AddressVector, CompletionQueue as _, CqConfig, DcKey, Destination, InitAttr, Lid,
    MemoryRegion as _, Nic as _, Op, Payload, PortRoute, QKey, QpAddress, QpConfig, Qpn,
    QueuePair as _, RcPeer, RecvSize, RemoteSlice, Rkey, RnrTimer, RtrAttr, RtsAttr, SendFlags,
    SendRequest, SendSize, SharedReceiveQueue as _, Transition, Transport,
};

use crate::rig::{LATER, soft};

type Qp = <Nic as verbs::Nic>::Qp;
type Cq = <Nic as verbs::Nic>::Cq;
type Mr = <Nic as verbs::Nic>::Mr;

/// Where an invitation says what. Integers are little-endian.
mod at {
    pub(super) const QPN: usize = 12;
    pub(super) const PSN: usize = 16;
    pub(super) const LID: usize = 24;
    pub(super) const KEY: usize = 44;
    pub(super) const ADDR: usize = 52;
    pub(super) const RKEY: usize = 60;
    pub(super) const HELLO: usize = 64;
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// A batch as it is going to be written.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    pub(super) offset: usize,
    pub(super) bytes: Vec<u8>,
    pub(super) imm: u32,
}

/// First message of a batch, and the second one behind a request of 8 B.
const FIRST: usize = 16;
const SECOND: usize = FIRST + 24;

impl Batch {
    pub(super) fn set_handled(&mut self, handled: u16) {
        self.bytes[12..14].copy_from_slice(&handled.to_le_bytes());
    }

    pub(super) fn set_unused_bytes(&mut self, unused_bytes: u16) {
        self.bytes[14..16].copy_from_slice(&unused_bytes.to_le_bytes());
    }

    pub(super) fn set_count(&mut self, count: u16) {
        self.bytes[10..12].copy_from_slice(&count.to_le_bytes());
    }

    pub(super) fn set_body_bytes(&mut self, body_bytes: u16) {
        self.bytes[FIRST..FIRST + 2].copy_from_slice(&body_bytes.to_le_bytes());
    }

    pub(super) fn set_kind(&mut self, kind: u8) {
        self.bytes[FIRST + 3] = kind;
    }

    pub(super) fn set_token(&mut self, token: u32) {
        self.bytes[FIRST + 4..FIRST + 8].copy_from_slice(&token.to_le_bytes());
    }

    /// The first request is one that is not answered at once.
    pub(super) fn use_first_slot_twice(&mut self) {
        self.bytes[FIRST + 8..FIRST + 10].copy_from_slice(&LATER.to_le_bytes());
        self.bytes.copy_within(FIRST + 4..FIRST + 8, SECOND + 4);
    }

    pub(super) fn set_budget(&mut self, lines: u16) {
        self.bytes[FIRST + 10..FIRST + 12].copy_from_slice(&lines.to_le_bytes());
    }

    pub(super) fn next_offset(&self) -> usize {
        self.offset + self.bytes.len().next_multiple_of(LINE_BYTES)
    }
}

/// One end without a worker. Its batches are built by a correct core, and then spoiled.
pub(super) struct Raw {
    // Dropped in this order: the queue pairs before what they use.
    qp: Qp,
    dct: Option<Qp>,
    cq: Cq,
    srq: <Nic as verbs::Nic>::Srq,
    ring: Mr,
    nic: Nic,
    core: Connection,
    hello: Hello,
    victim: Invitation,
    is_dc: bool,
}

impl Raw {
    pub(super) fn new(fabric: &str, transport: TransportKind, victim: &Invitation) -> Self {
        let nic = softnic::open(&soft(fabric, None)).unwrap();
        let pd = nic.alloc_pd().unwrap();
        let cq = nic.create_cq(&CqConfig::new(256), None).unwrap();
        let srq_config = verbs::SrqConfig { entries: 64, sges_max: 1 };
        let mut srq = nic.create_srq(&pd, &srq_config).unwrap();
        for _ in 0..64 {
            srq.post(&[]).unwrap();
        }
        srq.ring();
        let geometry = Geometry::new(1 << 12, 1 << 10, 1 << 10).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let ring = nic.alloc_mr(&pd, geometry.ring_bytes() + LINE_BYTES, access).unwrap();
        let theirs = Hello::decode(&victim.as_bytes()[at::HELLO..]).unwrap();
        // Its core has no regard for the victim's receives.
        let theirs = Hello { batches_max: BATCHES_MAX, ..theirs };
        let hello = Hello {
            features: Features::ALL,
            epoch: 0x0bad_cafe,
            slot: 0,
            calls_max: 16,
            geometry,
            batches_max: 8,
            large_bytes_max: 1 << 20,
        };
        let core = Connection::new(Config {
            own: hello,
            peer: theirs,
            flush: FlushPolicy::Immediate,
            signal_interval: 1,
            credit_delay_ns: 0,
        });
        let is_dc = transport == TransportKind::Dc;
        let kind = if is_dc { Transport::Dci } else { Transport::Rc };
        let config = QpConfig {
            srq: (!is_dc).then_some(&srq),
            recv: RecvSize::NONE,
            send: SendSize { requests: 64, sges_max: 1, inline_bytes_max: 220 },
            ..QpConfig::new(kind, &cq)
        };
        let qp = nic.create_qp(&pd, &config).unwrap();
        let config = QpConfig {
            srq: Some(&srq),
            recv: RecvSize::NONE,
            send: SendSize::NONE,
            access_key: DcKey::new(7),
            ..QpConfig::new(Transport::Dct, &cq)
        };
        let dct = is_dc.then(|| nic.create_qp(&pd, &config).unwrap());
        let victim = *victim;
        let mut raw = Self { qp, dct, cq, srq, ring, nic, core, hello, victim, is_dc };
        raw.start();
        raw
    }

    fn start(&mut self) {
        let bytes = self.victim.as_bytes();
        let address = AddressVector::new(PortRoute::Lid(Lid::new(u16::from_le_bytes([
            bytes[at::LID],
            bytes[at::LID + 1],
        ]))));
        let peer = RcPeer {
            qpn: Qpn::new(u32_at(bytes, at::QPN)).unwrap(),
            address,
            rq_psn: verbs::Psn::new(u32_at(bytes, at::PSN)).unwrap(),
        };
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let init = Transition::Init(InitAttr { access, qkey: QKey::default() });
        let rtr = |peer| {
            Transition::Rtr(RtrAttr {
                path_mtu: verbs::Mtu::B4096,
                peer,
                rnr_timer: RnrTimer::at_least(core::time::Duration::from_micros(10)),
                reads_in_max: 16,
            })
        };
        self.qp.modify(&init).unwrap();
        self.qp.modify(&rtr((!self.is_dc).then_some(peer))).unwrap();
        self.qp.modify(&Transition::Rts(RtsAttr::default())).unwrap();
        if let Some(dct) = &mut self.dct {
            dct.modify(&init).unwrap();
            dct.modify(&rtr(None)).unwrap();
        }
    }

    /// What the victim is told: all of it true.
    pub(super) fn invitation(&self) -> Invitation {
        let mut bytes = *self.victim.as_bytes().first_chunk::<{ Invitation::BYTES }>().unwrap();
        let endpoint = self.nic.endpoint(self.dct.as_ref().unwrap_or(&self.qp));
        let PortRoute::Lid(lid) = endpoint.address.route else { panic!("{endpoint:?}") };
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(at::QPN, &endpoint.qpn.get().to_le_bytes());
        put(at::PSN, &0_u32.to_le_bytes());
        put(at::LID, &lid.get().to_le_bytes());
        put(at::KEY, &7_u64.to_le_bytes());
        put(at::ADDR, &self.ring.addr().to_le_bytes());
        put(at::RKEY, &self.ring.rkey().get().to_le_bytes());
        put(at::HELLO, &self.hello.encode());
        Invitation::from_bytes(&bytes).unwrap()
    }

    /// Of its ring, with what lies beside it.
    pub(super) fn ring_bytes(&self) -> u64 {
        self.ring.len_bytes() as u64
    }

    /// Its [invitation](Self::invitation), but to a ring that lies elsewhere.
    pub(super) fn invitation_to(&self, addr: u64) -> Invitation {
        let mut bytes =
            *self.invitation().as_bytes().first_chunk::<{ Invitation::BYTES }>().unwrap();
        bytes[at::ADDR..at::ADDR + 8].copy_from_slice(&addr.to_le_bytes());
        Invitation::from_bytes(&bytes).unwrap()
    }

    /// A correct batch, the next one: two requests of 8 B. It counts as sent only once it was
    /// [written](Self::write) unspoiled.
    pub(super) fn batch(&mut self) -> Batch {
        if !self.core.has_gathered() {
            for _ in 0..2 {
                let call = Call { method: 1, response_bytes: 8, deadline_ns: 1 << 40, cookie: 0 };
                self.core.call(&call, 8, 1).unwrap().1.fill(7);
            }
        }
        self.emission()
    }

    /// One request whose body is said to be in memory that does not exist.
    pub(super) fn large_request(&mut self, len_bytes: u32) -> Batch {
        self.large_request_by(0x1234, len_bytes)
    }

    /// The same, by a key that is forged.
    pub(super) fn large_request_by(&mut self, rkey: u32, len_bytes: u32) -> Batch {
        let call = Call { method: 1, response_bytes: 8, deadline_ns: 1 << 40, cookie: 0 };
        let large = Large { addr: 1 << 45, rkey, len_bytes: 1 };
        self.core.call_large(&call, large, 1).unwrap();
        let mut batch = self.emission();
        batch.bytes[FIRST + 28..FIRST + 32].copy_from_slice(&len_bytes.to_le_bytes());
        batch
    }

    fn emission(&mut self) -> Batch {
        let emission = self.core.emission(1, true).unwrap();
        let (offset, imm) = (emission.offset_bytes, emission.imm);
        Batch { offset, bytes: emission.bytes.to_vec(), imm }
    }

    fn post(&mut self, offset: usize, bytes: &[u8], imm: Option<u32>) {
        let victim = self.victim.as_bytes();
        let addr = u64_at(victim, at::ADDR) + offset as u64;
        let remote = RemoteSlice { addr, rkey: Rkey::new(u32_at(victim, at::RKEY)) };
        let lid = u16::from_le_bytes([victim[at::LID], victim[at::LID + 1]]);
        let to = QpAddress {
            address: AddressVector::new(PortRoute::Lid(Lid::new(lid))),
            qpn: Qpn::new(u32_at(victim, at::QPN)).unwrap(),
        };
        let to = Destination::Dc { to, key: DcKey::new(u64_at(victim, at::KEY)) };
        let parts = [bytes];
        let op = Op::Write { remote, payload: Payload::Inline(&parts), imm };
        let to = self.is_dc.then_some(&to);
        let request = SendRequest { op, flags: SendFlags::SIGNALED, to };
        if self.qp.post_send(&request).is_ok() {
            self.qp.ring_send();
        }
        self.poll();
    }

    pub(super) fn write(&mut self, batch: &Batch) {
        self.post(batch.offset, &batch.bytes, Some(batch.imm));
    }

    /// Writes over a batch that was written, and announces nothing.
    pub(super) fn overwrite(&mut self, batch: &Batch) {
        self.post(batch.offset, &vec![0xff; batch.bytes.len()], None);
    }

    /// Writes the next batch, whatever the victim has handled.
    pub(super) fn write_on(&mut self) {
        let batch = self.batch();
        let departure = self.core.emission(1, true).unwrap().departure;
        self.core.posted(departure, 1);
        self.write(&batch);
    }

    pub(super) fn write_credit(&mut self, consumed: u64, handled: u64) {
        let ring_bytes = self.core.config().peer.geometry.ring_bytes();
        let words = [consumed, handled].map(u64::to_le_bytes);
        self.post(ring_bytes, words.as_flattened(), None);
    }

    /// Lets its NIC get on; what arrives is not looked at.
    pub(super) fn poll(&mut self) {
        while let Some(done) = self.cq.poll() {
            if done.kind.is_receive() {
                self.srq.retire(&done);
                let _ = self.srq.post(&[]);
                self.srq.ring();
            } else {
                self.qp.retire(&done);
            }
        }
    }
}
