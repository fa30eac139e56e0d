//! The modules of a crate depend on each other in one direction: no module reaches itself by way of others.
//!
//! An edge is a path `crate::a::…` in code that is no test, from the module that holds it to `a`; inside one
//! module also from one of its parts to another. The crate's root is no module here, since it only re-exports.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use super::{
    Finding,
    product::{Module, sources, tokens},
    source::RustFile,
    tree::Tree,
};

const RULE: &str = "cycles";
const REMEDY: &str = "move what both need below both";

/// An edge, and the place that makes it.
type Edges = BTreeMap<Module, BTreeMap<Module, (PathBuf, usize)>>;

/// Judges the modules of every crate, those outside of the workspace included.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    sources(tree).iter().flat_map(|source| check_crate(&source.files)).collect()
}

fn check_crate(files: &[(Module, &RustFile)]) -> Vec<Finding> {
    let modules: BTreeSet<_> = files.iter().map(|(module, _)| module.clone()).collect();
    let mut findings = Vec::new();
    // The root's modules among each other, then the parts of each module.
    let prefixes =
        modules.iter().flat_map(|module| (0..module.len()).map(|n| module[..n].to_vec()));
    let parents: BTreeSet<Module> = prefixes.collect();
    for parent in parents {
        let mut edges = Edges::new();
        for (module, file) in files {
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

/// The modules that the paths `crate::…`, `super::…` and `self::…` outside of tests name, with their lines.
fn targets(module: &Module, file: &RustFile) -> Vec<(Module, usize)> {
    let mut targets = Vec::new();
    for index in tokens(file) {
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
    }
    targets
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

/// One finding for each edge that lies on a shortest way back to where it begins.
fn cycles(edges: &Edges) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (from, targets) in edges {
        for (to, (path, line)) in targets {
            // Each cycle is reported once, at the edge from its first module.
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
        for source in ["crates/new/src", "xtask/src", "lab/compare/src"] {
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
