//! Benchmarks between hosts, which are processes of this one.

use std::{
    env, fs,
    io::{BufRead as _, BufReader},
    net::TcpStream,
    os::unix::fs::DirBuilderExt as _,
    path::PathBuf,
    process::{Command, Stdio},
};

use serde_json::Value;

use super::{copyrpc_lab, text};

/// A runtime folder, gone with the value.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("copyrpc-lab-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        Self(path)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = copyrpc_lab(arguments);
        command.env("COPYRPC_RUNTIME_DIR", &self.0);
        command.env("COPYRPC_SOFT_FABRIC", self.0.file_name().unwrap());
        command
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Two processes, as on two hosts: TCP for what they tell each other first, and a NIC that carries calls over TCP.
#[test]
fn calls_between_two_hosts_are_measured_and_a_stranger_costs_itself_alone() {
    let folder = Folder::new("two-hosts");
    let command = |arguments: &[&str]| folder.command(arguments);
    let mut server = command(&["bench", "rpc", "--nic", "tcp", "--server", "127.0.0.1:0"]);
    let mut server = server.stderr(Stdio::piped()).spawn().unwrap();
    let mut told = BufReader::new(server.stderr.take().unwrap()).lines();
    let first = told.next().unwrap().unwrap();
    // Without two cores nothing is measured.
    if let Some(address) = first.strip_prefix("answering calls at ") {
        drop(TcpStream::connect(address).unwrap());
        let mut client = command(&["bench", "rpc", "--nic", "tcp", "--client", address]);
        let client = client.args(["--quick", "--json", "-"]).output().unwrap();
        assert!(client.status.success(), "{}", text(&client.stderr));
        let lines: Vec<Value> =
            text(&client.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 5, "{lines:?}");
        for line in lines {
            let at = |name: &str| line[name].as_f64().unwrap();
            assert!(at("calls_per_s") > 0.0 && at("p50_ns") > 0.0, "{line}");
            assert!(at("p50_ns") <= at("p99_ns") && at("p99_ns") <= at("p99.9_ns"), "{line}");
        }
    }
    server.kill().unwrap();
    server.wait().unwrap();
}

/// Two hosts of a benchmark, which share no folder; rank 0 writes the result.
const BENCH: &str = "
    export OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1
    export HOME=$HOSTS/home$OMPI_COMM_WORLD_RANK COPYRPC_RUNTIME_DIR=$HOSTS/host$OMPI_COMM_WORLD_RANK
    exec $LAB bench kv --hosts --nic tcp --backend delegation --clients 2 --keys 1000 --quick \
        --warm-up 20ms --duration 60ms --out $HOSTS/result";

#[test]
fn hosts_of_an_installed_mpirun_are_measured_as_one_job() {
    let is_there = Command::new("mpirun").arg("--version").stdout(Stdio::null()).status().is_ok();
    if !is_there {
        let is_ci = env::var_os("CI").is_some_and(|value| value == "true");
        assert!(!is_ci, "there is no mpirun; install openmpi-bin");
        return eprintln!("skipped for want of mpirun");
    }
    let folder = Folder::new("kv-hosts");
    let bench = Command::new("mpirun")
        .args(["-n", "2", "--oversubscribe", "--allow-run-as-root", "sh", "-c", BENCH])
        .env("HOSTS", &folder.0)
        .env("LAB", env!("CARGO_BIN_EXE_copyrpc-lab"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(bench.status.success(), "{}", text(&bench.stderr));
    let table = text(&bench.stdout);
    assert!(table.contains("tcp on 2 hosts") && table.contains("delegation"), "{table}");
    assert!(folder.0.join("result/result.jsonl").exists(), "{table}");
}

#[test]
fn hosts_need_a_launcher_or_numbers() {
    let bench = Folder::new("kv-alone").command(&["bench", "kv", "--hosts"]).output().unwrap();
    assert_eq!(bench.status.code(), Some(2), "{}", text(&bench.stderr));
    assert!(text(&bench.stderr).contains("mpirun or srun"), "{}", text(&bench.stderr));
}
