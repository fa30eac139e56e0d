//! Every document of `docs/` is a page of the site: `docs/SUMMARY.md` links it. That its links lead somewhere is
//! [`links`](super::links)' affair.

use std::path::Path;

use super::{Finding, tree::Tree};

const RULE: &str = "book";
const SUMMARY: &str = "docs/SUMMARY.md";

/// Judges the summary, if there is one.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let Some(summary) = tree.text(Path::new(SUMMARY)) else { return Vec::new() };
    let pages = tree.documents().filter_map(|(path, _)| path.strip_prefix("docs").ok());
    let missing = pages.filter(|page| {
        let link = format!("]({})", page.display());
        *page != Path::new("SUMMARY.md") && !summary.contains(&link)
    });
    let findings = missing.map(|page| Finding {
        path: Path::new("docs").join(page),
        line: 1,
        rule: RULE,
        problem: format!("{SUMMARY} does not link it"),
        remedy: "add it to the summary, or it is not on the site",
    });
    findings.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUMMARY_TEXT: &str = "- [One](one.md)\n  - [Two](protocol/two.md)\n";

    #[test]
    fn a_document_that_the_summary_does_not_link_is_found() {
        let tree = |third: &'static str| {
            Tree::from([
                (SUMMARY, SUMMARY_TEXT),
                ("docs/one.md", ""),
                ("docs/protocol/two.md", ""),
                ("README.md", ""),
                (third, ""),
            ])
        };
        assert_eq!(check(&tree("docs/three.txt")), []);
        assert_eq!(check(&tree("docs/three.md")).len(), 1);
        assert_eq!(check(&Tree::from([("docs/one.md", "")])), [], "there is no site");
    }
}
