//! The driver `mlx5` on libmlx5 on the software NIC, by the commands that users give. In CI libmlx5 has to be there.

use std::{fs, path::PathBuf, process::Command};

use serde_json::Value;

/// The library that is preloaded lies beside the binary once the workspace's shared libraries are built; `cargo test
/// --workspace` builds them, and so does `cargo build -p copyrpc-preload`.
fn is_missing() -> Option<&'static str> {
    let copyrpc = PathBuf::from(env!("CARGO_BIN_EXE_copyrpc-lab"));
    let folder = copyrpc.parent().unwrap();
    let has = |folder: &PathBuf| folder.join("libcopyrpc_preload.so").is_file();
    if !has(&folder.to_path_buf()) && !has(&folder.join("deps")) {
        return Some("libcopyrpc_preload.so: cargo build -p copyrpc-preload");
    }
    let folders = ["/usr/lib", "/usr/lib64", "/lib64"].map(PathBuf::from);
    let multiarch = PathBuf::from(format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH));
    let has_mlx5 = folders.iter().chain([&multiarch]).any(|at| at.join("libmlx5.so.1").exists());
    (!has_mlx5).then_some("libmlx5.so.1, which is in ibverbs-providers")
}

/// Whether something is missing; in CI nothing may be.
fn is_skipped() -> bool {
    let Some(missing) = is_missing() else { return false };
    assert!(std::env::var_os("CI").is_none_or(|value| value != "true"), "install {missing}");
    eprintln!("skipped: there is no {missing}");
    true
}

/// `copyrpc-lab uverbs run -- copyrpc-lab ARGUMENTS`, on a fabric of its own.
fn on_libmlx5(name: &str, arguments: &[&str]) -> (bool, String) {
    let program = env!("CARGO_BIN_EXE_copyrpc-lab");
    let fabric = format!("cli-{name}-{}", std::process::id());
    let mut command = Command::new(program);
    command.args(["uverbs", "run", "--fabric", &fabric, "--", program]).args(arguments);
    let output = command.env_remove("COPYRPC_NIC").env_remove("RUST_LOG").output().unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    (output.status.success(), text.concat())
}

/// A path that no other test has.
fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("copyrpc-uverbs-test-{name}-{}", std::process::id()))
}

/// Folders of device files that `TMPDIR` holds.
fn trees(folder: &std::path::Path) -> usize {
    fs::read_dir(folder).unwrap().count()
}

#[test]
fn a_run_that_is_killed_leaves_nothing_once_its_program_has_ended() {
    if is_skipped() {
        return;
    }
    let folder = scratch("killed");
    fs::create_dir_all(&folder).unwrap();
    let wait = |what: &str, is_it: &dyn Fn() -> bool| {
        let began = std::time::Instant::now();
        while !is_it() {
            assert!(began.elapsed() < std::time::Duration::from_secs(60), "never {what}");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    };
    let alive = folder.join("alive");
    let script = format!("touch {0}; while [ -e {0} ]; do sleep 0.01; done", alive.display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_copyrpc-lab"));
    command.args(["uverbs", "run", "--", "sh", "-c", &script]).env("TMPDIR", &folder);
    let mut run = command.spawn().unwrap();
    wait("started", &|| alive.exists());
    assert_eq!(trees(&folder), 2, "the tree, and the file of this test");
    run.kill().unwrap();
    run.wait().unwrap();
    // A process of the program that outlives it would still find the device.
    fs::remove_file(&alive).unwrap();
    wait("removed", &|| trees(&folder) == 0);
    fs::remove_dir(&folder).unwrap();
}

#[test]
fn a_key_value_store_answers_rightly_on_libmlx5() {
    if is_skipped() || os::affinity::allowed_cores().unwrap().len() < 2 {
        return;
    }
    let folder = scratch("kv");
    let out = folder.to_str().unwrap();
    let short = ["--keys", "1000", "--warm-up", "20ms", "--duration", "100ms", "--clients", "2"];
    let named = ["--nic", "mlx5", "--backend", "direct,delegation", "--out", out];
    let (works, text) =
        on_libmlx5("kv", &[&["bench", "kv", "--quick"][..], &named, &short].concat());
    let _ = fs::remove_dir_all(&folder);
    assert!(works, "{text}");
    assert!(text.contains("every answer was checked") && text.contains(" delegation "), "{text}");
}

/// UCX and this project's driver on the same NIC: both by libmlx5, each with queues of its own.
#[test]
fn ucx_active_messages_and_our_driver_share_a_nic() {
    if is_skipped() || os::affinity::allowed_cores().unwrap().len() < 2 {
        return;
    }
    if let Some(missing) = kv::backend::Kind::UcxAm.missing() {
        assert!(std::env::var_os("CI").is_none_or(|value| value != "true"), "{missing}");
        eprintln!("skipped: {missing}");
        return;
    }
    let folder = scratch("ucx");
    let out = folder.to_str().unwrap();
    let short = ["--keys", "1000", "--warm-up", "20ms", "--duration", "100ms", "--clients", "2"];
    let named = ["--nic", "mlx5", "--backend", "delegation,ucx-am", "--switch", "tls=rc_mlx5"];
    let (works, text) = on_libmlx5(
        "ucx",
        &[&["bench", "kv", "--quick", "--out", out][..], &named, &short].concat(),
    );
    let _ = fs::remove_dir_all(&folder);
    assert!(works, "{text}");
    assert!(text.contains("every answer was checked") && text.contains("tls=rc_mlx5"), "{text}");
}

/// Here `auto` is `mlx5`: a port of kernel driver `mlx5_core` is up, and the NIC opens.
#[test]
fn calls_are_measured_on_the_nic_that_auto_chooses() {
    if is_skipped() || os::affinity::allowed_cores().unwrap().len() < 2 {
        return;
    }
    let bench = ["bench", "rpc", "--quick", "--nic", "auto", "--json", "-"];
    let cell = ["--cell", "rpc/round-trip/56B", "--runs", "1"];
    let (works, text) = on_libmlx5("rpc", &[&bench[..], &cell].concat());
    assert!(works, "{text}");
    assert!(text.contains("rpc/round-trip/56B") && text.contains(r#""nic":"mlx5""#), "{text}");
}

/// The name of a ConnectX means this project's driver, as `auto` does.
#[test]
fn the_name_of_a_connectx_means_its_driver() {
    if is_skipped() || os::affinity::allowed_cores().unwrap().len() < 2 {
        return;
    }
    let bench = ["bench", "rpc", "--quick", "--nic", "mlx5_0", "--json", "-"];
    let cell = ["--cell", "rpc/round-trip/56B", "--runs", "1"];
    let (works, text) = on_libmlx5("named", &[&bench[..], &cell].concat());
    assert!(works && text.contains(r#""nic":"mlx5 (mlx5_0)""#), "{text}");
}

/// Whether a process runs: one that is dead and not waited for does not.
fn runs(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.trim().is_empty() && !rest.starts_with(" Z"))
}

#[test]
fn a_program_ends_with_the_command_that_has_started_it() {
    if is_skipped() {
        return;
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_copyrpc-lab"));
    command.args(["uverbs", "run", "--", "sh", "-c", "echo $$; exec sleep 600"]);
    let mut started = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut output = std::io::BufReader::new(started.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut output, &mut line).unwrap();
    let pid = line.trim();
    assert!(runs(pid));
    started.kill().unwrap();
    started.wait().unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while runs(pid) {
        assert!(std::time::Instant::now() < deadline, "process {pid} goes on");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Everything that a person with a ConnectX sends back.
#[test]
#[ignore = "slow: half a minute of measuring"]
fn a_report_tells_conformance_bytes_and_rates_slow() {
    if is_skipped() {
        return;
    }
    let path = scratch("report.json");
    let report = ["nic-report", path.to_str().unwrap(), "--nic", "mlx5"];
    let (_, text) = on_libmlx5("report", &report);
    let written = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{error}: {text}"));
    fs::remove_file(&path).unwrap();
    let report: Value = serde_json::from_str(&written).unwrap();
    let device = &report["devices"][0];
    assert_eq!((&device["name"], &device["driver"]), (&"mlx5_0".into(), &"mlx5_core".into()));
    assert_eq!(report["limits"]["found"]["link_layer"], "InfiniBand");
    let scenarios = report["conformance"]["found"].as_array().unwrap();
    let failed: Vec<&Value> = scenarios.iter().filter(|one| one["verdict"] == "failed").collect();
    assert!(failed.is_empty(), "{failed:?}");
    let passed = scenarios.iter().filter(|one| one["verdict"] == "passed").count();
    assert!(passed > 60, "{passed} of {}", scenarios.len());
    let operations = report["operations"]["found"].as_array().unwrap();
    let nop = operations.iter().find(|one| one["operation"] == "RC NOP").unwrap();
    // Opcode 0, 1 octoword, and a completion request.
    assert!(nop["wqe"].as_str().unwrap().starts_with("0000"), "{nop}");
    assert_eq!(nop["wqe"].as_str().unwrap().len(), 32);
    let send = operations.iter().find(|one| one["operation"] == "UD SEND_IMM").unwrap();
    assert_eq!(send["receive_cqe"].as_str().unwrap().len(), 131);
    assert!(!report["rates"]["found"].as_array().unwrap().is_empty());
}
