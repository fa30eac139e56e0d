//! Links between documents lead somewhere, and `docs/SUMMARY.md`, the contents of the site, links each document.

use std::{
    collections::HashSet,
    path::{Component, Path, PathBuf},
};

use super::{Finding, tree::Tree};

/// The contents of the site.
pub(crate) const SUMMARY: &str = "docs/SUMMARY.md";

const RULE: &str = "links";

/// Judges every Markdown file.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let documents = tree.documents().flat_map(|(path, text)| check_document(tree, path, text));
    documents.chain(unlisted(tree)).collect()
}

/// Documents that the summary, if there is one, does not link.
fn unlisted(tree: &Tree) -> impl Iterator<Item = Finding> {
    let summary = tree.text(Path::new(SUMMARY));
    let pages = tree.documents().filter(|(path, _)| *path != Path::new(SUMMARY));
    pages.filter_map(move |(path, _)| {
        let below = path.strip_prefix("docs").map(|path| format!("]({})", path.display()));
        let link = below.unwrap_or_else(|_| format!("](../{})", path.display()));
        (!summary?.contains(&link)).then(|| Finding {
            path: path.into(),
            line: 1,
            rule: RULE,
            problem: format!("{SUMMARY} does not link it"),
            remedy: "add it to the summary, or it is not on the site",
        })
    })
}

/// Whether the file is a document.
pub(crate) fn is_markdown(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "md")
}

fn check_document(tree: &Tree, path: &Path, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (line, prose) in prose(text) {
        for target in targets(&prose).filter(|target| !is_external(target)) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = if file.is_empty() { path.into() } else { resolve(path, file) };
            let Some(problem) = broken(tree, &file, anchor) else { continue };
            let remedy = "fix the link, or write what it promises";
            findings.push(Finding { path: path.into(), line, rule: RULE, problem, remedy });
        }
    }
    findings
}

/// Why a link to `file#anchor` leads nowhere, if it does.
fn broken(tree: &Tree, file: &Path, anchor: &str) -> Option<String> {
    if !tree.contains(file) {
        return Some(format!("no file `{}`", file.display()));
    }
    let text = tree.text(file).unwrap_or_default();
    let is_missing = !anchor.is_empty() && is_markdown(file) && !anchors(text).contains(anchor);
    is_missing.then(|| format!("no anchor `#{anchor}` in `{}`", file.display()))
}

/// Whether a link leads out of the tree.
pub(crate) fn is_external(target: &str) -> bool {
    target.contains("://") || target.starts_with("mailto:")
}

/// `target` as seen from the file `from`, without `.` and `..`.
pub(crate) fn resolve(from: &Path, target: &str) -> PathBuf {
    let mut resolved = from.parent().unwrap_or(Path::new("")).to_path_buf();
    for component in Path::new(target).components() {
        match component {
            Component::ParentDir => drop(resolved.pop()),
            Component::CurDir => {}
            other => resolved.push(other),
        }
    }
    resolved
}

/// Numbered lines outside code blocks, without inline code.
fn prose(text: &str) -> Vec<(usize, String)> {
    let mut is_code = false;
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            lines.push((index + 1, line.split('`').step_by(2).collect()));
        }
    }
    lines
}

/// Targets of `[text](target)` and `[text]: target`.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    let inline = line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
    let definition = line.starts_with('[').then(|| line.split_once("]: ")).flatten();
    inline.chain(definition.and_then(|(_, target)| target.split(' ').next()))
}

/// The anchors that `#...` may name: headings as GitHub slugs them, and explicit `id="..."`.
fn anchors(text: &str) -> HashSet<String> {
    let mut anchors = HashSet::new();
    let mut is_code = false;
    for line in text.lines() {
        is_code ^= line.trim_start().starts_with("```");
        if is_code {
            continue;
        }
        let ids = line.split("id=\"").skip(1).filter_map(|rest| rest.split('"').next());
        anchors.extend(ids.map(String::from));
        let heading = line.trim_start_matches('#');
        if heading.len() < line.len() && heading.starts_with(' ') {
            let slug = slug(heading);
            let is_new = |candidate: &String| !anchors.contains(candidate);
            let numbered = (1..).map(|n| format!("{slug}-{n}"));
            let free = std::iter::once(slug.clone()).chain(numbered).find(is_new);
            anchors.extend(free);
        }
    }
    anchors
}

fn slug(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: (&str, &str) = (
        "docs/spec.md",
        "# The ring\n\n## RING-4: credit\nA head that passes the tail\nis *refused*.\n\
         ## Twice\n## Twice\n<a id=\"own\"></a>\n```\n# not a heading\n```\n",
    );

    fn problems(path: &str, text: &str) -> Vec<String> {
        check(&Tree::from([SPEC, (path, text)])).into_iter().map(|f| f.problem).collect()
    }

    #[test]
    fn links_that_resolve_are_content() {
        let text = "# Own\n[a](docs/spec.md) [b](docs/spec.md#ring-4-credit) [c](#own) [d](docs)\n\
                    [e](https://example.org/x) [f](docs/spec.md#twice-1) [g](docs/spec.md#own)\n\
                    `[h](gone.md)`\n```\n[i](gone.md)\n```\n[j]: docs/spec.md \"title\"\n";
        assert_eq!(problems("README.md", text), [""; 0]);
        assert_eq!(
            problems("docs/deep/a.md", "[a](../spec.md) [b](./../../docs/spec.md)"),
            [""; 0]
        );
    }

    #[test]
    fn links_to_nowhere_are_reported() {
        assert_eq!(problems("a.md", "[a](gone.md)"), ["no file `gone.md`"]);
        assert_eq!(problems("a.md", "[a]: gone.md"), ["no file `gone.md`"]);
        assert_eq!(problems("docs/a.md", "[a](docs/spec.md)"), ["no file `docs/docs/spec.md`"]);
        for anchor in ["gone", "twice-2", "not-a-heading"] {
            let expected = format!("no anchor `#{anchor}` in `docs/spec.md`");
            assert_eq!(problems("a.md", &format!("[a](docs/spec.md#{anchor})")), [expected]);
        }
    }

    #[test]
    fn the_summary_links_every_document() {
        let documents =
            ["docs/one.md", "docs/deep/two.md", "README.md"].map(|path| (path, "a page"));
        let found = |summary: &str| {
            let [one, two, three] = documents;
            check(&Tree::from([(SUMMARY, summary), one, two, three])).len()
        };
        assert_eq!(found("[1](one.md) [2](deep/two.md) [3](../README.md)"), 0);
        assert_eq!(found("[1](one.md)"), 2);
        assert_eq!(check(&Tree::from(documents)), []);
    }
}
