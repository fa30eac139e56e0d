//! Debian's verbs programs on the software NIC. In CI those that `.ci/run` installs have to be there.

use std::time::{Duration, Instant};

use uverbs::{
    launch::LaunchFiles,
    matrix::{PATIENCE, ROWS, Row, Running, Verdict, free_port, new_fabric},
    process::FABRIC_ENV,
};

fn is_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| value == "true")
}

/// Runs rows, and fails with all that failed.
fn check<'a>(rows: impl Iterator<Item = &'a Row>) {
    let stage = LaunchFiles::new().unwrap();
    let failed = rows.filter_map(|row| match row.run(&stage) {
        Verdict::Works => None,
        Verdict::Skipped if !is_ci() => {
            eprintln!("skipped: {}, which is in {}", row.line(), row.package);
            None
        }
        Verdict::Skipped => Some(format!("{}: install {}", row.line(), row.package)),
        Verdict::Fails(problem) => Some(format!("{}: {problem}", row.line())),
    });
    let failed: Vec<String> = failed.collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// One row of each group.
#[test]
fn libibverbs_finds_the_device_and_two_processes_exchange_checked_data() {
    check(ROWS.iter().filter(|row| row.shows == "the device"));
    check(ROWS.iter().filter(|row| row.shows == "RC, data checked"));
}

#[test]
#[ignore = "long: a minute, pairs of processes that poll; `cargo xtask ci --full` runs it"]
fn every_row_of_the_matrix_works_long() {
    check(ROWS.iter());
}

/// Whether a port has accepted a stream, by the kernel's list of sockets.
fn has_accepted(fabric: &str, lid: u16) -> bool {
    const CONNECTED: &str = "03";
    let name = format!("-{fabric}-{lid}");
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    sockets
        .lines()
        .any(|line| line.ends_with(&name) && line.split_whitespace().nth(5) == Some(CONNECTED))
}

/// A process that is killed leaves its peer with a completion in error.
#[test]
fn who_talks_to_a_killed_process_is_told() {
    const PROGRAM: &str = "ibv_rc_pingpong";
    let row = ROWS.iter().find(|row| row.program == PROGRAM).unwrap();
    if !row.is_installed() {
        assert!(!is_ci(), "install {}", row.package);
        eprintln!("skipped: {PROGRAM}, which is in {}", row.package);
        return;
    }
    let stage = LaunchFiles::new().unwrap();
    let (fabric, port) = (new_fabric(), free_port().unwrap());
    let start = |host: &[&str]| {
        let mut command = stage.command(PROGRAM.as_ref());
        command.args(["-e", "-n", "100000000", "-p", &port.to_string()]).args(host);
        Running::start({
            command.env(FABRIC_ENV, &fabric);
            command
        })
        .unwrap()
    };
    let deadline = Instant::now() + PATIENCE;
    let mut server = start(&[]);
    server.wait_until_listening(port, deadline).unwrap();
    let mut client = start(&["127.0.0.1"]);
    // Each of the two has accepted the other's stream: both have sent.
    while ![1, 2].iter().all(|lid| has_accepted(&fabric, *lid)) {
        assert!(Instant::now() < deadline, "client: {}\nserver: {}", client.text(), server.text());
        std::thread::sleep(Duration::from_millis(5));
    }
    server.kill();
    client.end(deadline).unwrap_err();
    let text = client.text();
    assert!(text.contains("Failed status"), "{text}");
}
