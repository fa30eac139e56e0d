//! Histories as lines of JSON, for checkers that are not ours. `docs/kv.md` describes the lines.

use std::{
    fs::{File, OpenOptions},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use serde::Serialize;

use super::{Act, HistoryEvent};
use crate::codec::value::INITIAL;

/// Name and version of the format.
const FORMAT: &str = "copyrpc-kv-history-1";

/// A file that histories are appended to.
#[derive(Clone, Debug)]
pub struct HistoryFile(PathBuf);

/// The line before the operations of a run.
#[derive(Serialize)]
struct Head {
    format: &'static str,
    /// What every key holds at first.
    initial: u64,
    operations: usize,
}

/// An operation.
#[derive(Serialize)]
struct Line {
    key: u64,
    #[serde(flatten)]
    op: Op,
    begin_ns: u64,
    end_ns: Option<u64>,
}

#[derive(Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
enum Op {
    Read { seen: Option<u64> },
    Write { new: u64 },
    Remove { seen: Option<u64> },
    RemoveAny,
    Swap { seen: Option<u64>, new: u64 },
}

impl From<Act> for Op {
    fn from(act: Act) -> Self {
        match act {
            Act::Read(seen) => Self::Read { seen: seen.map(|version| version.0) },
            Act::Write(new) => Self::Write { new: new.0 },
            Act::Remove(seen) => Self::Remove { seen: seen.map(|version| version.0) },
            Act::RemoveAny => Self::RemoveAny,
            Act::Swap { expected, new } => {
                Self::Swap { seen: expected.map(|version| version.0), new: new.0 }
            }
        }
    }
}

impl HistoryFile {
    /// Makes the file, or empties it.
    ///
    /// # Errors
    ///
    /// If it cannot be made or written to.
    pub fn create(path: &Path) -> io::Result<Self> {
        File::create(path)?;
        Ok(Self(path.to_owned()))
    }

    /// Appends the history of a run.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn append(&self, events: &[HistoryEvent]) -> io::Result<()> {
        let file = OpenOptions::new().append(true).open(&self.0)?;
        let mut file = BufWriter::new(file);
        write(events, &mut file)?;
        file.flush()
    }
}

/// Writes the history of a run.
fn write(events: &[HistoryEvent], to: &mut impl Write) -> io::Result<()> {
    let head = Head { format: FORMAT, initial: INITIAL.0, operations: events.len() };
    line(&head, to)?;
    for &HistoryEvent { key, act, begin_ns, end_ns } in events {
        line(&Line { key, op: act.into(), begin_ns, end_ns }, to)?;
    }
    Ok(())
}

fn line(value: &impl Serialize, to: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer(&mut *to, value)?;
    to.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Version;

    #[test]
    fn each_operation_is_a_line_with_all_that_a_checker_needs() {
        let event = |act, end_ns| HistoryEvent { key: u64::MAX, act, begin_ns: 1, end_ns };
        let events = [
            event(Act::Read(None), Some(2)),
            event(Act::Write(Version(u64::MAX - 1)), None),
            event(Act::Remove(Some(Version(3))), Some(4)),
            event(Act::RemoveAny, None),
            event(Act::Swap { expected: Some(Version(5)), new: Version(6) }, Some(7)),
        ];
        let mut bytes = Vec::new();
        write(&events, &mut bytes).unwrap();
        let key = u64::MAX;
        let expected = format!(
            "{{\"format\":\"copyrpc-kv-history-1\",\"initial\":{},\"operations\":5}}\n\
             {{\"key\":{key},\"op\":\"read\",\"seen\":null,\"begin_ns\":1,\"end_ns\":2}}\n\
             {{\"key\":{key},\"op\":\"write\",\"new\":{},\"begin_ns\":1,\"end_ns\":null}}\n\
             {{\"key\":{key},\"op\":\"remove\",\"seen\":3,\"begin_ns\":1,\"end_ns\":4}}\n\
             {{\"key\":{key},\"op\":\"remove_any\",\"begin_ns\":1,\"end_ns\":null}}\n\
             {{\"key\":{key},\"op\":\"swap\",\"seen\":5,\"new\":6,\"begin_ns\":1,\"end_ns\":7}}\n",
            INITIAL.0,
            u64::MAX - 1,
        );
        assert_eq!(String::from_utf8(bytes).unwrap(), expected);
    }
}
