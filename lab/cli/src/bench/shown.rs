//! Results of a benchmark, as people and programs see them.

use std::{
    io::{self, Write as _},
    path::Path,
};

use anyhow::Context as _;
use command::{
    exit::Interrupted,
    output::{write_file, write_stdout},
};
use measure::{
    paired::TOLERANCE,
    results::{Cell, Results, are_ratios_known},
    schedule::Sample,
};
use memory::sync::{AtomicBool, Ordering};

/// What a signal has ended, if one has; else the error of a run. Processes of the terminal get the signal too, so it is
/// the cause of an error that the run may have met. The `samples` until then are to be shown.
pub(crate) fn interruption<E>(
    stop: &AtomicBool,
    ended: Result<bool, E>,
    samples: usize,
) -> anyhow::Result<Option<Interrupted>>
where
    anyhow::Error: From<E>,
{
    if stop.load(Ordering::Relaxed) {
        return Ok(Some(Interrupted(format!("{samples} samples"))));
    }
    ended?;
    Ok(None)
}

/// Writes results as [`write()`] does; then the interruption of the run, which they are to name, is its error.
pub(crate) fn write_until(
    mut results: Results,
    interruption: Option<Interrupted>,
    by_pace: bool,
    files: Files<'_>,
) -> anyhow::Result<()> {
    results.notes.extend(interruption.as_ref().map(ToString::to_string));
    if !results.rows.is_empty() || interruption.is_none() {
        write(&results, by_pace, files)?;
    }
    interruption.map_or(Ok(()), |interruption| Err(interruption.into()))
}

/// Whether samples of `cells` are enough: all ratios are known to 5 %.
pub(crate) fn is_enough(cells: &[Cell]) -> impl Fn(&[Sample]) -> bool {
    |samples| are_ratios_known(cells, samples, TOLERANCE)
}

/// Files that results go to, beside standard output.
#[derive(Clone, Copy, Default)]
pub(crate) struct Files<'a> {
    /// JSON lines. If they are to go to `-`, they take standard output, and the tables go to standard error.
    pub(crate) json: Option<&'a Path>,
    /// A page.
    pub(crate) html: Option<&'a Path>,
}

/// Writes tables to standard output, and what `files` name. Where one cannot be written the others are.
pub(crate) fn write(results: &Results, by_pace: bool, files: Files<'_>) -> anyhow::Result<()> {
    let report = results.report(by_pace);
    let Files { json, html } = files;
    let page = html
        .map_or(Ok(()), |path| write_file(path, |file| file.write_all(report.page().as_bytes())));
    let to_stdout = json == Some(Path::new("-"));
    if to_stdout {
        let shown = report.write_text(&mut io::stderr().lock());
        write_stdout(|stdout| results.write_json(stdout))?;
        return page.and(shown.context("cannot write to standard error"));
    }
    let written = json.map_or(Ok(()), |path| write_file(path, |file| results.write_json(file)));
    let shown = write_stdout(|stdout| report.write_text(stdout));
    page.and(written).and(shown)
}
