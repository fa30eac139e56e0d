//! The library's SONAME carries the ABI that the header names, so a program never loads another one.

use std::{env, fs, path::Path};

const HEADER: &str = "include/copyrpc.h";

fn main() {
    println!("cargo:rerun-if-changed={HEADER}");
    println!("cargo:rerun-if-changed=build.rs");
    let root = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default();
    let header = fs::read_to_string(Path::new(&root).join(HEADER)).expect("the header is readable");
    let mut lines = header.lines();
    let abi = lines.find_map(|line| line.strip_prefix("#define COPYRPC_ABI "));
    let abi = abi.expect("the header names the ABI").trim();
    println!("cargo:rustc-env=COPYRPC_ABI={abi}");
    if env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcopyrpc_c.so.{abi}");
    }
}
