//! The command as users meet it. No timing is asserted.

mod operate;
mod refusals;

use std::{
    fs,
    process::{Command, Output, Stdio},
};

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

#[test]
fn help_teaches_by_examples_and_names_every_exit_code() {
    for arguments in [&["--help"][..], &["daemon", "--help"]] {
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
fn a_standard_output_that_cannot_be_written_is_an_error() {
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
    let failed = copyrpc(&["daemon", "--depth", "63"]).stderr(unread()).status().unwrap();
    assert_eq!(failed.code(), Some(2), "an error");
}

/// Scripts tell a bad command from a call that failed, by these.
#[test]
fn what_makes_no_sense_is_a_usage_error_wherever_it_is_noticed() {
    let usage_error = Some(2);
    for (arguments, code) in [
        (&["daemon", "--depth", "63"][..], usage_error),
        (&["daemon", "--threads", "0"], usage_error),
        (&["daemon", "--job", "a/b"], usage_error),
        (&["daemon", "--nic", "mlx4"], usage_error),
        (&["daemon", "--nic", "soft", "--nic-device", "mlx5_0"], usage_error),
        (&["daemon", "--nic", "tcp", "--tcp-address", "here"], usage_error),
        (&["daemon", "--nic", "tcp", "--tcp-address", "192.0.2.1"], usage_error),
        // A device that is away may come.
        (&["daemon", "--nic", "mlx5_77"], Some(75)),
        (&["daemon", "--nic", "auto", "--nic-device", "mlx5_77"], Some(75)),
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
    ] {
        let refused = output(arguments);
        assert_eq!(refused.status.code(), code, "{arguments:?}: {}", text(&refused.stderr));
    }
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
