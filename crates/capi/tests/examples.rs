//! The programs of `examples`, as their first lines say to use them, and through the end of a daemon.

mod common;

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, ChildStdout, Command, Stdio},
};

use common::{Node, compile, python, root, run, tool};

/// A program whose lines are read, ended with the value.
struct Running {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Running {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// Reads up to a line; the program may say others before.
    fn says(&mut self, line: &str) {
        loop {
            let mut told = String::new();
            let is_over = self.lines.read_line(&mut told).unwrap() == 0;
            assert!(!is_over, "it ended before it said {line}");
            if told.trim_end() == line {
                return;
            }
        }
    }

    fn interrupt(&mut self) {
        run(Command::new("kill").args(["-INT", &self.child.id().to_string()]));
    }

    fn ends(mut self) {
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Serves, asks, and watches while the daemon ends and comes back.
fn is_used(node: &mut Node, program: impl Fn(&str) -> Command) {
    let folder = node.folder.clone();
    let command = |does: &str| {
        let mut command = program(does);
        command.env("COPYRPC_RUNTIME_DIR", &folder).env("COPYRPC_JOB", "capi");
        command
    };
    let mut service = Running::start(command("serve"));
    service.says("serving");
    let told = run(&mut command("ask"));
    for part in ["rank 0 of 1", "not found", "fast calls", "waited", "deadline exceeded"] {
        assert!(told.contains(part), "no {part}: {told}");
    }
    let mut watch = Running::start(command("watch"));
    watch.says("answered");
    node.stop();
    node.start();
    watch.says("answered again");
    watch.ends();
    run(&mut command("ask"));
    service.interrupt();
    service.says("ended");
    service.ends();
}

#[test]
fn the_metadata_service_in_python_survives_its_daemon() {
    if python().is_none() {
        return;
    }
    let mut node = Node::new("metadata-py");
    is_used(&mut node, |does| {
        let mut command = python().unwrap();
        command.arg(root().join("examples/metadata.py")).arg(does);
        command
    });
}

#[test]
fn the_metadata_service_in_c_survives_its_daemon() {
    let Some(compiler) = tool("cc") else { return };
    let mut node = Node::new("metadata-c");
    let program = compile(compiler, &root().join("examples/metadata.c"), &node.folder);
    is_used(&mut node, |does| {
        let mut command = Command::new(&program);
        command.arg(does);
        command
    });
}
