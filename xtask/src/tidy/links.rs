//! Links between documents, and citations of documents in code, lead somewhere.
//!
//! A citation is a comment `//= docs/FILE.md#anchor`, optionally followed by lines `//# ` that
//! quote the cited document word for word.

use std::{
    collections::HashSet,
    path::{Component, Path, PathBuf},
};

use super::{Finding, source::RustFile, tree::Tree};

const RULE: &str = "links";

/// Judges every Markdown file and every Rust file.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings: Vec<_> =
        tree.documents().flat_map(|(path, text)| check_document(tree, path, text)).collect();
    findings.extend(tree.rust().iter().flat_map(|file| check_citations(tree, file)));
    findings
}

fn is_markdown(path: &Path) -> bool {
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

fn check_citations(tree: &Tree, file: &RustFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut report = |line, problem, remedy| {
        findings.push(Finding { path: file.path.clone(), line, rule: RULE, problem, remedy });
    };
    let lines: Vec<_> = file.text.lines().map(str::trim_start).collect();
    for (index, line) in lines.iter().enumerate() {
        let Some(target) = line.strip_prefix("//= ").map(str::trim) else { continue };
        if is_external(target) {
            continue;
        }
        let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
        if anchor.is_empty() {
            report(index + 1, "a citation without an anchor".into(), "write `//= FILE.md#anchor`");
        } else if let Some(problem) = broken(tree, Path::new(path), anchor) {
            report(index + 1, problem, "cite a heading that exists");
        }
        let quote = lines[index + 1..].iter().map_while(|line| line.strip_prefix("//# "));
        let quote = one_line(&quote.collect::<Vec<_>>().join(" "));
        if !one_line(tree.text(Path::new(path)).unwrap_or_default()).contains(&quote) {
            report(index + 1, "the quoted text is not there".into(), "quote it word for word");
        }
    }
    findings
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn is_external(target: &str) -> bool {
    target.contains("://") || target.starts_with("mailto:")
}

/// `target` as seen from the file `from`, without `.` and `..`.
pub(super) fn resolve(from: &Path, target: &str) -> PathBuf {
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
    fn citations_need_an_anchor_that_exists() {
        let cite = |target: &str| {
            problems("crates/a/src/b.rs", &format!("fn f() {{\n    //= {target}\n}}"))
        };
        assert_eq!(cite("docs/spec.md#ring-4-credit"), [""; 0]);
        assert_eq!(cite("https://example.org/rfc#1"), [""; 0]);
        assert_eq!(cite("docs/spec.md#ring-5"), ["no anchor `#ring-5` in `docs/spec.md`"]);
        assert_eq!(cite("docs/gone.md#a"), ["no file `docs/gone.md`"]);
        assert_eq!(cite("docs/spec.md"), ["a citation without an anchor"]);
    }

    #[test]
    fn quotes_are_word_for_word() {
        let quote =
            |text: &str| problems("a.rs", &format!("//= docs/spec.md#ring-4-credit\n{text}"));
        assert_eq!(quote("//# A head that passes\n//# the tail is *refused*.\n"), [""; 0]);
        assert_eq!(quote("//# A head that passes the tail is accepted.\n").len(), 1);
    }
}
