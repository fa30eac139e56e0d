//! The command as users meet it. No timing is asserted.

use std::{
    fs,
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
fn info_shows_the_device_the_port_and_the_rows_that_knobs_choose() {
    let info = output(&["info", "--json", "--nic-device", "soft", "--nic-gid-index", "0"]);
    assert!(info.status.success(), "{}", text(&info.stderr));
    let info: Value = serde_json::from_slice(&info.stdout).unwrap();
    let nic = &info["nic"];
    assert_eq!((&nic["name"], &nic["port"]), (&"soft".into(), &1.into()));
    assert_eq!((&nic["gid_index"], &nic["pkey_index"]), (&0.into(), &0.into()));
    let refused = copyrpc(&["info"]).env("COPYRPC_NIC_PKEY_INDEX", "7").output().unwrap();
    let told = text(&refused.stdout);
    assert!(told.contains("COPYRPC_NIC_PKEY_INDEX: the P_Key table of port 1"), "{told}");
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
    assert!(
        text(&run.stderr).contains("COPYRPC_SOFT_DRIVE: soft_drive = `fast` is"),
        "{}",
        text(&run.stderr)
    );
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

/// What README says first, with less to measure: two nodes of four client processes over every backend.
#[test]
fn bench_kv_calls_over_every_backend_and_checks_every_answer() {
    let folder = Folder::new("every");
    let run = copyrpc(&["bench", "kv", "--quick", "--out", folder.path()]).output().unwrap();
    assert!(run.status.success(), "{}", text(&run.stderr));
    let table = text(&run.stdout);
    assert!(table.contains("every answer was checked"), "{table}");
    for backend in ["delegation", "direct", "erpc", "scalerpc", "tcp"] {
        assert!(table.contains(&format!("{backend}/2x4/qd4")), "{backend} in {table}");
    }
}

/// UCX beside the floor, where it is installed; where it is not, the error names the package.
#[test]
fn bench_kv_measures_ucx_beside_tcp() {
    let folder = Folder::new("ucx");
    let named = ["--backend", "ucx-am,tcp", "--out", folder.path()];
    let run = copyrpc(&["bench", "kv", "--quick"]).args(named).output().unwrap();
    if !run.status.success() {
        let error = text(&run.stderr);
        assert!(error.contains("backend ucx-am") && error.contains("libucx0"), "{error}");
        let is_ci = std::env::var_os("CI").is_some_and(|value| value == "true");
        assert!(!is_ci, "{error}");
        return eprintln!("skipped: libucp.so.0, which is in libucx0");
    }
    let table = text(&run.stdout);
    assert!(table.contains("every answer was checked"), "{table}");
    for backend in ["ucx-am", "tcp"] {
        assert!(table.contains(&format!("{backend}/2x4/qd4")), "{backend} in {table}");
    }
}

/// Two results of one second are kept, each in a folder of its own.
#[test]
fn bench_kv_names_a_folder_that_nobody_has_used() {
    let folder = Folder::new("dated");
    fs::create_dir_all(folder.path()).unwrap();
    let run = || {
        let mut command = kv_command(&folder, &[]);
        let named: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        let unnamed = named.iter().filter(|word| *word != "--out" && *word != folder.path());
        command = copyrpc(&[]);
        command.args(unnamed).current_dir(folder.path()).output().unwrap()
    };
    for _ in 0..3 {
        let run = run();
        assert!(run.status.success(), "{}", text(&run.stderr));
    }
    assert_eq!(fs::read_dir(folder.file("kv-results")).unwrap().count(), 3);
}

/// A result of hours was replaced by one of seconds, without a word.
#[test]
fn fault_c9_a_folder_that_holds_a_result_keeps_it_unless_forced() {
    let folder = Folder::new("kept");
    assert!(bench_kv(&folder, &[]).status.success());
    let result = folder.file("result.jsonl");
    let before = fs::read(&result).unwrap();
    let refused = bench_kv(&folder, &[]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("give --force"), "{}", text(&refused.stderr));
    assert_eq!(fs::read(&result).unwrap(), before);
    assert!(bench_kv(&folder, &["--force"]).status.success());
    assert_ne!(fs::read(&result).unwrap(), before);
}

/// What any benchmark writes is shown again, as text, as a document and as a page.
#[test]
fn a_result_of_any_benchmark_is_shown_again() {
    let folder = Folder::new("rows");
    fs::create_dir_all(folder.path()).unwrap();
    let old = "../measure/tests/format-1/verbs.jsonl";
    let (page, document) = (folder.file("page.html"), folder.file("report.md"));
    let shown = output(&["report", old, "--html", &page, "--markdown", &document]);
    assert!(shown.status.success(), "{}", text(&shown.stderr));
    assert!(text(&shown.stdout).contains("rate/rc-write-imm/32B/doorbell-each"));
    assert!(fs::read_to_string(page).unwrap().contains("<svg"));
    assert!(fs::read_to_string(document).unwrap().contains("| limit/line-stream/64B |"));
    let compared = output(&["report", old, old]);
    assert_eq!(compared.status.code(), Some(2), "{}", text(&compared.stderr));
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
    // The pace of the machine may have changed between the two: that is refused too, by name.
    let is_moved = text(&compared.stderr).contains("same pace of the machine");
    assert!(compared.status.success() || is_moved, "{}", text(&compared.stderr));
    let shown = output(&["report", a.path(), "--html", &a.file("again.html")]);
    assert!(shown.status.success() && text(&shown.stdout).contains("tcp/2x2/qd4/natural"));
    let first = std::fs::read(a.file("report.html")).unwrap();
    assert_eq!(first, std::fs::read(a.file("again.html")).unwrap(), "from the file alone");
}

/// Scripts tell a bad command from a benchmark that failed, or wrong data, by these.
#[test]
fn what_makes_no_sense_is_a_usage_error_wherever_it_is_noticed() {
    let (usage_error, unavailable) = (Some(2), Some(3));
    for (arguments, code) in [
        (&["bench", "kv", "--clients", "0"][..], usage_error),
        (&["bench", "kv", "--switch", "colour=red"], usage_error),
        (&["bench", "kv", "--switch", "srq=on", "--switch", "srq=off"], usage_error),
        (&["bench", "kv", "--nic", "mlx5_7", "--out", "/dev/null/x"], unavailable),
        (&["bench", "kv", "--backend", "tcp", "--nic", "soft"], usage_error),
        (&["bench", "limit", "--cell", "no such cell"], usage_error),
        (&["daemon", "--depth", "63"], usage_error),
        (&["daemon", "--threads", "0"], usage_error),
        (&["daemon", "--job", "a/b"], usage_error),
        (&["daemon", "--soft-drive", "fast"], usage_error),
        (&["daemon", "--rank", "2", "--size", "2"], usage_error),
        (&["daemon", "--rank", "0", "--size", "2"], usage_error),
        (&["daemon", "--fork", "2", "--instance", "x"], usage_error),
        (&["daemon", "--fork", "2", "--secret-file", "/dev/null"], usage_error),
        (&["daemon", "--rank", "0", "--size", "2", "--rendezvous", "n0:7000"], usage_error),
        (&["config", "--suspect-after", "5s"], usage_error),
        (&["stat", "--serve", "0.0.0.0:9464"], usage_error),
        (&["stat", "--interval", "5"], usage_error),
        (&["stat", "--interval", "0s"], usage_error),
        (&["stat", "--prometheus", "--interval", "1ms"], usage_error),
        (&["ping", "0", "--depth", "64"], usage_error),
        (&["ping", "0", "--count", "0"], usage_error),
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

/// A command with a runtime folder of its own, which is made.
fn node(name: &str) -> (std::path::PathBuf, impl Fn(&[&str]) -> Command) {
    use std::os::unix::fs::DirBuilderExt as _;
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
        (&["--rendezvous", "n0:99999"][..], "has no port from 0 to 65535"),
        (&["--rendezvous", "meet"], "a folder that all share is written with a slash"),
        (&["--rank", "0"], "set both, or neither"),
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
    fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let start = std::time::Instant::now();
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
    assert!(took < std::time::Duration::from_secs(6), "{took:?}");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn info_refuses_what_a_daemon_refuses_and_tables_fold() {
    let info = copyrpc(&["info"]).env("COPYRPC_DEPTH", "3").output().unwrap();
    assert_eq!(info.status.code(), Some(2));
    assert!(text(&info.stderr).contains("is not a power of two"), "{}", text(&info.stderr));
    let config = copyrpc(&["config"]).env("COLUMNS", "90").output().unwrap();
    let widest = text(&config.stdout).lines().map(|line| line.chars().count()).max().unwrap();
    assert!(widest <= 90, "{widest}");
}

#[test]
fn a_filter_that_would_silence_everything_is_pointed_out() {
    let told = copyrpc(&["info", "--json"]).env("RUST_LOG", "nonsense").output().unwrap();
    assert!(text(&told.stderr).contains("RUST_LOG makes no sense"), "{}", text(&told.stderr));
}

#[test]
fn a_daemon_logs_as_json_lists_its_services_answers_as_json_and_drains() {
    let (folder, command) = node("operations");
    // As a service manager does, which wants to hear of it.
    let manager = std::os::unix::net::UnixDatagram::bind(folder.join("notify")).unwrap();
    manager.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    let daemon = command(&["daemon", "--log", "json"])
        .env("NOTIFY_SOCKET", folder.join("notify"))
        .env("WATCHDOG_USEC", "200000")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let told = || {
        let mut text = [0; 64];
        let length = manager.recv(&mut text).unwrap();
        String::from_utf8_lossy(&text[..length]).into_owned()
    };
    assert_eq!([told(), told(), told()], ["READY=1", "WATCHDOG=1", "WATCHDOG=1"]);
    let socket = folder.join("default.sock");
    let connected = loop {
        match client::Client::connect(&socket, client::ClientConfig::default()) {
            Ok(client) => break client,
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(5)),
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
    let ended = daemon.wait_with_output().unwrap();
    assert!(ended.status.success());
    let lines: Vec<Value> =
        text(&ended.stderr).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(
        lines.iter().all(|line| line["time"].is_f64() && line["level"].is_string()),
        "{lines:?}"
    );
    assert!(lines.iter().any(|line| line["level"] == "info"), "{lines:?}");
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
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(5)),
        }
    };
    let refused = client::Client::connect(&socket, config).unwrap_err().to_string();
    assert!(refused.contains("connections") && refused.contains("`clients_max`"), "{refused}");
    let (tell, told) = std::sync::mpsc::channel();
    let log = std::io::BufReader::new(daemon.stderr.take().unwrap());
    std::thread::spawn(move || {
        log.lines().map_while(Result::ok).try_for_each(|line| tell.send(line))
    });
    let mut seen = Vec::new();
    while !seen.iter().any(|line: &String| line.contains("connections were refused")) {
        let line = told.recv_timeout(std::time::Duration::from_secs(20));
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
        std::thread::sleep(std::time::Duration::from_millis(5));
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

#[test]
fn completions_and_man_pages_are_written_for_every_command() {
    let folder = std::env::temp_dir().join(format!("copyrpc-cli-pages-{}", std::process::id()));
    for what in ["completions", "man"] {
        let written = output(&["generate", what, folder.to_str().unwrap()]);
        assert!(written.status.success(), "{}", text(&written.stderr));
    }
    for name in [
        "copyrpc.bash",
        "_copyrpc",
        "copyrpc.fish",
        "copyrpc.1",
        "copyrpc-daemon.1",
        "copyrpc-services.1",
    ] {
        assert!(fs::metadata(folder.join(name)).is_ok_and(|file| file.len() > 200), "{name}");
    }
    fs::remove_dir_all(folder).unwrap();
}

/// Two processes, as on two hosts: TCP for what they tell each other first, and a NIC that carries calls over TCP.
#[test]
fn calls_between_two_hosts_are_measured_and_a_stranger_costs_itself_alone() {
    let (folder, command) = node("two-hosts");
    let mut server = command(&["bench", "rpc", "--nic", "tcp", "--server", "127.0.0.1:0"]);
    let mut server = server.stderr(Stdio::piped()).spawn().unwrap();
    let mut told = std::io::BufReader::new(server.stderr.take().unwrap()).lines();
    let first = told.next().unwrap().unwrap();
    // Without two cores nothing is measured.
    if let Some(address) = first.strip_prefix("answering calls at ") {
        drop(std::net::TcpStream::connect(address).unwrap());
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
    fs::remove_dir_all(folder).unwrap();
}
