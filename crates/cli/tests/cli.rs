//! The command as users meet it. No timing is asserted.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    os::unix::process::CommandExt as _,
    process::{Command, Output, Stdio},
};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;

fn copyrpc(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_copyrpc"));
    command.args(arguments).env_remove("COPYRPC_NIC").env_remove("RUST_LOG");
    command
}

fn output(arguments: &[&str]) -> Output {
    copyrpc(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).unwrap()
}

fn has_two_cores() -> bool {
    os::affinity::allowed_cores().unwrap().len() >= 2
}

#[test]
fn help_teaches_by_examples_and_names_every_exit_code() {
    for arguments in [&["--help"][..], &["bench", "verbs", "--help"]] {
        let help = output(arguments);
        assert!(help.status.success());
        assert!(text(&help.stdout).contains("Examples:"), "{}", text(&help.stdout));
    }
    assert!(text(&output(&["--help"]).stdout).contains("Exit codes:"));
    assert!(text(&output(&["--version"]).stdout).starts_with("copyrpc "));
    assert_eq!(output(&["no-such-command"]).status.code(), Some(2));
}

#[test]
fn info_lists_the_nic_what_was_tried_and_every_knob() {
    let info = output(&["info", "--json"]);
    assert!(info.status.success());
    let info: Value = serde_json::from_slice(&info.stdout).unwrap();
    assert_eq!(info["nic"]["name"], "soft");
    assert_eq!(info["tried"][0]["what"], "/sys/class/infiniband");
    let knobs = info["knobs"].as_array().unwrap();
    let nic = knobs.iter().find(|knob| knob["env"] == "COPYRPC_NIC").unwrap();
    assert_eq!((&nic["value"], &nic["origin"]), (&"soft".into(), &"default".into()));
    let people = output(&["info"]);
    assert!(text(&people.stdout).contains("COPYRPC_NIC"));
}

#[test]
fn a_mistyped_variable_is_pointed_out() {
    let info = copyrpc(&["info", "--json"]).env("COPYRPC_NCI", "soft").output().unwrap();
    assert!(info.status.success());
    assert!(text(&info.stderr).contains("did you mean COPYRPC_NIC?"), "{}", text(&info.stderr));
}

#[test]
fn a_variable_that_is_no_text_is_refused_by_its_name() {
    use std::os::unix::ffi::OsStrExt as _;
    let garbled = std::ffi::OsStr::from_bytes(b"6\xff4");
    let refused = copyrpc(&["config"]).env("COPYRPC_DEPTH", garbled).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("COPYRPC_DEPTH"), "{}", text(&refused.stderr));
    let warned = copyrpc(&["config"]).env("RUST_LOG", "a=b=c").output().unwrap();
    assert!(warned.status.success());
    assert!(text(&warned.stderr).contains("RUST_LOG makes no sense"), "{}", text(&warned.stderr));
}

#[test]
fn a_flag_wins_over_the_environment() {
    let info =
        copyrpc(&["info", "--json", "--nic", "soft"]).env("COPYRPC_NIC", "other").output().unwrap();
    let info: Value = serde_json::from_slice(&info.stdout).unwrap();
    assert_eq!(info["knobs"][0]["value"], "soft");
    assert_eq!(info["knobs"][0]["origin"], "--nic");
}

#[test]
fn one_core_is_refused_with_a_reason() {
    let refused = std::thread::spawn(|| {
        let core = os::affinity::allowed_cores().unwrap()[0];
        os::affinity::pin_current_thread(core).unwrap();
        output(&["bench", "limit", "--quick"]) // a child inherits the one core
    });
    let refused = refused.join().unwrap();
    assert_eq!(refused.status.code(), Some(3));
    assert!(text(&refused.stderr).contains("two cores"), "{}", text(&refused.stderr));
    assert!(refused.stdout.is_empty(), "nothing is published");
}

#[test]
fn a_nic_that_is_not_there_is_refused_with_a_reason() {
    if !has_two_cores() {
        return;
    }
    let refused = output(&["bench", "verbs", "--quick", "--nic", "mlx5_7"]);
    assert_eq!(refused.status.code(), Some(3));
    assert!(text(&refused.stderr).contains("`mlx5_7`"), "{}", text(&refused.stderr));
}

#[test]
fn json_on_standard_output_leaves_it_to_programs() {
    if !has_two_cores() {
        return;
    }
    let arguments = ["bench", "limit", "--quick", "--runs", "1", "--cell", "line-round-trip"];
    let run = copyrpc(&arguments).args(["--json", "-"]).output().unwrap();
    assert!(run.status.success(), "{}", text(&run.stderr));
    let lines = text(&run.stdout).lines();
    let objects = lines.map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>();
    assert_eq!(objects[0]["bench"], "limit");
    assert!(objects[0]["command"].as_str().unwrap().contains("--cell line-round-trip"));
    for row in &objects[1..] {
        assert!(row["cell"].as_str().unwrap().starts_with("limit/line-round-trip/"));
    }
    assert!(text(&run.stderr).contains("samples dropped"), "tables are for people");
}

#[test]
fn fault_c8_a_file_that_cannot_be_written_does_not_cost_the_table() {
    if !has_two_cores() {
        return;
    }
    let arguments = ["bench", "limit", "--quick", "--runs", "1", "--cell", "line-round-trip"];
    let run = copyrpc(&arguments).args(["--json", "/dev/full"]).output().unwrap();
    assert_eq!(run.status.code(), Some(1));
    assert!(text(&run.stderr).contains("cannot write /dev/full"), "{}", text(&run.stderr));
    assert!(text(&run.stdout).contains("samples dropped"), "the numbers are shown");
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let unseen = copyrpc(&["config"]).stdout(full).output().unwrap();
    assert_eq!(unseen.status.code(), Some(1));
    assert!(text(&unseen.stderr).contains("cannot write to standard output: No space left"));
    let folder = output(&["stat", "--runtime-dir", "/dev/null"]);
    assert!(text(&folder.stderr).contains("cannot read /dev/null"), "{}", text(&folder.stderr));
}

#[test]
fn a_reader_that_stops_early_is_no_error() {
    let mut info = copyrpc(&["info"]).stdout(Stdio::piped()).spawn().unwrap();
    drop(info.stdout.take());
    assert!(info.wait().unwrap().success());
}

/// A standard error that nobody reads any more.
fn unread() -> Stdio {
    std::io::pipe().unwrap().1.into()
}

#[test]
fn a_reader_of_standard_error_that_stops_early_ends_nothing() {
    let warned = copyrpc(&["config"]).env("RUST_LOG", "a=b=c").stderr(unread()).output().unwrap();
    assert!(warned.status.success(), "a log line: {}", warned.status);
    let failed = copyrpc(&["report", "/dev/null/x"]).stderr(unread()).status().unwrap();
    assert_eq!(failed.code(), Some(1), "an error");
}

#[test]
fn the_software_nic_carries_checked_traffic_between_two_processes() {
    if !has_two_cores() {
        return;
    }
    let fabric = format!("cli-test-{}", std::process::id());
    let run =
        copyrpc(&["bench", "verbs", "--quick", "--runs", "1", "--cell", "32B", "--json", "-"])
            .env("COPYRPC_SOFT_FABRIC", fabric)
            .output()
            .unwrap();
    assert!(run.status.success(), "{}", text(&run.stderr));
    let header: Value = serde_json::from_str(text(&run.stdout).lines().next().unwrap()).unwrap();
    assert_eq!((&header["bench"], &header["nic"]), (&"verbs".into(), &"soft".into()));
    assert!(text(&run.stderr).contains("aim: "), "the tables say what to compare with");
}

#[test]
fn queues_and_calls_are_measured_beside_what_the_machine_can_do() {
    if !has_two_cores() {
        return;
    }
    for (bench, cell, reference) in [
        ("inproc", "spsc/round-trip/8B/lamport", "limit/line-round-trip/processes"),
        ("inproc", "flux/2-threads/onesided", "limit/line-stream/64B"),
        ("ipc", "ipc/round-trip/56B", "limit/slot-round-trip/56B"),
        ("ipc", "ipc/4-clients/depth-4/56B", "limit/slot-window-32/56B"),
    ] {
        let arguments = ["bench", bench, "--quick", "--runs", "1", "--cell", cell, "--json", "-"];
        let run = output(&arguments);
        assert!(run.status.success(), "{}", text(&run.stderr));
        let lines = text(&run.stdout).lines();
        let objects = lines.map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>();
        assert_eq!(objects[0]["bench"], bench);
        // On a busy machine the probes may disagree, and then there is no row.
        for row in objects.iter().filter(|row| row["cell"] == cell) {
            assert_eq!(row["vs"], reference);
            assert!(row["lines"].as_f64().unwrap() > 0.0, "{row}");
        }
    }
}

#[test]
fn a_knob_with_a_bad_value_is_refused_with_its_meaning() {
    if !has_two_cores() {
        return;
    }
    let run =
        copyrpc(&["bench", "verbs", "--quick"]).env("COPYRPC_SOFT_DRIVE", "fast").output().unwrap();
    assert_eq!(run.status.code(), Some(2));
    assert!(text(&run.stderr).contains("COPYRPC_SOFT_DRIVE=fast"), "{}", text(&run.stderr));
}

/// A folder for results, gone with the value.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("copyrpc-cli-{name}-{}", std::process::id())))
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A run that takes a tenth of a second.
fn bench_kv(folder: &Folder, more: &[&str]) -> Output {
    kv_command(folder, more).output().unwrap()
}

fn kv_command(folder: &Folder, more: &[&str]) -> Command {
    let short = ["--quick", "--warm-up", "20ms", "--duration", "60ms", "--clients", "2"];
    let arguments = ["bench", "kv", "--backend", "tcp", "--keys", "1000", "--out", folder.path()];
    let mut command = copyrpc(&arguments);
    command.args(short).args(more);
    command
}

#[test]
fn bench_kv_shows_a_table_and_says_where_the_report_lies() {
    let folder = Folder::new("kv");
    let run = bench_kv(&folder, &["--runs", "2", "--qd", "1,4"]);
    assert!(run.status.success(), "{}", text(&run.stderr));
    for expected in
        ["tcp/2x2/qd1/natural", "tcp/2x2/qd4/natural", "p99.9", "every answer was checked"]
    {
        assert!(text(&run.stdout).contains(expected), "{expected:?} in {}", text(&run.stdout));
    }
    let report = folder.file("report.html");
    assert!(text(&run.stderr).contains(&format!("report: {report}")));
    let page = std::fs::read_to_string(report).unwrap();
    assert!(page.contains("copyrpc bench kv") && page.contains("</html>"));
    let runs = std::fs::read_to_string(folder.file("runs.csv")).unwrap();
    assert_eq!(runs.lines().count(), 5, "a heading and four runs");
}

#[test]
fn bench_kv_gives_numbers_to_programs() {
    let folder = Folder::new("kv-json");
    let run = bench_kv(&folder, &["--json", "-", "--verify", "full", "--mix", "40:10:20"]);
    assert!(run.status.success(), "{}", text(&run.stderr));
    let lines = text(&run.stdout).lines();
    let lines = lines.map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>();
    assert_eq!(lines[0]["bench"], "kv");
    assert!(lines[0]["command"].as_str().unwrap().contains("--verify full"));
    assert!(lines[1..].iter().any(|line| line["metric"] == "rate" && line["median"].is_number()));
    assert!(text(&run.stderr).contains("linearizable: "), "{}", text(&run.stderr));
}

/// It changes every number, so it is part of what was measured, whichever layer sets it.
#[test]
fn fault_k2_what_is_set_about_the_nic_is_honoured_and_recorded() {
    let folder = Folder::new("kv-nic");
    std::fs::create_dir_all(folder.path()).unwrap();
    std::fs::write(folder.file("knobs.toml"), "soft_drive = \"thread\"").unwrap();
    let mut run = kv_command(&folder, &[]);
    run.args(["--backend", "direct"]).env("COPYRPC_CONFIG", folder.file("knobs.toml"));
    let run = run.env("COPYRPC_SOFT_STRICT", "7").output().unwrap();
    assert!(run.status.success(), "{}", text(&run.stderr));
    let lines = std::fs::read_to_string(folder.file("result.jsonl")).unwrap();
    let lines = lines.lines().map(|line| serde_json::from_str(line).unwrap());
    let lines = lines.collect::<Vec<Value>>();
    assert_eq!(lines[0]["nic"], "none, soft (soft-drive=thread, soft-strict=7)");
    let knobs = |backend: &str| {
        let run = lines.iter().find(|line| line["config"]["backend"] == backend).unwrap();
        run["config"]["nic_knobs"].clone()
    };
    let expected = serde_json::json!({"COPYRPC_SOFT_DRIVE": "thread", "COPYRPC_SOFT_STRICT": "7"});
    assert_eq!((knobs("direct"), knobs("tcp")), (expected, Value::Null));
    assert!(text(&run.stdout).contains("/soft-drive=thread/soft-strict=7"), "cells say so");
}

#[test]
fn fault_c8_a_full_disk_costs_a_file_but_not_the_numbers() {
    let folder = Folder::new("kv-full");
    let run = bench_kv(&folder, &["--json", "/dev/full"]);
    assert_eq!(run.status.code(), Some(1));
    assert!(text(&run.stderr).contains("cannot write /dev/full"), "{}", text(&run.stderr));
    assert!(text(&run.stdout).contains("tcp/2x2/qd4/natural"), "the numbers are shown");
    assert!(std::path::Path::new(&folder.file("result.jsonl")).exists(), "other files are there");
    let nowhere = copyrpc(&["bench", "kv", "--out", "/dev/null/x"]).output().unwrap();
    assert_eq!(nowhere.status.code(), Some(1), "known before anything is measured");
    assert!(text(&nowhere.stderr).contains("cannot make the folder"));
}

/// Before anything is measured, and nothing is left behind.
#[test]
fn fault_c8_a_place_that_cannot_be_written_to_is_known_at_once() {
    let folder = Folder::new("kv-place");
    let inner = folder.file("a/b");
    let nowhere = folder.file("gone/x");
    for (arguments, place) in [
        (&["bench", "kv", "--out", &inner, "--json", &nowhere][..], nowhere.as_str()),
        (&["bench", "kv", "--out", &inner, "--markdown", &nowhere], &nowhere),
        (&["bench", "kv", "--out", "/proc"], "/proc/result.jsonl"),
        (&["bench", "limit", "--json", &nowhere], &nowhere),
        (&["bench", "limit", "--json", "/"], "/"),
        (&["bench", "rpc", "--markdown", &nowhere], &nowhere),
    ] {
        if arguments[1] != "kv" && !has_two_cores() {
            continue;
        }
        let refused = output(arguments);
        let (told, expected) = (text(&refused.stderr), format!("cannot write {place}: "));
        assert_eq!(refused.status.code(), Some(1), "{arguments:?}: {told}");
        assert!(told.contains(&expected) && refused.stdout.is_empty(), "{arguments:?}: {told}");
        assert!(!std::path::Path::new(folder.path()).exists(), "{arguments:?}");
    }
}

/// The memory of queues is files, too: what needs them says that it cannot have them.
#[test]
fn fault_c8_a_limit_of_file_sizes_costs_files_but_not_the_numbers() {
    let folder = Folder::new("kv-limit");
    let limited = |arguments: &str| {
        let command = format!("ulimit -f 4; exec \"$0\" {arguments}");
        let mut shell = Command::new("bash");
        shell.args(["-c", &command, env!("CARGO_BIN_EXE_copyrpc")]).output().unwrap()
    };
    std::fs::create_dir_all(folder.path()).unwrap();
    let run = kv_command(&folder, &[]).output().unwrap();
    assert!(run.status.success(), "{}", text(&run.stderr));
    let again = limited(&format!("report {0} --html {0}/again.html", folder.path()));
    assert_eq!(again.status.code(), Some(1), "{}", text(&again.stderr));
    assert!(text(&again.stderr).contains("again.html: File too large"), "{}", text(&again.stderr));
    let daemon = limited(&format!("daemon --runtime-dir {}", folder.file("run")));
    assert_eq!(daemon.status.code(), Some(3), "{:?} {}", daemon.status, text(&daemon.stderr));
    assert!(text(&daemon.stderr).contains("File too large"), "{}", text(&daemon.stderr));
}

#[test]
fn fault_c8_a_reader_that_stops_early_costs_no_file() {
    let folder = Folder::new("kv-pipe");
    let report = folder.file("again.md");
    let without_reader = |mut command: Command| {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        drop(child.stdout.take());
        child.wait().unwrap()
    };
    assert!(without_reader(kv_command(&folder, &[])).success());
    assert!(std::path::Path::new(&folder.file("result.jsonl")).exists());
    let again = copyrpc(&["report", folder.path(), "--markdown", &report]);
    assert!(without_reader(again).success());
    assert!(std::path::Path::new(&report).exists());
}

/// Enough runs for lines about them, which go nowhere, as does the table.
#[test]
fn fault_c8_a_reader_of_standard_error_that_stops_early_costs_no_run() {
    let folder = Folder::new("kv-unread");
    let mut run = kv_command(&folder, &["--runs", "21", "--json", "-"]);
    let run = run.stderr(unread()).output().unwrap();
    assert!(run.status.success(), "{}", run.status);
    let rows = text(&run.stdout).lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    assert!(rows.count() > 1, "what programs read is there");
    let lines = std::fs::read_to_string(folder.file("result.jsonl")).unwrap();
    assert_eq!(lines.lines().count(), 22);
}

/// A terminal sends it to all processes, a script to one.
#[test]
fn fault_c8_an_interrupt_costs_no_run_that_is_over() {
    let interrupt: [fn(Pid, Signal) -> rustix::io::Result<()>; 2] =
        [kill_process, kill_process_group];
    for (kill, name) in interrupt.into_iter().zip(["kv-int", "kv-int-group"]) {
        let folder = Folder::new(name);
        let mut command = kv_command(&folder, &["--runs", "60"]);
        command.process_group(0).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut run = command.spawn().unwrap();
        let mut stderr = BufReader::new(run.stderr.take().unwrap());
        let mut told = String::new();
        while !told.contains("of 60 runs") {
            assert!(stderr.read_line(&mut told).unwrap() > 0, "{told}");
        }
        kill(Pid::from_child(&run), Signal::INT).unwrap();
        stderr.read_to_string(&mut told).unwrap();
        assert_eq!(run.wait().unwrap().code(), Some(1), "{told}");
        assert!(told.contains("interrupted after"), "{told}");
        let lines = std::fs::read_to_string(folder.file("result.jsonl")).unwrap();
        assert!((4..61).contains(&lines.lines().count()), "{lines}");
        assert!(output(&["report", folder.path()]).status.success());
    }
}

#[test]
fn fault_k3_reports_compare_like_with_like_only() {
    let (a, b, other) = (Folder::new("kv-a"), Folder::new("kv-b"), Folder::new("kv-other"));
    assert!(bench_kv(&a, &["--runs", "2"]).status.success());
    assert!(bench_kv(&b, &["--runs", "2", "--wait", "yield"]).status.success());
    assert!(bench_kv(&other, &["--seed", "9"]).status.success());
    let refused = output(&["report", a.path(), other.path()]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        text(&refused.stderr).contains("seed is 1 in A and 9 in B"),
        "{}",
        text(&refused.stderr)
    );
    let compared = output(&["report", a.path(), b.path()]);
    // The cores may have moved apart between the two: that is refused too, by name.
    let is_moved = text(&compared.stderr).contains("same core placement");
    assert!(compared.status.success() || is_moved, "{}", text(&compared.stderr));
    let shown = output(&["report", a.path(), "--html", &a.file("again.html")]);
    assert!(shown.status.success() && text(&shown.stdout).contains("tcp/2x2/qd4/natural"));
    let first = std::fs::read(a.file("report.html")).unwrap();
    assert_eq!(first, std::fs::read(a.file("again.html")).unwrap(), "from the file alone");
}

/// Scripts tell a bad command from a benchmark that failed, or wrong data, by these.
#[test]
fn what_makes_no_sense_is_a_usage_error_wherever_it_is_noticed() {
    let (senseless, lacking) = (Some(2), Some(3));
    for (arguments, code) in [
        (&["bench", "kv", "--clients", "0"][..], senseless),
        (&["bench", "kv", "--switch", "colour=red"], senseless),
        (&["bench", "kv", "--switch", "srq=on", "--switch", "srq=off"], senseless),
        (&["bench", "kv", "--nic", "mlx5_7", "--out", "/dev/null/x"], lacking),
        (&["bench", "kv", "--backend", "tcp", "--nic", "soft"], senseless),
        (&["bench", "limit", "--cell", "no such cell"], senseless),
        (&["daemon", "--depth", "63"], senseless),
        (&["daemon", "--threads", "0"], senseless),
        (&["daemon", "--job", "a/b"], senseless),
        (&["daemon", "--soft-drive", "fast"], senseless),
        (&["daemon", "--rank", "2", "--size", "2"], senseless),
        (&["daemon", "--rank", "0", "--size", "2"], senseless),
        (&["daemon", "--fork", "2", "--instance", "x"], senseless),
        (&["daemon", "--fork", "2", "--secret-file", "/dev/null"], senseless),
        (&["daemon", "--rank", "0", "--size", "2", "--rendezvous", "n0:7000"], senseless),
        (&["config", "--suspect-after", "5s"], senseless),
        (&["stat", "--serve", "0.0.0.0:9464"], senseless),
        (&["stat", "--interval", "5"], senseless),
        (&["stat", "--interval", "0s"], senseless),
        (&["stat", "--prometheus", "--interval", "1ms"], senseless),
        (&["ping", "0", "--depth", "64"], senseless),
        (&["ping", "0", "--count", "0"], senseless),
        (&["report", "/dev/null/x"], Some(1)),
    ] {
        let refused = output(arguments);
        assert_eq!(refused.status.code(), code, "{arguments:?}: {}", text(&refused.stderr));
    }
}

#[test]
fn bench_kv_refuses_what_makes_no_sense() {
    for (arguments, expected) in [
        (&["--ranks", "1", "--locality", "remote"][..], "one rank has nobody to call"),
        (&["--switch", "colour=red"], "no chosen backend has a switch `colour`"),
        (&["--switch", "write=often"], "it can be: turn, call"),
        (&["--value-size", "8"], "24 B hold key, version and check"),
    ] {
        let run = copyrpc(&["bench", "kv"]).args(arguments).output().unwrap();
        assert_eq!(run.status.code(), Some(2));
        assert!(text(&run.stderr).contains(expected), "{expected:?} in {}", text(&run.stderr));
    }
    let by_hand = output(&["kv-process"]);
    assert!(text(&by_hand.stderr).contains("not by hand"));
}
