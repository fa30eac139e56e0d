//! The name of a public type has one meaning. A name that several crates define stands in the table of
//! `docs/names.md`, with the meaning that it has in each of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use super::{Finding, product, tree::Tree};

/// Holds a table whose first column has names and whose second column has their meanings.
const TABLE: &str = "docs/names.md";

const DEFINES: [&str; 5] = ["struct", "enum", "trait", "union", "type"];

const RULE: &str = "names";

/// The first definition in each crate, by name.
type Definitions = BTreeMap<String, BTreeMap<PathBuf, (PathBuf, usize)>>;

/// Judges types that are `pub`, whether or not other crates reach them, outside of tests.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let definitions = definitions(tree);
    let table = table(tree);
    let shared: BTreeSet<&str> = table.iter().map(|(name, _)| name.as_str()).collect();
    let mut findings = Vec::new();
    for (name, crates) in definitions.iter().filter(|(name, _)| !shared.contains(name.as_str())) {
        // Each crate's definition but the first is reported.
        let mut places = crates.values();
        let Some((first, line)) = places.next() else { continue };
        for (path, at) in places {
            let problem = format!("`{name}` is also defined at {}:{line}", first.display());
            let remedy = "rename one of them; if they mean the same, say what in docs/names.md";
            findings.push(Finding { path: path.clone(), line: *at, rule: RULE, problem, remedy });
        }
    }
    for (name, line) in &table {
        if definitions.get(name).is_none_or(|crates| crates.len() < 2) {
            let problem = format!("no two crates define `{name}`");
            let path = PathBuf::from(TABLE);
            let remedy = "remove it from the table";
            findings.push(Finding { path, line: *line, rule: RULE, problem, remedy });
        }
    }
    findings
}

fn definitions(tree: &Tree) -> Definitions {
    let mut definitions = Definitions::new();
    for source in product::sources(tree) {
        for (_, file) in &source.files {
            let public = product::tokens(file).into_iter().filter(|at| file.at(*at) == "pub");
            let types = public.filter_map(|at| {
                let define = at + 1 + usize::from(file.at(at + 1) == "unsafe");
                // A macro's `$name` names nothing yet.
                let is_type = DEFINES.contains(&file.at(define)) && file.at(define + 1) != "$";
                is_type.then_some(define + 1)
            });
            for at in types {
                let by_crate = definitions.entry(file.at(at).to_owned()).or_default();
                let place = (file.path.clone(), file.tokens[at].line);
                by_crate.entry(source.folder.clone()).or_insert(place);
            }
        }
    }
    definitions
}

/// The names of the table, with their lines.
fn table(tree: &Tree) -> Vec<(String, usize)> {
    let text = tree.text(Path::new(TABLE)).unwrap_or_default();
    let row = |(line, number): (&str, usize)| {
        let (names, _) = line.strip_prefix("| `")?.split_once("` |")?;
        let names: Vec<_> = names.split("`, `").map(|name| (name.to_owned(), number)).collect();
        Some(names)
    };
    text.lines().zip(1..).filter_map(row).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: (&str, &str) = ("crates/a/src/lib.rs", "pub struct Route; pub struct $name;");

    fn problems<const N: usize>(files: [(&str, &str); N]) -> Vec<String> {
        check(&Tree::from(files)).into_iter().map(|finding| finding.problem).collect()
    }

    #[test]
    fn a_name_that_two_crates_define_is_refused_once() {
        let problem = "`Route` is also defined at crates/a/src/lib.rs:1";
        for define in ["struct", "enum", "trait", "union", "type", "unsafe trait"] {
            for path in ["crates/b/src/x.rs", "xtask/src/main.rs"] {
                let code = format!("pub {define} Route");
                assert_eq!(problems([A, (path, &code)]), [problem], "{path}: {code}");
            }
        }
    }

    #[test]
    fn private_names_tests_re_exports_and_second_definitions_in_a_crate_are_not() {
        for code in [
            "struct Route;",
            "pub(crate) struct Route;",
            "pub use a::Route;",
            "#[cfg(test)] mod tests { pub struct Route; }",
            "impl X for Y { type Route = u8; }",
            "macro_rules! m { ($name:ident) => { pub struct $name; } }",
        ] {
            assert_eq!(problems([A, ("crates/b/src/lib.rs", code)]), [""; 0], "{code}");
        }
        let again = "pub mod c { pub struct Route; }";
        assert_eq!(problems([A, ("crates/a/src/b.rs", again)]), [""; 0]);
        assert_eq!(problems([A, ("crates/b/tests/c.rs", "pub struct Route;")]), [""; 0]);
    }

    #[test]
    fn a_name_of_the_table_may_repeat_and_has_to() {
        let table = (TABLE, "| name | meaning |\n|---|---|\n| `Route` | the way to a port |\n");
        let b = ("crates/b/src/lib.rs", "pub enum Route {}");
        assert_eq!(problems([A, b, table]), [""; 0]);
        assert_eq!(problems([A, table]), ["no two crates define `Route`"]);
        let two = (TABLE, "| `Route`, `Way` | a way to a port |\n");
        assert_eq!(problems([A, b, two]), ["no two crates define `Way`"]);
    }
}
