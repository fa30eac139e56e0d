//! Every crate takes its version, license, toolchain and lints from the workspace.

use std::path::Path;

use toml::Table;

use super::{Finding, tree::Tree};

/// Keys of `[package]` that must be `KEY.workspace = true`.
const INHERITED: [&str; 5] = ["version", "edition", "rust-version", "license", "authors"];

const RULE: &str = "manifests";

/// Judges the manifest of every member.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let manifests = tree.texts().filter(|(path, text)| is_member_manifest(path, text));
    manifests.flat_map(|(path, text)| check_manifest(path, text)).collect()
}

/// Not the root, which is no package, and no workspace of its own.
fn is_member_manifest(path: &Path, text: &str) -> bool {
    path.ends_with("Cargo.toml")
        && ["crates", "lab", "xtask"].iter().any(|folder| path.starts_with(folder))
        && !text.lines().any(|line| line == "[workspace]")
}

fn check_manifest(path: &Path, text: &str) -> Vec<Finding> {
    let finding = |problem: String, remedy| {
        let path = path.to_path_buf();
        Finding { path, line: 1, rule: RULE, problem, remedy }
    };
    let Ok(manifest) = text.parse::<Table>() else {
        return vec![finding("not TOML".into(), "make `cargo metadata` accept it")];
    };
    let mut findings = Vec::new();
    let package = manifest.get("package").and_then(toml::Value::as_table);
    for key in INHERITED {
        if !package.is_some_and(|package| is_inherited(package, key)) {
            let problem = format!("`{key}` is not the workspace's");
            findings.push(finding(problem, "write `KEY.workspace = true` under [package]"));
        }
    }
    if !package.is_some_and(|package| package.contains_key("description")) {
        findings.push(finding("no `description`".into(), "say in one line what the crate is for"));
    }
    let lints = manifest.get("lints").and_then(toml::Value::as_table);
    if lints.and_then(|lints| lints.get("workspace")) != Some(&true.into()) {
        let problem = "the lints are not the workspace's".into();
        findings.push(finding(problem, "write `[lints] workspace = true`"));
    }
    findings
}

fn is_inherited(package: &Table, key: &str) -> bool {
    let value = package.get(key).and_then(toml::Value::as_table);
    value.and_then(|value| value.get("workspace")) == Some(&true.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "[package]\nname = \"a\"\ndescription = \"b\"\nversion.workspace = true\n\
                        edition.workspace = true\nrust-version.workspace = true\n\
                        license.workspace = true\nauthors = { workspace = true }\n\
                        [lints]\nworkspace = true\n";

    fn count(text: &str) -> usize {
        check(&Tree::from([("crates/a/Cargo.toml", text)])).len()
    }

    #[test]
    fn a_complete_manifest_is_content() {
        assert_eq!(count(GOOD), 0);
    }

    #[test]
    fn a_workspace_of_its_own_is_not_judged_and_a_crate_of_the_laboratory_is() {
        let count = |text: &str| check(&Tree::from([("lab/a/Cargo.toml", text)])).len();
        assert!(count("[package]\nname = \"a\"") > 0);
        assert_eq!(count("[package]\nname = \"a\"\n[workspace]"), 0);
    }

    #[test]
    fn each_line_is_needed() {
        for line in GOOD.lines().filter(|line| line.contains("workspace") || line.contains('b')) {
            assert!(count(&GOOD.replace(line, "")) >= 1, "{line}");
        }
    }

    #[test]
    fn a_value_of_its_own_is_not_inherited() {
        let text = GOOD.replace("license.workspace = true", "license = \"MIT\"");
        assert_eq!(count(&text), 1);
    }

    #[test]
    fn what_is_not_toml_is_reported() {
        assert_eq!(count("[package"), 1);
    }
}
