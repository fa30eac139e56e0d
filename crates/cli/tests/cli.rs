//! The command as users meet it. No timing is asserted.

use std::process::{Command, Output, Stdio};

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
    let arguments = ["bench", "limit", "--quick", "--runs", "1", "--cell", "round-trip"];
    let run = copyrpc(&arguments).args(["--json", "-"]).output().unwrap();
    assert!(run.status.success(), "{}", text(&run.stderr));
    let lines = text(&run.stdout).lines();
    let objects = lines.map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>();
    assert_eq!(objects[0]["bench"], "limit");
    assert!(objects[0]["command"].as_str().unwrap().contains("--cell round-trip"));
    for row in &objects[1..] {
        assert!(row["cell"].as_str().unwrap().starts_with("limit/line-round-trip/"));
    }
    assert!(text(&run.stderr).contains("samples dropped"), "tables are for people");
}

#[test]
fn a_reader_that_stops_early_is_no_error() {
    let mut info = copyrpc(&["info"]).stdout(Stdio::piped()).spawn().unwrap();
    drop(info.stdout.take());
    assert!(info.wait().unwrap().success());
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
    assert_eq!(run.status.code(), Some(3));
    assert!(text(&run.stderr).contains("COPYRPC_SOFT_DRIVE=fast"), "{}", text(&run.stderr));
}
