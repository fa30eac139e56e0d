//! Every numbered rule of a protocol is cited by a test: in a comment of a file of tests, or below
//! `mod tests`.

use std::collections::HashSet;

use super::{Finding, source::RustFile, tree::Tree};

const FOLDER: &str = "docs/protocol";
const RULE: &str = "rules";

/// Judges every document of a protocol.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let cited: HashSet<&str> = tree.rust().iter().flat_map(cited).collect();
    let documents = tree.texts().filter(|(path, _)| path.starts_with(FOLDER));
    let mut findings = Vec::new();
    for (path, text) in documents {
        let lines = (1..).zip(text.lines());
        let defined = lines.filter_map(|(line, text)| Some((line, defined(text)?)));
        for (line, name) in defined.filter(|(_, name)| !cited.contains(name)) {
            findings.push(Finding {
                path: path.into(),
                line,
                rule: RULE,
                problem: format!("no test cites {name}"),
                remedy: "name it in the comment of the test that proves it, or write one",
            });
        }
    }
    findings
}

/// The rule that a line of a document begins with.
fn defined(line: &str) -> Option<&str> {
    Some(line.strip_prefix("- **")?.split_once("**")?.0)
}

/// Whatever may be a rule in the comments of tests.
fn cited(file: &RustFile) -> impl Iterator<Item = &str> {
    let is_of_tests = file.path.iter().any(|part| part == "tests");
    let lines = file.text.lines().map(str::trim_start);
    let tests = lines.skip_while(move |line| !is_of_tests && *line != "mod tests {");
    let comments = tests.filter(|line| line.starts_with("//"));
    let words = comments.flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '.'));
    words.map(|word| word.trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_that_no_test_cites_is_found() {
        let document = "- **C1.1** One.\n- **C1.2** Two.\n- **C1.3** Three, see C1.4.\n- *C1.5*\n";
        let tree = Tree::from([
            ("docs/protocol/a.md", document),
            ("docs/b.md", "- **C9.9** No protocol."),
            ("crates/a/tests/b.rs", "/// Rules C1.1, and more.\nfn a() {}"),
            ("crates/a/src/c.rs", "// C1.2\nfn c() {}\n#[cfg(test)]\nmod tests {\n    // C1.3.\n}"),
        ]);
        let found = check(&tree);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].line, found[0].problem.as_str()), (2, "no test cites C1.2"));
    }
}
