//! The header and the library: a program in C runs against a daemon, and the header names every function.

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
    process::{self, Command},
};

use copyrpc::{
    JobId, Runtime,
    daemon::{self, BackgroundDaemon},
    nic::Selection,
};
// So that the library is built.
use copyrpc_c as _;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Words that look like functions of the library and are followed by an opening parenthesis.
fn functions(text: &str) -> BTreeSet<String> {
    let starts = text.match_indices("copyrpc_").map(|(start, _)| &text[start..]);
    let words = starts.filter_map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_')?;
        rest[end..].starts_with('(').then(|| rest[..end].to_owned())
    });
    words.collect()
}

#[test]
fn the_header_declares_what_the_library_has() {
    let header = fs::read_to_string(root().join("include/copyrpc.h")).unwrap();
    let code: String =
        header.split("/*").map(|part| part.split_once("*/").map_or(part, |p| p.1)).collect();
    let mut exported = BTreeSet::new();
    for entry in fs::read_dir(root().join("src")).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        for (at, _) in text.match_indices("extern \"C\" fn copyrpc_") {
            let name = &text[at + "extern \"C\" fn ".len()..];
            exported.insert(name[..name.find('(').unwrap()].to_owned());
        }
    }
    assert!(exported.len() > 25, "{exported:?}");
    assert_eq!(functions(&code), exported);
}

/// A compiler, or another tool, if there is one.
fn compiler(name: &str) -> Option<Command> {
    let found =
        Command::new(name).arg("--version").output().is_ok_and(|told| told.status.success());
    if !found {
        let is_ci = std::env::var_os("CI").is_some_and(|value| value == "true");
        assert!(!is_ci, "there is no {name}; install gcc, g++, cmake and python3");
        println!("skipped: there is no {name}");
    }
    found.then(|| Command::new(name))
}

fn run(command: &mut Command) {
    let told = command.output().unwrap();
    let said = String::from_utf8_lossy(&told.stderr);
    assert!(told.status.success(), "{command:?}: {said}");
}

#[test]
fn the_header_is_c99_and_cpp() {
    for (name, language, standard) in [("cc", "c", "-std=c99"), ("c++", "c++", "-std=c++11")] {
        let Some(mut compiler) = compiler(name) else { continue };
        compiler.args([
            "-Wall",
            "-Wextra",
            "-Wpedantic",
            "-Werror",
            standard,
            "-fsyntax-only",
            "-x",
            language,
        ]);
        run(compiler.arg(root().join("include/copyrpc.h")));
    }
}

/// The library, as cargo has built it for this test.
fn library() -> PathBuf {
    let built = env::current_exe().unwrap().parent().unwrap().to_owned();
    let folders = [built.clone(), built.parent().unwrap().to_owned()];
    let library = folders.iter().map(|folder| folder.join("libcopyrpc_c.so"));
    library.into_iter().find(|path| path.exists()).expect("cargo has built it")
}

/// A daemon in a folder of its own, ended with the value.
struct Node {
    folder: PathBuf,
    socket: PathBuf,
    daemon: Option<BackgroundDaemon>,
}

impl Node {
    fn new(name: &str) -> Self {
        let folder = env::temp_dir().join(format!("copyrpc-capi-{name}-{}", process::id()));
        let runtime = Runtime::new(folder.clone(), JobId::new("capi").unwrap(), "").unwrap();
        let socket = runtime.socket();
        let nic = Selection::from_env();
        let none = |_| daemon::Services::default();
        let daemon = BackgroundDaemon::start(daemon::alone(runtime), nic, none);
        Self { folder, socket, daemon: Some(daemon.unwrap()) }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.daemon.take().map(BackgroundDaemon::stop);
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn a_program_in_c_calls_pipelines_and_serves() {
    let Some(mut compiler) = compiler("cc") else { return };
    let (library, node) = (library(), Node::new("c"));
    let program: PathBuf = node.folder.join("conformance");
    compiler.args(["-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-pthread", "-I"]);
    compiler.arg(root().join("include")).arg(root().join("tests/conformance.c")).arg(&library);
    let rpath = library.parent().unwrap().display();
    run(compiler.arg(format!("-Wl,-rpath,{rpath}")).arg("-o").arg(&program));
    run(Command::new(&program).arg(&node.socket));
}

#[test]
fn a_program_in_python_calls_awaits_and_serves() {
    let Some(mut python) = compiler("python3") else { return };
    let node = Node::new("python");
    python.env("PYTHONPATH", root().join("python")).env("PYTHONDONTWRITEBYTECODE", "1");
    python.env("COPYRPC_LIBRARY", library()).arg("-W").arg("error");
    run(python.arg(root().join("tests/conformance.py")).arg(&node.socket));
}

/// What `@NAME@` stands for in an installed file.
fn installed(template: &str, into: &Path, prefix: &Path) {
    let text = fs::read_to_string(root().join(template)).unwrap();
    let text = text.replace("@prefix@", prefix.to_str().unwrap()).replace("@libdir@", "lib");
    let text = text.replace("@version@", env!("CARGO_PKG_VERSION"));
    assert!(!text.contains('@'), "{text}");
    fs::write(into, text).unwrap();
}

#[test]
fn cmake_finds_the_package_and_links_a_program_with_it() {
    let Some(mut cmake) = compiler("cmake") else { return };
    if compiler("cc").is_none() {
        return;
    }
    let prefix = env::temp_dir().join(format!("copyrpc-capi-cmake-{}", process::id()));
    let [package, source, build] =
        ["lib/cmake/copyrpc", "source", "build"].map(|folder| prefix.join(folder));
    for folder in [&package, &source, &prefix.join("include")] {
        fs::create_dir_all(folder).unwrap();
    }
    fs::copy(library(), prefix.join("lib/libcopyrpc_c.so")).unwrap();
    fs::copy(root().join("include/copyrpc.h"), prefix.join("include/copyrpc.h")).unwrap();
    for file in ["copyrpcConfig.cmake", "copyrpcConfigVersion.cmake"] {
        installed(&format!("cmake/{file}.in"), &package.join(file), &prefix);
    }
    fs::copy(root().join("tests/conformance.c"), source.join("conformance.c")).unwrap();
    let lists = "cmake_minimum_required(VERSION 3.10)\nproject(conformance C)\n\
                 find_package(copyrpc 0.1 REQUIRED)\nfind_package(Threads REQUIRED)\n\
                 add_executable(conformance conformance.c)\n\
                 target_compile_definitions(conformance PRIVATE _GNU_SOURCE)\n\
                 target_link_libraries(conformance copyrpc::copyrpc Threads::Threads)\n";
    fs::write(source.join("CMakeLists.txt"), lists).unwrap();
    cmake.arg("-S").arg(&source).arg("-B").arg(&build);
    run(cmake.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display())));
    run(Command::new("cmake").arg("--build").arg(&build));
    let node = Node::new("linked");
    run(Command::new(build.join("conformance")).arg(&node.socket));
    fs::remove_dir_all(prefix).unwrap();
}
