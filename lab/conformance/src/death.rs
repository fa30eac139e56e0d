//! A peer is killed in the middle of anything, again and again; the survivor gets the event, and goes on.
//!
//! ```text
//! survivor: this test ── queue pair with own RQ ═══ victim: a child, killed with SIGKILL
//!                     ── queue pair on the SRQ  ═══         at a random instant of each round
//! both ends: SEND, WRITE, READ and fetch-and-add, all the time, in both directions
//! ```

use std::time::Duration;

use verbs::{
    Capabilities, CompletionKind, CqConfig, Nic, Op, Payload, PostSendError, QpState, QueuePair,
    SendFlags, SendRequest, WcStatus,
};

use crate::{
    data::{Buffer, Rng},
    end::{Done, End, OPEN, Setup, Watched, connect, connect_local, create_qp},
    harness::{Deadline, NicPlace, Remote, Role, Side, Stop, Testbed, Verdict, ensure},
    oob::OutOfBand,
    process::{Spawned, as_child},
    srq::{Pool, message},
    threads::{MakeNic, as_environment_asks, fabric_name, judge},
};

/// Length of a message between survivor and victim.
const LEN: usize = 256;

/// Buffers of each receive queue.
const SLOTS: usize = 32;

/// Exposed to the peer: one half is written, the other read, a word at the end is added to.
const EXPOSED_BYTES: usize = 2 * LEN + 8;

/// Longest life of a victim under fire, in microseconds.
const LIFE_US_MAX: usize = 30_000;

/// Kills [`Testbed::death_rounds`] children, one after another, at random instants.
///
/// `test_path` is as for [`run_processes`](super::run_processes).
///
/// # Panics
///
/// If the survivor gets no event, is damaged, or cannot work with the next child.
pub fn peer_death<N: Nic + 'static>(test_path: &str, make_nic: MakeNic<N>, testbed: &Testbed) {
    let testbed = as_environment_asks(*testbed);
    if let Some((fabric, socket)) = as_child() {
        let nic = make_nic(&NicPlace { role: Role::Server, fabric });
        let mut side = Side::new(nic, Role::Server, testbed, Box::new(socket));
        // It ends by being killed, or because the survivor is gone.
        return match victim(&mut side) {
            Err(Stop::PeerEnded) => {}
            verdict => judge(test_path, &testbed, vec![(Role::Server, verdict)]),
        };
    }
    if testbed.leaves_out("peer_death") {
        return;
    }
    let fabric = fabric_name("peer_death");
    let nic = make_nic(&NicPlace { role: Role::Client, fabric: fabric.clone() });
    let verdict = survive(&nic, testbed, || {
        let (child, socket) = Spawned::start(test_path, &fabric)
            .map_err(|error| Stop::violation(format!("no child: {error}")))?;
        let kill = || match child.kill() {
            Ok(_) => Ok(()),
            Err(error) => Err(Stop::violation(format!("cannot kill: {error}"))),
        };
        Ok((Box::new(socket) as Box<dyn OutOfBand>, kill))
    });
    judge(test_path, &testbed, vec![(Role::Client, verdict)]);
}

/// One end of a connection under fire, and its posts.
struct Front<N: Nic> {
    qp: N::Qp,
    /// Own receives; none of its own if it draws from the SRQ.
    receives: Option<Buffer<N>>,
    remote: Remote,
    posted: u64,
}

impl<N: Nic> Front<N> {
    /// Posts the next request of the mix, unless the queue is full.
    fn fire(&mut self, local: &Buffer<N>, atomics: bool) -> Verdict<bool> {
        let from = [local.sge(0, LEN)];
        let into = [local.sge(LEN, LEN)];
        let payload = Payload::Gather(&from);
        let op = match self.posted % 4 {
            0 => Op::Send { payload, imm: None },
            1 => Op::Write { remote: self.remote.at(0), payload, imm: None },
            2 => Op::Read { remote: self.remote.at(LEN), into: &into },
            _ if atomics => {
                let into = local.sge(2 * LEN, 8);
                Op::FetchAdd { remote: self.remote.at(2 * LEN), into, add: 1 }
            }
            _ => Op::Nop,
        };
        let signal = self.posted.is_multiple_of(3);
        let flags = if signal { SendFlags::SIGNALED } else { SendFlags::empty() };
        match self.qp.post_send(&SendRequest::unsignaled(op).with(flags)) {
            Ok(_) => {
                self.qp.ring_send();
                self.posted += 1;
                Ok(true)
            }
            Err(PostSendError::QueueFull { .. }) => Ok(false),
            Err(other) => Err(other.into()),
        }
    }
}

/// The objects that outlive every generation of victims.
struct Fort<N: Nic> {
    pd: N::Pd,
    cq: Watched<N>,
    pool: Pool<N>,
    local: Buffer<N>,
    exposed: Buffer<N>,
    setup: Setup,
}

impl<N: Nic> Fort<N> {
    fn build(side: &Side<N>) -> Verdict<Self> {
        side.needs(Capabilities::SRQ)?;
        let mut setup = Setup::rc();
        setup.rts.ack_timeout = Duration::from_millis(2);
        setup.cq = CqConfig { allow_overcommit: true, ..CqConfig::new(1024) };
        let pd = side.nic.alloc_pd()?;
        let cq = Watched::new(side, &setup.cq, None)?;
        let pool = Pool::filled(side, &pd, SLOTS, LEN)?;
        let mut local = Buffer::new(&side.nic, &pd, EXPOSED_BYTES, OPEN)?;
        local.write(0, &message(0, 0, LEN));
        let mut exposed = Buffer::new(&side.nic, &pd, EXPOSED_BYTES, OPEN)?;
        exposed.write(LEN, &message(1, 0, LEN));
        Ok(Self { pd, cq, pool, local, exposed, setup })
    }

    /// Two connections to the other side: one with receives of its own, one on the SRQ.
    fn connect(&mut self, side: &mut Side<N>) -> Verdict<[Front<N>; 2]> {
        let mut own = create_qp(&side.nic, &self.pd, &self.cq.cq, None, &self.setup)?;
        let srq = Some(&self.pool.srq);
        let mut shared = create_qp(&side.nic, &self.pd, &self.cq.cq, srq, &self.setup)?;
        connect(side, &mut own, &self.setup)?;
        connect(side, &mut shared, &self.setup)?;
        let receives = Buffer::new(&side.nic, &self.pd, SLOTS * LEN, OPEN)?;
        for slot in 0..SLOTS {
            own.post_recv(&[receives.sge(slot * LEN, LEN)])?;
        }
        own.ring_recv();
        let remote = side.swap_remote(&self.exposed)?;
        side.swap(&[])?;
        let receives = Some(receives);
        Ok([
            Front { qp: own, receives, remote, posted: 0 },
            Front { qp: shared, receives: None, remote, posted: 0 },
        ])
    }

    /// Handles one completion of `front`. `false`: it failed.
    fn take(&mut self, front: &mut Front<N>, done: &Done) -> Verdict<bool> {
        if done.kind.is_receive() && done.failure.is_none() {
            let Some(receives) = &front.receives else {
                self.pool.land_and_repost(done, &message(0, 0, LEN))?;
                return Ok(true);
            };
            front.qp.retire(done);
            let slot = usize::from(done.wqe) % SLOTS;
            let found = receives.bytes(slot * LEN, LEN);
            ensure!(found == message(0, 0, LEN), "a message of the victim is damaged");
            if front.qp.state() != QpState::Err {
                front.qp.post_recv(&[receives.sge(slot * LEN, LEN)])?;
                front.qp.ring_recv();
            }
            return Ok(true);
        }
        if done.kind.is_receive() && front.receives.is_none() {
            // The message that the death cut off gives its buffer back.
            return self.pool.recycle(done).map(|()| false);
        }
        front.qp.retire(done);
        if done.kind == CompletionKind::Read && done.failure.is_none() {
            let found = self.local.bytes(LEN, LEN);
            ensure!(found == message(1, 0, LEN), "a READ result is damaged");
        }
        Ok(done.failure.is_none())
    }

    /// Fires at the peer and handles what comes back until `end`.
    fn hammer(&mut self, fronts: &mut [Front<N>; 2], end: Deadline, atomics: bool) -> Verdict {
        while !end.has_passed() {
            for front in fronts.iter_mut() {
                front.fire(&self.local, atomics)?;
            }
            for _ in 0..16 {
                let Some(done) = self.cq.poll() else { break };
                let front = fronts.iter_mut().find(|front| front.qp.qpn() == done.qpn);
                let Some(front) = front else {
                    return Err(Stop::violation(format!("{done:?}: unknown queue pair")));
                };
                let worked = self.take(front, &done)?;
                ensure!(worked, "{done:?} while both live");
            }
        }
        Ok(())
    }

    /// After the death: each front reports why, flushes, and ends in ERR.
    fn bury(&mut self, side: &Side<N>, fronts: &mut [Front<N>; 2], atomics: bool) -> Verdict {
        let mut reasons = [None; 2];
        let deadline = side.deadline();
        while reasons.contains(&None) || fronts.iter().any(|f| f.qp.state() != QpState::Err) {
            ensure!(!deadline.has_passed(), "the death goes unnoticed: {reasons:?}");
            for (front, reason) in fronts.iter_mut().zip(&reasons) {
                // Something has to be outstanding for a death to be noticed.
                if reason.is_none() {
                    front.fire(&self.local, atomics)?;
                }
            }
            let Some(done) = self.cq.poll() else {
                std::thread::yield_now();
                continue;
            };
            let nth = fronts.iter().position(|front| front.qp.qpn() == done.qpn);
            let nth = nth.ok_or_else(|| Stop::violation(format!("{done:?}: unknown")))?;
            self.take(&mut fronts[nth], &done)?;
            if let (Some(failure), false) = (done.failure, done.kind.is_receive()) {
                let is_first = reasons[nth].is_none();
                let expected = if is_first { WcStatus::RetryExceeded } else { WcStatus::Flushed };
                ensure!(failure.status == expected, "{done:?} after {reasons:?}");
                reasons[nth] = Some(failure.status);
            }
        }
        // The rest is flushed; the receives of the shared queue stay posted.
        let quiet = Deadline::after(side.testbed.quiet);
        while !quiet.has_passed() {
            let Some(done) = self.cq.poll() else { continue };
            let Some(front) = fronts.iter_mut().find(|front| front.qp.qpn() == done.qpn) else {
                return Err(Stop::violation(format!("{done:?}: unknown queue pair")));
            };
            self.take(front, &done)?;
        }
        Ok(())
    }

    /// Peers wrote into the bodies, and nowhere else.
    fn inspect(&mut self) -> Verdict {
        self.exposed.accept(0, LEN);
        self.exposed.accept(2 * LEN, 8);
        self.exposed.verify()?;
        self.local.accept(LEN, LEN + 8);
        self.local.verify()?;
        // A message that was cut off may have scribbled on a posted buffer, not beyond the pool.
        self.pool.verify_guards()
    }
}

fn victim<N: Nic>(side: &mut Side<N>) -> Verdict {
    let atomics = side.has(Capabilities::ATOMICS);
    let mut fort = Fort::build(side)?;
    let mut fronts = fort.connect(side)?;
    loop {
        fort.hammer(&mut fronts, Deadline::after(Duration::from_millis(1)), atomics)?;
        side.glance()?;
    }
}

/// Lives through `death_rounds` victims: `start` starts one, and returns its killer.
fn survive<N: Nic, Kill: FnOnce() -> Verdict>(
    nic: &N,
    testbed: Testbed,
    mut start: impl FnMut() -> Verdict<(Box<dyn OutOfBand>, Kill)>,
) -> Verdict {
    let atomics = nic.attributes().capabilities.contains(Capabilities::ATOMICS);
    let mut rng = Rng::new(testbed.seed);
    let mut fort = None;
    for round in 0..testbed.death_rounds {
        let (oob, kill) = start()?;
        let mut side = Side::new(nic.clone(), Role::Client, testbed, oob);
        let fort = match &mut fort {
            Some(fort) => fort,
            None => fort.insert(Fort::build(&side)?),
        };
        let mut fronts = fort.connect(&mut side)?;
        let life_us = rng.below(LIFE_US_MAX) as u64;
        fort.hammer(&mut fronts, Deadline::after(Duration::from_micros(life_us)), atomics)?;
        kill()?;
        fort.bury(&side, &mut fronts, atomics)?;
        fort.inspect()?;
        bystander(&side, round)?;
    }
    Ok(())
}

/// Connections that have nothing to do with the victim work as before.
fn bystander<N: Nic>(side: &Side<N>, round: u32) -> Verdict {
    if !side.has(Capabilities::LOOPBACK) {
        return Ok(());
    }
    let setup = Setup::rc();
    let mut left = End::create(side, &setup)?;
    let mut right = End::create_in(side, &setup, left.pd.clone(), None, None)?;
    connect_local(side, &mut left.qp, &mut right.qp, &setup)?;
    let mut buffer = left.buffer(side, 2 * LEN)?;
    let data = message(2, u64::from(round), LEN);
    buffer.write(0, &data);
    right.recv(&[buffer.sge(LEN, LEN)])?;
    let payload = Payload::Gather(&[buffer.sge(0, LEN)]);
    left.send(&SendRequest::signaled(Op::Send { payload, imm: None }))?;
    let deadline = side.deadline();
    while left.cq.is_drained() || right.cq.is_drained() {
        ensure!(!deadline.has_passed(), "a bystander hangs in round {round}");
        left.cq.gather();
        right.cq.gather();
    }
    left.wait_for(CompletionKind::Send)?;
    right.wait_for(CompletionKind::Recv)?;
    buffer.expect(LEN, &data);
    buffer.verify()
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::{
        model::{MODEL, kill, open},
        oob::InMemory,
    };

    /// The model reaches no other process: its victims are threads that lose their queue pairs.
    fn survive_on_the_model(name: &str, testbed: Testbed) -> Verdict {
        let fabric = fabric_name(name);
        let place = |role| NicPlace { role, fabric: fabric.clone() };
        let nic = open(&place(Role::Client));
        survive(&nic, testbed, || {
            let (ours, theirs) = InMemory::pair();
            let place = place(Role::Server);
            let victim_thread = thread::spawn(move || {
                let nic = open(&place);
                // Ends in a panic or an error, whatever it was doing.
                victim(&mut Side::new(nic, Role::Server, testbed, Box::new(theirs)))
            });
            let kill = || {
                kill(&fabric, Role::Server);
                match victim_thread.join() {
                    Ok(Ok(())) => Err(Stop::violation("a victim ended in peace")),
                    _ => Ok(()),
                }
            };
            Ok((Box::new(ours) as Box<dyn OutOfBand>, kill))
        })
    }

    #[test]
    fn model_survives_the_death_of_its_peers() {
        survive_on_the_model("peer_death", MODEL).unwrap();
    }

    #[test]
    fn unnoticed_death_is_a_violation() {
        let testbed = Testbed { deadline: Duration::from_millis(200), ..MODEL };
        let verdict = survive_on_the_model("DeathUnnoticed", testbed);
        assert!(matches!(verdict, Err(Stop::Violation { .. })), "{verdict:?}");
    }
}
