//! The unit under a real systemd, the first process of a PID namespace with units of its own.

use std::{
    env, fs,
    path::Path,
    process::{self, Command, Stdio},
};

const ROWS: &str = "\
boot: it is active, and takes calls
kill: it is started again
stop: it ends in order
drain: it says that it stops, and is left alone
reset: what may come by itself is waited for, again and again
settings that make no sense: it is left alone
";

/// What a systemd of one's own needs; the first that is missing.
fn missing() -> Option<&'static str> {
    let probe = "test \"$(id -u)\" = 0 || { echo root; exit; }
        test -x /usr/lib/systemd/systemd || { echo systemd; exit; }
        groups=$(findmnt -t cgroup2 -n -o TARGET | head -n 1)
        test -n \"$groups\" -a -w \"$groups\" || { echo a writable cgroup2; exit; }
        unshare --pid --fork --mount --mount-proc --uts --ipc --cgroup true || echo namespaces";
    let told = Command::new("sh").args(["-c", probe]).stderr(Stdio::null()).output().unwrap();
    let told = String::from_utf8(told.stdout).unwrap();
    let names = ["root", "systemd", "a writable cgroup2", "namespaces"];
    names.into_iter().find(|name| told.trim() == *name)
}

#[test]
#[ignore = "long: boots a systemd, as root, for half a minute"]
fn the_unit_is_started_again_after_what_passes_and_left_alone_after_what_does_not_long() {
    if let Some(missing) = missing() {
        let is_ci = env::var_os("CI").is_some_and(|value| value == "true");
        assert!(!is_ci, "no {missing}");
        eprintln!("skipped for want of {missing}");
        return;
    }
    let folder = env::temp_dir().join(format!("copyrpc-systemd-{}", process::id()));
    fs::create_dir_all(&folder).unwrap();
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new("sh")
        .arg(here.join("tests/systemd.sh"))
        .arg(env!("CARGO_BIN_EXE_copyrpc"))
        .arg(here.join("../../docs/copyrpc@.service"))
        .arg(&folder)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let _ = fs::remove_dir_all(&folder);
    let told = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told == ROWS, "{told}\n{errors}");
}
