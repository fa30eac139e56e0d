//! READs over the dynamically connected transport: one thread, several initiators, several targets.
//!
//! ```text
//! initiator                                   responder
//!   DCI 0 … n ── window of READs of 32 B ──▶  DCT 0 … m, one region; its CPU takes no part
//! ```
//!
//! An initiator that turns to another target closes its connection and opens another one: a card shows what that
//! costs. Each READ fetches 32 bytes from a random place, and its first and its last word are compared.

use std::collections::VecDeque;

use memory::sync::Ordering;
use os::child::from_json;
use serde::{Deserialize, Serialize};
use verbs::{
    Access, Capabilities, CompletionQueue as _, CqConfig, DcKey, Destination, InitAttr,
    MemoryRegion as _, Nic, Op, QKey, QpConfig, QueuePair as _, RecvSize, RemoteSlice, RnrTimer,
    RtrAttr, RtsAttr, SendFlags, SendRequest, SendSize, SrqConfig, Transition, Transport,
};

use crate::{
    error::Error,
    sample::{BATCH, Ready, SamplePlan},
    shared_words::{SharedWord, SharedWords},
    stats::Laps,
    traffic::{
        Contact,
        link::{PATIENCE, check_success},
    },
};

/// Bytes of a READ.
pub(crate) const READ_BYTES: usize = 32;
/// Places that READs choose from.
const PLACES: u64 = 4096;
/// Initiators, targets and READs in flight, at most.
pub const INITIATORS_MAX: u16 = 256;
/// See [`INITIATORS_MAX`].
pub const TARGETS_MAX: u16 = 64;
/// See [`INITIATORS_MAX`].
pub const WINDOW_MAX: u16 = 1024;
/// What requests to targets carry.
const KEY: DcKey = DcKey::new(0x636f_7079_7270_6364);

/// Which target a READ goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DcPick {
    /// Always the same one of its initiator.
    Same,
    /// Never that of the READ before, of its initiator.
    Changing,
    /// A random one.
    Random,
}

/// What is read, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DcReads {
    /// READs in flight, over all initiators.
    pub window: u16,
    /// Queues that READs are posted to in turn.
    pub initiators: u16,
    /// Queues that they go to.
    pub targets: u16,
    /// Rule by which the target is chosen.
    pub pick: DcPick,
    /// The number is the time of a READ in ns, instead of M READs/s.
    pub is_latency: bool,
}

impl DcReads {
    /// READs whose times are measured at a time.
    pub(crate) fn latencies_at_a_time(&self) -> f64 {
        if self.is_latency { self.window.into() } else { 1.0 }
    }
}

/// Queues and memory of one side, made for one sample.
pub(crate) struct DcSide<N: Nic> {
    /// Declared, and so dropped, before what they use.
    initiators: Vec<Initiator<N>>,
    targets: Vec<N::Qp>,
    _srq: N::Srq,
    _target_cq: N::Cq,
    cq: N::Cq,
    region: N::Mr,
    _nic: N,
    reads: DcReads,
    /// Of the other side.
    theirs: Vec<Destination>,
    peer: RemoteSlice,
}

struct Initiator<N: Nic> {
    qp: N::Qp,
    /// READs in flight: where each lands, and from which place it comes.
    in_flight: VecDeque<(usize, u64)>,
    posted: u64,
}

/// Whether `nic` has such queues.
pub(crate) fn has_dc<N: Nic>(nic: &N) -> bool {
    nic.attributes().capabilities.contains(Capabilities::DC | Capabilities::SRQ)
}

impl<N: Nic> DcSide<N> {
    /// Queues on `nic`, and what the other side must be told.
    pub(crate) fn open(nic: N, reads: DcReads) -> Result<(Self, Vec<String>), Error> {
        if !has_dc(&nic) {
            let what = "the NIC has no dynamically connected transport";
            return Err(Error::refused::<String>(what)("nothing can be read over it".to_owned()));
        }
        let pd = nic.alloc_pd()?;
        let requests =
            u32::from(reads.window.div_ceil(reads.initiators)).max(2).next_power_of_two();
        let cq = CqConfig::new(requests * u32::from(reads.initiators));
        let cq = nic.create_cq(&cq, None)?;
        // Nothing comes to targets.
        let target_cq = CqConfig { allow_overcommit: true, ..CqConfig::new(16) };
        let target_cq = nic.create_cq(&target_cq, None)?;
        let srq = nic.create_srq(&pd, &SrqConfig { entries: 16, sges_max: 1 })?;
        // READs land at the front, and come from behind that.
        let bytes = (usize::from(reads.window) + places()) * READ_BYTES;
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
        let region = nic.alloc_mr(&pd, bytes, access)?;
        let create = |transport, cq, send, srq| {
            let config = QpConfig {
                srq,
                send,
                recv: RecvSize::NONE,
                access_key: KEY,
                ..QpConfig::new(transport, cq)
            };
            let mut qp = nic.create_qp(&pd, &config)?;
            qp.modify(&Transition::Init(InitAttr { access, qkey: QKey::default() }))?;
            let reads_max = nic.attributes().reads_max;
            qp.modify(&Transition::Rtr(RtrAttr {
                path_mtu: nic.port().mtu,
                peer: None,
                rnr_timer: RnrTimer::at_least(core::time::Duration::from_micros(10)),
                reads_in_max: reads_max,
            }))?;
            if transport == Transport::Dci {
                let attr = RtsAttr { reads_out_max: reads_max, ..RtsAttr::default() };
                qp.modify(&Transition::Rts(attr))?;
            }
            Ok::<_, Error>(qp)
        };
        let send = SendSize { requests, sges_max: 1, inline_bytes_max: 0 };
        let initiators = (0..reads.initiators).map(|_| {
            let qp = create(Transport::Dci, &cq, send, None)?;
            Ok(Initiator { qp, in_flight: VecDeque::new(), posted: 0 })
        });
        let initiators = initiators.collect::<Result<_, Error>>()?;
        let targets = (0..reads.targets)
            .map(|_| create(Transport::Dct, &target_cq, SendSize::NONE, Some(&srq)));
        let targets = targets.collect::<Result<Vec<_>, _>>()?;
        let told = targets.iter().map(|qp| Contact::new(nic.endpoint(qp), &region));
        let told = told.map(|contact| serde_json::to_string(&contact)).collect::<Result<_, _>>()?;
        let (theirs, peer) = (Vec::new(), RemoteSlice { addr: 0, rkey: region.rkey() });
        let side = Self {
            initiators,
            targets,
            _srq: srq,
            _target_cq: target_cq,
            cq,
            region,
            _nic: nic,
            reads,
            theirs,
            peer,
        };
        Ok((side, told))
    }

    /// Takes what the other side told.
    pub(crate) fn connect(&mut self, theirs: &[String]) -> Result<(), Error> {
        for text in theirs {
            let contact = from_json::<Contact>(text)?;
            self.peer = contact.region();
            self.theirs.push(Destination::Dc { to: contact.endpoint()?, key: KEY });
        }
        if self.theirs.len() == self.targets.len() { Ok(()) } else { Err(Error::NoNic) }
    }

    /// Runs the timed side, after the other side is ready.
    pub(crate) fn initiate(
        mut self,
        shared: &SharedWords,
        sample: &SamplePlan,
    ) -> Result<f64, Error> {
        let window = u64::from(self.reads.window);
        let warm_up = 4 * window.max(BATCH);
        self.run(warm_up, shared, sample, &mut |_| {})?;
        let (mut laps, batch) = (Laps::start(), sample.batch());
        self.run(sample.count, shared, sample, &mut |done| {
            if done.is_multiple_of(batch) {
                laps.lap(batch);
            }
        })?;
        let each_ns = laps.median_ns();
        // SYNC(calls-done): pairs with the Acquire in `respond`, in the other process.
        shared.word(SharedWord::InitiatorDone).store(sample.number, Ordering::Release);
        let mut patience = shared.patience(PATIENCE);
        // SYNC(calls-done): pairs with the Release in `respond`, in the other process.
        while shared.word(SharedWord::ResponderDone).load(Ordering::Acquire) != sample.number {
            patience.wait()?;
        }
        // Little's law: what is in flight over the rate.
        Ok(if self.reads.is_latency { each_ns * window as f64 } else { 1e3 / each_ns })
    }

    /// Makes `count` READs. `done` hears of each that is complete, by number.
    fn run(
        &mut self,
        count: u64,
        shared: &SharedWords,
        sample: &SamplePlan,
        done: &mut dyn FnMut(u64),
    ) -> Result<(), Error> {
        let mut free = (0..usize::from(self.reads.window)).collect::<Vec<_>>();
        let (mut posted, mut completed) = (0, 0);
        let mut random = sample.sequence(count) | 1;
        let mut patience = shared.patience(PATIENCE);
        while completed < count {
            while posted < count && self.post(posted, &mut free, &mut random)? {
                posted += 1;
            }
            match self.cq.poll() {
                None => patience.wait()?,
                Some(completion) => {
                    patience.progress();
                    check_success(&completion)?;
                    let of = |one: &&mut Initiator<N>| one.qp.qpn() == completion.qpn;
                    let initiator = self.initiators.iter_mut().find(of).ok_or(Error::Stray)?;
                    initiator.qp.retire(&completion);
                    let (slot, place) = initiator.in_flight.pop_front().ok_or(Error::Stray)?;
                    self.check(completed, slot, place, sample)?;
                    free.push(slot);
                    completed += 1;
                    done(completed);
                }
            }
        }
        Ok(())
    }

    /// Posts READ `number`; false: everything is in flight.
    fn post(
        &mut self,
        number: u64,
        free: &mut Vec<usize>,
        random: &mut u64,
    ) -> Result<bool, Error> {
        let of = number % u64::from(self.reads.initiators);
        let index = usize::try_from(of).unwrap_or(0);
        let initiator = &mut self.initiators[index];
        if initiator.qp.send_free() == 0 {
            return Ok(false);
        }
        let Some(slot) = free.pop() else { return Ok(false) };
        let place = xorshift(random) % PLACES;
        let targets = self.theirs.len() as u64;
        let target = match self.reads.pick {
            DcPick::Same => of % targets,
            DcPick::Changing => (of + initiator.posted) % targets,
            DcPick::Random => xorshift(random) % targets,
        };
        initiator.posted += 1;
        let offset = (usize::from(self.reads.window) * READ_BYTES) as u64;
        let addr = self.peer.addr + offset + place * READ_BYTES as u64;
        let into = [self.region.sge(slot * READ_BYTES, READ_BYTES)];
        let op = Op::Read { remote: RemoteSlice { addr, ..self.peer }, into: &into };
        let to = self.theirs.get(usize::try_from(target).unwrap_or(0));
        initiator.qp.post_send(&SendRequest { op, flags: SendFlags::SIGNALED, to })?;
        initiator.qp.ring_send();
        initiator.in_flight.push_back((slot, place));
        Ok(true)
    }

    /// Compares both ends of what READ `index` fetched, and forgets it.
    fn check(
        &mut self,
        index: u64,
        slot: usize,
        place: u64,
        sample: &SamplePlan,
    ) -> Result<(), Error> {
        let (offset, expected) = (slot * READ_BYTES, sample.sequence(place));
        for (what, at) in [("first word", offset), ("last word", offset + READ_BYTES - 8)] {
            let found = self.region.load_u64(at);
            if found != expected {
                return Err(Error::Wrong { index, what, found, expected });
            }
            self.region.write(at, &[0; 8]);
        }
        Ok(())
    }

    /// Holds the targets until the other side is done; calls `ready` when it may begin.
    pub(crate) fn respond(
        mut self,
        shared: &SharedWords,
        sample: &SamplePlan,
        ready: Ready<'_>,
    ) -> Result<(), Error> {
        let offset = usize::from(self.reads.window) * READ_BYTES;
        for place in 0..PLACES {
            let at = offset + usize::try_from(place).unwrap_or(0) * READ_BYTES;
            let number = sample.sequence(place).to_ne_bytes();
            self.region.write(at, &number);
            self.region.write(at + READ_BYTES - 8, &number);
        }
        ready()?;
        let mut patience = shared.patience(PATIENCE);
        // SYNC(calls-done): pairs with the Release in `initiate`, in the other process.
        while shared.word(SharedWord::InitiatorDone).load(Ordering::Acquire) != sample.number {
            if self.cq.poll().is_some() {
                return Err(Error::Stray);
            }
            patience.wait()?;
        }
        // SYNC(calls-done): pairs with the Acquire in `initiate`, in the other process.
        shared.word(SharedWord::ResponderDone).store(sample.number, Ordering::Release);
        Ok(())
    }
}

fn places() -> usize {
    usize::try_from(PLACES).unwrap_or(usize::MAX)
}

fn xorshift(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}
