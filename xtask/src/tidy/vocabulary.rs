//! Metaphors that were once names here, each with the field's word. A newcomer who searches for the usual word
//! must find the code.

use std::path::Path;

use super::{Finding, source::RustFile, tree::Tree};

/// A word that is no name, as a part of an identifier or in prose, and its replacement. The words are written
/// apart, so that this file may be judged like any other.
const WORDS: [(&str, &str); 12] = [
    (concat!("lob", "by"), "say handoff, or reply lanes"),
    (concat!("led", "ger"), "say call table"),
    (concat!("bea", "con"), "say sleep flag"),
    (concat!("err", "and"), "say thread request"),
    (concat!("mou", "rned"), "say quarantined"),
    (concat!("whi", "ther"), "say destination"),
    (concat!("est", "ate"), "say recovery"),
    (concat!("ask", "er"), "say ReplyTo, or caller"),
    (concat!("sense", "less"), "say usage error"),
    (concat!("du", "o"), "say process pair"),
    (concat!("cr", "ew"), "say threads, or children"),
    (concat!("ab", "road"), "say cross-thread"),
];

/// Ordinary words that are no names of types.
const TYPES: [(&str, &str); 8] = [
    ("House", "name the state that it holds"),
    ("Hall", "say ReceiverState"),
    ("Bed", "say Parker"),
    ("Door", "say Acceptor"),
    ("Office", "say Dispatcher"),
    ("Crowd", "say CoreContention"),
    ("Party", "say Endpoint"),
    ("Seat", "say ThreadHandle"),
];

/// Tokens in front of the name of a type.
const DEFINES: [&str; 5] = ["struct", "enum", "trait", "union", "type"];

const RULE: &str = "vocabulary";

/// Judges every Rust file and every document.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let is_judged = |path: &Path| {
        path.extension().is_some_and(|extension| extension == "rs" || extension == "md")
    };
    let texts = tree.texts().filter(|(path, _)| is_judged(path));
    let mut findings: Vec<_> = texts.flat_map(|(path, text)| check_text(path, text)).collect();
    findings.extend(tree.rust().iter().flat_map(check_types));
    findings
}

fn check_text(path: &Path, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        for word in words(line) {
            let single = word.strip_suffix('s').unwrap_or(&word);
            let banned = WORDS.iter().find(|(banned, _)| *banned == word || *banned == single);
            if let Some((_, remedy)) = banned {
                let path = path.to_path_buf();
                let problem = format!("`{word}` is no name here");
                findings.push(Finding { path, line: number, rule: RULE, problem, remedy });
            }
        }
    }
    findings
}

/// The words of a line in lower case: identifiers are split at `_` and where a capital begins a word.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for run in line.split(|c: char| !c.is_alphanumeric()) {
        let mut word = String::new();
        let mut was_lower = false;
        for c in run.chars() {
            if c.is_uppercase() && was_lower {
                words.push(core::mem::take(&mut word));
            }
            was_lower = !c.is_uppercase();
            word.extend(c.to_lowercase());
        }
        words.push(word);
    }
    words
}

fn check_types(file: &RustFile) -> Vec<Finding> {
    let names = file
        .tokens
        .iter()
        .enumerate()
        .skip(1)
        .filter(|(index, _)| DEFINES.contains(&file.at(index - 1)));
    let banned = names.filter_map(|(_, token)| {
        let (_, remedy) = TYPES.iter().find(|(name, _)| *name == token.text)?;
        let path = file.path.clone();
        let problem = format!("`{}` names a type", token.text);
        Some(Finding { path, line: token.line, rule: RULE, problem, remedy })
    });
    banned.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(path: &str, text: &str) -> usize {
        check(&Tree::from([(path, text)])).len()
    }

    #[test]
    fn a_banned_word_is_found_in_prose_and_in_identifiers_of_every_case() {
        let (word, _) = WORDS[0];
        let camel = format!("{}{}", word[..1].to_uppercase(), &word[1..]);
        let upper = word.to_uppercase();
        for text in [
            word.to_owned(),
            format!("The {word}, too."),
            format!("in_{word}_of"),
            format!("In{camel}Of"),
            format!("IN_{upper}"),
            format!("{word}s"),
        ] {
            assert_eq!(problems("a.md", &text), 1, "{text}");
        }
        for text in [format!("a{word}"), format!("{word}ing"), String::new()] {
            assert_eq!(problems("a.md", &text), 0, "{text}");
        }
        assert_eq!(problems("a.txt", word), 0);
    }

    #[test]
    fn an_ordinary_word_is_refused_as_the_name_of_a_type_only() {
        for define in DEFINES {
            assert_eq!(problems("a.rs", &format!("{define} House X")), 1, "{define}");
        }
        assert_eq!(problems("a.rs", "// A House.\nstruct Houses; fn house() { House::new() }"), 0);
    }
}
