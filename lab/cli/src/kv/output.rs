//! Where the results of `bench kv` go.

use std::{
    fs::{self, File},
    io::{self, BufReader, BufWriter, Write},
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use kv::result::{self, By, Results};

use super::{KvArgs, ReportArgs};
use crate::output::{check_file, say, write_file, write_stdout};
use command::exit::UsageError;

/// Parent of the folders that are named by date.
const PARENT: &str = "kv-results";

/// The file that all others can be made of again.
const RESULT: &str = "result.jsonl";

/// A folder that is named by date, and by a number if another one began in the same second.
fn dated() -> PathBuf {
    let date = measure::date::now().replace(':', "-");
    let mut folder = Path::new(PARENT).join(&date);
    let mut nth = 2;
    while folder.exists() {
        folder.set_file_name(format!("{date}-{nth}"));
        nth += 1;
    }
    folder
}

/// Where to write to.
pub(super) struct Output {
    folder: PathBuf,
    /// Folders that were not there before, the innermost first.
    made: Vec<PathBuf>,
    json: Option<PathBuf>,
    markdown: Option<PathBuf>,
    by: By,
}

impl Output {
    /// Makes the folder: places that cannot be written to are known before anything is measured.
    pub(super) fn open(args: &KvArgs) -> anyhow::Result<Self> {
        let folder = args.out.clone().unwrap_or_else(dated);
        if folder.join(RESULT).exists() && !args.force {
            let folder = folder.display();
            let problem = format!("{folder} holds a result: name another folder, or give --force");
            return Err(UsageError(problem).into());
        }
        let cannot = || format!("cannot make the folder {}", folder.display());
        let made = folder.ancestors().take_while(|path| !path.exists());
        let made = made.map(Path::to_owned).collect();
        fs::create_dir_all(&folder).with_context(cannot)?;
        let (json, markdown) = (args.json.clone(), args.markdown.clone());
        let output = Self { folder, made, json, markdown, by: by(args.by_pace) };
        output.check().inspect_err(|_| output.discard())?;
        Ok(output)
    }

    fn check(&self) -> anyhow::Result<()> {
        check_file(&self.folder.join(RESULT))?;
        let json = self.json.as_deref().filter(|path| *path != Path::new("-"));
        json.into_iter().chain(self.markdown.as_deref()).try_for_each(check_file)
    }

    /// Takes away again what was made, as far as nothing is in it.
    pub(super) fn discard(&self) {
        for folder in &self.made {
            let _ = fs::remove_dir(folder);
        }
    }

    /// Writes everything. The table comes first: whatever happens to files, the numbers were seen.
    pub(super) fn write(&self, results: &Results) -> anyhow::Result<()> {
        let json_to_stdout = self.json.as_deref() == Some(Path::new("-"));
        let shown = self.show(results, json_to_stdout);
        // What fails does not cost the rest; that nobody reads the table (head, a pager) is no failure.
        let written = [
            self.write_file(RESULT, |file| result::save(results, file)),
            self.write_file("runs.csv", |file| result::write_csv(results, file)),
            write_html(results, &self.folder.join("report.html")),
            write_markdown(results, &self.folder.join("report.md")),
            self.write_curve(results),
            self.write_series(results),
            self.markdown.as_deref().map_or(Ok(()), |path| write_markdown(results, path)),
            self.write_json(results, json_to_stdout),
        ];
        let written = written.into_iter().collect::<anyhow::Result<()>>();
        written.context("the numbers are in the table above, but not in every file")?;
        let report = self.folder.join("report.html");
        say(format_args!("report: {}", report.display()));
        shown
    }

    fn show(&self, results: &Results, json_to_stdout: bool) -> anyhow::Result<()> {
        if !json_to_stdout {
            return write_to_stdout(results, self.by);
        }
        let shown = result::write_table(results, self.by, &mut io::stderr().lock());
        write_stdout(|stdout| write_rows(results, stdout))?;
        shown.context("cannot write to standard error")
    }

    fn write_json(&self, results: &Results, is_done: bool) -> anyhow::Result<()> {
        let Some(path) = self.json.as_deref().filter(|_| !is_done) else { return Ok(()) };
        write_file(path, |file| write_rows(results, file))
    }

    /// The picture of README, if there are several numbers of clients.
    fn write_curve(&self, results: &Results) -> anyhow::Result<()> {
        let Some(curve) = result::curve(results) else { return Ok(()) };
        self.write_file("curve.svg", |file| file.write_all(curve.as_bytes()))
    }

    /// What happened from microsecond to microsecond, if that was recorded.
    fn write_series(&self, results: &Results) -> anyhow::Result<()> {
        if results.runs.iter().all(|run| run.measured.series.is_none()) {
            return Ok(());
        }
        self.write_file("series.csv", |file| result::write_series(results, file))
    }

    fn write_file(
        &self,
        name: &str,
        write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
    ) -> anyhow::Result<()> {
        write_file(&self.folder.join(name), write)
    }
}

/// Which numbers the option `--by-pace` asks for.
pub(super) fn by(by_pace: bool) -> By {
    if by_pace { By::Pace } else { By::Configuration }
}

/// Writes the report of one result.
pub(super) fn write_html(results: &Results, path: &Path) -> anyhow::Result<()> {
    write_file(path, |file| file.write_all(result::page(results).as_bytes()))
}

/// Writes the tables of one result, for documents.
pub(super) fn write_markdown(results: &Results, path: &Path) -> anyhow::Result<()> {
    write_file(path, |file| result::write_markdown(results, file))
}

/// Shows what `bench … --json` wrote; `None`: it is no such file.
pub(super) fn report_rows(args: &ReportArgs) -> Option<anyhow::Result<()>> {
    let file = File::open(&args.a).ok()?;
    let results = measure::results::Results::read(BufReader::new(file)).ok()?;
    let report = results.report(args.by_pace);
    let write = || {
        if args.b.is_some() {
            let problem = "only results of `bench kv` can be compared: name their folders";
            return Err(UsageError(problem.to_owned()).into());
        }
        if let Some(path) = &args.html {
            write_file(path, |file| file.write_all(report.page().as_bytes()))?;
        }
        if let Some(path) = &args.markdown {
            write_file(path, |file| report.write_markdown(file))?;
        }
        write_stdout(|stdout| report.write_text(stdout))
    };
    Some(write())
}

/// Writes the table.
pub(super) fn write_to_stdout(results: &Results, by: By) -> anyhow::Result<()> {
    write_stdout(|stdout| result::write_table(results, by, stdout))
}

/// Writes one JSON object per number.
fn write_rows(results: &Results, to: &mut dyn Write) -> io::Result<()> {
    result::rows(results).write_json(to)
}
