//! What `packaging/install-c.sh` installs: programs are built with it by CMake and by pkg-config, and run.

mod common;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{self, Command},
};

use common::{Node, library, root, run, tool};

/// A prefix, removed with the value.
struct Prefix(PathBuf);

impl Prefix {
    fn install(name: &str) -> Self {
        let prefix = env::temp_dir().join(format!("copyrpc-capi-{name}-{}", process::id()));
        let mut install = Command::new(root().join("../../packaging/install-c.sh"));
        install.env("PREFIX", &prefix).env("BUILT", library().parent().unwrap());
        run(&mut install);
        for file in ["lib/pkgconfig/copyrpc.pc", "lib/cmake/copyrpc/copyrpcConfig.cmake"] {
            let text = fs::read_to_string(prefix.join(file)).unwrap();
            assert!(!text.contains('@'), "{file}: {text}");
        }
        Self(prefix)
    }
}

impl Drop for Prefix {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The program finds the library by its name, wherever the dynamic linker is told to look.
fn needs_the_library_by_name(program: &Path) {
    let Some(mut readelf) = tool("readelf") else { return };
    let told = run(readelf.arg("-d").arg(program));
    let needed = told.lines().find(|line| line.contains("NEEDED") && line.contains("copyrpc"));
    let needed = needed.expect("the program needs the library");
    assert!(needed.contains("[libcopyrpc_c.so.1]"), "{needed}");
}

#[test]
fn cmake_finds_the_package_and_links_a_program_with_it() {
    let Some(mut cmake) = tool("cmake") else { return };
    if tool("cc").is_none() {
        return;
    }
    let prefix = Prefix::install("cmake");
    let [source, build] = ["source", "build"].map(|folder| prefix.0.join(folder));
    fs::create_dir_all(&source).unwrap();
    fs::copy(root().join("tests/conformance.c"), source.join("conformance.c")).unwrap();
    let lists = "cmake_minimum_required(VERSION 3.10)\nproject(conformance C)\n\
                 find_package(copyrpc 0.1 REQUIRED)\nfind_package(Threads REQUIRED)\n\
                 add_executable(conformance conformance.c)\n\
                 target_compile_definitions(conformance PRIVATE _GNU_SOURCE)\n\
                 target_link_libraries(conformance copyrpc::copyrpc Threads::Threads)\n";
    fs::write(source.join("CMakeLists.txt"), lists).unwrap();
    cmake.arg("-S").arg(&source).arg("-B").arg(&build);
    run(cmake.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.0.display())));
    run(Command::new("cmake").arg("--build").arg(&build));
    needs_the_library_by_name(&build.join("conformance"));
    let node = Node::new("linked");
    run(Command::new(build.join("conformance")).arg(&node.socket));
}

#[test]
fn pkg_config_finds_the_library_and_a_program_loads_it_from_elsewhere() {
    let (Some(mut config), Some(mut compiler)) = (tool("pkg-config"), tool("cc")) else { return };
    let prefix = Prefix::install("pkg-config");
    config.env("PKG_CONFIG_PATH", prefix.0.join("lib/pkgconfig"));
    let flags = run(config.args(["--cflags", "--libs", "copyrpc"]));
    let program = prefix.0.join("one_call");
    compiler.arg(root().join("tests/one_call.c")).arg("-o").arg(&program);
    run(compiler.args(flags.split_whitespace()));
    needs_the_library_by_name(&program);
    let moved = prefix.0.join("moved");
    fs::rename(prefix.0.join("lib"), &moved).unwrap();
    let node = Node::new("moved");
    run(Command::new(&program).arg(&node.socket).env("LD_LIBRARY_PATH", &moved));
}
