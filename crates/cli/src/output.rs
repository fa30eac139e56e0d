//! Where results go, and under which circumstances they were found.

use std::{
    ffi::OsString,
    fmt::Display,
    fs::{self, File},
    io::{self, BufWriter, StdoutLock, Write as _},
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use clap::builder::{PathBufValueParser, TypedValueParser};
use indicatif::{ProgressBar, ProgressStyle};
use measure::{
    machine,
    results::{FORMAT, Header, Results},
};

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

/// Writes to standard output.
pub(crate) fn write_stdout(
    write: impl FnOnce(&mut StdoutLock<'_>) -> io::Result<()>,
) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    let written = write(&mut stdout).and_then(|()| stdout.flush());
    written.context("cannot write to standard output")
}

/// Whether [`write_file`] can be expected to work: better known before something is measured for hours.
pub(crate) fn check_file(path: &Path) -> anyhow::Result<()> {
    let found = fs::metadata(path);
    // To open a pipe and to close it tells its reader that all was written.
    if found.as_ref().is_ok_and(|found| !found.is_file() && !found.is_dir()) {
        return Ok(());
    }
    let opened = File::options().append(true).create(true).open(path);
    opened.with_context(|| format!("cannot write {}", path.display()))?;
    if found.is_err() {
        let _ = fs::remove_file(path);
    }
    Ok(())
}

/// Makes a file, or replaces it.
pub(crate) fn write_file(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> anyhow::Result<()> {
    let cannot = || format!("cannot write {}", path.display());
    let mut file = BufWriter::new(File::create(path).with_context(cannot)?);
    write(&mut file).and_then(|()| file.flush()).with_context(cannot)
}

/// Writes a line to standard error. That nobody reads it any more ends nothing: `eprintln!` would panic.
pub(crate) fn say(line: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Writes one text to standard output.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    write_stdout(|stdout| stdout.write_all(text.as_bytes()))
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
        date: machine::date(),
    }
}

/// This process's command line, for the record.
fn command_line() -> String {
    let mut words = std::env::args_os().map(|word: OsString| word.to_string_lossy().into_owned());
    let program = words.next().unwrap_or_default();
    let name = program.rsplit('/').next().unwrap_or_default().to_owned();
    std::iter::once(name).chain(words).collect::<Vec<_>>().join(" ")
}

/// A path that is not `-`, which elsewhere is standard output and here would be a file of this name.
pub(crate) fn file() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| match path.as_os_str() == "-" {
        true => Err("standard output has the tables; name a file"),
        false => Ok(path),
    })
}
