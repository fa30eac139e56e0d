//! Compiles the shim to Boost's queue, where there is a C++ compiler and Boost's headers, and tells the program the
//! commit that it is built from.

#[path = "../../crates/cli/commit.rs"]
mod commit;

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
    for folder in ["..", "../../crates"] {
        println!("cargo::rerun-if-changed={folder}");
    }
    commit::tell();
}
