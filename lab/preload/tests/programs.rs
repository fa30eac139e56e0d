//! Debian's verbs programs on the software NIC. In CI those that `.ci/run` installs have to be there.

use std::time::{Duration, Instant};

use uverbs::{
    launch::LaunchFiles,
    matrix::{ListensAt, PATIENCE, ROWS, Row, Running, Verdict, free_port, new_fabric},
    process::FABRIC_ENV,
};

fn is_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| value == "true")
}

/// Runs rows, and fails with all that failed.
fn check<'a>(rows: impl Iterator<Item = &'a Row>) {
    let failed = rows.filter_map(|row| match row.run(true) {
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

/// Pairs of processes that poll, one after the other: a minute on two free cores.
#[test]
#[ignore = "slow: every program of others, one after the other"]
fn every_row_of_the_matrix_works_slow() {
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
    server.wait_until_listening(ListensAt::Port(port), deadline).unwrap();
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

/// A pair of processes, of which one is killed: the server by turns with the client.
struct Victims {
    program: &'static str,
    /// The server is killed, and not the client.
    server_dies: bool,
    /// Only when both have sent.
    is_late: bool,
}

const STORM: [Victims; 8] = [
    Victims { program: "ib_send_lat", server_dies: true, is_late: true },
    Victims { program: "ib_send_lat", server_dies: false, is_late: true },
    Victims { program: "ib_write_bw", server_dies: true, is_late: true },
    Victims { program: "ib_read_lat", server_dies: true, is_late: true },
    Victims { program: "ib_atomic_bw", server_dies: true, is_late: true },
    Victims { program: "ib_send_lat", server_dies: true, is_late: false },
    Victims { program: "ib_write_bw", server_dies: true, is_late: false },
    Victims { program: "ibv_srq_pingpong", server_dies: true, is_late: true },
];

/// Names of this fabric that sockets have.
fn names_left(fabric: &str) -> Vec<String> {
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    let named = sockets.lines().filter(|line| line.contains(&format!("-{fabric}-")));
    named.map(str::to_owned).collect()
}

fn start_on(stage: &LaunchFiles, fabric: &str, program: &str, arguments: &[&str]) -> Running {
    let mut command = stage.command(program.as_ref());
    command.args(arguments).env(FABRIC_ENV, fabric);
    Running::start(command).unwrap()
}

/// Starts a pair, the server first.
fn start_pair(
    stage: &LaunchFiles,
    fabric: &str,
    program: &str,
    arguments: &[&str],
) -> [Running; 2] {
    let port = free_port().unwrap();
    let text = port.to_string();
    let server = [arguments, &["-p", &text]].concat();
    let client = [&server[..], &["127.0.0.1"]].concat();
    let mut server = start_on(stage, fabric, program, &server);
    server.wait_until_listening(ListensAt::Port(port), Instant::now() + PATIENCE).unwrap();
    [server, start_on(stage, fabric, program, &client)]
}

/// One round, with nobody else on the fabric: one of a pair dies while another pair exchanges data.
fn kill_one(stage: &LaunchFiles, fabric: &str, victims: &Victims, after: Duration) {
    let deadline = Instant::now() + PATIENCE;
    let [mut server, mut client] = start_pair(stage, fabric, victims.program, &["-n", "4000000"]);
    while victims.is_late && ![1, 2].iter().all(|lid| has_accepted(fabric, *lid)) {
        assert!(Instant::now() < deadline, "client: {}\nserver: {}", client.text(), server.text());
        std::thread::sleep(Duration::from_millis(2));
    }
    let others = start_pair(stage, fabric, "ibv_rc_pingpong", &["-c", "-n", "300"]);
    std::thread::sleep(after);
    let (dies, lives) =
        if victims.server_dies { (&mut server, &mut client) } else { (&mut client, &mut server) };
    dies.kill();
    lives.end(deadline).unwrap_err();
    let text = lives.text();
    let is_told = text.contains("ompletion with error") || text.contains("Failed status");
    assert!(is_told || !victims.is_late, "{}: {text}", victims.program);
    for mut other in others {
        other.end(deadline).unwrap();
    }
    while !names_left(fabric).is_empty() {
        assert!(Instant::now() < deadline, "left: {:?}", names_left(fabric));
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
#[ignore = "long: processes are killed, one after the other; `cargo xtask ci --full` runs it"]
fn a_storm_of_kills_hurts_only_those_who_talk_to_the_dead_and_leaves_nothing_long() {
    for program in ["ibv_rc_pingpong", "ib_send_lat"] {
        let row = ROWS.iter().find(|row| row.program == program).unwrap();
        if !row.is_installed() {
            assert!(!is_ci(), "install {}", row.package);
            eprintln!("skipped: {program}, which is in {}", row.package);
            return;
        }
    }
    let stage = LaunchFiles::new().unwrap();
    let fabric = new_fabric();
    let mut random = 1u64;
    for victims in &STORM {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        kill_one(&stage, &fabric, victims, Duration::from_micros(random >> 49));
    }
}
