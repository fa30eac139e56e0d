//! Results of a benchmark, as people and programs see them.

use std::{
    io::{self, Write as _},
    path::Path,
};

use anyhow::Context as _;
use command::output::{write_file, write_stdout};
use measure::{
    paired::TOLERANCE,
    results::{Cell, Results, are_ratios_known},
    schedule::Sample,
};
use memory::sync::{AtomicBool, Ordering};

/// The samples of a run that no signal has stopped. Processes of the terminal get the signal too, so it is the cause of
/// an error that the run may have met.
pub(crate) fn unless_interrupted<E>(
    stop: &AtomicBool,
    samples: Result<Option<Vec<Sample>>, E>,
) -> anyhow::Result<Vec<Sample>>
where
    anyhow::Error: From<E>,
{
    match samples {
        _ if stop.load(Ordering::Relaxed) => anyhow::bail!("interrupted: no samples are shown"),
        Ok(samples) => samples.context("the run was stopped"),
        Err(error) => Err(error.into()),
    }
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
