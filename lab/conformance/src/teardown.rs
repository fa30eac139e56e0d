//! Objects end in any order, with work outstanding, and the NIC and the peer go on.

use verbs::{
    Access, Capabilities, MemoryRegion, Nic, Op, Payload, QueuePair, SendRequest, SrqConfig,
};

use crate::{
    cq::ping,
    data::{Buffer, Rng},
    end::{End, Setup, Watched, connect, create_qp},
    harness::{Remote, Side, Verdict, ensure_eq},
};

/// Orders that are tried.
const ROUNDS: u64 = 60;

/// Length of each region.
const LEN: usize = 4096;

/// One object of a role.
enum Part<N: Nic> {
    Domain(N::Pd),
    Region(N::Mr),
    Queue(Watched<N>),
    Shared(N::Srq),
    Pair(N::Qp),
    Channel(N::Channel),
    Device(N),
}

impl<N: Nic> Part<N> {
    fn end(self) -> Verdict {
        match self {
            Self::Domain(pd) => drop(pd),
            // Both ways to give a region back.
            Self::Region(mr) if mr.len_bytes() % 2 == 0 => return Ok(mr.deregister()?),
            Self::Region(mr) => drop(mr),
            Self::Queue(cq) => drop(cq),
            Self::Shared(srq) => drop(srq),
            Self::Pair(qp) => drop(qp),
            Self::Channel(channel) => drop(channel),
            Self::Device(nic) => drop(nic),
        }
        Ok(())
    }
}

/// Everything of one round: two connected queue pairs with receives posted.
struct Parts<N: Nic> {
    pd: N::Pd,
    channel: N::Channel,
    cq: Watched<N>,
    srq: Option<N::Srq>,
    qps: [N::Qp; 2],
    regions: [N::Mr; 2],
    remote: Remote,
}

fn build<N: Nic>(side: &mut Side<N>) -> Verdict<Parts<N>> {
    let mut setup = Setup::rc();
    setup.rts.ack_timeout = core::time::Duration::from_millis(1);
    let pd = side.nic.alloc_pd()?;
    let channel = side.nic.create_channel()?;
    let cq = Watched::new(side, &setup.cq, Some(&channel))?;
    let has_srq = side.has(Capabilities::SRQ);
    let config = SrqConfig { entries: 16, sges_max: 1 };
    let srq = has_srq.then(|| side.nic.create_srq(&pd, &config)).transpose()?;
    let mut first = create_qp(&side.nic, &pd, &cq.cq, None, &setup)?;
    let mut second = create_qp(&side.nic, &pd, &cq.cq, srq.as_ref(), &setup)?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let target = Buffer::<N>::exact(&side.nic, &pd, LEN, access)?;
    let odd = side.nic.alloc_mr(&pd, LEN + 1, access)?;
    connect(side, &mut first, &setup)?;
    connect(side, &mut second, &setup)?;
    let remote = side.swap_remote(&target)?;
    Ok(Parts {
        pd,
        channel,
        cq,
        srq,
        qps: [first, second],
        regions: [target.into_mr(), odd],
        remote,
    })
}

/// Leaves requests of every kind outstanding: SENDs that find no receive, WRITEs, READs.
fn start_work<N: Nic>(parts: &mut Parts<N>) -> Verdict {
    let [local, other] = &parts.regions;
    let into = [local.sge(0, 512)];
    let payload = Payload::Gather(&into);
    for qp in &mut parts.qps {
        for _ in 0..4 {
            let write = Op::Write { remote: parts.remote.at(1024), payload, imm: None };
            qp.post_send(&SendRequest::unsignaled(write))?;
            let read = Op::Read { remote: parts.remote.at(0), into: &into };
            qp.post_send(&SendRequest::signaled(read))?;
        }
        for _ in 0..4 {
            qp.post_send(&SendRequest::signaled(Op::Send { payload, imm: None }))?;
        }
        qp.ring_send();
    }
    for _ in 0..2 {
        parts.qps[0].post_recv(&[other.sge(0, 4096)])?;
    }
    parts.qps[0].ring_recv();
    Ok(())
}

/// Both roles drop everything in random orders of their own; a connection that stays is checked
/// after every round.
pub(super) fn objects_end_in_any_order<N: Nic>(side: &mut Side<N>) -> Verdict {
    let mut survivor = End::connected(side, &Setup::rc())?;
    let mut rng = Rng::new(side.testbed.seed ^ side.role.index() as u64);
    for round in 0..ROUNDS {
        let mut parts = build(side)?;
        side.meet(&mut parts.cq)?;
        start_work(&mut parts)?;
        if rng.below(2) == 0 {
            parts.cq.gather();
        }
        let Parts { pd, channel, cq, srq, qps, regions, .. } = parts;
        let mut list: Vec<Part<N>> = vec![
            Part::Domain(pd),
            Part::Channel(channel),
            Part::Queue(cq),
            Part::Device(side.nic.clone()),
        ];
        list.extend(srq.map(Part::Shared));
        list.extend(qps.map(Part::Pair));
        list.extend(regions.map(Part::Region));
        rng.shuffle(&mut list);
        for part in list {
            part.end()?;
            if rng.below(3) == 0 {
                survivor.cq.gather();
            }
        }
        if round % 4 == 0 {
            ping(side, &mut survivor)?;
        }
        ensure_eq!(survivor.qp.state(), verbs::QpState::Rts, "survivor after round {round}");
        side.meet(&mut survivor.cq)?;
    }
    ping(side, &mut survivor)
}

/// Creating and dropping does not use the device up.
pub(super) fn objects_are_reclaimed<N: Nic>(side: &mut Side<N>) -> Verdict {
    let rounds = if side.is_client() { 3000 } else { 0 };
    let setup = Setup::rc();
    for _ in 0..rounds {
        let end = End::create(side, &setup)?;
        let region = end.buffer(side, 4096)?;
        drop(end);
        drop(region);
    }
    Ok(())
}
