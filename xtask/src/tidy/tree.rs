//! The files under judgement, held in memory so that tests can make them up.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::Result;

use super::{Finding, source::RustFile};
use crate::workspace::Workspace;

/// All files that git knows, with their text.
#[derive(Default)]
pub(crate) struct Tree {
    /// `None` for a file that is not UTF-8.
    files: BTreeMap<PathBuf, Option<String>>,
    rust: Vec<RustFile>,
    unparsable: Vec<PathBuf>,
}

impl Tree {
    /// Reads the files of `workspace`.
    pub(crate) fn load(workspace: &Workspace) -> Result<Self> {
        let mut tree = Self::default();
        for path in workspace.files()? {
            let text = workspace.read_text(&path)?;
            tree.insert(path, text);
        }
        Ok(tree)
    }

    fn insert(&mut self, path: PathBuf, text: Option<String>) {
        if path.extension().is_some_and(|extension| extension == "rs") {
            match text.as_ref().and_then(|text| RustFile::parse(path.clone(), text.clone())) {
                Some(file) => self.rust.push(file),
                None => self.unparsable.push(path.clone()),
            }
        }
        self.files.insert(path, text);
    }

    /// How many files there are.
    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }

    /// Every Rust file.
    pub(crate) fn rust(&self) -> &[RustFile] {
        &self.rust
    }

    /// Every file that is text.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (&Path, &str)> {
        self.files.iter().filter_map(|(path, text)| Some((path.as_path(), text.as_deref()?)))
    }

    /// Every Markdown file.
    pub(crate) fn documents(&self) -> impl Iterator<Item = (&Path, &str)> {
        self.texts().filter(|(path, _)| path.extension().is_some_and(|extension| extension == "md"))
    }

    /// The text of one file.
    pub(crate) fn text(&self, path: &Path) -> Option<&str> {
        self.files.get(path)?.as_deref()
    }

    /// Whether `path` is a file, or a folder that holds one.
    pub(crate) fn contains(&self, path: &Path) -> bool {
        self.files.keys().any(|file| file.starts_with(path))
    }

    /// Whether there is a file of that name in any folder.
    pub(crate) fn has_file_named(&self, name: &str) -> bool {
        self.files.keys().any(|file| file.file_name().is_some_and(|found| found == name))
    }

    /// Rust files without a valid sequence of tokens: no other check has seen them.
    pub(crate) fn parse_errors(&self) -> Vec<Finding> {
        let finding = |path: &PathBuf| Finding {
            path: path.clone(),
            line: 1,
            rule: "parse",
            problem: "not a sequence of Rust tokens".into(),
            remedy: "make it compile first",
        };
        self.unparsable.iter().map(finding).collect()
    }
}

#[cfg(test)]
impl<const N: usize> From<[(&str, &str); N]> for Tree {
    fn from(files: [(&str, &str); N]) -> Self {
        let mut tree = Self::default();
        for (path, text) in files {
            tree.insert(path.into(), Some(text.into()));
        }
        tree
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_rust_is_reported() {
        let tree = Tree::from([("good.rs", "fn f() {}"), ("bad.rs", "fn f( {")]);
        let findings = tree.parse_errors();
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].path, Path::new("bad.rs"));
    }

    #[test]
    fn a_folder_exists_if_it_holds_a_file() {
        let tree = Tree::from([("docs/a/b.md", "")]);
        assert!(tree.contains(Path::new("docs/a")) && !tree.contains(Path::new("docs/b")));
    }
}
