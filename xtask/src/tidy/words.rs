//! Words that do not belong in a finished tree: notes to oneself, paths of one machine, holes.

use std::path::Path;

use super::{Finding, source::RustFile, tree::Tree};

// Written apart, so that this file may be judged like any other.
const NOTES: [&str; 2] = [concat!("FIX", "ME"), concat!("XX", "X")];
const MACHINE_PATHS: [&str; 4] =
    [concat!("/wo", "rk/"), concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/tm", "p/")];

/// Rust tokens and what to do about them.
const HOLES: [(&str, &str); 3] = [
    ("todo !", "finish it, or leave it out"),
    ("unimplemented !", "finish it, or leave it out"),
    ("# [ ignore ]", "write `#[ignore = \"reason\"]`"),
];

/// A doc comment of up to three words that begins with one of these says nothing.
const QUESTIONS: [&str; 7] = ["What", "Who", "Where", "Which", "How", "When", "Why"];

const RULE: &str = "words";

/// Judges every text file.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings: Vec<_> =
        tree.texts().flat_map(|(path, text)| check_text(path, text)).collect();
    findings.extend(tree.rust().iter().flat_map(check_rust));
    let rust = tree.texts().filter(|(path, _)| path.extension().is_some_and(|end| end == "rs"));
    findings.extend(rust.flat_map(|(path, text)| check_docs(path, text)));
    findings
}

/// Finds doc comments such as `Which.`, which repeat a question instead of answering it.
fn check_docs(path: &Path, text: &str) -> Vec<Finding> {
    let lines: Vec<_> = text.lines().map(|line| line.trim().strip_prefix("/// ")).collect();
    let alone = |at: usize| lines.get(at).copied().flatten().is_none();
    let stubs = lines.iter().enumerate().filter(|(at, line)| {
        line.is_some_and(is_stub) && alone(at.wrapping_sub(1)) && alone(at + 1)
    });
    let finding = |(at, line): (usize, &Option<&str>)| Finding {
        path: path.to_path_buf(),
        line: at + 1,
        rule: RULE,
        problem: format!("`{}`", line.unwrap_or_default()),
        remedy: "say what it is: a shape, a unit, an owner, a reason",
    };
    stubs.map(finding).collect()
}

fn is_stub(line: &str) -> bool {
    let words: Vec<_> = line.split(' ').collect();
    words.len() <= 3 && line.ends_with('.') && QUESTIONS.contains(&words[0].trim_end_matches('.'))
}

fn check_text(path: &Path, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let mut report = |word: &str, remedy| {
            let path = path.to_path_buf();
            let line = index + 1;
            findings.push(Finding { path, line, rule: RULE, problem: format!("`{word}`"), remedy });
        };
        for word in NOTES.iter().filter(|word| has_word(line, word)) {
            report(word, "do it now, or write an issue");
        }
        for word in MACHINE_PATHS.iter().filter(|word| has_path(line, word)) {
            report(word, "use a relative path, or `std::env::temp_dir()`");
        }
    }
    findings
}

fn check_rust(file: &RustFile) -> Vec<Finding> {
    let hits = HOLES.iter().flat_map(|(hole, remedy)| {
        file.find(hole).map(move |index| Finding {
            path: file.path.clone(),
            line: file.tokens[index].line,
            rule: RULE,
            problem: format!("`{}`", hole.replace(' ', "")),
            remedy,
        })
    });
    hits.collect()
}

fn has_word(line: &str, word: &str) -> bool {
    line.split(|c: char| !c.is_alphanumeric()).any(|candidate| candidate == word)
}

/// Whether `prefix` begins a path: `https://example.org/home/` does not count.
fn has_path(line: &str, prefix: &str) -> bool {
    let is_start = |c: char| !c.is_alphanumeric() && !matches!(c, '.' | '_' | '-' | '}' | ')');
    line.match_indices(prefix).any(|(at, _)| line[..at].chars().next_back().is_none_or(is_start))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(path: &str, text: &str) -> Vec<String> {
        check(&Tree::from([(path, text)])).into_iter().map(|f| f.problem).collect()
    }

    #[test]
    fn questions_are_no_documentation() {
        let stub =
            "struct A {\n    /// Which.\n    name: u32,\n    /// Where to.\n    at: u32,\n}\n";
        assert_eq!(problems("a.rs", stub), ["`Which.`", "`Where to.`"]);
        let said = "/// Which.\n/// It is the name of the child.\nfn a() {}\n/// What the child is called.\n";
        assert_eq!(problems("a.rs", said), Vec::<String>::new());
    }

    #[test]
    fn notes_are_found_as_whole_words() {
        for word in NOTES {
            assert_eq!(problems("a.md", &format!("a {word}: b")), [format!("`{word}`")]);
            assert_eq!(problems("a.md", &format!("a{word}b {word}{word}")), [""; 0]);
        }
    }

    #[test]
    fn paths_of_one_machine_are_found_anywhere() {
        for path in MACHINE_PATHS {
            assert_eq!(problems("a.toml", &format!("x = \"{path}b\"")), [format!("`{path}`")]);
            assert_eq!(problems("a.toml", &format!("https://example.org{path}b")), [""; 0]);
            assert_eq!(problems("a.toml", path.trim_end_matches('/')), [""; 0]);
        }
    }

    #[test]
    fn holes_are_found_in_code_alone() {
        let code =
            [concat!("fn f() { to", "do!() }"), concat!("fn f() { unimple", "mented!(\"x\") }")];
        for code in code {
            assert_eq!(problems("a.rs", code).len(), 1, "{code}");
            assert_eq!(problems("a.rs", &format!("// {code}")), [""; 0], "{code}");
        }
        assert_eq!(problems("a.rs", "#[test]\n#[ignore]\nfn f() {}").len(), 1);
        assert_eq!(problems("a.rs", "#[test]\n#[ignore = \"slow\"]\nfn f() {}"), [""; 0]);
    }
}
