//! One statement binds one thing: `let (a, b) = (x, y);` is two statements in one.
//!
//! The crates of the list hold it; others join the list when they do.

use super::{Finding, grammar, source::RustFile, tree::Tree};

const RULE: &str = "statements";

/// Judges the crates whose comments are judged, too.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let judged = tree.rust().iter().filter(|file| grammar::is_in(&file.path, &grammar::CRATES));
    judged.flat_map(check_file).collect()
}

fn check_file(file: &RustFile) -> impl Iterator<Item = Finding> {
    file.find("let (").filter(|&start| is_pair(file, start)).map(|start| Finding {
        path: file.path.clone(),
        line: file.tokens[start].line,
        rule: RULE,
        problem: "a tuple is bound to a tuple".into(),
        remedy: "write a statement for each",
    })
}

/// Whether `let (` at `start` goes on as `…) = (…, …);`.
fn is_pair(file: &RustFile, start: usize) -> bool {
    let value = closing(file, start + 1) + 2;
    if file.at(value - 1) != "=" || file.at(value) != "(" {
        return false;
    }
    let end = closing(file, value);
    file.at(end + 1) == ";" && (value..end).any(|at| file.at(at) == ",")
}

/// The index of the bracket that closes the one at `open`.
fn closing(file: &RustFile, open: usize) -> usize {
    let mut depth = 0_usize;
    for at in open..file.tokens.len() {
        match file.at(at) {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    file.tokens.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tuple_of_expressions_is_found_and_a_tuple_of_a_call_is_not() {
        for (statement, is_found) in [
            ("let (a, b) = (1, f(2));", true),
            ("let (mut a, b) = (\n    g(|x| (x, 1)),\n    2,\n);", true),
            ("let (a, b) = f(1, 2);", false),
            ("let (a, b) = (f)(1, 2);", false),
            ("let (a, b) = (f());", false),
            ("let a = (1, 2);", false),
            ("let (a, b) = (1, 2) else { return };", false),
            ("let (a, b) = x.split_at(1);", false),
        ] {
            let text = format!("fn f() {{ {statement} }}");
            let found = |path: &str| check(&Tree::from([(path, text.as_str())])).len();
            assert_eq!(found("crates/wire/src/a.rs"), usize::from(is_found), "{statement}");
            assert_eq!(found("lab/kv/src/a.rs"), 0, "{statement}");
        }
    }
}
