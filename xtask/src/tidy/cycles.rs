//! The modules of a crate depend on each other in one direction: no module reaches itself by way of others.
//!
//! An edge is a path `crate::a::…` in code that is no test, from the module that holds it to `a`; inside one
//! module also from one of its parts to another. The crate's root is no module here, since it only re-exports.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use super::{Finding, source::RustFile, tree::Tree};

/// Crates that came with cycles and have them still. A crate leaves this list; none enters it.
const OPEN: [&str; 1] = ["uverbs"];

const RULE: &str = "cycles";
const REMEDY: &str = "move what both need below both";

/// A module as a path from the crate's root: `["server", "acceptor"]`.
type Module = Vec<String>;

/// An edge, and the place that makes it.
type Edges = BTreeMap<Module, BTreeMap<Module, (PathBuf, usize)>>;

/// Judges the modules of every crate under `crates`.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let files = tree.rust().iter().filter(|file| file.is_crate_source());
    let sources: BTreeSet<_> = files.filter_map(|file| source_of(&file.path)).collect();
    let is_open =
        |source: &PathBuf| OPEN.iter().any(|name| source.ends_with(format!("{name}/src")));
    sources
        .iter()
        .filter(|source| !is_open(source))
        .flat_map(|source| check_crate(source, tree))
        .collect()
}

/// The folder `src` that a file lies in.
fn source_of(file: &Path) -> Option<PathBuf> {
    let is_source = |folder: &&Path| folder.file_name().is_some_and(|name| name == "src");
    file.ancestors().skip(1).filter(is_source).last().map(Path::to_owned)
}

fn check_crate(source: &Path, tree: &Tree) -> Vec<Finding> {
    let files = tree.rust().iter().filter(|file| file.path.starts_with(source));
    let mut files: Vec<_> = files.map(|file| (module_of(file, source), file)).collect();
    let tests: Vec<_> =
        files.iter().flat_map(|(module, file)| test_modules(module, file)).collect();
    files.retain(|(module, _)| !tests.iter().any(|test| module.starts_with(test)));
    let modules: BTreeSet<_> = files.iter().map(|(module, _)| module.clone()).collect();
    let mut findings = Vec::new();
    // The root's modules among each other, then the parts of each module.
    let prefixes =
        modules.iter().flat_map(|module| (0..module.len()).map(|n| module[..n].to_vec()));
    let parents: BTreeSet<Module> = prefixes.collect();
    for parent in parents {
        let mut edges = Edges::new();
        for (module, file) in &files {
            for (target, line) in targets(module, file) {
                if let Some([from, to]) = siblings(&parent, module, &target, &modules) {
                    let place = (file.path.clone(), line);
                    edges.entry(from).or_default().entry(to).or_insert(place);
                }
            }
        }
        findings.extend(cycles(&edges));
    }
    findings
}

fn module_of(file: &RustFile, source: &Path) -> Module {
    let path = file.path.strip_prefix(source).unwrap_or(&file.path).with_extension("");
    let parts = path.iter().map(|part| part.to_string_lossy().into_owned());
    parts.filter(|part| !["mod", "lib", "main"].contains(&part.as_str())).collect()
}

/// The children of `parent` that hold `module` and `target`, if they differ.
fn siblings(
    parent: &[String],
    module: &[String],
    target: &[String],
    modules: &BTreeSet<Module>,
) -> Option<[Module; 2]> {
    let child = |path: &[String]| {
        let child = path.get(..=parent.len()).filter(|_| path.starts_with(parent))?;
        modules.iter().any(|module| module.starts_with(child)).then(|| child.to_vec())
    };
    let pair = [child(module)?, child(target)?];
    (pair[0] != pair[1]).then_some(pair)
}

/// What the paths `crate::…`, `super::…` and `self::…` outside of tests name, with their lines.
fn targets(module: &Module, file: &RustFile) -> Vec<(Module, usize)> {
    let mut targets = Vec::new();
    let mut index = 0;
    while index < file.tokens.len() {
        if is_for_tests(file, index) {
            index = end_of_item(file, file.closing(index + 1) + 1);
            continue;
        }
        let before = index.checked_sub(1).map_or("", |before| file.at(before));
        if before != ":" && file.matches(index + 1, ": :") {
            let base = match file.at(index) {
                "crate" => Some(vec![]),
                "super" => Some(module[..module.len().saturating_sub(1)].to_vec()),
                "self" => Some(module.clone()),
                _ => None,
            };
            if let Some(base) = base {
                leaves(file, index + 3, &base, &mut targets);
            }
        }
        index += 1;
    }
    targets
}

/// Whether an attribute begins at `index` that leaves its item to tests.
fn is_for_tests(file: &RustFile, index: usize) -> bool {
    let is_cfg = file.matches(index, "# [ cfg (");
    let mut inside = index..if is_cfg { file.closing(index + 1) } else { index };
    inside.clone().all(|at| !file.matches(at, "not ( test"))
        && inside.any(|at| file.at(at) == "test")
}

/// The modules that a file declares for tests alone.
fn test_modules(module: &Module, file: &RustFile) -> Vec<Module> {
    let attributes = (0..file.tokens.len()).filter(|index| is_for_tests(file, *index));
    let items = attributes.map(|index| file.closing(index + 1) + 1);
    let declared = items.filter_map(|item| {
        let at = (item..item + 5).find(|at| file.at(*at) == "mod")?; // behind `pub(crate)`
        Some(module.iter().cloned().chain([file.at(at + 1).to_owned()]).collect())
    });
    declared.collect()
}

/// The paths from the token at `index` on, which may be a group.
fn leaves(file: &RustFile, mut index: usize, base: &Module, targets: &mut Vec<(Module, usize)>) {
    let mut path = base.clone();
    loop {
        match file.at(index) {
            "{" => {
                let end = file.closing(index);
                let mut at = index + 1;
                while at < end {
                    leaves(file, at, &path, targets);
                    at = next_in_group(file, at, end);
                }
                return;
            }
            "super" => drop(path.pop()),
            name => path.push(name.to_owned()),
        }
        targets.push((path.clone(), file.tokens[index.min(file.tokens.len() - 1)].line));
        if !file.matches(index + 1, ": :") {
            return;
        }
        index += 3;
    }
}

/// The token behind the next comma of the same group.
fn next_in_group(file: &RustFile, mut at: usize, end: usize) -> usize {
    while at < end {
        match file.at(at) {
            "," => return at + 1,
            "{" | "(" | "[" => at = file.closing(at) + 1,
            _ => at += 1,
        }
    }
    end
}

/// The index behind the item that begins at `index`: its body, or its semicolon.
fn end_of_item(file: &RustFile, mut index: usize) -> usize {
    while index < file.tokens.len() {
        match file.at(index) {
            ";" => return index + 1,
            "{" => return file.closing(index) + 1,
            "(" | "[" => index = file.closing(index) + 1,
            _ => index += 1,
        }
    }
    index
}

/// One finding for each edge that lies on a shortest way back to where it begins.
fn cycles(edges: &Edges) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (from, targets) in edges {
        for (to, (path, line)) in targets {
            // Each cycle is told once, at the edge from its first module.
            if let Some(way) = way(edges, to, from)
                && way.iter().all(|module| from <= module)
            {
                let names: Vec<_> = [from].into_iter().chain(&way).map(|m| m.join("::")).collect();
                findings.push(Finding {
                    path: path.clone(),
                    line: *line,
                    rule: RULE,
                    problem: format!("modules in a cycle: {}", names.join(" -> ")),
                    remedy: REMEDY,
                });
            }
        }
    }
    findings
}

/// The shortest way from one module to another, both included.
fn way(edges: &Edges, from: &Module, to: &Module) -> Option<Vec<Module>> {
    let mut ways = std::collections::VecDeque::from([vec![from.clone()]]);
    let mut seen = BTreeSet::from([from.clone()]);
    while let Some(way) = ways.pop_front() {
        let last = way.last()?;
        if last == to {
            return Some(way);
        }
        for next in edges.get(last).into_iter().flat_map(BTreeMap::keys) {
            if seen.insert(next.clone()) {
                ways.push_back(way.iter().chain([next]).cloned().collect());
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems<const N: usize>(files: [(&str, &str); N]) -> Vec<String> {
        check(&Tree::from(files)).into_iter().map(|finding| finding.problem).collect()
    }

    const LIB: (&str, &str) = ("crates/ipc/src/lib.rs", "mod a; mod b; pub use crate::a::A;");

    #[test]
    fn two_modules_that_use_each_other_are_a_cycle_and_one_direction_is_none() {
        let a = ("crates/ipc/src/a.rs", "use crate::b::B; struct A(B);");
        assert_eq!(problems([LIB, a, ("crates/ipc/src/b.rs", "struct B;")]), [""; 0]);
        for b in [
            "use crate::a::A;",
            "use crate::{a::A, c};",
            "use super::a;",
            "fn f() -> crate::a::A { crate::a::A }",
        ] {
            let cycle = ["modules in a cycle: a -> b -> a"];
            assert_eq!(problems([LIB, a, ("crates/ipc/src/b.rs", b)]), cycle, "{b}");
        }
    }

    #[test]
    fn every_crate_is_judged_by_itself() {
        for source in ["crates/new/src", "crates/other/src"] {
            let file = |name: &str| format!("{source}/{name}");
            let [lib, a, b] = [file("lib.rs"), file("a.rs"), file("b.rs")];
            let files =
                [(&*lib, "mod a; mod b;"), (&*a, "use crate::b::B;"), (&*b, "use crate::a::A;")];
            assert_eq!(problems(files), ["modules in a cycle: a -> b -> a"], "{source}");
        }
        let apart =
            [("crates/x/src/a.rs", "use crate::b::B;"), ("crates/y/src/b.rs", "use crate::a::A;")];
        assert_eq!(problems(apart), [""; 0]);
    }

    #[test]
    fn a_long_cycle_is_told_once() {
        let files = [
            ("crates/client/src/a/mod.rs", "use crate::b::B;"),
            ("crates/client/src/b.rs", "use crate::c::C;"),
            ("crates/client/src/c.rs", "use crate::a::x::X;"),
        ];
        assert_eq!(problems(files), ["modules in a cycle: a -> b -> c -> a"]);
    }

    #[test]
    fn parts_of_one_module_are_in_one_direction_too() {
        let files = [
            ("crates/ipc/src/server/mod.rs", "mod x; mod y;"),
            ("crates/ipc/src/server/x.rs", "use super::y::Y;"),
            ("crates/ipc/src/server/y.rs", "use crate::server::x::X;"),
        ];
        assert_eq!(problems(files), ["modules in a cycle: server::x -> server::y -> server::x"]);
    }

    #[test]
    fn tests_do_not_count() {
        let test = "#[cfg(test)] mod tests { use crate::a::A; } fn f() {}";
        let a = ("crates/ipc/src/a.rs", "use crate::b::B;");
        assert_eq!(problems([LIB, a, ("crates/ipc/src/b.rs", test)]), [""; 0]);
        let lib = ("crates/ipc/src/lib.rs", "mod a; #[cfg(all(test, not_loom))] pub(crate) mod b;");
        assert_eq!(problems([lib, a, ("crates/ipc/src/b.rs", "use crate::a::A;")]), [""; 0]);
        let lib = ("crates/ipc/src/lib.rs", "mod a; #[cfg(not(test))] mod b;");
        assert_eq!(problems([lib, a, ("crates/ipc/src/b.rs", "use crate::a::A;")]).len(), 1);
        let files = [
            ("crates/ipc/tests/a.rs", "use crate::b::B;"),
            ("crates/ipc/tests/b.rs", "use crate::a::A;"),
        ];
        assert_eq!(problems(files), [""; 0]);
    }
}
