//! Words that do not belong in a finished tree: notes to oneself, paths of one machine.

use std::path::Path;

use super::{Finding, tree::Tree};

// Written apart, so that this file may be judged like any other.
const NOTES: [&str; 2] = [concat!("FIX", "ME"), concat!("XX", "X")];
const MACHINE_PATHS: [&str; 4] =
    [concat!("/wo", "rk/"), concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/tm", "p/")];

const RULE: &str = "words";

/// Judges every text file.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    tree.texts().flat_map(|(path, text)| check_text(path, text)).collect()
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
}
