//! Daemons in two network namespaces, which share no loopback: what two machines are to each other. Of three daemons two
//! are in one, and share memory.

use std::{
    env, fs,
    path::Path,
    process::{self, Command, Stdio},
};

/// Whether this user may make network namespaces here, and has the tools.
fn is_possible() -> bool {
    let mut probe = Command::new("unshare");
    probe.args([
        "-Urn",
        "sh",
        "-c",
        "ip link add near type veth peer name far && nsenter --version",
    ]);
    let probe = probe.stdout(Stdio::null()).stderr(Stdio::null()).status();
    probe.is_ok_and(|status| status.success())
}

#[test]
fn fault_n1_daemons_in_two_network_namespaces_survive_a_cut_and_deaths() {
    if !is_possible() {
        let is_ci = env::var_os("CI").is_some_and(|value| value == "true");
        assert!(!is_ci, "no network namespaces; install iproute2 and util-linux, and allow them");
        eprintln!("skipped for want of unprivileged network namespaces");
        return;
    }
    let folder = env::temp_dir().join(format!("copyrpc-namespaces-{}", process::id()));
    fs::create_dir_all(&folder).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/namespaces.sh");
    let output = Command::new("unshare")
        .args(["-Urn", "sh"])
        .arg(script)
        .arg(env!("CARGO_BIN_EXE_copyrpc"))
        .arg(&folder)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let _ = fs::remove_dir_all(&folder);
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.ends_with("reached\nsurvived\n"), "{told}\n{errors}");
}
