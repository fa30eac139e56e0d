//! An ignored test that takes long has a name by which a step of CI runs it.

use super::{Finding, source::RustFile, tree::Tree};

const RULE: &str = "ignored";

/// First words of reasons, whose tests' names end in `_slow` (judges run them) and `_long` (`--full` does).
const KINDS: [&str; 2] = ["slow", "long"];

/// Judges every `#[ignore = "KIND: why"]`.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    tree.rust().iter().flat_map(in_file).collect()
}

fn in_file(file: &RustFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    for index in file.find("# [ ignore =") {
        let reason = file.at(index + 4).trim_matches('"');
        let kind = reason.split_once(": ").map_or("", |(kind, _)| kind);
        let rest = file.tokens[index..].windows(2);
        let mut names = rest.filter(|pair| pair[0].text == "fn").map(|pair| &*pair[1].text);
        let name = names.next().unwrap_or_default();
        let end = name.rsplit_once('_').map_or("", |(_, end)| end);
        if kind != end && (KINDS.contains(&kind) || KINDS.contains(&end)) {
            findings.push(Finding {
                path: file.path.clone(),
                line: file.tokens[index].line,
                rule: RULE,
                problem: format!(
                    "`{name}` is ignored because \"{reason}\", so that no step runs it"
                ),
                remedy: "a reason of `slow: why` or `long: why` goes with that end of the name",
            });
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_name_is_the_kind_of_the_reason() {
        let text = "#[test]\n#[ignore = \"slow: x\"]\nfn a_slow() {}\n\
            #[ignore = \"slow: x\"]\n#[other]\nfn b() {}\n\
            #[ignore = \"long: x\"]\nfn c_slow() {}\n\
            #[ignore = \"x\"]\nfn d_long() {}\n\
            #[ignore = \"needs a device\"]\nfn e() {}\n";
        let found = check(&Tree::from([("crates/a/tests/b.rs", text)]));
        let lines = found.iter().map(|finding| finding.line).collect::<Vec<_>>();
        assert_eq!(lines, [4, 7, 9]);
    }
}
