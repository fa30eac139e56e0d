//! The product code of each crate: its sources without code for tests alone.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use super::{source::RustFile, tree::Tree};

/// A module as a path from the crate's root: `["server", "acceptor"]`. The root's is empty.
pub(crate) type Module = Vec<String>;

/// The folder `src` of a crate, and its files that are not for tests alone.
pub(crate) struct Source<'a> {
    /// Relative to the root of the workspace.
    pub(crate) folder: PathBuf,
    pub(crate) files: Vec<(Module, &'a RustFile)>,
}

/// One for each crate, those outside of the workspace included.
pub(crate) fn sources(tree: &Tree) -> Vec<Source<'_>> {
    let folders: BTreeSet<_> =
        tree.rust().iter().filter_map(|file| source_of(&file.path)).collect();
    folders.into_iter().map(|folder| source(folder, tree)).collect()
}

fn source(folder: PathBuf, tree: &Tree) -> Source<'_> {
    let files = tree.rust().iter().filter(|file| file.path.starts_with(&folder));
    let mut files: Vec<_> = files.map(|file| (module_of(file, &folder), file)).collect();
    let tests: Vec<_> =
        files.iter().flat_map(|(module, file)| test_modules(module, file)).collect();
    files.retain(|(module, _)| !tests.iter().any(|test| module.starts_with(test)));
    Source { folder, files }
}

/// The folder `src` that a file lies in.
fn source_of(file: &Path) -> Option<PathBuf> {
    let is_source = |folder: &&Path| folder.file_name().is_some_and(|name| name == "src");
    file.ancestors().skip(1).filter(is_source).last().map(Path::to_owned)
}

fn module_of(file: &RustFile, source: &Path) -> Module {
    let path = file.path.strip_prefix(source).unwrap_or(&file.path).with_extension("");
    let parts = path.iter().map(|part| part.to_string_lossy().into_owned());
    parts.filter(|part| !["mod", "lib", "main"].contains(&part.as_str())).collect()
}

/// Indices of a file's tokens, without the items that attributes leave to tests.
pub(crate) fn tokens(file: &RustFile) -> Vec<usize> {
    let mut tokens = Vec::new();
    let mut index = 0;
    while index < file.tokens.len() {
        if is_for_tests(file, index) {
            index = end_of_item(file, file.closing(index + 1) + 1);
        } else {
            tokens.push(index);
            index += 1;
        }
    }
    tokens
}

/// Whether an attribute begins at `index` that leaves its item to tests.
fn is_for_tests(file: &RustFile, index: usize) -> bool {
    let is_cfg = file.matches(index, "# [ cfg (");
    let mut inside = index..if is_cfg { file.closing(index + 1) } else { index };
    inside.clone().all(|at| !file.matches(at, "not ( test"))
        && inside.any(|at| file.at(at) == "test")
}

/// The modules that a file declares for tests alone.
fn test_modules(module: &Module, file: &RustFile) -> Vec<Module> {
    let attributes = (0..file.tokens.len()).filter(|index| is_for_tests(file, *index));
    let items = attributes.map(|index| file.closing(index + 1) + 1);
    let declared = items.filter_map(|item| {
        let at = (item..item + 5).find(|at| file.at(*at) == "mod")?; // behind `pub(crate)`
        Some(module.iter().cloned().chain([file.at(at + 1).to_owned()]).collect())
    });
    declared.collect()
}

/// The index behind the item that begins at `index`: its body, or its semicolon.
fn end_of_item(file: &RustFile, mut index: usize) -> usize {
    while index < file.tokens.len() {
        match file.at(index) {
            ";" => return index + 1,
            "{" => return file.closing(index) + 1,
            "(" | "[" => index = file.closing(index) + 1,
            _ => index += 1,
        }
    }
    index
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_tests_compile_is_left_out() {
        let lib = "mod a; #[cfg(test)] mod b; #[cfg(test)] fn t() {} #[cfg(not(test))] fn p() {}";
        let tree = Tree::from([
            ("crates/x/src/lib.rs", lib),
            ("crates/x/src/a.rs", ""),
            ("crates/x/src/b.rs", ""),
            ("crates/x/tests/c.rs", ""),
            ("xtask/src/main.rs", ""),
        ]);
        let sources = sources(&tree);
        let modules = |source: &Source<'_>| -> Vec<String> {
            source.files.iter().map(|(module, _)| module.join("::")).collect()
        };
        assert_eq!(sources[0].folder, Path::new("crates/x/src"));
        assert_eq!(modules(&sources[0]), ["", "a"]);
        assert_eq!(modules(&sources[1]), [""]);
        let (_, root) = &sources[0].files[0];
        let texts: Vec<_> = tokens(root).into_iter().map(|at| root.at(at)).collect();
        assert!(texts.contains(&"p") && !texts.contains(&"t"), "{texts:?}");
    }
}
