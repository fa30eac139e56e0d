//! The file of records: JSON lines, so that any program can read it and a cut line harms one run.

use std::{
    fs::File,
    io::{self, BufWriter, Read, Write},
    path::{Path, PathBuf},
};

use measure::results::FORMAT;
use os::child::from_json;
use serde_json::Value;

use super::{Header, Results, RunRecord};

/// Largest file that is read.
const FILE_BYTES_MAX: u64 = 1 << 30;
/// Nothing that a run counts is more: nanoseconds of thirteen days.
const NUMBER_MAX: u64 = 1 << 50;
/// Name of the file inside the folder of a run.
const FILE: &str = "result.jsonl";

/// Why a file is no result.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// It cannot be read.
    #[error("cannot read {}: {cause}; `copyrpc-lab bench kv --out FOLDER` writes results", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// As the kernel says.
        cause: io::Error,
    },
    /// A line is not what it should be.
    #[error("{}, line {line}: {cause}", path.display())]
    Line {
        /// Path of the file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
        /// Cause of the refusal.
        cause: serde_json::Error,
    },
    /// It has no header, or is far too large.
    #[error("{} is no result of `copyrpc-lab bench kv`: {reason}", path.display())]
    Other {
        /// Path of the file.
        path: PathBuf,
        /// Reason of the refusal.
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
    match File::open(&path).and_then(|file| read(file, FILE_BYTES_MAX)) {
        Ok(Some(text)) => parse(&path, &text),
        Ok(None) => {
            let reason = format!("it is longer than {FILE_BYTES_MAX} B, which none is");
            Err(LoadError::Other { path, reason })
        }
        Err(cause) => Err(LoadError::Read { path, cause }),
    }
}

/// `None`: it is longer. What is read may say that it has no length, and never end.
fn read(from: impl Read, bytes_max: u64) -> io::Result<Option<String>> {
    let mut text = String::new();
    let len_bytes = from.take(bytes_max + 1).read_to_string(&mut text)?;
    Ok((len_bytes as u64 <= bytes_max).then_some(text))
}

fn parse(path: &Path, text: &str) -> Result<Results, LoadError> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let broken = |index: usize| {
        move |cause| LoadError::Line { path: path.to_owned(), line: index + 1, cause }
    };
    let other = |reason: String| LoadError::Other { path: path.to_owned(), reason };
    let (_, line) = lines.next().ok_or_else(|| other("it is empty".to_owned()))?;
    let header = from_json::<Header>(line)
        .map_err(|cause| other(format!("its first line is no header: {cause}")))?;
    if !(1..=FORMAT).contains(&header.format) || header.bench != "kv" {
        let Header { bench, format, .. } = header;
        let problem = format!("it holds `{bench}` in format {format}, not `kv` in 1 to {FORMAT}");
        return Err(other(problem));
    }
    let run = |(index, line): (usize, &str)| {
        let value = from_json::<Value>(line).map_err(broken(index))?;
        if let Some(number) = impossible(&value["measured"]) {
            return Err(other(format!("line {} counts {number}, which no run does", index + 1)));
        }
        let run = from_json::<RunRecord>(line).map_err(broken(index))?;
        run.config.workload.validate().map_err(|error| other(error.to_string()))?;
        if run.measured.interval_ns == 0 {
            return Err(other(format!("line {} was measured for no time", index + 1)));
        }
        Ok(run)
    };
    let runs = lines.map(run).collect::<Result<Vec<_>, _>>()?;
    Ok(Results { header, runs })
}

/// A number that is too large for what is computed of it.
fn impossible(value: &Value) -> Option<&Value> {
    match value {
        Value::Number(number) => number.as_u64().is_some_and(|n| n > NUMBER_MAX).then_some(value),
        Value::Array(list) => list.iter().find_map(impossible),
        Value::Object(fields) => fields.values().find_map(impossible),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{By, Latency, samples};

    #[test]
    fn what_is_saved_is_loaded() {
        let results = samples::results();
        let mut bytes = Vec::new();
        save(&results, &mut bytes).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(parse(Path::new("x"), &text).unwrap(), results);
        assert_eq!(text.lines().count(), 1 + results.runs.len());
    }

    /// A file of b1d9723, when regimes were thresholds in ns: its probes file its runs by their own paces.
    #[test]
    fn a_file_of_format_1_is_loaded_and_shown() {
        let text = include_str!("../../tests/format-1/result.jsonl");
        let results = parse(Path::new("x"), text).unwrap();
        assert_eq!((results.header.format, results.runs.len()), (1, 4));
        let regimes = crate::result::reduce_by_pace(&results).into_iter().map(|cell| cell.regime);
        assert!(regimes.clone().any(|regime| regime.line_ns().is_some()));
        let mut shown = Vec::new();
        crate::result::write_table(&results, By::Pace, &mut shown).unwrap();
        assert!(String::from_utf8(shown).unwrap().contains("pace: line "));
        assert!(crate::result::page(&results).ends_with("</html>\n"));
    }

    #[test]
    fn other_files_are_refused_with_a_reason() {
        let results = samples::results();
        let mut bytes = Vec::new();
        save(&results, &mut bytes).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let message = |text: &str| parse(Path::new("some.jsonl"), text).unwrap_err().to_string();
        assert!(message("").contains("it is empty"));
        for no_header in ["{}", "root:x:0:0\n", "\u{0}"] {
            let message = message(no_header);
            let expected = "some.jsonl is no result of `copyrpc-lab bench kv`: its first line";
            assert!(message.starts_with(expected), "{message}");
        }
        assert!(message(&text.replace("\"format\":3", "\"format\":9")).contains("format 9"));
        let cut = &text[..text.len() - 20];
        assert!(message(cut).contains("line 7"), "{}", message(cut));
        let nonsense = text.replace("\"queue_depth\":4", "\"queue_depth\":0");
        assert!(message(&nonsense).contains("qd = 0 makes no sense"), "{}", message(&nonsense));
        let timeless = text.replace("\"interval_ns\":1000000000", "\"interval_ns\":0");
        assert!(message(&timeless).contains("line 2 was measured for no time"));
    }

    /// Puts `number` where each number of `value` is, in turn.
    fn with_each_number(value: &Value, number: u64) -> Vec<Value> {
        let inside = |put: &dyn Fn(Value) -> Value, inner: &Value| {
            with_each_number(inner, number).into_iter().map(put).collect::<Vec<_>>()
        };
        match value {
            Value::Number(_) => vec![number.into()],
            Value::Array(list) => {
                let put = |at: usize| {
                    move |one| {
                        let mut list = list.clone();
                        list[at] = one;
                        Value::Array(list)
                    }
                };
                list.iter().enumerate().flat_map(|(at, inner)| inside(&put(at), inner)).collect()
            }
            Value::Object(fields) => {
                let put = |key: &String| {
                    let key = key.clone();
                    move |one| {
                        let mut fields = fields.clone();
                        fields[&key] = one;
                        Value::Object(fields)
                    }
                };
                fields.iter().flat_map(|(key, inner)| inside(&put(key), inner)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// A file may come from anywhere.
    #[test]
    fn any_number_of_a_run_is_refused_or_shown() {
        let mut run = samples::results().runs.remove(0);
        let mut latency = crate::drive::latency_histogram();
        latency.saturating_record(5_000);
        run.measured.local.latency = Latency::from(&latency);
        run.measured.remote.latency = run.measured.local.latency.clone();
        let counters = &mut run.measured.rank_counters;
        counters.batch(3);
        counters.phases_ns = [("serve".to_owned(), 5), ("wait".to_owned(), 6)].into();
        counters.named =
            [("daemon incoming".to_owned(), 7), ("daemon sleeps".to_owned(), 8)].into();
        counters.distributions = [("rtt_ns".to_owned(), [(9, 10), (11, 12)].into())].into();
        run.measured.client_counters = counters.clone();
        let header = serde_json::to_string(&samples::header()).unwrap();
        let run = serde_json::to_value(run).unwrap();
        let (mut shown, mut refused) = (0, 0);
        for number in [0, NUMBER_MAX, u64::MAX] {
            for measured in with_each_number(&run["measured"], number) {
                let mut run = run.clone();
                run["measured"] = measured;
                let text = format!("{header}\n{run}\n");
                match parse(Path::new("x"), &text) {
                    Ok(results) => {
                        crate::result::write_table(&results, By::Configuration, &mut io::sink())
                            .unwrap();
                        crate::result::write_markdown(&results, &mut io::sink()).unwrap();
                        crate::result::write_csv(&results, io::sink()).unwrap();
                        assert!(crate::result::page(&results).ends_with("</html>\n"));
                        shown += 1;
                    }
                    Err(_) => refused += 1,
                }
            }
        }
        assert!(shown > 100 && refused > 50, "{shown} shown, {refused} refused");
    }

    #[test]
    fn what_never_ends_is_not_read_to_its_end() {
        assert_eq!(read(io::repeat(b'x'), 1000).unwrap(), None);
        assert_eq!(read(&b"four"[..], 4).unwrap().as_deref(), Some("four"));
        assert_eq!(read(&b"fours"[..], 4).unwrap(), None);
    }

    #[test]
    fn fault_c8_a_full_disk_is_an_error_not_a_lost_result() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let error = save(&samples::results(), full).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}
