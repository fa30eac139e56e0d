//! `bench kv`: what it shows, writes, keeps and refuses.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Command, Output, Stdio},
};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;

use super::{copyrpc_lab, has_two_cores, output, text, unread};

/// A folder for results, gone with the value.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("copyrpc-lab-{name}-{}", std::process::id())))
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
    let mut command = copyrpc_lab(&arguments);
    command.args(short).args(more);
    command
}

#[test]
fn bench_kv_shows_a_table_and_says_where_the_report_lies() {
    let folder = Folder::new("kv");
    let run = bench_kv(&folder, &["--runs", "2", "--qd", "1,4"]);
    assert!(run.status.success(), "{}", text(&run.stderr));
    for expected in
        ["tcp · qd1", "tcp · qd4", "p99 µs", "every answer was checked", "the harness took"]
    {
        assert!(text(&run.stdout).contains(expected), "{expected:?} in {}", text(&run.stdout));
    }
    let report = folder.file("report.html");
    assert!(text(&run.stderr).contains(&format!("report: {report}")));
    let page = std::fs::read_to_string(report).unwrap();
    assert!(page.contains("copyrpc-lab bench kv") && page.contains("</html>"));
    let runs = std::fs::read_to_string(folder.file("runs.csv")).unwrap();
    assert_eq!(runs.lines().count(), 5, "a heading and four runs");
}

/// The row of a backend that is measured with four clients per node.
fn row_of<'a>(table: &'a str, backend: &str) -> Option<&'a str> {
    let is_it = |line: &&str| {
        let mut words = line.split_whitespace();
        words.next() == Some("4") && words.next() == Some(backend)
    };
    table.lines().find(is_it)
}

/// What the first command of README does, with fewer clients and rounds: six rounds of three contestants in the best of
/// their ways to wait, one table, one sentence.
#[test]
fn bench_kv_measures_until_it_knows_and_ends_with_a_sentence() {
    let folder = Folder::new("sentence");
    let mut run =
        copyrpc_lab(&["bench", "kv", "--backend", "delegation,direct,tcp", "--keys", "1000"]);
    run.args(["--clients", "2", "--duration", "40ms", "--time", "1s", "--out", folder.path()]);
    let run = run.output().unwrap();
    assert!(run.status.success(), "{}", text(&run.stderr));
    let table = text(&run.stdout);
    let last = table.trim_end().lines().last().unwrap();
    assert!(last.starts_with("delegation: ") && last.contains(" tcp"), "{table}");
    assert!(last.contains(" rounds; the machine's pace changed by a factor of "), "{last}");
    let runs = fs::read_to_string(folder.file("result.jsonl")).unwrap();
    let runs = runs.lines().skip(1).map(|line| serde_json::from_str::<Value>(line).unwrap());
    let runs = runs.collect::<Vec<_>>();
    assert!(runs.len() >= 18, "six rounds at least: {}", runs.len());
    for run in &runs {
        let tried = run["tried"].as_object().unwrap();
        assert_eq!(tried.keys().collect::<Vec<_>>(), ["adaptive", "yield"]);
        assert!(tried.contains_key(run["config"]["wait"].as_str().unwrap()), "{run}");
        assert!(run["measured"]["pss_bytes"].as_u64().unwrap() > 1 << 20, "{run}");
    }
    let firsts = runs.chunks(3).map(|round| round[0]["config"]["backend"].to_string());
    let firsts = firsts.collect::<std::collections::BTreeSet<_>>();
    assert!(firsts.len() > 1, "contestants take turns in random order: {firsts:?}");
}

/// What README says first, with less to measure: two nodes of four client processes over every backend.
#[test]
fn bench_kv_calls_over_every_backend_and_checks_every_answer() {
    let folder = Folder::new("every");
    let named =
        ["--backend", "delegation,provider,direct,erpc,scalerpc,tcp", "--out", folder.path()];
    let run = copyrpc_lab(&["bench", "kv", "--quick"]).args(named).output().unwrap();
    assert!(run.status.success(), "{}", text(&run.stderr));
    let table = text(&run.stdout);
    assert!(table.contains("every answer was checked"), "{table}");
    for backend in ["delegation", "provider", "direct", "erpc", "scalerpc", "tcp"] {
        assert!(row_of(table, backend).is_some(), "{backend} in {table}");
    }
}

/// UCX beside the floor, where it is installed; where it is not, the error names the package.
#[test]
fn bench_kv_measures_ucx_beside_tcp() {
    let folder = Folder::new("ucx");
    let named = ["--backend", "ucx-am,tcp", "--out", folder.path()];
    let run = copyrpc_lab(&["bench", "kv", "--quick"]).args(named).output().unwrap();
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
        assert!(row_of(table, backend).is_some(), "{backend} in {table}");
    }
    assert!(table.contains("ucx-am: UCX "), "the rival's version: {table}");
}

/// Another libucp than the system's: the one of the folder that is named, or none.
#[test]
fn bench_kv_takes_libucp_from_the_folder_that_is_named() {
    let folder = Folder::new("libucp");
    let kv = |library: &Path, backends: &str| {
        let mut command = copyrpc_lab(&["bench", "kv", "--quick", "--force", "--ucx"]);
        command.arg(library).args(["--backend", backends, "--out", folder.path()]);
        command.output().unwrap()
    };
    let libraries = Path::new(folder.path()).join("lib");
    fs::create_dir_all(&libraries).unwrap();
    let none = kv(&libraries, "ucx-am,tcp");
    assert_eq!(none.status.code(), Some(2));
    assert!(text(&none.stderr).contains("there is no libucp.so.0"), "{}", text(&none.stderr));

    let library = libraries.join("libucp.so.0");
    fs::write(&library, "no library").unwrap();
    let broken = kv(&libraries, "ucx-am,tcp");
    assert_eq!(broken.status.code(), Some(2), "it does not load, or the linker takes another one");
    assert!(text(&broken.stderr).contains("--ucx"), "{}", text(&broken.stderr));

    let known = std::process::Command::new("/sbin/ldconfig").arg("-p").output();
    let known = known.map(|told| text(&told.stdout).to_owned()).unwrap_or_default();
    let line = known.lines().find(|line| line.trim_start().starts_with("libucp.so.0 "));
    let Some((_, system)) = line.and_then(|line| line.split_once(" => ")) else {
        return eprintln!("skipped: libucp.so.0, which is in libucx0");
    };
    fs::remove_file(&library).unwrap();
    std::os::unix::fs::symlink(system, &library).unwrap();
    let run = kv(&libraries, "ucx-am,tcp");
    assert!(run.status.success(), "{}", text(&run.stderr));
    assert!(text(&run.stdout).contains("ucx-am: UCX "), "{}", text(&run.stdout));
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
        command = copyrpc_lab(&[]);
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
    assert!(
        text(&run.stdout).contains("direct · soft-drive=thread · soft-strict=7"),
        "cells say so"
    );
}

#[test]
fn fault_c8_a_full_disk_costs_a_file_but_not_the_numbers() {
    let folder = Folder::new("kv-full");
    let run = bench_kv(&folder, &["--json", "/dev/full"]);
    assert_eq!(run.status.code(), Some(1));
    assert!(text(&run.stderr).contains("cannot write /dev/full"), "{}", text(&run.stderr));
    assert!(text(&run.stdout).contains("clients/node"), "the numbers are shown");
    assert!(std::path::Path::new(&folder.file("result.jsonl")).exists(), "other files are there");
    let nowhere = copyrpc_lab(&["bench", "kv", "--out", "/dev/null/x"]).output().unwrap();
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

#[test]
fn fault_c8_a_limit_of_file_sizes_costs_files_but_not_the_numbers() {
    let folder = Folder::new("kv-limit");
    let limited = |arguments: &str| {
        let command = format!("ulimit -f 4; exec \"$0\" {arguments}");
        let mut shell = Command::new("bash");
        shell.args(["-c", &command, env!("CARGO_BIN_EXE_copyrpc-lab")]).output().unwrap()
    };
    std::fs::create_dir_all(folder.path()).unwrap();
    let run = kv_command(&folder, &[]).output().unwrap();
    assert!(run.status.success(), "{}", text(&run.stderr));
    let again = limited(&format!("report {0} --html {0}/again.html", folder.path()));
    assert_eq!(again.status.code(), Some(1), "{}", text(&again.stderr));
    assert!(text(&again.stderr).contains("again.html: File too large"), "{}", text(&again.stderr));
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
    let again = copyrpc_lab(&["report", folder.path(), "--markdown", &report]);
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

/// What was measured before a signal is shown, and the exit code says that it was not all.
#[test]
fn fault_c8_an_interrupt_of_a_bench_shows_the_samples_that_it_has() {
    if !has_two_cores() {
        return;
    }
    let arguments = ["bench", "inproc", "--quick", "--runs", "500", "--cell", "spsc/single/8B"];
    let mut command = copyrpc_lab(&arguments);
    command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut run = command.spawn().unwrap();
    let mut stderr = BufReader::new(run.stderr.take().unwrap());
    let mut told = String::new();
    let is_counted = |told: &str| {
        let counts = told.lines().filter_map(|line| line.split_once(" of ")?.0.parse().ok());
        counts.max().is_some_and(|samples: u32| samples > 20)
    };
    while !is_counted(&told) {
        assert!(stderr.read_line(&mut told).unwrap() > 0, "{told}");
    }
    kill_process(Pid::from_child(&run), Signal::INT).unwrap();
    stderr.read_to_string(&mut told).unwrap();
    let output = run.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{told}");
    assert!(told.contains("error: interrupted after"), "{told}");
    let shown = text(&output.stdout);
    assert!(
        shown.contains("spsc/single/8B/lamport") && shown.contains("interrupted after"),
        "{shown}"
    );
}

/// A terminal sends it to all processes, a script to one.
#[test]
fn fault_c8_an_interrupt_costs_no_run_that_is_over() {
    type Kill = fn(Pid, Signal) -> rustix::io::Result<()>;
    let interrupts: [(Kill, Signal, &str); 4] = [
        (kill_process, Signal::INT, "kv-int"),
        (kill_process_group, Signal::INT, "kv-int-group"),
        (kill_process, Signal::TERM, "kv-term"),
        (kill_process, Signal::HUP, "kv-hup"),
    ];
    for (kill, signal, name) in interrupts {
        let folder = Folder::new(name);
        let mut command = kv_command(&folder, &["--runs", "60"]);
        command.process_group(0).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut run = command.spawn().unwrap();
        let mut stderr = BufReader::new(run.stderr.take().unwrap());
        let mut told = String::new();
        while !told.contains("of 60 intervals") {
            assert!(stderr.read_line(&mut told).unwrap() > 0, "{told}");
        }
        kill(Pid::from_child(&run), signal).unwrap();
        stderr.read_to_string(&mut told).unwrap();
        assert_eq!(run.wait().unwrap().code(), Some(130), "{told}");
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
    assert!(compared.status.success(), "{}", text(&compared.stderr));
    assert!(text(&compared.stdout).contains("B: the machine's pace"), "{}", text(&compared.stdout));
    let shown = output(&["report", a.path(), "--html", &a.file("again.html")]);
    assert!(shown.status.success() && text(&shown.stdout).contains("clients/node"));
    let first = std::fs::read(a.file("report.html")).unwrap();
    assert_eq!(first, std::fs::read(a.file("again.html")).unwrap(), "from the file alone");
}

#[test]
fn bench_kv_refuses_what_makes_no_sense() {
    for (arguments, expected) in [
        (&["--ranks", "1", "--locality", "remote"][..], "one rank has no other to call"),
        (&["--switch", "colour=red"], "no chosen backend has a switch `colour`"),
        (&["--switch", "write=often"], "it can be: turn, call"),
        (&["--value-size", "8"], "24 B hold key, version and check"),
    ] {
        let run = copyrpc_lab(&["bench", "kv"]).args(arguments).output().unwrap();
        assert_eq!(run.status.code(), Some(2));
        assert!(text(&run.stderr).contains(expected), "{expected:?} in {}", text(&run.stderr));
    }
    let by_hand = output(&["kv-process"]);
    assert!(text(&by_hand.stderr).contains("not by hand"));
}

/// A real browser lays the page out at the width of a telephone and of a desk: every number of the tables lies within the
/// screen. Without Chromium there is no judge.
#[test]
#[ignore = "long: needs Chromium (Debian: chromium)"]
fn a_browser_shows_every_number_of_the_page_within_the_screen_long() {
    const MEASURE: &str = "<script>\
        document.body.style.width = 'WIDTHpx';\
        const cells = [...document.querySelectorAll('td')].filter(cell => cell.offsetParent);\
        const off = cells.filter(cell => cell.getBoundingClientRect().right > WIDTH + 1);\
        document.title = `cells ${cells.length} off ${off.length}`;\
    </script>";
    let folder = Folder::new("browser");
    let measured = bench_kv(&folder, &["--clients", "1,2", "--backend", "tcp", "--runs", "2"]);
    assert!(measured.status.success(), "{}", text(&measured.stderr));
    let page = fs::read_to_string(folder.file("report.html")).unwrap();
    for width in [400, 1280] {
        // Chromium's window is at least 500 wide, which is narrow for the page's style, too.
        let measure = MEASURE.replace("WIDTH", &width.to_string());
        let judged = page.replace("</body>", &format!("{measure}</body>"));
        fs::write(folder.file("judged.html"), judged).unwrap();
        let mut browser = Command::new("chromium");
        browser.args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--virtual-time-budget=2000",
            "--dump-dom",
        ]);
        browser.arg(format!("--user-data-dir={}", folder.file("profile")));
        browser.arg(format!("--window-size={width},900"));
        browser.arg(format!("file://{}", folder.file("judged.html")));
        let shown = browser.output().expect("Chromium is installed: apt-get install chromium");
        let dom = text(&shown.stdout);
        let title = dom.split("<title>").nth(1).and_then(|rest| rest.split('<').next()).unwrap();
        let words = title.split(' ').collect::<Vec<_>>();
        let ["cells", cells, "off", off] = words[..] else { panic!("{title}") };
        assert!(cells.parse::<u32>().unwrap() >= 24, "{title}");
        assert_eq!(off, "0", "{title}");
    }
}
