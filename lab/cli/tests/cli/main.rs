//! The laboratory as users meet it. No timing is asserted.

mod hosts;
mod kv;

use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn copyrpc_lab(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_copyrpc-lab"));
    command.args(arguments).env_remove("COPYRPC_NIC").env_remove("RUST_LOG");
    command
}

fn output(arguments: &[&str]) -> Output {
    copyrpc_lab(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).unwrap()
}

fn has_two_cores() -> bool {
    os::affinity::allowed_cores().unwrap().len() >= 2
}

/// A standard error that no process reads any more.
fn unread() -> Stdio {
    std::io::pipe().unwrap().1.into()
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
    let run = copyrpc_lab(&arguments).args(["--json", "-"]).output().unwrap();
    assert!(run.status.success(), "{}", text(&run.stderr));
    let lines = text(&run.stdout).lines();
    let objects = lines.map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>();
    assert_eq!(objects[0]["bench"], "limit");
    assert!(objects[0]["command"].as_str().unwrap().contains("--cell line-round-trip"));
    for row in &objects[1..] {
        assert!(row["cell"].as_str().unwrap().starts_with("limit/line-round-trip/"));
    }
    assert!(text(&run.stderr).contains("no sample is left out"), "tables are for people");
}

#[test]
fn the_software_nic_carries_checked_traffic_between_two_processes() {
    if !has_two_cores() {
        return;
    }
    let fabric = format!("cli-test-{}", std::process::id());
    let run =
        copyrpc_lab(&["bench", "verbs", "--quick", "--runs", "1", "--cell", "32B", "--json", "-"])
            .env("COPYRPC_SOFT_FABRIC", fabric)
            .output()
            .unwrap();
    assert!(run.status.success(), "{}", text(&run.stderr));
    let header: Value = serde_json::from_str(text(&run.stdout).lines().next().unwrap()).unwrap();
    assert_eq!((&header["bench"], &header["nic"]), (&"verbs".into(), &"soft".into()));
    assert!(text(&run.stderr).contains("aim: "), "the tables say what to compare with");
}

/// What was not taken is empty, and not 0.
#[test]
fn long_calls_over_tcp_have_a_bare_stream_below_them() {
    if !has_two_cores() {
        return;
    }
    let arguments = ["bench", "long", "--nic", "tcp", "--bytes", "4096", "--calls", "6", "--csv"];
    let run = output(&arguments);
    assert!(run.status.success(), "{}", text(&run.stderr));
    let rows: Vec<Vec<_>> = text(&run.stdout).lines().map(|row| row.split(',').collect()).collect();
    let column = |name: &str| rows[0].iter().position(|field| *field == name).unwrap();
    let of = |way: &str| rows.iter().find(|row| row[0] == way).unwrap();
    let is_empty = |way: &str, name: &str| of(way)[column(name)].is_empty();
    assert_eq!(of("stream")[1], "4096");
    for name in ["copied_bytes", "reads_at_once", "turns", "of_stream"] {
        assert!(is_empty("stream", name), "{name}");
        assert!(!is_empty("rpc", name), "{name}");
    }
    for name in ["p10_ns", "p50_ns", "of_stream", "of_stream_low"] {
        assert!(is_empty("process", name), "{name}");
        assert!(!is_empty("daemons", name), "{name}");
    }
    assert!(!is_empty("stream", "p50_ns"));
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
        ("daemons", "daemons/local/process/answers/1MiB", "limit/memcpy/1MiB"),
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
            assert!(bench == "daemons" || row["lines"].as_f64().unwrap() > 0.0, "{row}");
        }
    }
}

#[test]
fn a_knob_with_a_bad_value_is_refused_with_its_meaning() {
    if !has_two_cores() {
        return;
    }
    let run = copyrpc_lab(&["bench", "verbs", "--quick"])
        .env("COPYRPC_SOFT_DRIVE", "fast")
        .output()
        .unwrap();
    assert_eq!(run.status.code(), Some(2));
    assert!(
        text(&run.stderr).contains("COPYRPC_SOFT_DRIVE: soft_drive = `fast` is"),
        "{}",
        text(&run.stderr)
    );
}

#[test]
fn fault_c8_a_file_that_cannot_be_written_does_not_cost_the_table() {
    if !has_two_cores() {
        return;
    }
    let arguments = ["bench", "limit", "--quick", "--runs", "1", "--cell", "line-round-trip"];
    let run = copyrpc_lab(&arguments).args(["--json", "/dev/full"]).output().unwrap();
    assert_eq!(run.status.code(), Some(1));
    assert!(text(&run.stderr).contains("cannot write /dev/full"), "{}", text(&run.stderr));
    assert!(text(&run.stdout).contains("no sample is left out"), "the numbers are shown");
}

#[test]
fn a_reader_of_standard_error_that_stops_early_ends_nothing() {
    let failed = copyrpc_lab(&["report", "/dev/null/x"]).stderr(unread()).status().unwrap();
    assert_eq!(failed.code(), Some(1), "an error");
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
        (&["report", "/dev/null/x"], Some(1)),
    ] {
        let refused = output(arguments);
        assert_eq!(refused.status.code(), code, "{arguments:?}: {}", text(&refused.stderr));
    }
}

#[test]
fn combinations_that_have_no_cell_are_refused_by_name() {
    for (arguments, remedy) in [
        (&["rpc", "--endpoints", "8,16", "--depth", "4"][..], "a --depth of 8 or more"),
        (&["rpc", "--protocol", "erpc", "--endpoints", "8", "--depth", "4"], "a --depth of 8"),
        (&["rpc", "--dcis", "2", "--transport", "rc"], "--transport dc"),
        (&["rpc", "--srq", "off,on", "--transport", "dc"], "--transport rc"),
        (&["ipc", "--ring", "8", "--depth", "16", "--clients", "2"], "a --ring of 16 or more"),
    ] {
        let refused = output(&[&["bench"], arguments].concat());
        let error = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(remedy), "{arguments:?}: {error}");
    }
}

#[test]
fn help_teaches_by_examples_and_names_every_exit_code() {
    for arguments in [&["--help"][..], &["bench", "verbs", "--help"]] {
        let help = output(arguments);
        assert!(help.status.success());
        assert!(text(&help.stdout).contains("Examples:"), "{}", text(&help.stdout));
    }
    assert!(text(&output(&["--help"]).stdout).contains("Exit codes:"));
    assert!(text(&output(&["--version"]).stdout).starts_with("copyrpc-lab "));
    assert_eq!(output(&["no-such-command"]).status.code(), Some(2));
}
