//! Many processes hammer one shared receive queue; some are killed in the middle of it.
//!
//! ```text
//! children ──SEND──▶ one SRQ, one CQ ◀──SEND── a survivor that counts
//!  killed, one after another                    every message of it arrives once, in order
//! ```
#![cfg(not(any(loom, miri)))]

mod common;

use std::{
    collections::HashMap,
    env,
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, Command, Stdio},
};

use copyrpc_softnic::Nic;
use verbs::{
    AddressVector, Completion, CompletionQueue as _, CqConfig, MemoryRegion as _, Nic as _, Op,
    Payload, PortRoute, PostSendError, QpAddress, QpConfig, Qpn, QueuePair as _, RecvSize,
    SendRequest, SharedReceiveQueue as _, SrqConfig, Transport,
};

use common::{End, Mr, Qp, ready, until};

const FABRIC: &str = "DEATHS_FABRIC";
const CHILDREN: usize = 3;
const ROUNDS: usize = 2;
const BUFFERS: usize = 64;
const MESSAGE_BYTES: usize = 32;
/// Of the survivor, between two deaths: it waits for a receive as long as three others that always take them.
const BETWEEN_DEATHS: u64 = 5;

/// An endpoint on an InfiniBand fabric, in two numbers.
fn name_of(endpoint: &QpAddress) -> String {
    let PortRoute::Lid(lid) = endpoint.address.route else { panic!("{endpoint:?}") };
    format!("endpoint {} {}", lid.get(), endpoint.qpn.get())
}

fn endpoint_named(line: &str) -> Option<QpAddress> {
    let mut words = line.strip_prefix("endpoint ")?.split(' ');
    let lid = verbs::Lid::new(words.next()?.parse().ok()?);
    let qpn = Qpn::new(words.next()?.parse().ok()?)?;
    Some(QpAddress { address: AddressVector::new(PortRoute::Lid(lid)), qpn })
}

/// SENDs numbered messages as fast as it can, until it is killed or its parent is gone.
fn hammer(fabric: &str) {
    let config =
        copyrpc_softnic::Config { fabric: fabric.into(), card_mib: 8, ..Default::default() };
    let mut end = End::new(&copyrpc_softnic::open(&config).unwrap(), Transport::Rc);
    println!("\n{}", name_of(&end.endpoint()));
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    end.ready(Some(endpoint_named(line.trim()).expect("the parent's endpoint")));
    let mr = end.mr(4096);
    let mut sent = 0;
    loop {
        if !send(&mut end.qp, &mr, sent) {
            match end.cq.poll() {
                Some(done) if done.failure.is_some() => return,
                Some(done) => end.qp.retire(&done),
                None => std::thread::yield_now(),
            }
            continue;
        }
        sent += 1;
    }
}

/// Posts message `number` from a slot of its own; `false`: no room.
fn send(qp: &mut Qp, mr: &Mr, number: u64) -> bool {
    let offset = usize::try_from(number % 128).unwrap() * MESSAGE_BYTES;
    let mut message = [0; MESSAGE_BYTES];
    message.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&number.to_ne_bytes()));
    if qp.send_free() == 0 {
        return false;
    }
    mr.write(offset, &message);
    let payload = Payload::Gather(&[mr.sge(offset, MESSAGE_BYTES)]);
    match qp.post_send(&SendRequest::signaled(Op::Send { payload, imm: None })) {
        Ok(_) => qp.ring_send(),
        Err(PostSendError::QueueFull { .. }) => return false,
        Err(other) => panic!("{other}"),
    }
    true
}

struct Scene {
    nic: Nic,
    pd: common::Pd,
    cq: common::Cq,
    srq: <Nic as verbs::Nic>::Srq,
    mr: Mr,
    /// Which part of `mr` each entry of the queue has.
    slots: HashMap<u16, usize>,
}

impl Scene {
    fn open(nic: Nic) -> Self {
        let own = End::new(&nic, Transport::Rc);
        let config = CqConfig { allow_overcommit: true, ..CqConfig::new(1024) };
        let cq = nic.create_cq(&config, None).unwrap();
        let srq_config = SrqConfig { entries: u32::try_from(BUFFERS).unwrap(), sges_max: 1 };
        let mut srq = nic.create_srq(&own.pd, &srq_config).unwrap();
        let mr = own.mr(BUFFERS * MESSAGE_BYTES);
        let mut slots = HashMap::new();
        for slot in 0..BUFFERS {
            let index = srq.post(&[mr.sge(slot * MESSAGE_BYTES, MESSAGE_BYTES)]).unwrap();
            slots.insert(index, slot);
        }
        srq.ring();
        Self { pd: own.pd, nic, cq, srq, mr, slots }
    }

    fn queue_pair(&self) -> Qp {
        let mut config = QpConfig::<Nic>::new(Transport::Rc, &self.cq);
        config.srq = Some(&self.srq);
        config.recv = RecvSize::NONE;
        self.nic.create_qp(&self.pd, &config).unwrap()
    }

    /// The number in a message that arrived whole; its buffer is posted again.
    fn take(&mut self, done: &Completion) -> Option<u64> {
        let slot = self.slots.remove(&done.wqe).expect("each receive completes once");
        let mut words = [[0; 8]; MESSAGE_BYTES / 8];
        self.mr.read(slot * MESSAGE_BYTES, words.as_flattened_mut());
        self.srq.retire(done);
        let sge = self.mr.sge(slot * MESSAGE_BYTES, MESSAGE_BYTES);
        assert_eq!(self.slots.insert(self.srq.post(&[sge]).unwrap(), slot), None);
        self.srq.ring();
        if done.failure.is_some() {
            return None;
        }
        assert!(words.iter().all(|word| *word == words[0]), "a message in pieces: {words:?}");
        Some(u64::from_ne_bytes(words[0]))
    }
}

/// A child that has begun to hammer, and the queue pair that hears it.
fn start(scene: &Scene, fabric: &str) -> (Child, Qp) {
    let test = "survivors_go_on_while_senders_are_killed";
    let mut child = Command::new(env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(FABRIC, fabric)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let theirs = lines.find_map(|line| endpoint_named(&line)).expect("the child's endpoint");
    let mut qp = scene.queue_pair();
    ready(&mut qp, Some(theirs));
    let ours = name_of(&scene.nic.endpoint(&qp));
    writeln!(child.stdin.as_mut().unwrap(), "{ours}").unwrap();
    (child, qp)
}

#[test]
fn survivors_go_on_while_senders_are_killed() {
    if let Ok(fabric) = env::var(FABRIC) {
        return hammer(&fabric);
    }
    let fabric = common::fabric("deaths", std::process::id());
    let mut scene = Scene::open(common::nic("deaths", None));
    // The survivor sends from a port of its own.
    let mut survivor = End::new(&common::nic("deaths", None), Transport::Rc);
    let mut heard = scene.queue_pair();
    let (a, b) = (survivor.endpoint(), scene.nic.endpoint(&heard));
    survivor.ready(Some(b));
    ready(&mut heard, Some(a));
    let mr = survivor.mr(4096);
    let (mut sent, mut received) = (0, 0);
    // Queue pairs that heard the dead: their last completions still bring buffers back.
    let mut graves = Vec::new();
    // Of every queue pair that hears a child, also of a dead one: its messages may still be in the completion queue.
    let mut next: HashMap<Qpn, u64> = HashMap::new();
    let mut failures: HashMap<Qpn, u32> = HashMap::new();

    for round in 1..=ROUNDS {
        let mut children: Vec<_> = (0..CHILDREN).map(|_| start(&scene, &fabric)).collect();
        let mut goal = received + BETWEEN_DEATHS;
        until("the end of a round", || {
            for _ in 0..32 {
                let done = scene.cq.poll();
                let number = done.as_ref().and_then(|done| scene.take(done));
                // The survivor tries each time after a receive came back: later the children have taken all of them.
                if send(&mut survivor.qp, &mr, sent) {
                    sent += 1;
                }
                if let Some(done) = survivor.cq.poll() {
                    assert_eq!(done.failure, None, "the survivor");
                    survivor.qp.retire(&done);
                }
                let Some(done) = done else { break };
                if done.qpn == heard.qpn() {
                    assert_eq!(number, Some(received), "the survivor's messages, in order");
                    received += 1;
                } else if let Some(number) = number {
                    let expected = next.entry(done.qpn).or_default();
                    assert_eq!(number, *expected, "messages of one child, in order");
                    *expected += 1;
                } else {
                    *failures.entry(done.qpn).or_default() += 1;
                }
            }
            // All are at it: kill one after another, at no particular instant.
            let busy = next.len() >= round * CHILDREN && received >= goal;
            if busy && let Some((mut child, qp)) = children.pop() {
                child.kill().unwrap();
                child.wait().unwrap();
                graves.push(qp);
                goal = received + BETWEEN_DEATHS;
            }
            (children.is_empty() && received >= goal).then_some(())
        });
        assert!(failures.values().all(|&count| count <= 1), "{failures:?}");
    }
    // Whatever died, no buffer is missing.
    assert_eq!(scene.slots.len(), BUFFERS);
    let mut arrived = 0;
    until("messages into every buffer", || {
        if send(&mut survivor.qp, &mr, sent) {
            sent += 1;
        }
        survivor.cq.poll().iter().for_each(|done| survivor.qp.retire(done));
        let done = scene.cq.poll().filter(|done| done.kind.is_receive())?;
        arrived += usize::from(scene.take(&done).is_some());
        (arrived >= 3 * BUFFERS).then_some(())
    });
}
