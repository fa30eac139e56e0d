//! The Python package: programs of `tests/python` run against a daemon, and say what they find by their status.

mod common;

use std::process::Command;

use common::{Node, compile, python, root, run, tool};

fn passes(program: &str) {
    let Some(mut python) = python() else { return };
    let node = Node::new(program);
    run(python.arg(root().join("tests/python").join(program)).arg(&node.socket));
}

#[test]
fn a_program_calls_awaits_and_serves() {
    passes("conformance.py");
}

#[test]
fn wrong_arguments_are_refused_before_anything_is_sent() {
    passes("arguments.py");
}

#[test]
fn threads_share_a_client_and_close_it_below_each_other() {
    passes("threads.py");
}

#[test]
fn deadlines_count_from_the_call_and_a_closed_client_raises() {
    passes("awaits.py");
}

#[test]
fn ctrl_c_ends_what_serves_and_loses_no_request() {
    passes("interrupts.py");
}

#[test]
fn handlers_await_and_wait_beside_each_other() {
    passes("handlers.py");
}

#[test]
fn a_daemon_that_is_gone_costs_nothing_and_its_successor_is_found() {
    let Some(mut python) = python() else { return };
    let mut node = Node::new("gone");
    node.converse(python.arg(root().join("tests/python/gone.py")));
}

#[test]
fn fault_e7_clients_in_c_and_python_name_the_version_of_an_older_and_a_newer_daemon() {
    let Some(mut python) = python() else { return };
    let node = Node::new("versions");
    python.arg(root().join("tests/python/versions.py")).arg(&node.folder);
    if let Some(compiler) = tool("cc") {
        python.arg(compile(compiler, &root().join("tests/one_call.c"), &node.folder));
    }
    run(&mut python);
}

#[test]
fn the_version_is_that_of_the_library_and_stubs_are_what_there_is() {
    let Some(mut python) = python() else { return };
    run(python.arg(root().join("tests/python/package.py")).arg(env!("CARGO_PKG_VERSION")));
}

#[test]
fn a_library_that_is_absent_is_named_with_the_remedy() {
    let Some(mut python) = python() else { return };
    python.env("COPYRPC_LIBRARY", "/nonexistent/lib.so").args(["-c", "import copyrpc"]);
    let told = python.output().unwrap();
    let said = String::from_utf8_lossy(&told.stderr);
    assert!(said.contains("COPYRPC_LIBRARY") && said.contains("ImportError"), "{said}");
}

#[test]
fn a_provider_in_another_time_namespace_is_told_the_time_left() {
    let Some(mut python) = python() else { return };
    let node = Node::new("clocks");
    let told = run(python.arg(root().join("tests/python/clocks.py")).arg(&node.socket));
    if told.contains("skipped") {
        common::skip("time namespace", "allow this user to make one");
    }
}

/// A wheel is built and installed in an environment of its own, and calls.
#[test]
fn a_wheel_is_built_and_used_in_an_environment_of_its_own() {
    let Some(mut python) = python() else { return };
    let node = Node::new("wheel");
    let folder = node.folder.join("venv");
    let made = python.args(["-m", "venv", "--system-site-packages"]).arg(&folder).output().unwrap();
    if !made.status.success() {
        return common::skip("venv of Python", "install python3-venv");
    }
    let source = node.folder.join("source");
    run(Command::new("cp").arg("-r").arg(root().join("python")).arg(&source));
    let inside = folder.join("bin/python");
    // With what the machine has, or with what pip fetches.
    let is_built = [&["--no-build-isolation", "--no-index"][..], &[]].iter().any(|how| {
        let mut wheel = Command::new(&inside);
        wheel.args(["-m", "pip", "wheel", "--no-deps", "--retries", "1", "--wheel-dir"]);
        let told = wheel.arg(&node.folder).arg(&source).args(*how).output().unwrap();
        println!("{}", String::from_utf8_lossy(&told.stderr));
        told.status.success()
    });
    if !is_built {
        return common::skip("setuptools with wheel for Python", "pip install setuptools wheel");
    }
    let mut install = Command::new(&inside);
    install.args(["-m", "pip", "install", "--no-index", "--no-deps", "--find-links"]);
    run(install.arg(&node.folder).arg("copyrpc"));
    let mut program = Command::new(&inside);
    program.env("COPYRPC_LIBRARY", common::library()).current_dir(&node.folder);
    run(program.arg(root().join("tests/python/installed.py")).arg(&node.socket));
}
