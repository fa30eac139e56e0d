//! What a kernel refuses and promises, asked by programs in C through the system's own libraries. In CI a compiler and
//! the headers have to be there.
#![cfg(not(any(loom, miri)))]

use std::{
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use uverbs::{
    condition::CONDITION_ENV,
    launch::LaunchFiles,
    matrix::{Running, new_fabric},
    process::FABRIC_ENV,
};
use verbs::LinkLayer;

/// Compiles and runs a program, which prints a line for each failure, and may say how the adapter is.
fn run(source: &str, libraries: &[&str], package: &str, link: LinkLayer) {
    const PATIENCE: Duration = Duration::from_secs(120);
    let stem = source.strip_suffix(".c").unwrap();
    let folder = std::env::temp_dir().join(format!("copyrpc-kernel-{stem}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let program = folder.join(stem);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernel").join(source);
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-Wall", "-Werror", "-o"]).arg(&program).arg(&source);
    let compiled = compiler.args(libraries).output();
    let is_compiled = compiled.as_ref().is_ok_and(|output| output.status.success());
    if !is_compiled {
        let why = compiled.map(|output| String::from_utf8_lossy(&output.stderr).into_owned());
        let why = why.unwrap_or_else(|error| error.to_string());
        fs::remove_dir_all(&folder).unwrap();
        let has_headers = !why.contains("No such file");
        let is_ci = std::env::var_os("CI").is_some_and(|value| value == "true");
        assert!(!has_headers && !is_ci, "install cc and {package}: {why}");
        eprintln!("skipped: no cc, or no headers, which are in {package}");
        return;
    }
    let stage = LaunchFiles::on(link).unwrap();
    let mut command = stage.command(program.as_os_str());
    command.env(FABRIC_ENV, new_fabric()).env(CONDITION_ENV, folder.join("condition"));
    let mut running = Running::start(command).unwrap();
    let ended = running.end(Instant::now() + PATIENCE);
    let text = running.text();
    fs::remove_dir_all(&folder).unwrap();
    assert!(ended.is_ok(), "{ended:?}\n{text}");
}

#[test]
fn a_kernel_refuses_what_is_out_of_range_and_memory_without_rights() {
    run("verbs.c", &["-libverbs"], "libibverbs-dev", LinkLayer::InfiniBand);
}

#[test]
fn names_are_free_at_once_and_options_and_private_data_have_their_limits() {
    run("cm.c", &["-lrdmacm", "-libverbs"], "librdmacm-dev", LinkLayer::InfiniBand);
}

#[test]
fn an_address_handle_is_of_a_row_that_has_a_gid_and_loses_its_datagrams_with_it() {
    run("datagrams.c", &["-libverbs"], "libibverbs-dev", LinkLayer::Ethernet);
}
