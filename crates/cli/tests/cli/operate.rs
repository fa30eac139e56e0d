//! What those who run a node do: start, watch, drain, clean up.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::TcpListener,
    os::unix::{
        fs::{DirBuilderExt as _, PermissionsExt as _},
        net::UnixDatagram,
    },
    path::PathBuf,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{copyrpc, text};

/// A command with a runtime folder of its own, which is made.
fn node(name: &str) -> (PathBuf, impl Fn(&[&str]) -> Command) {
    let folder = std::env::temp_dir().join(format!("copyrpc-cli-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::DirBuilder::new().mode(0o700).create(&folder).unwrap();
    let of = folder.clone();
    let command = move |arguments: &[&str]| {
        let mut command = copyrpc(arguments);
        command.env("COPYRPC_RUNTIME_DIR", &of).env("COPYRPC_SOFT_FABRIC", of.file_name().unwrap());
        command
    };
    (folder, command)
}

#[test]
fn each_wrong_place_to_meet_has_its_own_cause_and_the_exit_code_of_settings() {
    let (folder, command) = node("causes");
    let secret = folder.join("secret");
    fs::write(&secret, "short").unwrap();
    let secret = secret.to_str().unwrap();
    for (arguments, cause) in [
        (&["--rendezvous", "n0:99999"][..], "has no port from 1 to 65535"),
        (&["--rendezvous", "n0:0"], "has no port from 1 to 65535"),
        (&["--rendezvous", "meet"], "a folder that all share is written with a slash"),
        (&["--rank", "0"], "--rank (COPYRPC_RANK) is set, and --size (COPYRPC_SIZE) is not"),
        (
            &["--rank", "3", "--size", "3"],
            "--rank and --size (COPYRPC_RANK, COPYRPC_SIZE): rank 3 of 3",
        ),
        (&["--rank", "0", "--size", "2"], "nothing says where they meet; set --rendezvous"),
        (&["--rank", "0", "--size", "2", "--rendezvous", "127.0.0.1:1"], "need a secret"),
        (&["--config", "/nonexistent.toml"], "cannot read /nonexistent.toml"),
        (&["--depth", "3"], "not a power of two"),
        (
            &["--rank", "0", "--size", "2", "--rendezvous", "127.0.0.1:1", "--secret-file", secret],
            "can be read by other users",
        ),
    ] {
        let refused = command(&[&["daemon"][..], arguments].concat()).output().unwrap();
        let told = text(&refused.stderr);
        assert!(told.contains(cause), "{arguments:?}: {told}");
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}: {told}");
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_rendezvous_that_says_nothing_is_given_up_in_time() {
    let (folder, command) = node("mute");
    let secret = folder.join("secret");
    fs::write(&secret, [7; 32]).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let start = Instant::now();
    let told = command(&["daemon", "--rank", "1", "--size", "2", "--bootstrap-timeout", "2s"])
        .args([
            "--handshake-timeout",
            "1s",
            "--rendezvous",
            &mute.local_addr().unwrap().to_string(),
        ])
        .args(["--secret-file", secret.to_str().unwrap()])
        .output()
        .unwrap();
    let took = start.elapsed();
    assert!(
        text(&told.stderr).contains("takes connections and says nothing"),
        "{}",
        text(&told.stderr)
    );
    assert!(took < Duration::from_secs(6), "{took:?}");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_daemon_logs_as_json_lists_its_services_answers_as_json_and_drains() {
    let (folder, command) = node("operations");
    // As a service manager does, which wants to hear of it.
    let manager = UnixDatagram::bind(folder.join("notify")).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let daemon = command(&["daemon", "--log", "json"])
        .env("NOTIFY_SOCKET", folder.join("notify"))
        .env("WATCHDOG_USEC", "200000")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (tell, heard) = std::sync::mpsc::channel();
    // A queue of such sockets holds ten: somebody has to read all the time, as a manager does.
    thread::spawn(move || {
        let mut text = [0; 64];
        while let Ok(length) = manager.recv(&mut text) {
            let _ = tell.send(String::from_utf8_lossy(&text[..length]).into_owned());
        }
    });
    let told = || heard.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!([told(), told(), told()], ["READY=1", "WATCHDOG=1", "WATCHDOG=1"]);
    let socket = folder.join("default.sock");
    let connected = loop {
        match client::Client::connect(&socket, client::ClientConfig::default()) {
            Ok(client) => break client,
            Err(_) => thread::sleep(Duration::from_millis(5)),
        }
    };
    drop(connected);
    let offer = client::Offer::named("metadata").shared();
    let provider = client::Provider::offer(&socket, &offer, client::ClientConfig::default());
    let provider = provider.unwrap();
    let services = command(&["services", "--json"]).output().unwrap();
    let services: Value = serde_json::from_slice(&services.stdout).unwrap();
    assert_eq!((&services[0]["name"], &services[0]["providers"]), (&"metadata".into(), &1.into()));
    let shown = command(&["services"]).output().unwrap();
    assert!(text(&shown.stdout).contains("metadata"), "{}", text(&shown.stdout));
    let ping = command(&["ping", "0", "--count", "3", "--json"]).output().unwrap();
    let ping: Value = serde_json::from_slice(&ping.stdout).unwrap();
    assert_eq!(ping["times_ns"].as_array().unwrap().len(), 3);
    drop(provider);
    let drained = command(&["drain"]).output().unwrap();
    assert!(drained.status.success(), "{}", text(&drained.stderr));
    let mut last = told();
    while last == "WATCHDOG=1" {
        last = told();
    }
    assert_eq!(last, "STOPPING=1");
    let ended = daemon.wait_with_output().unwrap();
    assert!(ended.status.success());
    let lines: Vec<Value> =
        text(&ended.stderr).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(
        lines.iter().all(|line| line["time"].is_f64() && line["level"].is_string()),
        "{lines:?}"
    );
    assert!(lines.iter().any(|line| line["level"] == "info"), "{lines:?}");
    let is_named = |line: &Value| line["daemon"] == "default" && line["own_rank"] == 0;
    assert!(lines.iter().all(is_named), "{lines:?}");
    let nobody = command(&["drain"]).output().unwrap();
    assert_eq!(nobody.status.code(), Some(1));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_connection_too_many_is_refused_in_true_words_and_logged() {
    let (folder, command) = node("too-many");
    let mut daemon = command(&["daemon", "--clients-max", "1"]);
    let mut daemon = daemon.stderr(Stdio::piped()).spawn().unwrap();
    let socket = folder.join("default.sock");
    let config = client::ClientConfig::default();
    let _first = loop {
        match client::Client::connect(&socket, config) {
            Ok(client) => break client,
            Err(_) => thread::sleep(Duration::from_millis(5)),
        }
    };
    let refused = client::Client::connect(&socket, config).unwrap_err().to_string();
    assert!(refused.contains("connections") && refused.contains("`clients_max`"), "{refused}");
    let (tell, told) = std::sync::mpsc::channel();
    let log = BufReader::new(daemon.stderr.take().unwrap());
    std::thread::spawn(move || {
        log.lines().map_while(Result::ok).try_for_each(|line| tell.send(line))
    });
    let mut seen = Vec::new();
    while !seen.iter().any(|line: &String| line.contains("COPYRPC_CLIENTS_MAX allows")) {
        let line = told.recv_timeout(Duration::from_secs(20));
        seen.push(line.unwrap_or_else(|_| panic!("nothing is logged: {seen:?}")));
    }
    assert!(command(&["drain"]).output().unwrap().status.success());
    assert!(daemon.wait().unwrap().success());
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn what_a_killed_daemon_left_is_removed_and_a_live_one_keeps_its_files() {
    let (folder, command) = node("clean");
    let mut daemon = command(&["daemon"]).stderr(Stdio::null()).spawn().unwrap();
    let socket = folder.join("default.sock");
    while client::Client::connect(&socket, client::ClientConfig::default()).is_err() {
        thread::sleep(Duration::from_millis(5));
    }
    let cleaned = command(&["clean"]).output().unwrap();
    assert!(text(&cleaned.stdout).contains("nothing"), "{}", text(&cleaned.stdout));
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    assert!(folder.join("default.metrics").exists());
    let of_job = |job| command(&["stat", "--json", "--job", job]).output().unwrap().stdout;
    let count =
        |told: &[u8]| serde_json::from_slice::<Value>(told).unwrap().as_array().unwrap().len();
    assert_eq!((count(&of_job("default")), count(&of_job("other"))), (1, 0));
    let would = command(&["clean", "--dry-run"]).output().unwrap();
    assert!(
        text(&would.stdout).contains("would remove") && folder.join("default.metrics").exists()
    );
    assert!(command(&["clean"]).output().unwrap().status.success());
    assert!(!folder.join("default.metrics").exists() && !socket.exists());
    fs::remove_dir_all(folder).unwrap();
}
