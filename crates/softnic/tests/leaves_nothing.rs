//! What is left of ports that are gone, killed or not: nothing, at either end.
#![cfg(not(any(loom, miri)))]

mod common;

use std::{
    env, fs,
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
    sync::{Mutex, PoisonError},
};

use verbs::{
    AsyncEvent, CompletionQueue as _, MemoryRegion as _, Nic as _, Op, Payload, QueuePair as _,
    SendRequest, Transport,
};

use common::{End, completion, nic, until};

/// Tests here count descriptors of the whole process: one at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Tells a child which fabric to open.
const FABRIC: &str = "LEAVES_NOTHING_FABRIC";

/// Abstract names of ports on a fabric.
fn names(fabric: &str) -> usize {
    let sockets = fs::read_to_string("/proc/net/unix").unwrap();
    let is_ours = |line: &&str| line.contains("@copyrpc-soft/") && line.contains(fabric);
    sockets.lines().filter(is_ours).count()
}

fn start(test: &str, fabric: &str, temporary: &std::path::Path) -> Child {
    Command::new(env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(FABRIC, fabric)
        .env("TMPDIR", temporary)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Opens ports with everything that they can have, says so, and stays until it is killed.
fn live(fabric: &str) {
    let config = copyrpc_softnic::Config { fabric: fabric.into(), ..Default::default() };
    let nics = [(); 2].map(|()| copyrpc_softnic::open(&config).unwrap());
    let mut ends = nics.each_ref().map(|nic| End::new(nic, Transport::Rc));
    let endpoints = ends.each_ref().map(End::endpoint);
    ends[0].ready(Some(endpoints[1]));
    ends[1].ready(Some(endpoints[0]));
    let _regions = ends.each_ref().map(|end| end.mr(1 << 20));
    let _channel = nics[0].create_channel().unwrap();
    ends[0].qp.post_send(&SendRequest::signaled(Op::Nop)).unwrap();
    ends[0].qp.ring_send();
    let done = until("a NOP", || ends[0].cq.poll());
    ends[0].qp.retire(&done);
    println!("\nready");
    // The parent holds the other end, or is gone.
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn a_killed_process_leaves_no_file_and_no_name() {
    if let Ok(fabric) = env::var(FABRIC) {
        return live(&fabric);
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let fabric = common::fabric("killed", std::process::id());
    let temporary = env::temp_dir().join(&fabric);
    fs::create_dir(&temporary).unwrap();
    let shared_memory = || {
        let entries = fs::read_dir("/dev/shm").map(|dir| dir.flatten().map(|e| e.file_name()));
        let names = entries.into_iter().flatten().map(|name| name.to_string_lossy().into_owned());
        names.filter(|name| name.contains("copyrpc") || name.contains(&fabric)).count()
    };
    let before = shared_memory();
    let mut child = start("a_killed_process_leaves_no_file_and_no_name", &fabric, &temporary);
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let ready = lines.map_while(Result::ok).any(|line| line == "ready");
    let listening = names(&fabric);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(ready, "the child did not come up");
    assert!(listening >= 2, "it had two ports");
    assert_eq!(names(&fabric), 0, "abstract names");
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0, "temporary files");
    assert_eq!(shared_memory(), before, "shared memory files");
    fs::remove_dir(&temporary).unwrap();
}

/// Descriptors, and mappings of segments and cards.
fn held() -> (usize, usize) {
    let descriptors = fs::read_dir("/proc/self/fd").unwrap().count();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    (descriptors, maps.lines().filter(|line| line.contains("/memfd:copyrpc")).count())
}

#[test]
fn peers_that_came_and_went_left_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    if env::var(FABRIC).is_ok() {
        return;
    }
    let survivor = nic("survivor", None);
    let mut baseline = None;
    for round in 0..50u32 {
        {
            let visitor = nic("survivor", None);
            let mut here = End::new(&survivor, Transport::Rc);
            let mut there = End::new(&visitor, Transport::Rc);
            let (a, b) = (here.endpoint(), there.endpoint());
            here.ready(Some(b));
            there.ready(Some(a));
            let (from, to) = (there.mr(4096), here.mr(4096));
            let _channel = visitor.create_channel().unwrap();
            from.write(0, &round.to_ne_bytes());
            let payload = Payload::Gather(&[from.sge(0, 4)]);
            let op = Op::Write { remote: to.remote(8), payload, imm: None };
            there.qp.post_send(&SendRequest::signaled(op)).unwrap();
            there.qp.ring_send();
            let done = completion(&mut there.cq, &mut here.cq, &mut Vec::new());
            assert_eq!(done.failure, None);
            let mut found = [0; 4];
            to.read(8, &mut found);
            assert_eq!(found, round.to_ne_bytes());
            there.qp.retire(&done);
        }
        until("the end of a peer", || {
            let event = survivor.poll_event()?;
            matches!(event, AsyncEvent::PeerGone(_)).then_some(())
        });
        match baseline {
            // The first rounds fill what the process keeps for itself.
            None if round >= 2 => baseline = Some(held()),
            None => {}
            Some(baseline) => assert_eq!(held(), baseline, "after {round} peers"),
        }
    }
}
