//! Code that a document shows as part of an example is that example's code.
//!
//! A fenced Rust block is an excerpt if the paragraph before it links to a file of a folder `examples`. Its
//! lines follow each other in that file. Indentation and empty lines do not count.

use std::path::Path;

use super::{Finding, links::resolve, tree::Tree};

const RULE: &str = "excerpts";

/// Judges every Markdown file.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    tree.documents().flat_map(|(path, text)| check_document(tree, path, text)).collect()
}

fn check_document(tree: &Tree, path: &Path, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let lines: Vec<_> = text.lines().collect();
    let mut example = None;
    let mut index = 0;
    while index < lines.len() {
        let line = lines[index].trim();
        index += 1;
        if let Some(language) = line.strip_prefix("```") {
            let end = lines[index..].iter().position(|line| line.trim() == "```");
            let block = &lines[index..index + end.unwrap_or(lines.len() - index)];
            if let Some(example) = example.take().filter(|_| language.starts_with("rust")) {
                let file = resolve(path, example);
                let shown = tree.text(&file).unwrap_or_default();
                if let Some(line) = first_foreign(block, shown) {
                    findings.push(Finding {
                        path: path.into(),
                        line: index + 1 + line,
                        rule: RULE,
                        problem: format!("`{}` has no such lines", file.display()),
                        remedy: "show the example as it is",
                    });
                }
            }
            index += block.len() + 1;
        } else if line.is_empty() {
            // The paragraph before a block may be followed by an empty line.
            let is_block = lines.get(index).is_some_and(|next| next.trim().starts_with("```"));
            example = example.filter(|_| is_block);
        } else {
            example = linked_example(line).or(example);
        }
    }
    findings
}

/// The target of a link to an example.
fn linked_example(line: &str) -> Option<&str> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    targets.map(|(target, _)| target).find(|target| {
        target.split('/').any(|part| part == "examples")
            && Path::new(target).extension().is_some_and(|extension| extension == "rs")
    })
}

/// The first line of `block` that does not follow the lines before it anywhere in `file`.
fn first_foreign(block: &[&str], file: &str) -> Option<usize> {
    let dense = |line: &&str| !line.is_empty();
    let file: Vec<_> = file.lines().map(str::trim).filter(dense).collect();
    let numbered = block.iter().map(|line| line.trim()).enumerate();
    let block: Vec<_> = numbered.filter(|(_, line)| !line.is_empty()).collect();
    let alike = |at: &[&str]| block.iter().zip(at).take_while(|((_, a), b)| a == *b).count();
    let longest = (0..file.len()).map(|at| alike(&file[at..])).max().unwrap_or(0);
    block.get(longest).map(|(line, _)| *line)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = "fn main() {\n    let a = 1;\n\n    let b = 2;\n    drop((a, b));\n}\n";

    fn lines(document: &str) -> Vec<usize> {
        let tree = Tree::from([("README.md", document), ("crates/a/examples/b.rs", EXAMPLE)]);
        check(&tree).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn an_excerpt_is_found_whatever_its_indentation() {
        let text = "See [b](crates/a/examples/b.rs):\n\n```rust\nlet a = 1;\nlet b = 2;\n```\n";
        assert_eq!(lines(text), [0; 0]);
    }

    #[test]
    fn lines_that_the_example_lacks_or_has_apart_are_reported() {
        let text = "See [b](crates/a/examples/b.rs):\n\n```rust\nlet a = 1;\nlet b = 3;\n```\n";
        assert_eq!(lines(text), [5]);
        let text = "See [b](crates/a/examples/b.rs):\n```rust\nlet a = 1;\ndrop((a, b));\n```\n";
        assert_eq!(lines(text), [4]);
        let text = "See [b](crates/a/examples/none.rs):\n```rust\nlet a = 1;\n```\n";
        assert_eq!(lines(text), [3]);
    }

    #[test]
    fn other_blocks_are_nobodys() {
        let text = "See [b](crates/a/examples/b.rs).\n\nOr:\n\n```rust\nlet c = 1;\n```\n";
        assert_eq!(lines(text), [0; 0]);
        let text = "See [b](crates/a/examples/b.rs):\n\n```console\n$ cargo run\n```\n";
        assert_eq!(lines(text), [0; 0]);
    }
}
