//! Proof that the loom tests see the orderings: with any one of them relaxed, or a barrier left
//! out, a test must fail.
//!
//! Mutated is what stands below `SYNC` comments in the sources of crates with loom tests. The work
//! happens in a copy of the tree, never in the tree itself.
//!
//! Orderings of atomics that are not loom's, because a device shares them, are judged by Miri, which
//! reports the race: `[package.metadata.xtask] mutants-miri = "FILTER"` names the unit tests.

mod judge;

use std::{
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context, Result, bail, ensure};

use self::judge::{Judge, Verdict};
use crate::{
    step::Outcome,
    tidy::{
        source::{RustFile, Token},
        sync_pairs,
    },
    workspace::{Member, Workspace},
};

/// One ordering to relax, or barrier to leave out.
struct Mutant {
    path: PathBuf,
    sync: String,
    ordering: String,
    line: usize,
    /// Text of the whole file, mutated.
    text: String,
}

/// Tries every mutant of every crate with loom tests, and counts those of the other crates.
/// `crates` limits it to these, by short name; none means all.
pub(crate) fn run(workspace: &Workspace, crates: &[String]) -> Result<Outcome> {
    for name in crates {
        let is_known = workspace.members.iter().any(|member| member.short_name() == name);
        ensure!(is_known, "no crate `{name}` in this workspace");
    }
    let is_wanted =
        |member: &&Member| crates.is_empty() || crates.iter().any(|n| n == member.short_name());
    let (members, unproven): (Vec<_>, Vec<_>) = (workspace.members.iter().filter(is_wanted))
        .partition(|member| !member.loom_tests().is_empty());
    if members.is_empty() {
        return Ok(Outcome::NothingToRun("nothing to run: no crate has a loom test".into()));
    }
    let copy = copy_tree(workspace)?;
    let mut killed = 0;
    let mut others = 0;
    for member in members {
        for verdict in judge_all(workspace, &copy, member)? {
            let is_killed = matches!(verdict, Verdict::Killed(_));
            killed += usize::from(is_killed);
            others += usize::from(!is_killed);
        }
    }
    for member in unproven {
        let count = mutants(workspace, member)?.len();
        if count > 0 {
            println!("UNPROVEN  {}: {count} orderings, no loom test", member.package);
        }
    }
    match others {
        0 => Ok(Outcome::Passed(format!("{killed} killed, 0 survived"))),
        _ => bail!("{killed} killed, {others} not: no loom test sees that ordering in its time"),
    }
}

/// Prints a line per mutant as it is judged.
fn judge_all(workspace: &Workspace, copy: &Workspace, member: &Member) -> Result<Vec<Verdict>> {
    let judge = Judge::new(copy, member)?;
    let all = mutants(workspace, member)?;
    let mut verdicts = Vec::new();
    let mut unproven = 0;
    let mut is_modelled = None;
    for (index, mutant) in all.iter().enumerate() {
        let Mutant { path, sync, ordering, line, .. } = mutant;
        let known = is_modelled.take_if(|(last, _)| last == path);
        let (_, modelled) = *is_modelled.insert(match known {
            Some(known) => known,
            // An error in a file that loom does not compile would go unnoticed.
            None => (path.clone(), !with_text(copy, path, "compile_error!();", || judge.builds())?),
        });
        if !modelled {
            unproven += 1;
            continue;
        }
        let start = Instant::now();
        let verdict = with_text(copy, path, &mutant.text, || judge.verdict())
            .with_context(|| format!("{}:{line}", path.display()))?;
        let number = index + 1;
        let count = all.len();
        let seconds = start.elapsed().as_secs();
        let place = format!("{}:{line} SYNC({sync}) {ordering}", path.display());
        println!("{number:>3}/{count} {seconds:>4} s  {place}: {verdict}");
        verdicts.push(verdict);
    }
    if unproven > 0 {
        println!("UNPROVEN  {}: {unproven} orderings, not compiled under loom", member.package);
    }
    Ok(verdicts)
}

/// Copies what git knows to `target/mutants/tree`, without what an earlier run left there.
fn copy_tree(workspace: &Workspace) -> Result<Workspace> {
    let root = workspace.target_dir("mutants").join("tree");
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    let mut files = workspace.files()?;
    files.push("Cargo.lock".into());
    for path in files.iter().filter(|path| workspace.root.join(path).is_file()) {
        let to = root.join(path);
        fs::create_dir_all(to.parent().context("a file has a folder")?)?;
        fs::copy(workspace.root.join(path), &to)
            .with_context(|| format!("cannot copy {}", path.display()))?;
    }
    Ok(Workspace { root, members: Vec::new(), rust_version: String::new() })
}

/// The verdict of `judge` while a file of the copy has another text.
fn with_text<R>(
    copy: &Workspace,
    path: &Path,
    text: &str,
    judge: impl FnOnce() -> Result<R>,
) -> Result<R> {
    let path = copy.root.join(path);
    let original = fs::read(&path)?;
    fs::write(&path, text)?;
    let result = judge();
    fs::write(&path, original)?;
    result
}

fn mutants(workspace: &Workspace, member: &Member) -> Result<Vec<Mutant>> {
    let mut mutants = Vec::new();
    for path in workspace.files()? {
        let is_rust = path.extension().is_some_and(|extension| extension == "rs");
        if !is_rust || !path.starts_with(member.dir.join("src")) {
            continue;
        }
        let text = workspace.read_text(&path)?.context("a Rust file is UTF-8")?;
        let file = RustFile::parse(path, text).context("run tidy: a file is not Rust")?;
        mutants.extend(mutants_of(&file));
    }
    Ok(mutants)
}

fn mutants_of(file: &RustFile) -> Vec<Mutant> {
    let mut mutants: Vec<Mutant> = Vec::new();
    for site in sync_pairs::sites(file) {
        for ordering in site.orderings {
            let (end, weaker) = match ordering.text.as_str() {
                "barrier" => (end_of_call(file, ordering), "()"),
                text => (ordering.start + text.len(), "Relaxed"),
            };
            let head = &file.text[..ordering.start];
            let tail = &file.text[end..];
            mutants.push(Mutant {
                path: file.path.clone(),
                sync: site.name.into(),
                ordering: ordering.text.clone(),
                line: ordering.line,
                text: format!("{head}{weaker}{tail}"),
            });
        }
    }
    // Two comments may explain one operation.
    mutants.sort_by(|a, b| a.text.cmp(&b.text));
    mutants.dedup_by(|a, b| a.text == b.text);
    mutants.sort_by_key(|mutant| mutant.line);
    mutants
}

/// Where the call of a barrier ends, which takes no argument with a bracket in it.
fn end_of_call(file: &RustFile, barrier: &Token) -> usize {
    let rest = &file.text[barrier.start..];
    barrier.start + rest.find(')').map_or(rest.len(), |close| close + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(code: &str) -> RustFile {
        RustFile::parse("crates/a/src/lib.rs".into(), code.into()).unwrap()
    }

    #[test]
    fn each_ordering_under_a_sync_comment_is_relaxed_once() {
        let code = "fn f() {\n// SYNC(a): why.\n// SYNC(b): why.\nx.swap(1, AcqRel);\n\
                    // SYNC(c): why.\ny.load(Acquire);\nz.store(0, Release);\n}\n";
        let mutants = mutants_of(&file(code));
        let orderings: Vec<_> = mutants.iter().map(|m| (m.line, m.ordering.as_str())).collect();
        assert_eq!(orderings, [(4, "AcqRel"), (6, "Acquire")]);
        assert_eq!(mutants[0].text, code.replace("AcqRel", "Relaxed"));
        assert_eq!(mutants[1].text, code.replace("Acquire", "Relaxed"));
    }

    #[test]
    fn a_barrier_under_a_sync_comment_is_left_out() {
        let code = "fn f() {\n// SYNC(a): why.\nbarrier::store_load();\ny.load(Relaxed);\n}\n";
        let mutants = mutants_of(&file(code));
        assert_eq!(mutants.len(), 1);
        assert_eq!(mutants[0].text, code.replace("barrier::store_load()", "()"));
    }
}
