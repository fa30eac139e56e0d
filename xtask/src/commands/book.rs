//! The documents as a site in `target/book`. rustdoc, which every toolchain has, renders them; each page has the links of
//! `docs/SUMMARY.md` beside it.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

use super::{cannot_start, rendered};
use crate::{
    step::Outcome,
    tidy::links::{SUMMARY, is_external, is_markdown, resolve},
    workspace::Workspace,
};

/// Links of HTML.
const ATTRIBUTES: [&str; 2] = [" href=\"", " src=\""];

/// Documents as rustdoc renders them, by their paths in the tree, and what their links may lead to.
struct Site {
    rendered: BTreeMap<PathBuf, String>,
    /// Files of `docs` that are no documents: the site has copies.
    copied: Vec<PathBuf>,
    /// Where the tree is to be seen: an address, or a path from the first page.
    source: String,
}

/// Builds the site. Links to files that are no documents lead to `source`, or without it to this tree.
pub(crate) fn run(workspace: &Workspace, source: Option<&str>) -> Result<Outcome> {
    let book = workspace.target_dir("book");
    if book.exists() {
        fs::remove_dir_all(&book).context("cannot remove the site that was there before")?;
    }
    let (documents, others): (Vec<_>, Vec<_>) =
        workspace.files()?.into_iter().partition(|path| is_markdown(path));
    let copied: Vec<_> = others.into_iter().filter(|path| path.starts_with("docs")).collect();
    let rendered = documents.into_iter().map(|path| {
        let html = render(workspace, &path, &book)?;
        anyhow::Ok((path, html))
    });
    let source = source.unwrap_or("../..").trim_end_matches('/').into();
    let site = Site { rendered: rendered.collect::<Result<_>>()?, copied, source };
    for document in site.rendered.keys() {
        fs::write(book.join(page(document)), site.finished(document)?)?;
    }
    for path in &site.copied {
        let copy = book.join(path);
        // A folder without a document, as `docs/results` is, has no page that made it.
        fs::create_dir_all(copy.parent().unwrap_or(&book))?;
        fs::copy(workspace.root.join(path), copy)?;
    }
    Ok(Outcome::Passed(format!("{} pages in target/book", site.rendered.len())))
}

/// The path of a document's page.
fn page(document: &Path) -> PathBuf {
    if document == Path::new("README.md") {
        "index.html".into()
    } else {
        document.with_extension("html")
    }
}

/// The way from the page of `document` to the first page's folder.
fn up(document: &Path) -> String {
    "../".repeat(document.components().count() - 1)
}

/// The document as rustdoc renders it.
fn render(workspace: &Workspace, document: &Path, book: &Path) -> Result<String> {
    let html = book.join(document.with_extension("html"));
    let mut rustdoc = Command::new("rustdoc");
    rustdoc.current_dir(&workspace.root).arg(document).arg("--output").args(html.parent());
    rustdoc.args(["--markdown-no-toc", "--markdown-css"]).arg(up(document) + "docs/book.css");
    let status = rustdoc.status().with_context(|| cannot_start(&rustdoc))?;
    ensure!(status.success(), "`{}`: {status}", rendered(&rustdoc));
    let text = fs::read_to_string(&html)?;
    fs::remove_file(html)?; // README's page has another name
    Ok(text)
}

impl Site {
    /// The page of `document`, with its links and those of the summary.
    fn finished(&self, document: &Path) -> Result<String> {
        let end = "</body>";
        let summary = Path::new(SUMMARY);
        let contents = self.rendered.get(summary).with_context(|| format!("no {SUMMARY}"))?;
        let contents = contents.split_once("</h1>").and_then(|(_, list)| list.split_once(end));
        let contents = contents.with_context(|| format!("{SUMMARY} has no title"))?.0;
        let nav = self.linked(document, summary, contents)?;
        let body = self.linked(document, document, &self.rendered[document])?;
        Ok(body.replace(end, &format!("<nav>{nav}</nav>\n{end}")))
    }

    /// `html`, a part of `document`, with links as they are from the page of `on`.
    fn linked(&self, on: &Path, document: &Path, html: &str) -> Result<String> {
        let mut html = html.to_owned();
        for attribute in ATTRIBUTES {
            let mut parts = html.split(attribute);
            let mut linked = parts.next().unwrap_or_default().to_owned();
            for part in parts {
                let (target, rest) = part.split_once('"').context("rustdoc left a quote open")?;
                let target = self.target(on, document, target)?;
                linked.extend([attribute, &target, "\"", rest]);
            }
            html = linked;
        }
        Ok(html)
    }

    /// `target`, a link of `document`, as the page of `on` has it.
    fn target(&self, on: &Path, document: &Path, target: &str) -> Result<String> {
        if is_external(target) {
            return Ok(target.into());
        }
        let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
        let path = if file.is_empty() { document.into() } else { resolve(document, file) };
        let up = up(on);
        if self.copied.contains(&path) {
            return Ok(up + &path.display().to_string());
        }
        let Some(html) = self.rendered.get(&path) else {
            let up = if is_external(&self.source) { "" } else { &up };
            return Ok(format!("{up}{}/{}", self.source, path.display()));
        };
        let is_there = anchor.is_empty() || html.contains(&format!(" id=\"{anchor}\""));
        ensure!(
            is_there,
            "{}: no `#{anchor}` on the page of {}",
            document.display(),
            path.display()
        );
        let anchor = if anchor.is_empty() { "" } else { &target[file.len()..] };
        Ok(format!("{up}{}{anchor}", page(&path).display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(source: &str) -> Site {
        let summary = "<h1>Summary</h1><a href=\"deep/a.md\">A</a></body>";
        let pages = [
            (SUMMARY, summary),
            ("README.md", "<img src=\"docs/a.svg\"></body>"),
            ("docs/deep/a.md", "<h2 id=\"own\"></h2><a href=\"#own\">a</a></body>"),
        ];
        let rendered = pages.map(|(path, html)| (path.into(), html.into()));
        Site { rendered: rendered.into(), copied: vec!["docs/a.svg".into()], source: source.into() }
    }

    #[test]
    fn each_page_has_its_own_links_and_the_contents() {
        let first = site("../..").finished(Path::new("README.md")).unwrap();
        let nav = "<nav><a href=\"docs/deep/a.html\">A</a></nav>\n</body>";
        assert_eq!(first, format!("<img src=\"docs/a.svg\">{nav}"));
        let deep = site("../..").finished(Path::new("docs/deep/a.md")).unwrap();
        let own = "<a href=\"../../docs/deep/a.html#own\">a</a>";
        assert!(deep.contains(own) && deep.contains("<nav><a href=\"../../docs/deep/a.html\">"));
    }

    #[test]
    fn links_into_the_tree_lead_to_its_source() {
        let [on, from] = ["docs/deep/a.md", "docs/deep/a.md"].map(Path::new);
        let target = |source, target| site(source).target(on, from, target).unwrap();
        assert_eq!(target("../..", "../../crates/x.rs"), "../../../../crates/x.rs");
        assert_eq!(
            target("https://host/tree", "../../crates/x.rs"),
            "https://host/tree/crates/x.rs"
        );
        assert_eq!(target("../..", "https://host/x"), "https://host/x");
        assert_eq!(target("../..", "../../README.md"), "../../index.html");
    }

    #[test]
    fn a_link_to_a_heading_that_a_page_lacks_is_an_error() {
        let [on, from] = ["README.md", "README.md"].map(Path::new);
        assert!(site("").target(on, from, "docs/deep/a.md#own").is_ok());
        let error = site("").target(on, from, "docs/deep/a.md#gone").unwrap_err();
        assert_eq!(error.to_string(), "README.md: no `#gone` on the page of docs/deep/a.md");
    }
}
