//! Where results of benchmarks go, and under which circumstances they were found.

use std::{ffi::OsString, io, path::Path};

use anyhow::Context as _;
pub(crate) use command::output::*;
use indicatif::{ProgressBar, ProgressStyle};
use measure::{
    date,
    results::{FORMAT, Header, Results},
};
use os::machine;

/// Steps, and a message about the one that is done now. On standard error, if that is a terminal.
pub(crate) fn progress_bar(steps: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {msg}");
    ProgressBar::new(steps as u64)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Writes tables to standard output and JSON lines to `json`. If that is `-`, JSON takes standard
/// output and the tables go to standard error. Where one cannot be written the other is.
pub(crate) fn write(results: &Results, by_pace: bool, json: Option<&Path>) -> anyhow::Result<()> {
    let to_stdout = json == Some(Path::new("-"));
    if to_stdout {
        let shown = results.report(by_pace).write_text(&mut io::stderr().lock());
        write_stdout(|stdout| results.write_json(stdout))?;
        return shown.context("cannot write to standard error");
    }
    let written = json.map_or(Ok(()), |path| write_file(path, |file| results.write_json(file)));
    let shown = write_stdout(|stdout| results.report(by_pace).write_text(stdout));
    written.and(shown)
}

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
