//! The examples work as a newcomer runs them: as processes, beside a daemon.
#![cfg(all(feature = "daemon", feature = "nic"))]

use std::{
    env, fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{self, Child, Command, Stdio},
    thread,
};

use copyrpc::{
    JobId, Runtime,
    daemon::{self, BackgroundDaemon},
    nic::Selection,
};

/// Ends when the test does, however that does.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An example beside the test that `cargo test` built with it.
fn example(name: &str, folder: &Path) -> Command {
    let test = env::current_exe().expect("a path");
    let target = test.ancestors().nth(2).expect("a target folder");
    let mut command = Command::new(target.join("examples").join(name));
    command.env("COPYRPC_RUNTIME_DIR", folder).stdout(Stdio::piped());
    command
}

/// First line of a process that prints one.
fn first_line(running: &mut Running) -> String {
    let output = running.0.stdout.take().expect("a pipe");
    BufReader::new(output).lines().next().expect("a line").expect("text")
}

#[test]
fn without_a_daemon_they_say_what_to_do() {
    let nowhere = env::temp_dir().join("copyrpc-examples-nowhere");
    for name in ["server", "client"] {
        let refused = example(name, &nowhere).output().expect("cargo build --examples");
        let told = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && told.contains("start the daemon first"), "{told}");
    }
}

#[test]
fn server_and_client_find_the_daemon_and_each_other() {
    let folder = env::temp_dir().join(format!("copyrpc-examples-{}", process::id()));
    let job = JobId::new("default").expect("a name");
    let runtime = Runtime::new(folder.clone(), job, "").expect("a short path");
    let alone = daemon::alone(runtime);
    let daemon = BackgroundDaemon::start(alone, Selection::from_env(), |_| Default::default());
    let daemon = daemon.expect("a daemon");
    let mut server = Running(example("server", &folder).spawn().expect("cargo build --examples"));
    let offered = first_line(&mut server);
    let client = example("client", &folder).output().expect("cargo build --examples");
    daemon.stop().expect("it has served");
    assert!(offered.starts_with("service 17 is offered"), "{offered}");
    let printed = String::from_utf8(client.stdout).expect("text");
    let lines: Vec<&str> = printed.lines().collect();
    assert!(client.status.success() && lines.len() == 1 + 8, "{printed}");
    assert_eq!(lines[0], "hello, world");
    for number in 0..8 {
        assert!(lines.contains(&format!("{number}: hello, call {number}").as_str()), "{printed}");
    }
    fs::remove_dir_all(folder).expect("no longer used");
}

#[test]
fn memory_that_a_call_lends_comes_back_turned() {
    let folder = env::temp_dir().join(format!("copyrpc-examples-lend-{}", process::id()));
    let job = JobId::new("default").expect("a name");
    let runtime = Runtime::new(folder.clone(), job, "").expect("a short path");
    let alone = daemon::alone(runtime);
    let daemon = BackgroundDaemon::start(alone, Selection::from_env(), |_| Default::default());
    let daemon = daemon.expect("a daemon");
    let mut command = example("lend", &folder);
    let mut service = Running(command.arg("serve").spawn().expect("cargo build --examples"));
    assert_eq!(first_line(&mut service), "service 17 is offered");
    for _ in 0..2 {
        let told = example("lend", &folder).stderr(Stdio::inherit()).output().expect("a program");
        assert_eq!(String::from_utf8_lossy(&told.stdout), "turned\ndlrow ,olleh\n");
    }
    drop(service);
    daemon.stop().expect("it has served");
    fs::remove_dir_all(folder).expect("no longer used");
}

/// Daemons of three ranks on this node, which find each other in a folder.
fn start_ranks(folder: &Path) -> Vec<BackgroundDaemon> {
    let meet = folder.join("meet");
    fs::create_dir_all(&meet).expect("a folder");
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).expect("an own folder");
    let secret = daemon::Secret::random();
    let start = |rank: u32| {
        let job = JobId::new("default").expect("a name");
        let runtime = Runtime::new(folder.to_owned(), job, &rank.to_string());
        let mut serving = daemon::alone(runtime.expect("a short path"));
        serving.rank_info = daemon::RankInfo::new(rank, 3).expect("one of three");
        serving.secret = secret.clone();
        serving.config.start = daemon::config::Start::File(meet.clone());
        thread::spawn(|| {
            BackgroundDaemon::start(serving, Selection::from_env(), |_| Default::default())
        })
    };
    let starting: Vec<_> = (0..3).map(start).collect();
    starting.into_iter().map(|it| it.join().expect("no panic").expect("a daemon")).collect()
}

fn serve_metadata(folder: &Path, rank: u32) -> Running {
    let mut command = example("metadata", folder);
    command.arg("serve").env("COPYRPC_INSTANCE", rank.to_string());
    let mut running = Running(command.spawn().expect("cargo build --examples"));
    assert_eq!(first_line(&mut running), "the service is offered");
    running
}

#[test]
fn a_metadata_service_on_three_ranks_is_called_while_one_is_killed_and_started_again() {
    let folder = env::temp_dir().join(format!("copyrpc-examples-ranks-{}", process::id()));
    let daemons = start_ranks(&folder);
    let mut services: Vec<_> = (0..3).map(|rank| serve_metadata(&folder, rank)).collect();
    let mut command = example("metadata", &folder);
    command.arg("call").env("COPYRPC_INSTANCE", "0").stderr(Stdio::inherit());
    let mut calling = Running(command.spawn().expect("cargo build --examples"));
    let output = calling.0.stdout.take().expect("a pipe");
    let mut lines = BufReader::new(output).lines().map(|line| line.expect("text"));
    for rank in 0..3 {
        let stat = lines.next().expect("a line");
        assert!(stat.starts_with(&format!("rank {rank}: Stat {{")), "{stat}");
    }
    let beside = lines.next().expect("a line");
    assert!(beside.starts_with("100 calls beside 3 slow ones"), "{beside}");
    let kill_now = lines.next().expect("a line");
    assert!(kill_now.starts_with("calling for 3 s"), "{kill_now}");
    drop(services.pop());
    services.push(serve_metadata(&folder, 2));
    let last = lines.next().expect("a line");
    assert!(last.ends_with("calls, none failed"), "{last}");
    drop(services);
    for daemon in daemons {
        daemon.stop().expect("it has served");
    }
    fs::remove_dir_all(folder).expect("no longer used");
}

#[test]
fn a_daemon_that_cannot_start_says_why() {
    let folder = env::temp_dir().join(format!("copyrpc-examples-no-nic-{}", process::id()));
    let job = JobId::new("default").expect("a name");
    let alone = daemon::alone(Runtime::new(folder, job, "").expect("a short path"));
    let refused = BackgroundDaemon::start(alone, Selection::new("sotf"), |_| Default::default());
    let told = refused.map(drop).expect_err("no such NIC").to_string();
    assert!(told.contains("did you mean `soft`?"), "{told}");
}
