//! Compiles the shim to Boost's queue, where there is a C++ compiler and Boost's headers, and tells the program the
//! commit that it is built from.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=src/queues/boost.cpp");
    println!("cargo::rustc-check-cfg=cfg(has_boost)");
    let mut build = cc::Build::new();
    build.cpp(true).std("c++17").opt_level(3);
    // A failure is no error: the row then says what to install.
    if build.file("src/queues/boost.cpp").cargo_warnings(false).try_compile("boost_spsc").is_ok() {
        println!("cargo::rustc-cfg=has_boost");
    }
    // Whatever is measured lies in one of these.
    for folder in ["src", "../crates", "../.git/logs/HEAD"] {
        println!("cargo::rerun-if-changed={folder}");
    }
    println!("cargo::rustc-env=BUILD_COMMIT={}", commit().as_deref().unwrap_or("unknown"));
}

/// The short commit, with `-dirty` if tracked files differ from it.
fn commit() -> Option<String> {
    let describe = ["describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"];
    let output = Command::new("git").args(describe).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}
