//! Sentences of documents and comments have nouns as their subjects, such as `the daemon refuses the request`.
//!
//! The documents and crates of the lists hold it; others join the lists when they do.

use std::path::Path;

use super::{Finding, tree::Tree};

/// Documents that are judged.
const DOCUMENTS: [&str; 24] = [
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/benchmarks.md",
    "docs/daemon.md",
    "docs/examples.md",
    "docs/faults.md",
    "docs/hardware.md",
    "docs/ibverbs.md",
    "docs/install.md",
    "docs/ipc.md",
    "docs/kv.md",
    "docs/mlx5.md",
    "docs/names.md",
    "docs/performance.md",
    "docs/protocol/copyrpc.md",
    "docs/protocol/erpc.md",
    "docs/protocol/scalerpc.md",
    "docs/protocols.md",
    "docs/releasing.md",
    "docs/softnic.md",
    "docs/tcp.md",
    "docs/testing.md",
];

/// Folders of crates whose comments are judged.
pub(super) const CRATES: [&str; 16] = [
    "crates/config",
    "lab/conformance",
    "crates/dylib",
    "crates/erpc",
    "crates/ids",
    "crates/inproc",
    "lab/measure",
    "crates/pmix",
    "crates/proto",
    "lab/protocols",
    "crates/scalerpc",
    "crates/slots",
    "crates/tcp",
    "lab/ucp",
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

/// First words of a sentence that has no noun as its subject.
const STARTS: [&str; 2] = ["Who", "What"];

const RULE: &str = "grammar";

/// Judges the documents, and the comments of the crates, of the lists.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.documents().filter(|(path, _)| is_in(path, &DOCUMENTS)) {
        findings.extend(lines_of_prose(text).flat_map(|line| check_line(path, line)));
    }
    for file in tree.rust().iter().filter(|file| is_in(&file.path, &CRATES)) {
        findings.extend(comments(&file.text).flat_map(|line| check_line(&file.path, line)));
    }
    findings
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
    let words: Vec<_> = prose.split(|c: char| !c.is_alphanumeric()).collect();
    let padded = format!(" {} ", words.join(" ").to_lowercase());
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
    fn sentences_without_a_noun_are_found_in_judged_documents_alone() {
        for text in [
            "Then nobody waits.",
            "It is told, too.",
            "It has what is left.",
            "Who asks gets it.",
            "A. What follows is wrong.",
            "| a | What follows |",
        ] {
            assert_eq!(problems(DOCUMENTS[0], text), 1, "{text}");
            assert_eq!(problems("docs/other.md", text), 0, "{text}");
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
            assert_eq!(problems(DOCUMENTS[0], text), 0, "{text}");
        }
    }

    #[test]
    fn comments_of_judged_crates_are_judged_and_their_code_is_not() {
        let code = "//! Nobody waits.\n/// # Who owns\n/// The owner.\nfn f() { g(\"nobody\") } // free\n// Who.\n";
        assert_eq!(problems("crates/wire/src/a.rs", code), 2);
        assert_eq!(problems("lab/kv/src/a.rs", code), 0);
    }
}
