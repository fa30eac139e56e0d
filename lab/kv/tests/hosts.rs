//! A job on two hosts: both are this machine, but each process knows only what a host of its own would know. Without
//! the usual harness, because this program must be able to run itself as the other host, and as processes of the job.

use std::{
    env,
    io::Write as _,
    net::TcpStream,
    process::{self, Command, Stdio},
    time::{Duration, Instant},
};

use bootstrap::Secret;
use kv::{
    backend::{Kind, loopback},
    grid::Axes,
    job::{
        self, Config, JobError, Launcher, Live,
        hosts::{HostError, HostInfo, Hosts, Leader, serve},
    },
    workload::{Mix, Verify, Workload},
};
use os::{affinity, child::Child, clock};

const CHILD: &str = "child";
const HOST: &str = "host";
/// What the other host knows from the exchange.
const INFOS: &str = "TEST_INFOS";
/// Longest wait for something that happens at once, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

fn main() {
    match env::args().nth(1).as_deref() {
        Some(CHILD) => exit_as(job::child()),
        Some(HOST) => exit_as(be_the_other_host()),
        _ => tests(),
    }
}

fn tests() {
    nodes_of_two_hosts_serve_each_other_and_histories_are_right();
    a_stranger_at_the_door_keeps_no_host_out();
    a_host_that_does_not_come_is_named_with_the_address();
    fault_a5_a_killed_host_ends_the_run_and_is_named();
    fault_a4_a_host_ends_with_its_leader();
    println!("hosts: ok");
}

fn exit_as<E: std::fmt::Display>(result: Result<(), E>) {
    if let Err(error) = result {
        eprintln!("{error}");
        process::exit(1);
    }
}

fn secret() -> Secret {
    Secret::from_bytes(b"of the tests of two hosts")
}

fn launcher() -> Launcher {
    Launcher::this_program(CHILD).unwrap()
}

fn be_the_other_host() -> Result<(), HostError> {
    let infos: Vec<HostInfo> = serde_json::from_str(&env::var(INFOS).unwrap()).unwrap();
    serve(&infos, 1, &secret(), &launcher())
}

fn infos(leader: &Leader) -> Vec<HostInfo> {
    let cores = affinity::allowed_cores().unwrap();
    let info = HostInfo { address: loopback(), cores, nic_knobs: None, leader: None };
    vec![HostInfo { leader: Some(leader.address()), ..info.clone() }, info]
}

/// Both hosts; the other one is a process. Strangers come to the door before it does.
fn two_hosts(strangers: usize) -> (Hosts, Child) {
    let leader = Leader::listen(loopback()).unwrap();
    let come = |_| {
        let mut stranger = TcpStream::connect(leader.address()).unwrap();
        stranger.write_all(b"GET / HTTP/1.1").unwrap();
        stranger
    };
    let strangers = (0..strangers).map(come).collect::<Vec<_>>();
    let infos = infos(&leader);
    let mut command = Command::new(env::current_exe().unwrap());
    command.arg(HOST).env(INFOS, serde_json::to_string(&infos).unwrap()).stdin(Stdio::null());
    let other = Child::spawn(&mut command).unwrap();
    let hosts = leader.gather(infos, secret(), PATIENCE).unwrap();
    drop(strangers);
    (hosts, other)
}

fn config(backend: Kind, duration_ms: u64) -> Config {
    let workload = Workload {
        clients_per_rank: 2,
        keys: 200,
        mix: "50:10:20".parse::<Mix>().unwrap(),
        verify: Verify::Full,
        warm_up_ms: 20,
        duration_ms,
        ..Workload::default()
    };
    let nic_knobs = [("COPYRPC_SOFT_FABRIC".to_owned(), format!("hosts-{}", process::id()))];
    let axes = Axes {
        workload,
        backends: vec![backend],
        nic: "soft".to_owned(),
        nic_knobs: nic_knobs.into(),
        hosts: 2,
        ..Axes::default()
    };
    axes.configs().unwrap().remove(0)
}

fn nodes_of_two_hosts_serve_each_other_and_histories_are_right() {
    let (mut hosts, mut other) = two_hosts(0);
    for backend in [Kind::Tcp, Kind::Delegation, Kind::Provider] {
        let mut config = config(backend, 100);
        let measured = loop {
            let run = job::run(&config, &launcher(), &mut hosts, &mut |_| {}).unwrap();
            if run.local.completed > 0 && run.remote.completed > 0 {
                break run;
            }
            config.workload.duration_ms *= 4;
            assert!(config.workload.duration_ms <= 60_000, "{:?}", run.per_client);
        };
        assert_eq!(measured.per_client.len(), 4);
        assert!(measured.linearizable.is_some());
    }
    hosts.end().unwrap();
    let status = other.wait(clock::deadline_ns(PATIENCE)).unwrap();
    assert!(status.expect("it was told that it is over").success());
}

fn a_stranger_at_the_door_keeps_no_host_out() {
    let (hosts, mut other) = two_hosts(2);
    hosts.end().unwrap();
    assert!(other.wait(clock::deadline_ns(PATIENCE)).unwrap().unwrap().success());
}

fn a_host_that_does_not_come_is_named_with_the_address() {
    let leader = Leader::listen(loopback()).unwrap();
    let (infos, address) = (infos(&leader), leader.address().to_string());
    let error = leader.gather(infos, secret(), Duration::from_millis(50)).unwrap_err().to_string();
    assert!(error.contains("host 1") && error.contains(&address), "{error}");
}

/// Whichever is noticed first is named: the host, or a process that died with it.
fn fault_a5_a_killed_host_ends_the_run_and_is_named() {
    let (mut hosts, mut other) = two_hosts(0);
    let begin = Instant::now();
    let live = &mut |live| {
        if matches!(live, Live::Running { .. }) {
            let _ = other.kill();
        }
    };
    let error = job::run(&config(Kind::Tcp, 60_000), &launcher(), &mut hosts, live).unwrap_err();
    assert!(begin.elapsed() < PATIENCE, "noticed at once");
    match &error {
        JobError::Host(HostError::Control { host: 1, .. }) => {}
        // A client here lost its server there.
        JobError::Failed { .. } | JobError::Died { .. } => {}
        other => panic!("{other}"),
    }
}

fn fault_a4_a_host_ends_with_its_leader() {
    let (hosts, mut other) = two_hosts(0);
    drop(hosts);
    let status = other.wait(clock::deadline_ns(PATIENCE)).unwrap().expect("it ended by itself");
    assert!(!status.success(), "the job has not come to its end");
}
