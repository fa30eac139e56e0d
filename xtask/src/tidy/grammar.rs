//! Sentences of documents and comments have nouns as their subjects, such as `the daemon refuses the request`.
//!
//! All documents, all messages of the product, and the comments of the listed crates hold it. Types of these crates have
//! nouns as names; `docs/names.md` has the words.

use std::path::Path;

use super::{Finding, sizes::tests_line, source::RustFile, tree::Tree};

/// Folders of crates whose comments and types are judged.
pub(super) const CRATES: [&str; 17] = [
    "crates/command",
    "crates/config",
    "lab/conformance",
    "crates/os/src/dylib.rs",
    "crates/ids",
    "crates/inproc",
    "lab/measure",
    "crates/nics",
    "crates/bootstrap/src/pmix",
    "crates/proto",
    "crates/protocols",
    "crates/tcp",
    "crates/copyrpc/src/typed",
    "crates/verbs",
    "lab/kv/src/ucp",
    "crates/wire",
    "xtask",
];

/// Words that stand for a noun, and phrases that begin one.
const PHRASES: [(&str, &str); 12] = [
    ("nobody", "name the party: no client, no process"),
    ("somebody", "name the party"),
    ("everybody", "name the parties"),
    ("anybody", "name the parties"),
    ("whoever", "name the party"),
    ("told", "say who learns what: the client gets an error"),
    ("what is", "name the thing"),
    ("what was", "name the thing"),
    ("what are", "name the things"),
    ("what has", "name the thing"),
    ("what it", "name the thing"),
    ("who is", "name the party"),
];

/// Pronouns that stand for a party in a message: the words of the log, of errors and of help.
const IN_MESSAGES: usize = 6;

/// Participles that are no names of types.
const PARTICIPLES: [&str; 8] = ["Told", "Left", "Given", "Begun", "Said", "Made", "Taken", "Found"];

/// First words of a sentence that has no noun as its subject.
const STARTS: [&str; 2] = ["Who", "What"];

const RULE: &str = "grammar";

/// Judges the documents, and the comments of the crates, of the lists.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.documents() {
        findings.extend(lines_of_prose(text).flat_map(|line| check_line(path, line)));
    }
    for file in tree.rust().iter().filter(|file| is_in(&file.path, &CRATES)) {
        findings.extend(comments(&file.text).flat_map(|line| check_line(&file.path, line)));
        findings.extend(participles(file));
    }
    for file in tree.rust().iter().filter(|file| is_product(file)) {
        findings.extend(messages(file).flat_map(|message| check_message(&file.path, message)));
    }
    findings
}

/// Types whose names are participles.
fn participles(file: &RustFile) -> impl Iterator<Item = Finding> {
    let is_type = |word: &str| ["struct", "enum", "trait", "type"].contains(&word);
    let pairs = file.tokens.windows(2).filter(move |pair| is_type(&pair[0].text));
    pairs.filter(|pair| PARTICIPLES.contains(&&*pair[1].text)).map(|pair| Finding {
        path: file.path.clone(),
        line: pair[1].line,
        rule: RULE,
        problem: format!("a type is called `{}`", pair[1].text),
        remedy: "use a noun of the field; docs/names.md has a table",
    })
}

fn is_product(file: &RustFile) -> bool {
    let is_test = file.path.iter().any(|part| part == "tests" || part == "tests.rs");
    file.is_crate_source() && file.is_in("crates") && !is_test
}

/// Numbered string literals of several words, before the tests of a file.
fn messages(file: &RustFile) -> impl Iterator<Item = (usize, &str)> {
    let tests = tests_line(file).unwrap_or(usize::MAX);
    let strings = file.tokens.iter().filter(move |token| token.line < tests);
    // A doc comment is a string to the parser, and begins otherwise in the file.
    let strings = strings.filter(|token| file.text[token.start..].starts_with('"'));
    strings.map(|token| (token.line, &*token.text)).filter(|(_, text)| text.contains(' '))
}

fn check_message(path: &Path, (line, text): (usize, &str)) -> Vec<Finding> {
    let padded = padded_words(&prose(text));
    let found =
        PHRASES[..IN_MESSAGES].iter().filter(|(word, _)| padded.contains(&format!(" {word} ")));
    let finding = |(word, remedy): &(&str, &'static str)| Finding {
        path: path.to_path_buf(),
        line,
        rule: RULE,
        problem: format!("a message says `{word}`"),
        remedy,
    };
    found.map(finding).collect()
}

/// The words of a text in lower case, each between blanks.
fn padded_words(text: &str) -> String {
    let words: Vec<_> = text.split(|c: char| !c.is_alphanumeric()).collect();
    format!(" {} ", words.join(" ").to_lowercase())
}

/// Whether one of `places` holds `path`.
pub(super) fn is_in(path: &Path, places: &[&str]) -> bool {
    places.iter().any(|place| path.starts_with(place))
}

/// Numbered lines outside of blocks of code, without headings.
fn lines_of_prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_block = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        is_block ^= line.trim_start().starts_with("```");
        !is_block && !line.starts_with('#')
    })
}

/// Numbered lines that are comments, without their slashes.
fn comments(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(text.lines()).filter_map(|(number, line)| {
        let comment = line.trim_start().strip_prefix("//")?;
        let comment = comment.trim_start_matches(['/', '!']).trim_start();
        (!comment.starts_with('#')).then_some((number, comment))
    })
}

fn check_line(path: &Path, (number, line): (usize, &str)) -> Vec<Finding> {
    let prose = prose(line);
    let padded = padded_words(&prose);
    let phrases = PHRASES.iter().filter(|(phrase, _)| padded.contains(&format!(" {phrase} ")));
    let mut problems: Vec<_> =
        phrases.map(|(phrase, remedy)| (format!("`{phrase}`"), *remedy)).collect();
    for sentence in prose.split(['.', '|', ':']) {
        let first = sentence.split_whitespace().next().unwrap_or_default();
        if STARTS.contains(&first) {
            problems.push((format!("a sentence begins with `{first}`"), "begin with a noun"));
        }
    }
    let finding = |(problem, remedy)| Finding {
        path: path.to_path_buf(),
        line: number,
        rule: RULE,
        problem,
        remedy,
    };
    problems.into_iter().map(finding).collect()
}

/// A line without its code and the targets of its links.
fn prose(line: &str) -> String {
    let text: String = line.split('`').step_by(2).collect::<Vec<_>>().join("x");
    let parts = text.split("](").enumerate();
    parts
        .map(|(at, part)| if at == 0 { part } else { part.split_once(')').map_or("", |p| p.1) })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(document: &str, text: &str) -> usize {
        check(&Tree::from([(document, text)])).len()
    }

    #[test]
    fn sentences_without_a_noun_are_found() {
        for text in [
            "Then nobody waits.",
            "It is told, too.",
            "It has what is left.",
            "Who asks gets it.",
            "A. What follows is wrong.",
            "| a | What follows |",
        ] {
            assert_eq!(problems("docs/a.md", text), 1, "{text}");
        }
    }

    #[test]
    fn headings_code_and_targets_of_links_may_say_it() {
        for text in [
            "# What is absent",
            "```\nWho is told what is here\n```",
            "The test `nobody_waits`, `what is`.",
            "See [here](what-is.md#nobody).",
            "The daemon says that the client is gone.",
        ] {
            assert_eq!(problems("docs/a.md", text), 0, "{text}");
        }
    }

    #[test]
    fn comments_of_judged_crates_are_judged_and_their_code_is_not() {
        let code = "//! Nobody waits.\n/// # Who owns\n/// The owner.\nfn f() { g(\"nobody\") } // free\n// Who.\n";
        assert_eq!(problems("crates/wire/src/a.rs", code), 2);
        assert_eq!(problems("lab/kv/src/a.rs", code), 0);
    }

    #[test]
    fn types_of_judged_crates_are_nouns() {
        assert_eq!(problems("crates/wire/src/a.rs", "enum Told {} struct Report; fn left() {}"), 1);
        assert_eq!(problems("lab/kv/src/a.rs", "enum Told {}"), 0);
    }

    #[test]
    fn messages_of_the_product_name_parties() {
        let code = "fn f() { g(\"nobody waits\"); g(\"nobody\"); g(\"`nobody` is a word\"); }\n/// Nobody waits.\n#[cfg(test)] mod t { fn f() { g(\"who is told\") } }\n";
        assert_eq!(problems("crates/other/src/a.rs", code), 1);
        assert_eq!(problems("lab/other/src/a.rs", code), 0);
    }
}
