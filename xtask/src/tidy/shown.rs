//! Code in documents names existing things: commands of `cargo`, with their packages and targets, files, paths of Rust
//! items, and tests that begin with `fault_` or `pitfall_`; one that ends with `*` or `…` names at least one.

use std::{collections::HashSet, path::Path};

use clap::Parser as _;

use super::{Finding, tree::Tree};
use crate::workspace::Member;

/// Flags of `cargo` that name a target, and the folder of its file.
const TARGETS: [(&str, &str); 3] =
    [("--test", "tests"), ("--bench", "benches"), ("--example", "examples")];
const RULE: &str = "shown";

/// Judges every Markdown file.
pub(crate) fn check(members: &[Member], tree: &Tree) -> Vec<Finding> {
    let known = Known::new(members, tree);
    let mut findings = Vec::new();
    for (path, text) in tree.documents() {
        for (line, code) in code(text) {
            let Some(problem) = known.problem(code) else { continue };
            let remedy = "show what exists";
            findings.push(Finding { path: path.into(), line, rule: RULE, problem, remedy });
        }
    }
    findings
}

/// Numbered spans of code, and lines of blocks of code.
fn code(text: &str) -> Vec<(usize, &str)> {
    let mut is_block = false;
    let mut code = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            is_block = !is_block;
        } else if is_block {
            code.push((number, line.trim().trim_start_matches("$ ")));
        } else {
            code.extend(line.split('`').skip(1).step_by(2).map(|span| (number, span)));
        }
    }
    code
}

struct Known<'a> {
    members: &'a [Member],
    tree: &'a Tree,
    /// Every token of every Rust file.
    tokens: HashSet<&'a str>,
}

impl<'a> Known<'a> {
    fn new(members: &'a [Member], tree: &'a Tree) -> Self {
        let tokens = tree.rust().iter().flat_map(|file| &file.tokens);
        Self { members, tree, tokens: tokens.map(|token| token.text.as_str()).collect() }
    }

    /// The missing thing that `code` names.
    fn problem(&self, code: &str) -> Option<String> {
        if let Some(test) = test(code) {
            let is_whole = test == code;
            let mut tokens = self.tokens.iter();
            let exists = tokens.any(|name| name.starts_with(test) && (!is_whole || *name == test));
            return (!exists).then(|| format!("no test `{code}`"));
        }
        if let Some(arguments) = code.strip_prefix("cargo ") {
            let words = arguments.split_whitespace().take_while(|word| !["--", "#"].contains(word));
            return self.problem_of_command(&words.collect::<Vec<_>>());
        }
        let path = code.trim_end_matches('/');
        let is_path = path.chars().all(|c| c.is_ascii_alphanumeric() || "._/-".contains(c));
        let names = path.trim_end_matches("()").split("::").collect::<Vec<_>>();
        let is_name = |name: &&str| {
            name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
                && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        };
        if is_path && !self.tree.contains(Path::new(path)) {
            let (top, is_inside) =
                path.split_once('/').map_or((path, false), |(top, _)| (top, true));
            let is_missing = match top {
                "" => false, // a place on the machine
                _ if is_inside => self.tree.contains(Path::new(top)),
                _ => is_rust(path) && !self.tree.has_file_named(path),
            };
            return is_missing.then(|| format!("no file `{path}`"));
        }
        let missing = names.iter().find(|name| !self.tokens.contains(*name))?;
        (names.len() > 1 && names.iter().all(is_name))
            .then(|| format!("no `{missing}` in the code"))
    }

    /// `words` follow `cargo`.
    fn problem_of_command(&self, words: &[&str]) -> Option<String> {
        if words.first() == Some(&"xtask") {
            let error = crate::Arguments::try_parse_from(words).err()?;
            let is_group = words.len() == 1; // `cargo xtask` as a whole
            return (!is_group).then(|| first_line(&error.to_string()));
        }
        let given = |flag: &'static str| {
            words.windows(2).filter(move |pair| pair[0] == flag).map(|pair| pair[1])
        };
        let packages = || given("-p").chain(given("--package"));
        let is_member = |package: &&str| self.members.iter().any(|m| m.package == *package);
        if let Some(package) = packages().find(|package| !is_member(package)) {
            return Some(format!("no package `{package}`"));
        }
        if let Some(folder) = given("--path").find(|folder| !self.tree.contains(Path::new(folder)))
        {
            return Some(format!("no folder `{folder}`"));
        }
        let is_meant =
            |m: &&Member| packages().next().is_none() || packages().any(|p| p == m.package);
        let has = |folder: &str, name: &str| {
            self.members.iter().filter(is_meant).any(|member| {
                let target = member.dir.join(folder).join(name);
                self.tree.contains(&target.with_extension("rs")) || self.tree.contains(&target)
            })
        };
        TARGETS.iter().find_map(|(flag, folder)| {
            let name = given(flag).find(|name| !has(folder, name))?;
            Some(format!("no `{flag} {name}`"))
        })
    }
}

/// The test that `code` names, or the begin of its name.
fn test(code: &str) -> Option<&str> {
    let name = code.strip_suffix(['*', '…']).unwrap_or(code);
    let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let begins = |prefix: &&str| name.starts_with(prefix) && name != *prefix;
    (is_name && ["fault_", "pitfall_"].iter().any(begins)).then_some(name)
}

fn is_rust(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|extension| extension == "rs")
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn problems(document: &str) -> Vec<String> {
        let member = |package: &str, dir: &str| Member {
            package: package.into(),
            dir: dir.into(),
            dependencies: Vec::new(),
            tests: Vec::new(),
            has_benches: false,
            settings: Value::Null,
        };
        let members = [member("copyrpc-a", "crates/a"), member("copyrpc-b", "crates/b")];
        let tree = Tree::from([
            ("docs/doc.md", document),
            ("crates/a/src/ring.rs", "impl Ring { fn push() {} }"),
            ("crates/a/tests/all/main.rs", "#[test] fn fault_a1_here() {}"),
            ("crates/b/benches/cost.rs", ""),
        ]);
        check(&members, &tree).into_iter().map(|f| format!("{}: {}", f.line, f.problem)).collect()
    }

    #[test]
    fn what_exists_may_be_shown() {
        for code in [
            "cargo test -p copyrpc-a --test all",
            "cargo bench -p copyrpc-b --bench cost -- --shape NAME",
            "cargo bench --bench cost",
            "cargo build --release",
            "cargo install --locked --path crates/a",
            "cargo xtask",
            "cargo xtask fuzz --seconds 60",
            "crates/a",
            "crates/a/",
            "crates/a/src/ring.rs",
            "ring.rs",
            "Ring::push",
            "Ring::push()",
            "A/B",
            "/crates/c",
            "95 % of::all",
            "fault_a1_here",
            "fault_a1_*",
            "fault_a1_…",
            "fault_…",
            "a.md",
        ] {
            assert_eq!(problems(&format!("See `{code}`.")), [""; 0], "{code}");
            assert_eq!(problems(&format!("```console\n$ {code}\n```")), [""; 0], "{code}");
        }
    }

    #[test]
    fn what_is_gone_is_found() {
        for (code, problem) in [
            ("cargo test -p copyrpc-c", "no package `copyrpc-c`"),
            ("cargo test --package copyrpc-c", "no package `copyrpc-c`"),
            ("cargo test -p copyrpc-a --test some", "no `--test some`"),
            ("cargo test -p copyrpc-b --test all", "no `--test all`"),
            ("cargo bench --bench speed", "no `--bench speed`"),
            ("cargo install --path crates/c", "no folder `crates/c`"),
            ("cargo run --example hello", "no `--example hello`"),
            ("cargo xtask tiddy", "error: unrecognized subcommand 'tiddy'"),
            ("cargo xtask fuzz --minutes 1", "error: unexpected argument '--minutes' found"),
            ("crates/c", "no file `crates/c`"),
            ("crates/a/src/queue.rs", "no file `crates/a/src/queue.rs`"),
            ("queue.rs", "no file `queue.rs`"),
            ("Ring::pop", "no `pop` in the code"),
            ("Queue::push()", "no `Queue` in the code"),
            ("fault_a1_her", "no test `fault_a1_her`"),
            ("pitfall_2_…", "no test `pitfall_2_…`"),
        ] {
            for document in [format!("\nSee `{code}`."), format!("```\n{code}\n```")] {
                assert_eq!(problems(&document), [format!("2: {problem}")], "{code}");
            }
        }
    }
}
