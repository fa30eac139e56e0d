//! The file of records: JSON lines, so that any program can read it and a cut line harms one run.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use super::{FORMAT, Header, Results, RunRecord};

/// Largest file that is read.
const FILE_BYTES_MAX: u64 = 1 << 30;
/// Name of the file inside the folder of a run.
const FILE: &str = "result.jsonl";

/// Why a file is no result.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// It cannot be read.
    #[error("cannot read {}: {cause}; `copyrpc bench kv --out FOLDER` writes results", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// As the kernel says.
        cause: io::Error,
    },
    /// A line is not what it should be.
    #[error("{}, line {line}: {cause}", path.display())]
    Line {
        /// Which file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
        /// What is wrong.
        cause: serde_json::Error,
    },
    /// It has no header, or is far too large.
    #[error("{} is no result of `copyrpc bench kv`: {reason}", path.display())]
    Other {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

/// Writes all records.
///
/// # Errors
///
/// Of `to`.
pub fn save(results: &Results, to: impl Write) -> io::Result<()> {
    let mut to = BufWriter::new(to);
    writeln!(to, "{}", serde_json::to_string(&results.header)?)?;
    for run in &results.runs {
        writeln!(to, "{}", serde_json::to_string(run)?)?;
    }
    to.flush()
}

/// Reads a file, or the one in a folder that `bench kv` made.
///
/// # Errors
///
/// [`LoadError`].
pub fn load(path: &Path) -> Result<Results, LoadError> {
    let path = if path.is_dir() { path.join(FILE) } else { path.to_owned() };
    let cannot = |cause| LoadError::Read { path: path.clone(), cause };
    let len_bytes = File::open(&path).and_then(|file| file.metadata()).map_err(cannot)?.len();
    if len_bytes > FILE_BYTES_MAX {
        let reason = format!("{len_bytes} B are more than any result has");
        return Err(LoadError::Other { path, reason });
    }
    parse(&path, &fs::read_to_string(&path).map_err(cannot)?)
}

fn parse(path: &Path, text: &str) -> Result<Results, LoadError> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let broken = |index: usize| {
        move |cause| LoadError::Line { path: path.to_owned(), line: index + 1, cause }
    };
    let other = |reason: String| LoadError::Other { path: path.to_owned(), reason };
    let (index, line) = lines.next().ok_or_else(|| other("it is empty".to_owned()))?;
    let header = serde_json::from_str::<Header>(line).map_err(broken(index))?;
    if (header.format, header.run.bench.as_str()) != (FORMAT, "kv") {
        let (bench, format) = (header.run.bench, header.format);
        return Err(other(format!("it holds `{bench}` in format {format}, not `kv` in {FORMAT}")));
    }
    let run = |(index, line): (usize, &str)| {
        let run = serde_json::from_str::<RunRecord>(line).map_err(broken(index))?;
        run.config.workload.validate().map_err(|error| other(error.to_string()))?;
        Ok(run)
    };
    let runs = lines.map(run).collect::<Result<Vec<_>, _>>()?;
    Ok(Results { header, runs })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::samples;

    #[test]
    fn what_is_saved_is_loaded() {
        let results = samples::results();
        let mut bytes = Vec::new();
        save(&results, &mut bytes).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(parse(Path::new("x"), &text).unwrap(), results);
        assert_eq!(text.lines().count(), 1 + results.runs.len());
    }

    #[test]
    fn other_files_are_refused_with_a_reason() {
        let results = samples::results();
        let mut bytes = Vec::new();
        save(&results, &mut bytes).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let message = |text: &str| parse(Path::new("some.jsonl"), text).unwrap_err().to_string();
        assert!(message("").contains("it is empty"));
        assert!(message("{}").contains("some.jsonl, line 1"));
        assert!(message(&text.replace("\"format\":1", "\"format\":9")).contains("format 9"));
        let cut = &text[..text.len() - 20];
        assert!(message(cut).contains("line 7"), "{}", message(cut));
        let nonsense = text.replace("\"queue_depth\":4", "\"queue_depth\":0");
        assert!(message(&nonsense).contains("qd = 0 makes no sense"), "{}", message(&nonsense));
    }

    #[test]
    fn fault_c8_a_full_disk_is_an_error_not_a_lost_result() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let error = save(&samples::results(), full).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}
