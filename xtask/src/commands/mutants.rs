//! Proof that the loom tests see the orderings: with any one of them relaxed, a test must fail.
//!
//! Mutated are the orderings below `SYNC` comments in the sources of crates with loom tests. The
//! work happens in a copy of the tree, never in the tree itself.
//!
//! Orderings of atomics that are not loom's, because a device shares them, are judged by Miri, which
//! reports the race: `[package.metadata.xtask] mutants-miri = "FILTER"` names the unit tests.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};

use super::{loom, miri, rendered};
use crate::{
    step::Outcome,
    tidy::{source::RustFile, sync_pairs},
    workspace::{Member, Workspace},
};

/// A mutant that runs longer has lost its progress guarantee: that counts as noticed.
const TIMEOUT_SECONDS: u32 = 600;

/// One ordering to relax.
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
    let mut table = Vec::new();
    let (mut killed, mut survived) = (0, 0);
    for member in members {
        ensure!(passes(&copy, member)?, "the loom tests of {} fail unmutated", member.package);
        let is_sound = passes_miri(&copy, member)?;
        ensure!(is_sound, "Miri is not there, or fails on {} unmutated", member.package);
        let (modelled, others): (Vec<_>, Vec<_>) = {
            let all = mutants(workspace, member)?;
            let paths: BTreeSet<_> = all.iter().map(|mutant| mutant.path.clone()).collect();
            let mut modelled = BTreeSet::new();
            for path in paths {
                if is_modelled(&copy, member, &path)? {
                    modelled.insert(path);
                }
            }
            all.into_iter().partition(|mutant| modelled.contains(&mutant.path))
        };
        if !others.is_empty() {
            let (package, count) = (&member.package, others.len());
            table.push(format!("UNPROVEN  {package}: {count} orderings, not compiled under loom"));
        }
        for mutant in modelled {
            let is_killed = is_killed(&copy, member, &mutant)?;
            killed += usize::from(is_killed);
            survived += usize::from(!is_killed);
            let verdict = if is_killed { "killed" } else { "SURVIVED" };
            let Mutant { path, sync, ordering, line, .. } = &mutant;
            table.push(format!("{verdict:<9} {}:{line} SYNC({sync}) {ordering}", path.display()));
            println!("{}", table[table.len() - 1]);
        }
    }
    for member in unproven {
        let count = mutants(workspace, member)?.len();
        if count > 0 {
            table.push(format!("UNPROVEN  {}: {count} orderings, no loom test", member.package));
        }
    }
    println!("\n{}", table.join("\n"));
    match survived {
        0 => Ok(Outcome::Passed(format!("{killed} killed"))),
        _ => bail!("{killed} killed, {survived} survived: no loom test sees that ordering"),
    }
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
    Ok(Workspace { root, members: Vec::new() })
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
        for ordering in site.orderings.iter().filter(|ordering| ordering.text != "barrier") {
            let (head, tail) = file.text.split_at(ordering.start);
            mutants.push(Mutant {
                path: file.path.clone(),
                sync: site.name.into(),
                ordering: ordering.text.clone(),
                line: ordering.line,
                text: format!("{head}Relaxed{}", &tail[ordering.text.len()..]),
            });
        }
    }
    // Two comments may explain one operation.
    mutants.sort_by(|a, b| a.text.cmp(&b.text));
    mutants.dedup_by(|a, b| a.text == b.text);
    mutants.sort_by_key(|mutant| mutant.line);
    mutants
}

/// Whether a source is part of the crate as loom sees it: whether an error in it is noticed.
fn is_modelled(copy: &Workspace, member: &Member, path: &Path) -> Result<bool> {
    let path = copy.root.join(path);
    let original = fs::read(&path)?;
    fs::write(&path, "compile_error!();")?;
    let result = compiles(copy, member);
    fs::write(&path, original)?;
    Ok(result.is_err())
}

fn is_killed(copy: &Workspace, member: &Member, mutant: &Mutant) -> Result<bool> {
    let path = copy.root.join(&mutant.path);
    let original = fs::read(&path)?;
    fs::write(&path, &mutant.text)?;
    let result = compiles(copy, member)
        .and_then(|()| Ok(passes(copy, member)? && passes_miri(copy, member)?));
    fs::write(&path, original)?;
    Ok(!result.with_context(|| format!("{}:{}", mutant.path.display(), mutant.line))?)
}

/// A mutant that does not compile proves nothing.
fn compiles(copy: &Workspace, member: &Member) -> Result<()> {
    let mut command = quiet(loom::command(copy, member), &copy.root);
    command.arg("--no-run");
    let status = command.status().context("cannot start cargo")?;
    ensure!(status.success(), "does not compile: `{}`", rendered(&command));
    Ok(())
}

fn passes(copy: &Workspace, member: &Member) -> Result<bool> {
    let status = quiet(loom::command(copy, member), &copy.root).status();
    Ok(status.context("cannot start timeout(1)")?.success())
}

/// Whether Miri finds nothing in the tests that the manifest names, if any.
fn passes_miri(copy: &Workspace, member: &Member) -> Result<bool> {
    let Some(filter) = member.settings["mutants-miri"].as_str() else { return Ok(true) };
    let status = quiet(miri::unit_tests(copy, member, filter), &copy.root).status();
    Ok(status.context("cannot start timeout(1)")?.success())
}

/// The same command under timeout(1), silent, building beside the copy: a later run finds the
/// dependencies compiled.
fn quiet(command: Command, root: &Path) -> Command {
    let mut timed = Command::new("timeout");
    timed.arg(TIMEOUT_SECONDS.to_string()).arg(command.get_program()).args(command.get_args());
    timed.envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
    timed.env("CARGO_TARGET_DIR", root.with_file_name("build"));
    timed.current_dir(root).stdout(Stdio::null()).stderr(Stdio::null());
    timed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_ordering_under_a_sync_comment_is_relaxed_once() {
        let code = "fn f() {\n// SYNC(a): why.\n// SYNC(b): why.\nx.swap(1, AcqRel);\n\
                    // SYNC(c): why.\ny.load(Acquire);\nz.store(0, Release);\n}\n";
        let file = RustFile::parse("crates/a/src/lib.rs".into(), code.into()).unwrap();
        let mutants = mutants_of(&file);
        let orderings: Vec<_> = mutants.iter().map(|m| (m.line, m.ordering.as_str())).collect();
        assert_eq!(orderings, [(4, "AcqRel"), (6, "Acquire")]);
        assert_eq!(mutants[0].text, code.replace("AcqRel", "Relaxed"));
        assert_eq!(mutants[1].text, code.replace("Acquire", "Relaxed"));
    }
}
