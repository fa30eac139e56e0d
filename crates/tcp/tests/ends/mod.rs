//! Ports with a queue pair and memory each, that tests connect.

use std::{
    env, fs,
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
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
pub(crate) const REGION_BYTES: usize = 8 << 20;

/// A port with a queue pair and memory that its peer may use.
pub(crate) struct End {
    pub(crate) nic: Nic,
    pub(crate) handle: Handle,
    pub(crate) qp: Qp,
    pub(crate) cq: Cq,
    pub(crate) memory: Mr,
}

impl End {
    pub(crate) fn new(config: &Config) -> Self {
        let (nic, handle) = open_with_handle(config).unwrap();
        let pd = nic.alloc_pd().unwrap();
        let cq = nic.create_cq(&CqConfig::new(256), None).unwrap();
        let qp = nic.create_qp(&pd, &QpConfig::new(Transport::Rc, &cq)).unwrap();
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let memory = nic.alloc_mr(&pd, REGION_BYTES, rights).unwrap();
        Self { nic, handle, qp, cq, memory }
    }

    pub(crate) fn endpoint(&self) -> QpAddress {
        self.nic.endpoint(&self.qp)
    }

    pub(crate) fn connect(&mut self, to: QpAddress) {
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

    pub(crate) fn write(&mut self, to: &Mr, len: usize) {
        let from = [self.memory.sge(0, len)];
        let payload = Payload::Gather(&from);
        let op = Op::Write { remote: to.remote(0), payload, imm: None };
        self.qp.post_send(&SendRequest::signaled(op)).unwrap();
        self.qp.ring_send();
    }

    pub(crate) fn poll(&mut self) -> Option<Completion> {
        let completion = self.cq.poll()?;
        self.qp.retire(&completion);
        Some(completion)
    }
}

/// Polls both ends until the first has a completion.
pub(crate) fn complete(end: &mut End, mut other: Option<&mut End>) -> Completion {
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

pub(crate) fn pair(config: &Config) -> [End; 2] {
    let [mut first, mut second] = [End::new(config), End::new(config)];
    first.connect(second.endpoint());
    second.connect(first.endpoint());
    [first, second]
}

pub(crate) fn small() -> Config {
    Config { card_mib: 8, ..Config::default() }
}

pub(crate) fn status(completion: &Completion) -> Option<WcStatus> {
    completion.failure.map(|failure| failure.status)
}

/// A file with a secret that is removed at the end.
pub(crate) struct SecretFile(PathBuf);

impl SecretFile {
    pub(crate) fn new(text: &str) -> Self {
        let name = format!("copyrpc-tcp-{}-{}", process::id(), text.len());
        let path = env::temp_dir().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        Self(path)
    }

    pub(crate) fn config(&self) -> Config {
        let secret_file = Some(self.0.clone());
        Config { secret_file, address: "127.0.0.1".into(), ..small() }
    }
}

impl Drop for SecretFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
