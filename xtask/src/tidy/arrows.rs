//! A crate depends only on what stands left of it in its own row, or in a lower row. So do its tests. No crate of the
//! product depends on the laboratory, but in its tests.

use super::{Finding, tree::Tree};
use crate::workspace::{Dependency, Member};

/// The crates from the bottom row up, each row from left to right.
const ROWS: [&[&str]; 5] = [
    &["ids", "wire", "config", "memory", "os", "verbs", "conformance", "proto"],
    &["mlx5", "ibverbs", "softnic", "tcp", "inproc", "ipc"],
    &["nics", "rpc", "protocols", "client", "bootstrap", "daemon"],
    &["measure", "kv", "sim"],
    &["copyrpc", "command", "uverbs", "preload", "cli", "capi", "bench", "lab"],
];

/// The folder of the laboratory: crates that no service links, and no installed command.
const LABORATORY: &str = "lab";

/// The only crates that may erase error types.
const ANYHOW_USERS: [&str; 4] = ["cli", "command", "lab", "xtask"];

const RULE: &str = "arrows";

/// Compares the dependencies of `members` with the rows.
pub(crate) fn check(members: &[Member], tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for member in members {
        let manifest = member.dir.join("Cargo.toml");
        let text = tree.text(&manifest).unwrap_or_default();
        let from = short(&member.package);
        let mut report = |line, problem, remedy| {
            findings.push(Finding { path: manifest.clone(), line, rule: RULE, problem, remedy });
        };
        if rank(from).is_none() && from != "xtask" {
            let problem = format!("crate `{from}` has no place in the picture");
            report(1, problem, "give it a row in ROWS of xtask's arrows.rs");
        }
        for dependency in &member.dependencies {
            let line = line_of(text, short(&dependency.package));
            if dependency.package == "anyhow" && !ANYHOW_USERS.contains(&from) {
                let problem = format!("`{from}` depends on `anyhow`");
                report(line, problem, "define an error enum for each operation");
            }
            if !dependency.is_dev && leaks(members, member, dependency) {
                let problem = format!("`{from}` links `{}`", short(&dependency.package));
                report(line, problem, "only tests of the product may use the laboratory");
            }
            let is_itself = dependency.package == member.package; // with other features, in tests
            if !is_itself && is_member(members, dependency) && !is_allowed(from, dependency) {
                let problem = format!("`{from}` depends on `{}`", short(&dependency.package));
                report(line, problem, "depend only on crates to the left or in a lower row");
            }
        }
    }
    findings
}

fn is_member(members: &[Member], dependency: &Dependency) -> bool {
    members.iter().any(|member| member.package == dependency.package)
}

fn is_allowed(from: &str, dependency: &Dependency) -> bool {
    let to = short(&dependency.package);
    match (rank(from), rank(to)) {
        (Some(from), Some(to)) => to < from,
        _ => false, // xtask stands alone: it must build when nothing else does
    }
}

/// Whether a crate of the product depends on one of the laboratory. Without such an edge, optional or not, no tree of
/// the product holds any.
fn leaks(members: &[Member], from: &Member, dependency: &Dependency) -> bool {
    let is_laboratory = |member: &Member| member.dir.starts_with(LABORATORY);
    let to = members.iter().find(|member| member.package == dependency.package);
    !is_laboratory(from) && to.is_some_and(is_laboratory)
}

/// Row and place in the row.
fn rank(name: &str) -> Option<(usize, usize)> {
    ROWS.iter().enumerate().find_map(|(row, names)| {
        names.iter().position(|candidate| *candidate == name).map(|place| (row, place))
    })
}

fn short(package: &str) -> &str {
    package.strip_prefix("copyrpc-").unwrap_or(package)
}

fn line_of(manifest: &str, name: &str) -> usize {
    let starts = |line: &str| {
        let rest = line.trim_start().strip_prefix("copyrpc-").unwrap_or(line.trim_start());
        rest.strip_prefix(name).is_some_and(|rest| rest.starts_with(['.', ' ', '=']))
    };
    manifest.lines().position(starts).unwrap_or(0) + 1
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use serde_json::Value;

    use super::*;

    fn member(name: &str, dependencies: &[&str]) -> Member {
        let dependency = |&package: &&str| Dependency {
            package: if package == "anyhow" {
                package.into()
            } else {
                format!("copyrpc-{package}")
            },
            is_dev: false,
        };
        Member {
            package: format!("copyrpc-{name}"),
            dir: PathBuf::from("crates").join(name),
            dependencies: dependencies.iter().map(dependency).collect(),
            tests: Vec::new(),
            has_benches: false,
            settings: Value::Null,
        }
    }

    fn problems(members: &[Member]) -> Vec<String> {
        let tree =
            Tree::from([("crates/wire/Cargo.toml", "[dependencies]\nmemory.workspace = true")]);
        check(members, &tree).into_iter().map(|f| format!("{}: {}", f.line, f.problem)).collect()
    }

    #[test]
    fn left_and_down_are_allowed() {
        let members = [
            member("wire", &[]),
            member("verbs", &["wire"]),
            member("softnic", &["verbs", "wire"]),
        ];
        assert_eq!(problems(&members), [""; 0]);
    }

    #[test]
    fn right_and_up_are_not() {
        let members = [member("wire", &["memory"]), member("memory", &["ipc"]), member("ipc", &[])];
        assert_eq!(
            problems(&members),
            ["2: `wire` depends on `memory`", "1: `memory` depends on `ipc`"]
        );
    }

    #[test]
    fn the_product_links_no_laboratory() {
        let in_laboratory = |name: &str, dependencies: &[&str]| Member {
            dir: PathBuf::from("lab").join(name),
            ..member(name, dependencies)
        };
        let measure = || in_laboratory("measure", &[]);
        let kv = in_laboratory("kv", &["measure", "rpc"]);
        let rpc = member("rpc", &[]);
        assert_eq!(problems(&[measure(), kv, rpc]), [""; 0]);
        let mut cli = member("cli", &["measure"]);
        let mut found = problems(&[measure(), cli]);
        assert_eq!(found.pop().as_deref(), Some("1: `cli` links `measure`"));
        cli = member("cli", &["measure"]);
        cli.dependencies[0].is_dev = true;
        assert_eq!(problems(&[measure(), cli]), [""; 0]);
    }

    #[test]
    fn a_crate_without_a_row_and_anyhow_in_a_library_are_reported() {
        assert_eq!(
            problems(&[member("misc", &[])]),
            ["1: crate `misc` has no place in the picture"]
        );
        assert_eq!(problems(&[member("wire", &["anyhow"])]), ["1: `wire` depends on `anyhow`"]);
    }
}
