//! Every ordering names its partner: `// SYNC(name): why` on the releasing and on the acquiring
//! side. A mention without the colon is a reference and must name a site.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Finding,
    source::{RustFile, Token},
    tree::Tree,
};

/// How far below its comment the ordering may stand, in lines of code.
const WINDOW_LINES: usize = 6;

const RULE: &str = "sync-pairs";

/// A comment of the form `// SYNC(name):` and the orderings of the operation below it.
pub(crate) struct Site<'a> {
    pub(crate) name: &'a str,
    /// Of the comment, from 1.
    pub(crate) line: usize,
    /// `Release`, `Acquire`, `AcqRel`, `SeqCst`, or `barrier`.
    pub(crate) orderings: Vec<&'a Token>,
}

/// Requires a releasing and an acquiring site per name, over all crates together.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let files = || tree.rust().iter().filter(|file| file.is_crate_source());
    let mut findings = Vec::new();
    let mut sides: BTreeMap<&str, (bool, bool)> = BTreeMap::new();
    let mut known = BTreeSet::new();
    let mut report = |file: &RustFile, line, problem, remedy| {
        findings.push(Finding { path: file.path.clone(), line, rule: RULE, problem, remedy });
    };
    for (file, site) in files().flat_map(|file| sites(file).into_iter().map(move |s| (file, s))) {
        known.insert(site.name);
        if site.orderings.is_empty() {
            let problem = format!("SYNC({}) stands above no ordering", site.name);
            report(
                file,
                site.line,
                problem,
                "put it directly above the operation that it explains",
            );
        }
        let entry = sides.entry(site.name).or_default();
        entry.0 |= site.orderings.iter().any(|ordering| ordering.text != "Acquire");
        entry.1 |= site.orderings.iter().any(|ordering| ordering.text != "Release");
    }
    for (file, mention) in files().flat_map(|file| mentions(file).map(move |m| (file, m))) {
        let problem = match (mention.is_site, sides.get(mention.name)) {
            (false, None) => format!("SYNC({}) is explained nowhere", mention.name),
            (true, Some((false, _))) => format!("SYNC({}) has no Release site", mention.name),
            (true, Some((_, false))) => format!("SYNC({}) has no Acquire site", mention.name),
            _ => continue,
        };
        report(file, mention.line, problem, "write `// SYNC(name): why` on both sides of the pair");
    }
    findings
}

/// All sites of one file.
pub(crate) fn sites(file: &RustFile) -> Vec<Site<'_>> {
    mentions(file)
        .filter(|mention| mention.is_site)
        .map(|Mention { name, line, .. }| Site { name, line, orderings: orderings(file, line) })
        .collect()
}

struct Mention<'a> {
    name: &'a str,
    line: usize,
    /// Followed by a colon.
    is_site: bool,
}

fn mentions(file: &RustFile) -> impl Iterator<Item = Mention<'_>> {
    let comments = file.text.lines().enumerate().filter_map(|(index, line)| {
        let (_, comment) = line.split_once("//")?;
        Some((index + 1, comment))
    });
    comments.flat_map(|(line, comment)| {
        comment.split("SYNC(").skip(1).filter_map(move |rest| {
            let (name, rest) = rest.split_once(')')?;
            Some(Mention { name, line, is_site: rest.starts_with(':') })
        })
    })
}

/// The orderings of the first operation at or below `line` that has one stronger than `Relaxed`.
fn orderings(file: &RustFile, line: usize) -> Vec<&Token> {
    let mut found = Vec::new();
    let mut lines = 0;
    let mut last_line = 0;
    let below = file.tokens.iter().enumerate().filter(|(_, token)| token.line >= line);
    for (index, token) in below {
        if token.line != last_line {
            last_line = token.line;
            lines += 1;
        }
        match token.text.as_str() {
            "Release" | "Acquire" | "AcqRel" | "SeqCst" => found.push(token),
            "barrier" if file.matches(index, "barrier : :") => found.push(token),
            ";" | "{" | "}" if !found.is_empty() => break,
            _ if lines > WINDOW_LINES && found.is_empty() => break,
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(code: &str) -> Vec<String> {
        let tree = Tree::from([("crates/a/src/lib.rs", code)]);
        check(&tree).into_iter().map(|f| format!("{}: {}", f.line, f.problem)).collect()
    }

    const RELEASE: &str = "fn p() {\n// SYNC(full): why.\ntail.store(1, Ordering::Release);\n}\n";
    const ACQUIRE: &str = "fn c() {\n// SYNC(full): pairs with the Release above.\nlet t =\n\
                           tail.load(Acquire);\n}\n";

    #[test]
    fn a_pair_is_content() {
        assert_eq!(problems(&format!("{RELEASE}{ACQUIRE}")), [""; 0]);
    }

    #[test]
    fn half_a_pair_is_reported_whichever_half() {
        assert_eq!(problems(RELEASE), ["2: SYNC(full) has no Acquire site"]);
        assert_eq!(problems(ACQUIRE), ["2: SYNC(full) has no Release site"]);
    }

    #[test]
    fn the_halves_may_live_in_two_crates_and_only_in_sources() {
        let tree = Tree::from([("crates/a/src/lib.rs", RELEASE), ("crates/b/src/lib.rs", ACQUIRE)]);
        assert!(check(&tree).is_empty());
        let tree = Tree::from([("crates/a/src/lib.rs", RELEASE), ("crates/a/tests/b.rs", ACQUIRE)]);
        assert_eq!(check(&tree).len(), 1);
    }

    #[test]
    fn a_relaxed_operation_is_no_site() {
        let code = "fn p() {\n// SYNC(full): why.\ntail.store(1, Ordering::Relaxed);\n}\n";
        assert_eq!(problems(code)[0], "2: SYNC(full) stands above no ordering");
    }

    #[test]
    fn an_ordering_past_the_window_does_not_count() {
        let filler = "f();\n".repeat(WINDOW_LINES);
        let code = format!("fn p() {{\n// SYNC(x): why.\n{filler}t.swap(1, AcqRel);\n}}");
        assert_eq!(problems(&code)[0], "2: SYNC(x) stands above no ordering");
    }

    #[test]
    fn strong_orderings_and_named_barriers_count_for_both_sides() {
        for code in ["t.swap(1, AcqRel)", "t.swap(1, SeqCst)", "barrier::store_load()"] {
            assert_eq!(problems(&format!("fn f() {{\n// SYNC(x): why.\n{code};\n}}")), [""; 0]);
        }
    }

    #[test]
    fn a_reference_needs_a_site() {
        assert_eq!(problems("// after SYNC(gone) below\n"), ["1: SYNC(gone) is explained nowhere"]);
        assert_eq!(problems(&format!("{RELEASE}{ACQUIRE}// see SYNC(full).\n")), [""; 0]);
    }

    #[test]
    fn only_the_operation_below_the_comment_is_a_site() {
        let code = "fn f() {\n// SYNC(x): why.\nt.compare_exchange(\n0,\n1,\nAcqRel,\nAcquire,\n);\n\
                    u.load(SeqCst);\n}";
        let file = RustFile::parse("crates/a/src/lib.rs".into(), code.into()).unwrap();
        let texts: Vec<_> = sites(&file)[0].orderings.iter().map(|o| o.text.as_str()).collect();
        assert_eq!(texts, ["AcqRel", "Acquire"]);
    }
}
