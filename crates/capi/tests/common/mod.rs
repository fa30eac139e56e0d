//! A daemon, tools of the machine, and the library as an installation has it.
#![allow(dead_code, reason = "each test program uses a part")]

use std::{
    env, fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{self, Command, Stdio},
};

use copyrpc::{
    JobId, Runtime,
    daemon::{self, BackgroundDaemon},
    nic::Selection,
};
// So that the library is built.
use copyrpc_c as _;

/// The folder of this crate.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// What a step that needs a tool does without it.
pub(crate) fn skip(missing: &str, remedy: &str) {
    let is_ci = env::var_os("CI").is_some_and(|value| value == "true");
    assert!(!is_ci, "there is no {missing}; {remedy}");
    println!("skipped: there is no {missing}; {remedy}");
}

/// A compiler, or another tool, if there is one.
pub(crate) fn tool(name: &str) -> Option<Command> {
    let found =
        Command::new(name).arg("--version").output().is_ok_and(|told| told.status.success());
    if !found {
        skip(name, "install gcc, g++, cmake, pkg-config, python3 and valgrind");
    }
    found.then(|| Command::new(name))
}

/// Runs a command that has to succeed, and returns what it printed.
pub(crate) fn run(command: &mut Command) -> String {
    let told = command.output().unwrap();
    let (out, error) =
        (String::from_utf8_lossy(&told.stdout), String::from_utf8_lossy(&told.stderr));
    assert!(told.status.success(), "{command:?}: {}: {out}{error}", told.status);
    format!("{out}{error}")
}

/// The library, as cargo has built it for this test.
pub(crate) fn library() -> PathBuf {
    let built = env::current_exe().unwrap().parent().unwrap().to_owned();
    let folders = [built.clone(), built.parent().unwrap().to_owned()];
    let library = folders.iter().map(|folder| folder.join("libcopyrpc_c.so"));
    library.into_iter().find(|path| path.exists()).expect("cargo has built it")
}

/// A folder that holds the library under the two names of an installation.
pub(crate) fn folder_of_library(folder: &Path) -> PathBuf {
    let folder = folder.join("lib");
    fs::create_dir_all(&folder).unwrap();
    for name in ["libcopyrpc_c.so", "libcopyrpc_c.so.1"] {
        symlink(library(), folder.join(name)).unwrap();
    }
    folder
}

/// Compiles a program of C against the library.
pub(crate) fn compile(mut compiler: Command, source: &Path, folder: &Path) -> PathBuf {
    let library = folder_of_library(folder);
    let program = folder.join(source.file_stem().unwrap());
    compiler.args(["-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-pthread", "-I"]);
    compiler.arg(root().join("include")).arg(source).arg("-o").arg(&program);
    compiler.arg("-L").arg(&library).arg("-lcopyrpc_c");
    run(compiler.arg(format!("-Wl,-rpath,{}", library.display())));
    program
}

/// Python with the package of this crate.
pub(crate) fn python() -> Option<Command> {
    let mut python = tool("python3")?;
    python.env("PYTHONPATH", root().join("python")).env("PYTHONDONTWRITEBYTECODE", "1");
    python.env("COPYRPC_LIBRARY", library()).args(["-u", "-W", "error"]);
    Some(python)
}

/// A daemon in a folder of its own, ended with the value.
pub(crate) struct Node {
    pub(crate) folder: PathBuf,
    pub(crate) socket: PathBuf,
    daemon: Option<BackgroundDaemon>,
}

impl Node {
    pub(crate) fn new(name: &str) -> Self {
        let folder = env::temp_dir().join(format!("copyrpc-capi-{name}-{}", process::id()));
        let mut node = Self { socket: runtime(&folder).socket(), folder, daemon: None };
        node.start();
        node
    }

    pub(crate) fn start(&mut self) {
        let none = |_| daemon::Services::default();
        let nic = Selection::from_env();
        let daemon = BackgroundDaemon::start(daemon::alone(runtime(&self.folder)), nic, none);
        self.daemon = Some(daemon.unwrap());
    }

    pub(crate) fn stop(&mut self) {
        if let Some(daemon) = self.daemon.take() {
            let _ = daemon.stop();
        }
    }

    /// Runs a program, which says by lines of its output what the daemon is to do, and goes on when it reads `done`.
    pub(crate) fn converse(&mut self, program: &mut Command) {
        program.env("COPYRPC_RUNTIME_DIR", &self.folder).env("COPYRPC_JOB", "capi");
        let piped = program.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = piped.spawn().unwrap();
        let mut answers = child.stdin.take().unwrap();
        let mut said = String::new();
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            match line.as_str() {
                "daemon: stop" => self.stop(),
                "daemon: start" => self.start(),
                _ => {
                    said += &line;
                    said.push('\n');
                    continue;
                }
            }
            answers.write_all(b"done\n").unwrap();
        }
        let status = child.wait().unwrap();
        assert!(status.success(), "{program:?}: {status}: {said}");
    }
}

fn runtime(folder: &Path) -> Runtime {
    Runtime::new(folder.to_owned(), JobId::new("capi").unwrap(), "").unwrap()
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop();
        let _ = fs::remove_dir_all(&self.folder);
    }
}
