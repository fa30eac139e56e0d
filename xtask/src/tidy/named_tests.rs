//! Tests that documents name exist: code spans that begin with `fault_` or `pitfall_`.

use std::collections::HashSet;

use super::{Finding, tree::Tree};

const PREFIXES: [&str; 2] = ["fault_", "pitfall_"];
const RULE: &str = "named-tests";

/// Judges every Markdown file.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let functions = functions(tree);
    let documents = tree.texts().filter(|(path, _)| path.extension().is_some_and(|e| e == "md"));
    let mut findings = Vec::new();
    for (path, text) in documents {
        for (index, line) in text.lines().enumerate() {
            for name in named(line).filter(|name| !functions.contains(name)) {
                findings.push(Finding {
                    path: path.into(),
                    line: index + 1,
                    rule: RULE,
                    problem: format!("no test `{name}`"),
                    remedy: "name the test that proves it, or write one",
                });
            }
        }
    }
    findings
}

/// Names of all functions, those that macros make of generic ones included.
fn functions(tree: &Tree) -> HashSet<&str> {
    let names = tree.rust().iter().flat_map(|file| {
        let functions = file.tokens.windows(2).filter(|pair| pair[0].text == "fn");
        functions.map(|pair| pair[1].text.as_str())
    });
    names.collect()
}

/// Tests that a line names.
fn named(line: &str) -> impl Iterator<Item = &str> {
    let spans = line.split('`').skip(1).step_by(2);
    spans.filter(|span| {
        PREFIXES.iter().any(|prefix| span.starts_with(prefix))
            && !span.ends_with('_')
            && span.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_nobody_wrote_is_found() {
        let text = "| A1 | `fault_a1_here`, `pitfall_2_gone` |\n| `other_gone` | fault_x, `fault_`, `fault_a1_…` |";
        let tree = Tree::from([("docs/a.md", text), ("a.rs", "#[test]\nfn fault_a1_here() {}")]);
        let found = check(&tree);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].line, found[0].problem.as_str()), (1, "no test `pitfall_2_gone`"));
    }
}
