//! The commands that look at daemons, as users meet them.

use std::{
    env, fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{self, Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use bootstrap::RankInfo;
use daemon::metrics::{Counter, Life, MetricsFile, Recorder, Timing};
use serde_json::Value;

/// A runtime folder with the counters of one daemon, removed at the end.
struct Rig {
    folder: PathBuf,
    _file: MetricsFile,
    recorder: Recorder,
}

impl Rig {
    fn new(name: &str) -> Self {
        let folder = env::temp_dir().join(format!("copyrpc-cli-{name}-{}", process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("job.metrics");
        let (file, mut recorders) =
            MetricsFile::create(&path, "job", RankInfo::ALONE, 1, 0).unwrap();
        file.set_life(Life::Serving);
        let mut recorder = recorders.remove(0);
        recorder.add(Counter::RequestsIpc, 42);
        recorder.record(Timing::Call, 1000);
        Self { folder, _file: file, recorder }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = copyrpc(&self.folder);
        command.args(arguments);
        command
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A process that does not outlive its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn copyrpc(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_copyrpc"));
    command.env_clear().env("COPYRPC_RUNTIME_DIR", folder);
    command
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn stat_shows_what_each_thread_counts_and_their_sum() {
    let folder = env::temp_dir().join(format!("copyrpc-cli-threads-{}", process::id()));
    fs::create_dir_all(&folder).unwrap();
    let made = MetricsFile::create(&folder.join("job.metrics"), "job", RankInfo::ALONE, 2, 0);
    let (_file, mut recorders) = made.unwrap();
    recorders[0].add(Counter::ThreadRequests, 11);
    recorders[1].add(Counter::ThreadRequests, 31);
    let all = json(&copyrpc(&folder).args(["stat", "--json"]).output().unwrap());
    assert_eq!(all[0]["threads"], 2);
    assert_eq!(all[0]["counters"]["thread_requests"], 42);
    assert_eq!(all[0]["by_thread"][0]["thread_requests"], 11);
    assert_eq!(all[0]["by_thread"][1]["thread_requests"], 31);
    let people = copyrpc(&folder).arg("stat").output().unwrap();
    let people = String::from_utf8(people.stdout).unwrap();
    let rows: Vec<Vec<_>> = people.lines().map(|line| line.split_whitespace().collect()).collect();
    assert!(rows.contains(&vec!["by", "thread", "thread", "0", "thread", "1"]), "{people}");
    assert!(rows.contains(&vec!["thread_requests", "11", "31"]), "{people}");
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn stat_shows_what_daemons_count_to_people_and_programs() {
    let rig = Rig::new("stat");
    let all = json(&rig.command(&["stat", "--json"]).output().unwrap());
    assert_eq!(all[0]["daemon"], "job");
    assert_eq!(all[0]["state"], "serving");
    assert_eq!(all[0]["counters"]["requests_ipc"], 42);
    assert_eq!(all[0]["distributions"]["call_ns"]["p0.99"], 1023);
    let people = rig.command(&["stat"]).output().unwrap();
    let people = String::from_utf8(people.stdout).unwrap();
    assert!(people.contains("requests_ipc") && people.contains("42"), "{people}");
    let scraped = rig.command(&["stat", "--prometheus"]).output().unwrap();
    let scraped = String::from_utf8(scraped.stdout).unwrap();
    assert!(scraped.contains("copyrpc_requests_ipc_total{daemon=\"job\",rank=\"0\"} 42\n"));
}

#[test]
fn stat_during_an_interval_shows_what_happened_then() {
    let rig = Rig::new("interval");
    let all = rig.command(&["stat", "--json", "--interval", "1ms"]).output().unwrap();
    assert_eq!(json(&all)[0]["counters"]["requests_ipc"], 0);
    let bad = rig.command(&["stat", "--interval", "1"]).output().unwrap();
    assert!(String::from_utf8_lossy(&bad.stderr).contains("--interval 1 needs a unit"));
}

#[test]
fn a_machine_without_daemons_says_where_it_looked() {
    let folder = env::temp_dir().join("copyrpc-nobody");
    let stat = copyrpc(&folder).arg("stat").output().unwrap();
    let text = String::from_utf8(stat.stdout).unwrap();
    assert!(text.starts_with("no daemon left counters in ") && text.contains("copyrpc-nobody"));
    assert_eq!(
        json(&copyrpc(&folder).args(["stat", "--json"]).output().unwrap()),
        Value::Array(vec![])
    );
}

#[test]
fn a_scraper_gets_the_counters_and_nobody_else_gets_anything() {
    let mut rig = Rig::new("serve");
    let mut server = rig.command(&["stat", "--serve", "127.0.0.1:0"]);
    server.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut server = Running(server.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(server.0.stderr.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("serving http://").unwrap();
    let address = address.strip_suffix("/metrics").unwrap().to_owned();
    let ask = |request: &str| {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        // Whoever sends nonsense may be hung up on.
        let _ = stream.read_to_string(&mut answer);
        answer
    };
    rig.recorder.add(Counter::RequestsIpc, 1);
    let answer = ask("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains("copyrpc_requests_ipc_total{daemon=\"job\",rank=\"0\"} 43\n"));
    assert!(ask("GET /etc/passwd HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
    let refused = ask("POST /metrics HTTP/1.1\r\n\r\n");
    assert!(refused.starts_with("HTTP/1.1 405 ") && refused.contains("Allow: GET, HEAD\r\n"));
    assert!(ask("nonsense\r\n\r\n").starts_with("HTTP/1.1 400 "));
    let head = ask("HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    assert!(!head.contains("Content-Length: 0\r\n"), "that of GET: {head}");
    assert_eq!(ask("\x16\x03\x01"), "", "silence is answered with silence");
    let endless = ask(&"x".repeat(5000));
    assert!(endless.is_empty() || endless.starts_with("HTTP/1.1 400 "), "{endless}");
    assert!(ask("GET /metrics?name=copyrpc_up HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 "));
    assert!(ask("GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 "), "it still serves");
    // Silent connections, more than it keeps, delay nobody.
    let began = Instant::now();
    let silent: Vec<_> = (0..300).map(|_| TcpStream::connect(&address).unwrap()).collect();
    assert!(ask("GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200 "));
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    drop((silent, server));
    let refused = rig.command(&["stat", "--serve", "0.0.0.0:0"]).output().unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("no loopback address"));
}

#[test]
fn top_without_a_terminal_says_what_to_use_instead() {
    let rig = Rig::new("top");
    let top = rig.command(&["top"]).output().unwrap();
    assert_eq!(top.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&top.stderr).contains("`copyrpc stat`"));
}

/// On a terminal of its own, of the usual size.
#[test]
fn top_on_a_terminal_of_80_by_24_shows_latencies_of_the_instance_that_is_asked_for() {
    if Command::new("script").arg("--version").stdout(Stdio::null()).status().is_err() {
        let is_ci = env::var_os("CI").is_some_and(|value| value == "true");
        assert!(!is_ci, "no `script`; install bsdutils");
        eprintln!("skipped for want of `script` (bsdutils)");
        return;
    }
    let rig = Rig::new("terminal");
    let path = rig.folder.join("job@3.metrics");
    let (file, mut recorders) = MetricsFile::create(&path, "job@3", RankInfo::ALONE, 1, 0).unwrap();
    file.set_life(Life::Serving);
    recorders[0].record(Timing::Call, 1500);
    let mut command = Command::new("script");
    let program = env!("CARGO_BIN_EXE_copyrpc");
    let shown = format!("stty cols 80 rows 24 && exec {program} top --job job --instance 3");
    command.args(["-qefc", &shown, "/dev/null"]).env("COPYRPC_RUNTIME_DIR", &rig.folder);
    command.env("TERM", "xterm").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut running = Running(command.spawn().unwrap());
    let mut out = running.0.stdout.take().unwrap();
    let mut seen = Vec::new();
    let mut part = [0; 4096];
    let has = |seen: &[u8], text: &str| String::from_utf8_lossy(seen).contains(text);
    while ![" p99", "job@3", "1.5us"].into_iter().all(|text| has(&seen, text)) {
        let read = out.read(&mut part).unwrap();
        assert!(read > 0, "it ended: {}", String::from_utf8_lossy(&seen));
        seen.extend(&part[..read]);
    }
    assert!(!has(&seen, "42"), "the other daemon's: {}", String::from_utf8_lossy(&seen));
    running.0.stdin.take().unwrap().write_all(b"q").unwrap();
    out.read_to_end(&mut seen).unwrap();
    assert!(running.0.wait().unwrap().success());
}

#[test]
fn doctor_names_what_fails_with_a_remedy_and_an_exit_code() {
    let folder = env::temp_dir().join(format!("copyrpc-cli-doctor-{}", process::id()));
    let doctor = |flags: &[&str]| {
        copyrpc(&folder)
            .args(["doctor", "--json", "--clients-max", "4"])
            .args(flags)
            .output()
            .unwrap()
    };
    let find = |output: &Output, what: &str| -> Value {
        let all: Value = serde_json::from_slice(&output.stdout).unwrap();
        all.as_array().unwrap().iter().find(|finding| finding["what"] == what).unwrap().clone()
    };
    let sick = doctor(&["--dead-after", "1s", "--nic", "mlx5_9"]);
    assert_eq!(sick.status.code(), Some(3));
    assert_eq!(find(&sick, "knobs")["verdict"], "fails");
    assert_eq!(find(&sick, "NIC")["verdict"], "fails");
    assert_eq!(find(&sick, "runtime folder")["verdict"], "fine");
    let people = copyrpc(&folder).args(["doctor", "--dead-after", "1s"]).output().unwrap();
    let people = String::from_utf8(people.stdout).unwrap();
    assert!(people.contains("fails  knobs"), "{people}");
    fs::remove_dir(&folder).unwrap();
}

#[test]
fn config_shows_origins_and_refuses_what_contradicts_itself() {
    let folder = env::temp_dir();
    let path = folder.join(format!("copyrpc-cli-{}.toml", process::id()));
    fs::write(&path, "call_timeout = \"9s\"\nclients_max = 7\n").unwrap();
    let config = |flags: &[&str]| {
        let mut command = copyrpc(&folder);
        command.env("COPYRPC_CONFIG", &path).env("COPYRPC_CLIENTS_MAX", "8");
        command.args(["config", "--json"]).args(flags).output().unwrap()
    };
    let listing = json(&config(&["--depth", "16"]));
    let origin = |env: &str| {
        let knobs = listing["knobs"].as_array().unwrap();
        let knob = knobs.iter().find(|knob| knob["env"] == env).unwrap();
        (knob["value"].as_str().unwrap().to_owned(), knob["origin"].as_str().unwrap().to_owned())
    };
    let file = format!("{}:1", path.display());
    assert_eq!(origin("COPYRPC_CALL_TIMEOUT"), ("9s".into(), file));
    assert_eq!(origin("COPYRPC_CLIENTS_MAX"), ("8".into(), "COPYRPC_CLIENTS_MAX".into()));
    assert_eq!(origin("COPYRPC_DEPTH"), ("16".into(), "--depth".into()));
    assert_eq!(config(&["--dead-after", "1s"]).status.code(), Some(2));
    fs::write(&path, "call_timeot = \"9s\"\n").unwrap();
    let typo = config(&[]);
    let text = String::from_utf8_lossy(&typo.stderr).into_owned();
    assert!(text.contains("did you mean `call_timeout`?"), "{text}");
    fs::remove_file(&path).unwrap();
}
