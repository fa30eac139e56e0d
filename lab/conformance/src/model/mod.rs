//! The smallest NIC that passes the suite: one lock, no wire, no timing. It tests the suite.
//!
//! Inside one process only. Memory is a vector under the lock, addresses are invented.

mod fabric;
mod mutant;
mod queues;

use std::{
    collections::BTreeMap,
    io::Read as _,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::{NicPlace, Testbed};
use fabric::{Fabric, Pair, Region};
use mutant::Mutant;
use queues::{ModelCq, ModelQp, ModelSrq};
use verbs::{
    Access, AddressVector, AsyncEvent, Capabilities, Channel, CqConfig, CreateError, Lid,
    LinkLayer, Lkey, MemoryError, MemoryRegion, Mtu, Nic, NicAttributes, PortAttributes, PortRoute,
    QpConfig, QpState, Rkey, RnrTimer, RtsAttr, SrqConfig,
};

/// The expectations of the model.
pub(super) const MODEL: Testbed = Testbed {
    absent: Capabilities::PEER_GONE_EVENT,
    quiet: Duration::from_millis(1),
    ..Testbed::FULL
};

static FABRICS: Mutex<BTreeMap<String, Shared>> = Mutex::new(BTreeMap::new());

/// A handle of the fabric.
#[derive(Clone, Default)]
pub(super) struct Shared(Arc<Mutex<Fabric>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Fabric> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A NIC of the model.
#[derive(Clone)]
pub(super) struct Model {
    shared: Shared,
    attributes: Arc<NicAttributes>,
    lid: Lid,
}

/// Opens the NIC of one role.
pub(super) fn open(place: &NicPlace) -> Model {
    let mut fabrics = FABRICS.lock().unwrap_or_else(PoisonError::into_inner);
    let shared = fabrics.entry(place.fabric.clone()).or_default().clone();
    let is_asked = |mutant: &Mutant| place.fabric.starts_with(&format!("{mutant:?}"));
    shared.lock().mutant = Mutant::ALL.into_iter().map(|(mutant, _)| mutant).find(is_asked);
    let attributes = NicAttributes {
        name: "model".into(),
        capabilities: Capabilities::all() - Capabilities::PEER_GONE_EVENT,
        cqes_max: 1 << 20,
        requests_max: 1 << 15,
        srq_entries_max: 1 << 15,
        srq_sges_max: 16,
        sges_max: 16,
        inline_bytes_max: 512,
        cqe_payload_bytes_max: 0,
        message_bytes_max: 1 << 30,
        reads_max: 16,
    };
    let lid = Lid::new(if place.role == super::Role::Client { 1 } else { 2 });
    Model { shared, attributes: Arc::new(attributes), lid }
}

/// Takes every queue pair of one role away, as the death of its process does.
pub(super) fn kill(fabric: &str, role: super::Role) {
    let nic = open(&NicPlace { role, fabric: fabric.to_owned() });
    nic.shared.lock().pairs.retain(|_, pair| pair.lid != nic.lid);
}

/// A region.
pub(super) struct ModelMr {
    shared: Shared,
    key: u32,
    addr: u64,
    len: usize,
}

impl MemoryRegion for ModelMr {
    fn addr(&self) -> u64 {
        self.addr
    }

    fn len_bytes(&self) -> usize {
        self.len
    }

    fn lkey(&self) -> Lkey {
        Lkey::new(self.key)
    }

    fn rkey(&self) -> Rkey {
        Rkey::new(self.key)
    }

    fn read(&self, offset: usize, to: &mut [u8]) {
        let fabric = self.shared.lock();
        to.copy_from_slice(&fabric.regions[&self.key].bytes[offset..offset + to.len()]);
    }

    fn write(&self, offset: usize, from: &[u8]) {
        let mut fabric = self.shared.lock();
        let region = fabric.regions.get_mut(&self.key).expect("registered until dropped");
        region.bytes[offset..offset + from.len()].copy_from_slice(from);
    }

    fn load_u64(&self, offset: usize) -> u64 {
        let mut word = [0; 8];
        self.read(offset, &mut word);
        u64::from_ne_bytes(word)
    }

    fn deregister(self) -> Result<(), MemoryError> {
        Ok(())
    }
}

impl Drop for ModelMr {
    fn drop(&mut self) {
        self.shared.lock().regions.remove(&self.key);
    }
}

/// A channel: bytes in a socket are events.
pub(super) struct ModelChannel {
    shared: Shared,
    inner: UnixStream,
    outer: UnixStream,
}

impl Channel for ModelChannel {
    fn fd(&self) -> BorrowedFd<'_> {
        self.outer.as_fd()
    }

    fn wait(&self, timeout: Duration) -> bool {
        let end = Instant::now() + timeout;
        loop {
            self.shared.lock().run();
            if (&self.outer).read(&mut [0]).is_ok() {
                return true;
            }
            if Instant::now() >= end {
                return false;
            }
            std::thread::yield_now();
        }
    }
}

impl Nic for Model {
    type Pd = u32;
    type Mr = ModelMr;
    type Cq = ModelCq;
    type Srq = ModelSrq;
    type Qp = ModelQp;
    type Channel = ModelChannel;

    fn attributes(&self) -> &NicAttributes {
        &self.attributes
    }

    fn port(&self) -> PortAttributes {
        let link = LinkLayer::InfiniBand;
        PortAttributes {
            number: 1,
            link,
            lid: self.lid,
            gid: verbs::Gid::default(),
            gid_index: 0,
            pkey_index: 0,
            // Datagrams do not heed it, as those of adapters.
            mtu: Mtu::B1024,
        }
    }

    fn address(&self) -> AddressVector {
        AddressVector::new(PortRoute::Lid(self.lid))
    }

    fn alloc_pd(&self) -> Result<u32, CreateError> {
        Ok(self.shared.lock().id())
    }

    fn alloc_mr(&self, pd: &u32, len: usize, access: Access) -> Result<ModelMr, MemoryError> {
        let mut fabric = self.shared.lock();
        let key = fabric.id();
        let addr = u64::from(key) << 32 | 1 << 62;
        let region = Region { pd: *pd, access, addr, bytes: vec![0; len] };
        fabric.regions.insert(key, region);
        Ok(ModelMr { shared: self.shared.clone(), key, addr, len })
    }

    fn create_channel(&self) -> Result<ModelChannel, CreateError> {
        let pair = UnixStream::pair().and_then(|(inner, outer)| {
            inner.set_nonblocking(true)?;
            outer.set_nonblocking(true)?;
            Ok((inner, outer))
        });
        let (inner, outer) = pair
            .map_err(|error| CreateError::System { object: "channel", cause: error.to_string() })?;
        Ok(ModelChannel { shared: self.shared.clone(), inner, outer })
    }

    fn create_cq(
        &self,
        config: &CqConfig,
        channel: Option<&ModelChannel>,
    ) -> Result<ModelCq, CreateError> {
        let mut fabric = self.shared.lock();
        let id = fabric.id();
        let cq = fabric::Cq {
            entries: usize::try_from(config.entries.next_power_of_two()).unwrap_or(usize::MAX),
            channel: channel.and_then(|channel| channel.inner.try_clone().ok()),
            ..fabric::Cq::default()
        };
        fabric.cqs.insert(id, cq);
        Ok(ModelCq::new(self.shared.clone(), id, config))
    }

    fn create_srq(&self, pd: &u32, config: &SrqConfig) -> Result<ModelSrq, CreateError> {
        let mut fabric = self.shared.lock();
        let id = fabric.id();
        fabric.srqs.insert(id, fabric::Receives::new());
        Ok(ModelSrq::new(self.shared.clone(), id, *pd, config))
    }

    fn create_qp(&self, pd: &u32, config: &QpConfig<'_, Self>) -> Result<ModelQp, CreateError> {
        let recv = config.srq.map_or(config.recv.requests, |srq| srq.entries);
        let uses = [(config.send_cq, config.send.requests), (config.recv_cq, recv)];
        let mut fabric = self.shared.lock();
        for (cq, _) in uses {
            let more: u32 = uses.iter().filter(|(other, _)| other.id == cq.id).map(|u| u.1).sum();
            let needed = fabric.cqs[&cq.id].needed + more;
            if needed > cq.entries && !cq.allow_overcommit {
                let cqn = verbs::CompletionQueue::cqn(cq);
                return Err(CreateError::CqTooSmall { cqn, entries: cq.entries, needed });
            }
        }
        for (cq, more) in uses {
            fabric.cqs.get_mut(&cq.id).expect("alive while borrowed").needed += more;
        }
        let id = fabric.id();
        fabric.pairs.insert(
            id,
            Pair {
                transport: config.transport,
                lid: self.lid,
                key: config.access_key.get(),
                pd: *pd,
                recv_pd: config.srq.map_or(*pd, |srq| srq.pd),
                state: QpState::Reset,
                cqs: [config.send_cq.id, config.recv_cq.id],
                srq: config.srq.map(|srq| srq.id),
                sends: Default::default(),
                receives: Default::default(),
                peer: 0,
                access: Access::empty(),
                rts: RtsAttr::default(),
                rnr_timer: RnrTimer::at_least(Duration::ZERO),
                rnr_left: 7,
                not_before: None,
            },
        );
        Ok(ModelQp::new(self.shared.clone(), id, config, recv))
    }

    fn poll_event(&self) -> Option<AsyncEvent> {
        self.shared.lock().events.pop()
    }

    fn poll_timeout(&self) -> Option<Duration> {
        Some(Duration::from_micros(50))
    }
}

mod threads {
    use super::{MODEL, open};
    crate::for_each_scenario!(crate::suite_mode, threads, open, MODEL);
}

/// A broken NIC fails the scenario about its defect.
#[test]
fn the_suite_kills_its_mutants() {
    let testbed = Testbed { deadline: Duration::from_millis(300), ..MODEL };
    for (mutant, name) in Mutant::ALL {
        let run = || {
            let label = format!("{mutant:?}");
            super::run_threads(&label, super::scenario(name), open, &testbed);
        };
        let result = std::panic::catch_unwind(run);
        assert!(result.is_err(), "{name} does not notice {mutant:?}");
    }
}
