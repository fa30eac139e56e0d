//! Where results go: standard output, a file; and lines for people on standard error.

use std::{
    fmt::Display,
    fs::{self, File},
    io::{self, BufWriter, StdoutLock, Write as _},
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use clap::builder::{PathBufValueParser, TypedValueParser};

/// Writes to standard output.
///
/// # Errors
///
/// If it cannot be written.
pub fn write_stdout(
    write: impl FnOnce(&mut StdoutLock<'_>) -> io::Result<()>,
) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    let written = write(&mut stdout).and_then(|()| stdout.flush());
    written.context("cannot write to standard output")
}

/// Whether [`write_file`] can be expected to work: better known before something is measured for hours.
///
/// # Errors
///
/// If it cannot be opened.
pub fn check_file(path: &Path) -> anyhow::Result<()> {
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
///
/// # Errors
///
/// If it cannot be written.
pub fn write_file(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> anyhow::Result<()> {
    let cannot = || format!("cannot write {}", path.display());
    let mut file = BufWriter::new(File::create(path).with_context(cannot)?);
    write(&mut file).and_then(|()| file.flush()).with_context(cannot)
}

/// Writes a line to standard error. A closed standard error ends nothing: `eprintln!` would panic.
pub fn say(line: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Writes one text to standard output.
///
/// # Errors
///
/// If it cannot be written.
pub fn print(text: &str) -> anyhow::Result<()> {
    write_stdout(|stdout| stdout.write_all(text.as_bytes()))
}

/// A path that is not `-`, which elsewhere is standard output and here would be a file of this name.
pub fn file() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| match path.as_os_str() == "-" {
        true => Err("standard output has the tables; name a file"),
        false => Ok(path),
    })
}
