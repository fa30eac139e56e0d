//! Where results of benchmarks go, and the circumstances of a benchmark.

use std::ffi::OsString;

pub(crate) use command::output::*;
use measure::{
    date,
    results::{FORMAT, Header},
};
use os::machine;

/// Under which circumstances a benchmark runs.
pub(crate) fn header(bench: &str, nic: &str, cores: usize, pinning: String) -> Header {
    Header {
        format: FORMAT,
        bench: bench.to_owned(),
        command: command_line(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: env!("BUILD_COMMIT").to_owned(),
        profile: if cfg!(debug_assertions) { "debug" } else { "release" }.to_owned(),
        cpu: machine::cpu_model(),
        cores,
        pinning,
        kernel: machine::kernel(),
        nic: nic.to_owned(),
        date: date::now(),
    }
}

/// This process's command line, for the record.
fn command_line() -> String {
    let mut words = std::env::args_os().map(|word: OsString| word.to_string_lossy().into_owned());
    let program = words.next().unwrap_or_default();
    let name = program.rsplit('/').next().unwrap_or_default().to_owned();
    std::iter::once(name).chain(words).collect::<Vec<_>>().join(" ")
}
