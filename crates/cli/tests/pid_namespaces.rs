//! Clients, daemons and the commands of an operator, each in another namespace of each kind than its other end: what
//! works in containers, as docs/containers.md says.

use std::{
    env, fs,
    path::Path,
    process::{self, Command, Stdio},
};

/// How a shell gets to be root of namespaces here: of a user namespace, or as it is.
fn root() -> Option<&'static [&'static str]> {
    let ways: [&[&str]; 2] = [&["unshare", "-Urn"], &["unshare", "-n"]];
    ways.into_iter().find(|way| {
        let mut probe = Command::new(way[0]);
        let all = "unshare --pid --fork --mount-proc true && unshare --time --boottime 1 --fork true && \
                   unshare --ipc --uts --cgroup true && unshare --mount mount -t tmpfs none /proc";
        probe.args(&way[1..]).args(["sh", "-c", all]);
        let probe = probe.stdout(Stdio::null()).stderr(Stdio::null()).status();
        probe.is_ok_and(|status| status.success())
    })
}

const ROWS: &str = "\
client in a PID namespace
client in a user namespace without users
client in an IPC, a UTS and a mount namespace
client in a cgroup namespace
client in a network namespace
client in a time namespace
client with a private /tmp and the runtime folder at another place
a daemon that another time namespace sees is drained from there
daemon in a PID namespace
the user of a client outside is known, and its death
stat, doctor, clean and drain tell the same of it
and of its death
daemons of NIC soft in two PID namespaces
daemons of NIC hosts in two PID namespaces
daemons of NIC tcp in two PID namespaces
daemons of NIC soft, one in time, IPC, UTS, mount and cgroup namespaces
daemons of NIC hosts, one in time, IPC, UTS, mount and cgroup namespaces
daemons of NIC tcp, one in time, IPC, UTS, mount and cgroup namespaces
daemons of NIC soft, one in a user namespace
daemons of NIC hosts, one in a user namespace
daemons of NIC soft in two network namespaces say so
daemons of NIC soft and two fabrics say so
daemons of NIC soft and two user ids say so
";

#[test]
#[ignore = "slow: half a minute of starting and killing"]
fn fault_n2_what_containers_promise_holds_across_namespaces_of_each_kind_slow() {
    let Some(root) = root() else {
        let is_ci = env::var_os("CI").is_some_and(|value| value == "true");
        assert!(!is_ci, "no namespaces; install util-linux 2.36, and allow them");
        eprintln!("skipped for want of PID, time, mount and user namespaces");
        return;
    };
    let folder = env::temp_dir().join(format!("copyrpc-matrix-{}", process::id()));
    fs::create_dir_all(&folder).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pid_namespaces.sh");
    let output = Command::new(root[0])
        .args(&root[1..])
        .arg("sh")
        .arg(script)
        .arg(env!("CARGO_BIN_EXE_copyrpc"))
        .arg(&folder)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let _ = fs::remove_dir_all(&folder);
    let told = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told == ROWS, "{told}\n{errors}");
}
