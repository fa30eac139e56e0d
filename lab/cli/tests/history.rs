//! Histories of `bench kv` are judged by a checker that knows the documented lines, and nothing of ours.

use std::{
    collections::{BTreeMap, HashSet},
    env, fs,
    path::PathBuf,
    process::{self, Command},
};

use serde_json::Value;

/// An operation on one key.
#[derive(Clone, Debug)]
struct Operation {
    op: String,
    seen: Option<u64>,
    new: Option<u64>,
    begin_ns: u64,
    /// `None`: it may never have happened.
    end_ns: Option<u64>,
}

/// What an order of some operations leads to: which have come, and what the register holds.
type State = (Vec<bool>, Option<u64>);

impl Operation {
    /// What the register holds after it, if it can come now.
    fn after(&self, register: Option<u64>) -> Option<Option<u64>> {
        match self.op.as_str() {
            "read" => (register == self.seen).then_some(register),
            "write" => Some(self.new),
            "remove" => (register == self.seen).then_some(None),
            "remove_any" => Some(None),
            "swap" => (register == self.seen).then_some(self.new),
            op => panic!("{op} is not documented"),
        }
    }
}

/// Tries all orders that agree with the times (Wing and Gong, 1993).
fn is_linearizable(operations: &[Operation], initial: u64) -> bool {
    let mut visited = HashSet::<State>::new();
    let mut states = vec![(vec![false; operations.len()], Some(initial))];
    while let Some((come, register)) = states.pop() {
        let left = || operations.iter().enumerate().filter(|(index, _)| !come[*index]);
        let Some(first_end_ns) = left().filter_map(|(_, operation)| operation.end_ns).min() else {
            return true;
        };
        for (index, operation) in left().filter(|(_, one)| one.begin_ns <= first_end_ns) {
            if let Some(register) = operation.after(register) {
                let mut come = come.clone();
                come[index] = true;
                let state = (come, register);
                if visited.insert(state.clone()) {
                    states.push(state);
                }
            }
        }
    }
    false
}

/// Of one run: what each key holds at first, and what was done to each.
fn parsed(text: &str) -> (u64, BTreeMap<u64, Vec<Operation>>) {
    let mut lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let head = lines.next().unwrap();
    assert_eq!(head["format"], "copyrpc-kv-history-1");
    let (mut keys, mut count) = (BTreeMap::<u64, Vec<Operation>>::new(), 0);
    for line in lines {
        let number = |name: &str| line[name].as_u64();
        let operation = Operation {
            op: line["op"].as_str().unwrap().to_owned(),
            seen: number("seen"),
            new: number("new"),
            begin_ns: number("begin_ns").unwrap(),
            end_ns: number("end_ns"),
        };
        keys.entry(number("key").unwrap()).or_default().push(operation);
        count += 1;
    }
    assert_eq!(head["operations"].as_u64(), Some(count), "all are there");
    (head["initial"].as_u64().unwrap(), keys)
}

#[test]
fn a_foreign_checker_judges_an_exported_history_and_notices_a_read_of_what_nobody_wrote() {
    let folder = env::temp_dir().join(format!("copyrpc-history-{}", process::id()));
    let (history, out): (PathBuf, PathBuf) = (folder.join("history.jsonl"), folder.join("out"));
    fs::create_dir_all(&folder).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_copyrpc-lab"));
    command.args(["bench", "kv", "--backend", "tcp", "--keys", "500", "--quick", "--clients", "2"]);
    command.args(["--warm-up", "5ms", "--duration", "30ms", "--mix", "40:10:20"]);
    command.args(["--verify", "full", "--history"]).arg(&history).arg("--out").arg(&out);
    let run = command.output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let (initial, mut keys) = parsed(&fs::read_to_string(&history).unwrap());
    assert!(keys.values().map(Vec::len).sum::<usize>() > 0);
    for (key, operations) in &keys {
        assert!(is_linearizable(operations, initial), "key {key}: {operations:?}");
    }
    let read = keys.values_mut().flatten().find(|one| one.op == "read" && one.end_ns.is_some());
    read.expect("two in five are").seen = Some(u64::MAX);
    assert!(!keys.values().all(|operations| is_linearizable(operations, initial)));
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_history_that_nothing_records_is_refused() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_copyrpc-lab"));
    let run = command.args(["bench", "kv", "--history", "/dev/null"]).output().unwrap();
    assert_eq!(run.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&run.stderr).contains("--verify full"));
}
