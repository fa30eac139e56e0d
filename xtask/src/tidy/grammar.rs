//! Sentences of documents have nouns as their subjects: "the daemon refuses the request", not "who asks is told".
//!
//! The documents of the list hold it; others join the list when they do.

use std::path::Path;

use super::{Finding, tree::Tree};

/// Documents that are judged.
const DOCUMENTS: [&str; 17] = [
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "docs/examples.md",
    "docs/faults.md",
    "docs/hardware.md",
    "docs/ibverbs.md",
    "docs/install.md",
    "docs/ipc.md",
    "docs/kv.md",
    "docs/mlx5.md",
    "docs/performance.md",
    "docs/protocols.md",
    "docs/releasing.md",
    "docs/softnic.md",
    "docs/tcp.md",
    "docs/testing.md",
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

/// Judges the documents of the list.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let judged =
        tree.documents().filter(|(path, _)| DOCUMENTS.iter().any(|d| path == &Path::new(d)));
    judged.flat_map(|(path, text)| check_text(path, text)).collect()
}

fn check_text(path: &Path, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut is_block = false;
    for (line, number) in text.lines().zip(1..) {
        is_block ^= line.trim_start().starts_with("```");
        if is_block || line.starts_with('#') {
            continue;
        }
        let prose = prose(line);
        let mut report = |problem: String, remedy| {
            let path = path.to_path_buf();
            findings.push(Finding { path, line: number, rule: RULE, problem, remedy });
        };
        let words: Vec<_> = prose.split(|c: char| !c.is_alphanumeric()).collect();
        let padded = format!(" {} ", words.join(" ").to_lowercase());
        for (phrase, remedy) in PHRASES {
            if padded.contains(&format!(" {phrase} ")) {
                report(format!("`{phrase}`"), remedy);
            }
        }
        for sentence in prose.split(['.', '|', ':']) {
            let first = sentence.split_whitespace().next().unwrap_or_default();
            if STARTS.contains(&first) {
                report(format!("a sentence begins with `{first}`"), "begin with a noun");
            }
        }
    }
    findings
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
}
