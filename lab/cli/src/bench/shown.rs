//! Progress and results of a benchmark, as people and programs see them.

use std::{io, path::Path};

use anyhow::Context as _;
use command::output::{write_file, write_stdout};
use indicatif::{ProgressBar, ProgressStyle};
use measure::results::Results;

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
