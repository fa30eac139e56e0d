//! Streams between ports: who is let in, and what becomes of requests when a stream ends.
#![cfg(not(any(loom, miri)))]

use std::{
    env, fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    process,
    time::{Duration, Instant},
};

use copyrpc_tcp::{Config, Handle, open_with_handle};
use softnic::Nic;
use verbs::{
    Access, Completion, CompletionQueue as _, CqConfig, InitAttr, MemoryRegion as _, Mtu, Nic as _,
    Op, Payload, QKey, QpAddress, QpConfig, QueuePair as _, RcPeer, RnrTimer, RtrAttr, RtsAttr,
    SendRequest, Transition, Transport, WcStatus,
};

type Qp = <Nic as verbs::Nic>::Qp;
type Cq = <Nic as verbs::Nic>::Cq;
type Mr = <Nic as verbs::Nic>::Mr;

/// Longest that anything may take, however loaded the machine is.
const PATIENCE: Duration = Duration::from_secs(30);
const REGION_BYTES: usize = 8 << 20;

/// A port with a queue pair and memory that its peer may use.
struct End {
    nic: Nic,
    handle: Handle,
    qp: Qp,
    cq: Cq,
    memory: Mr,
}

impl End {
    fn new(config: &Config) -> Self {
        let (nic, handle) = open_with_handle(config).unwrap();
        let pd = nic.alloc_pd().unwrap();
        let cq = nic.create_cq(&CqConfig::new(256), None).unwrap();
        let qp = nic.create_qp(&pd, &QpConfig::new(Transport::Rc, &cq)).unwrap();
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let memory = nic.alloc_mr(&pd, REGION_BYTES, rights).unwrap();
        Self { nic, handle, qp, cq, memory }
    }

    fn endpoint(&self) -> QpAddress {
        self.nic.endpoint(&self.qp)
    }

    fn connect(&mut self, to: QpAddress) {
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
        let peer = RcPeer { qpn: to.qpn, address: to.address, rq_psn: Default::default() };
        let rtr = RtrAttr {
            path_mtu: Mtu::B4096,
            peer: Some(peer),
            rnr_timer: RnrTimer::from_code(1),
            reads_in_max: 4,
        };
        let rts = RtsAttr { ack_timeout: Duration::from_millis(20), ..RtsAttr::default() };
        for transition in [
            Transition::Init(InitAttr { access, qkey: QKey::default() }),
            Transition::Rtr(rtr),
            Transition::Rts(rts),
        ] {
            self.qp.modify(&transition).unwrap();
        }
    }

    fn write(&mut self, to: &Mr, len: usize) {
        let from = [self.memory.sge(0, len)];
        let payload = Payload::Gather(&from);
        let op = Op::Write { remote: to.remote(0), payload, imm: None };
        self.qp.post_send(&SendRequest::signaled(op)).unwrap();
        self.qp.ring_send();
    }

    fn poll(&mut self) -> Option<Completion> {
        let completion = self.cq.poll()?;
        self.qp.retire(&completion);
        Some(completion)
    }
}

/// Polls both ends until the first has a completion.
fn complete(end: &mut End, mut other: Option<&mut End>) -> Completion {
    let since = Instant::now();
    loop {
        if let Some(completion) = end.poll() {
            return completion;
        }
        if let Some(other) = other.as_deref_mut() {
            assert_eq!(other.poll(), None);
        }
        assert!(since.elapsed() < PATIENCE, "no completion");
    }
}

fn pair(config: &Config) -> [End; 2] {
    let [mut first, mut second] = [End::new(config), End::new(config)];
    first.connect(second.endpoint());
    second.connect(first.endpoint());
    [first, second]
}

fn small() -> Config {
    Config { card_mib: 8, ..Config::default() }
}

fn status(completion: &Completion) -> Option<WcStatus> {
    completion.failure.map(|failure| failure.status)
}

#[test]
fn a_write_completes_when_the_bytes_are_there_whatever_their_number() {
    let [mut first, mut second] = pair(&small());
    for (round, len) in
        [1, 100, 4096, 65_536, 65_537, 1 << 20, REGION_BYTES].into_iter().enumerate()
    {
        let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + round).to_le_bytes()[0]).collect();
        first.memory.write(0, &bytes);
        first.write(&second.memory, len);
        assert_eq!(status(&complete(&mut first, Some(&mut second))), None);
        let mut arrived = vec![0; len];
        second.memory.read(0, &mut arrived);
        assert!(arrived == bytes, "{len} B");
    }
    assert_eq!(first.handle.counts().begun, 1, "one stream");
}

#[test]
fn two_that_dial_each_other_at_once_get_one_stream_and_lose_nothing() {
    for _ in 0..20 {
        let [mut first, mut second] = pair(&small());
        let memories = [second.memory.remote(0), first.memory.remote(0)];
        for (end, remote) in [(&mut first, memories[0]), (&mut second, memories[1])] {
            let from = [end.memory.sge(0, 64)];
            let op = Op::Write { remote, payload: Payload::Gather(&from), imm: None };
            end.qp.post_send(&SendRequest::signaled(op)).unwrap();
            end.qp.ring_send();
        }
        let (since, mut done) = (Instant::now(), [None, None]);
        while done.contains(&None) {
            for (done, end) in done.iter_mut().zip([&mut first, &mut second]) {
                *done = done.take().or_else(|| end.poll());
            }
            assert!(since.elapsed() < PATIENCE);
        }
        assert!(done.iter().flatten().all(|done| done.failure.is_none()), "{done:?}");
        assert_eq!(first.handle.counts().lost + second.handle.counts().lost, 0);
    }
}

#[test]
fn fault_l3_strangers_and_garbage_are_refused_and_counted_and_others_do_not_notice() {
    let [mut first, mut second] = pair(&small());
    first.write(&second.memory, 64);
    assert_eq!(status(&complete(&mut first, Some(&mut second))), None);
    let address = second.handle.name().address;
    let mut strangers: Vec<_> = (0..4).map(|_| TcpStream::connect(address).unwrap()).collect();
    for (stranger, bytes) in strangers.iter_mut().zip([&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 500]]) {
        let filled = bytes.repeat(10);
        stranger.write_all(&filled).unwrap();
    }
    // The last two say nothing.
    let since = Instant::now();
    while second.handle.counts().refused < 4 {
        assert_eq!(second.poll(), None);
        assert!(since.elapsed() < PATIENCE);
    }
    for mut stranger in strangers {
        assert!(!matches!(stranger.read(&mut [0; 64]), Ok(count) if count > 0));
    }
    first.write(&second.memory, 64);
    assert_eq!(status(&complete(&mut first, Some(&mut second))), None);
    assert_eq!(second.handle.counts().begun, 1);
}

/// A file with a secret that is removed at the end.
struct SecretFile(PathBuf);

impl SecretFile {
    fn new(text: &str) -> Self {
        let name = format!("copyrpc-tcp-{}-{}", process::id(), text.len());
        let path = env::temp_dir().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        Self(path)
    }

    fn config(&self) -> Config {
        let secret_file = Some(self.0.clone());
        Config { secret_file, address: "127.0.0.1".into(), ..small() }
    }
}

impl Drop for SecretFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn who_has_another_secret_reaches_nobody() {
    let files =
        [SecretFile::new("a secret of the job"), SecretFile::new("a secret of another job")];
    let [mut first, mut second] = [0, 1].map(|at| End::new(&files[at].config()));
    first.connect(second.endpoint());
    second.connect(first.endpoint());
    first.write(&second.memory, 64);
    let done = complete(&mut first, Some(&mut second));
    assert_eq!(status(&done), Some(WcStatus::RetryExceeded));
    assert_eq!((first.handle.counts().begun, second.handle.counts().begun), (0, 0));
}

#[test]
fn nobody_there_exhausts_the_retries() {
    let mut first = End::new(&small());
    let gone = End::new(&small()).endpoint();
    first.connect(gone);
    let mut memory = [0; 8];
    first.memory.read(0, &mut memory);
    let from = [first.memory.sge(0, 8)];
    let remote = first.memory.remote(0);
    let op = Op::Write { remote, payload: Payload::Gather(&from), imm: None };
    first.qp.post_send(&SendRequest::signaled(op)).unwrap();
    first.qp.ring_send();
    assert_eq!(status(&complete(&mut first, None)), Some(WcStatus::RetryExceeded));
}

#[test]
fn fault_a8_what_is_on_its_way_to_a_port_that_ends_fails_and_its_successor_is_another() {
    let [mut first, mut second] = pair(&small());
    first.write(&second.memory, 64);
    assert_eq!(status(&complete(&mut first, Some(&mut second))), None);
    // Nobody calls into the second one any more.
    first.write(&second.memory, 1 << 20);
    first.write(&second.memory, 64);
    let address = second.handle.name().address;
    drop(second);
    assert_eq!(status(&complete(&mut first, None)), Some(WcStatus::RetryExceeded));
    assert_eq!(status(&complete(&mut first, None)), Some(WcStatus::Flushed));
    // The successor listens where the dead one did, and what was meant for that one does not reach it.
    let mut successor = End::new(&Config { port: address.port(), ..small() });
    first.qp.modify(&Transition::Reset).unwrap();
    first.connect(successor.endpoint());
    successor.connect(first.endpoint());
    first.write(&successor.memory, 64);
    assert_eq!(status(&complete(&mut first, Some(&mut successor))), None);
}

#[test]
fn fault_a9_a_port_that_owes_answers_and_is_silent_is_given_up() {
    let [mut first, mut second] = pair(&Config { timeout: Duration::from_millis(300), ..small() });
    first.write(&second.memory, 64);
    assert_eq!(status(&complete(&mut first, Some(&mut second))), None);
    // The second one is not called any more, as if it was stopped.
    first.write(&second.memory, 64);
    assert_eq!(status(&complete(&mut first, None)), Some(WcStatus::RetryExceeded));
    assert_eq!(first.handle.counts().silent, 1);
    // It continues, and both begin anew.
    while second.poll().is_some() {}
    for (end, to) in [(0, 1), (1, 0)] {
        let to = [first.endpoint(), second.endpoint()][to];
        let end = [&mut first, &mut second].into_iter().nth(end).unwrap();
        end.qp.modify(&Transition::Reset).unwrap();
        end.connect(to);
    }
    first.write(&second.memory, 64);
    assert_eq!(status(&complete(&mut first, Some(&mut second))), None);
}
