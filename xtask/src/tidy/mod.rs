//! Fast checks on the tree. Each lives in its own module and proves in its tests that it can fail.
//!
//! There are no exemption lists: a rule that needs one is the wrong rule.

mod arrows;
mod cycles;
mod excerpts;
mod faults;
mod grammar;
mod ignored;
pub(crate) mod lines;
pub(crate) mod links;
mod manifests;
mod names;
mod product;
mod rules;
mod shown;
mod sizes;
pub(crate) mod source;
mod statements;
pub(crate) mod sync_pairs;
mod tree;
mod words;

use std::{fmt, path::PathBuf};

use anyhow::{Result, bail};

use crate::{step::Outcome, workspace::Workspace};
use tree::Tree;

/// One broken rule at one place.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    /// Relative to the root.
    path: PathBuf,
    /// From 1.
    line: usize,
    rule: &'static str,
    problem: String,
    remedy: &'static str,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, line, rule, problem, remedy } = self;
        write!(f, "{}:{line}: [{rule}] {problem}; {remedy}", path.display())
    }
}

/// Judges the files that git knows; prints every finding before it fails.
pub(crate) fn run(workspace: &Workspace) -> Result<Outcome> {
    let tree = Tree::load(workspace)?;
    let mut findings = tree.parse_errors();
    findings.extend(arrows::check(&workspace.members, &tree));
    findings.extend(sync_pairs::check(&tree));
    findings.extend(sizes::check(&tree));
    findings.extend(statements::check(&tree));
    findings.extend(grammar::check(&tree));
    findings.extend(ignored::check(&tree));
    findings.extend(cycles::check(&tree));
    findings.extend(words::check(&tree));
    findings.extend(links::check(&tree));
    findings.extend(excerpts::check(&tree));
    findings.extend(manifests::check(&tree));
    findings.extend(faults::check(&tree));
    findings.extend(names::check(&tree));
    findings.extend(rules::check(&tree));
    findings.extend(shown::check(&workspace.members, &tree));
    findings.sort();
    findings.dedup(); // one line may break one rule twice
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => Ok(Outcome::Passed(format!("{} files", tree.len()))),
        count => bail!("{count} findings"),
    }
}
