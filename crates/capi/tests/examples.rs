//! The programs of `examples`, as their first lines say to use them, and through the end of a daemon.

mod common;

use std::{
    env, fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{self, Child, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use common::{Node, compile, python, root, run, tool};
use copyrpc::{
    Client, ClientConfig, JobId, Runtime,
    daemon::{self, BackgroundDaemon},
    nic::Selection,
};

/// A program whose lines are read, ended with the value.
struct Running {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Running {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// Reads up to a line; the program may say others before.
    fn says(&mut self, line: &str) {
        loop {
            let mut told = String::new();
            let is_over = self.lines.read_line(&mut told).unwrap() == 0;
            assert!(!is_over, "it ended before it said {line}");
            if told.trim_end() == line {
                return;
            }
        }
    }

    fn interrupt(&mut self) {
        run(Command::new("kill").args(["-INT", &self.child.id().to_string()]));
    }

    fn ends(mut self) {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return assert!(status.success(), "{status}");
            }
            // A shell starts background jobs so that they and their children ignore Ctrl-C.
            assert!(
                begin.elapsed() < Duration::from_secs(60),
                "it does not end, perhaps because it ignores SIGINT"
            );
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Serves, asks, and watches while the daemon ends and comes back.
fn is_used(node: &mut Node, program: impl Fn(&str) -> Command) {
    let folder = node.folder.clone();
    let command = |does: &str| {
        let mut command = program(does);
        command.env("COPYRPC_RUNTIME_DIR", &folder).env("COPYRPC_JOB", "capi");
        command
    };
    let mut service = Running::start(command("serve"));
    service.says("serving");
    let told = run(&mut command("ask"));
    for part in ["rank 0 of 1", "not found", "fast calls", "waited", "deadline exceeded"] {
        assert!(told.contains(part), "no {part}: {told}");
    }
    let mut watch = Running::start(command("watch"));
    watch.says("answered");
    node.stop();
    node.start();
    watch.says("answered again");
    watch.ends();
    run(&mut command("ask"));
    service.interrupt();
    service.says("ended");
    service.ends();
}

/// Daemons of three ranks on this node, which find each other in a folder.
fn start_ranks(folder: &Path) -> Vec<BackgroundDaemon> {
    fs::create_dir_all(folder.join("meet")).unwrap();
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).unwrap();
    let secret = daemon::Secret::random();
    let starting = (0..3).map(|rank: u32| {
        let job = JobId::new("capi").unwrap();
        let runtime = Runtime::new(folder.to_owned(), job, &rank.to_string()).unwrap();
        let mut serving = daemon::alone(runtime);
        serving.rank_info = daemon::RankInfo::new(rank, 3).unwrap();
        serving.secret = secret.clone();
        serving.config.start = daemon::config::Start::File(folder.join("meet"));
        let nic = Selection::from_env();
        thread::spawn(|| BackgroundDaemon::start(serving, nic, |_| Default::default()))
    });
    let starting: Vec<_> = starting.collect();
    let daemons = starting.into_iter().map(|it| it.join().unwrap().unwrap()).collect();
    // A call to a rank that is not up yet is refused.
    let runtime = Runtime::new(folder.to_owned(), JobId::new("capi").unwrap(), "1").unwrap();
    let mut client = Client::connect(&runtime.socket(), ClientConfig::default()).unwrap();
    let begin = Instant::now();
    while (0..3).any(|rank| client.ping(rank, b"").is_err()) {
        assert!(begin.elapsed() < Duration::from_secs(60), "the ranks do not come up");
        thread::sleep(Duration::from_millis(1));
    }
    daemons
}

/// Serves on three ranks, and asks all of them, before and after one service ended and was started again.
fn asks_three_ranks(name: &str, program: impl Fn(&str) -> Command) {
    let folder = env::temp_dir().join(format!("copyrpc-capi-{name}-{}", process::id()));
    let daemons = start_ranks(&folder);
    let command = |does: &str, rank: usize| {
        let mut command = program(does);
        command.env("COPYRPC_RUNTIME_DIR", &folder).env("COPYRPC_JOB", "capi");
        command.env("COPYRPC_INSTANCE", rank.to_string());
        command
    };
    let serve = |rank| {
        let mut service = Running::start(command("serve", rank));
        service.says("serving");
        service
    };
    let mut services: Vec<_> = (0..3).map(serve).collect();
    for _ in 0..2 {
        let told = run(&mut command("ask", 1));
        for rank in 0..3 {
            let line = format!("rank {rank} of 3, seen from 1");
            assert!(told.contains(&line), "no {line}: {told}");
        }
        let mut last = services.pop().unwrap();
        last.interrupt();
        last.says("ended");
        last.ends();
        services.push(serve(2));
    }
    drop(services);
    drop(daemons);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn the_metadata_service_in_python_runs_on_three_ranks() {
    if python().is_none() {
        return;
    }
    asks_three_ranks("ranks-py", |does| {
        let mut command = python().unwrap();
        command.arg(root().join("examples/metadata.py")).arg(does);
        command
    });
}

#[test]
fn the_metadata_service_in_c_runs_on_three_ranks() {
    let Some(compiler) = tool("cc") else { return };
    let folder = env::temp_dir().join(format!("copyrpc-capi-ranks-built-{}", process::id()));
    let built = compile(compiler, &root().join("examples/metadata.c"), &folder);
    asks_three_ranks("ranks-c", |does| {
        let mut command = Command::new(&built);
        command.arg(does);
        command
    });
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn the_metadata_service_in_python_survives_its_daemon() {
    if python().is_none() {
        return;
    }
    let mut node = Node::new("metadata-py");
    is_used(&mut node, |does| {
        let mut command = python().unwrap();
        command.arg(root().join("examples/metadata.py")).arg(does);
        command
    });
}

#[test]
fn the_metadata_service_in_c_survives_its_daemon() {
    let Some(compiler) = tool("cc") else { return };
    let mut node = Node::new("metadata-c");
    let program = compile(compiler, &root().join("examples/metadata.c"), &node.folder);
    is_used(&mut node, |does| {
        let mut command = Command::new(&program);
        command.arg(does);
        command
    });
}
