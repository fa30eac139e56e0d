//! Only crate `memory` contains assembly, mappings, fences and the atomics of `core`.

use super::{Finding, source::RustFile, tree::Tree};

/// The crate that everything below is reserved for.
const ISLAND: &str = "crates/memory";

const RULE: &str = "islands";

/// Judges every Rust file of every crate. Loom tests may name atomics, because loom replaces them.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let is_judged =
        |file: &&RustFile| (file.is_in("crates") || file.is_in("lab")) && !file.is_in(ISLAND);
    tree.rust().iter().filter(is_judged).flat_map(check_file).collect()
}

fn check_file(file: &RustFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut report = |index: usize, what: &str, remedy| {
        let path = file.path.clone();
        let line = file.tokens[index].line;
        let problem = format!("{what} outside crate `memory`");
        findings.push(Finding { path, line, rule: RULE, problem, remedy });
    };
    for (index, token) in file.tokens.iter().enumerate() {
        match token.text.as_str() {
            "asm" | "global_asm" | "naked_asm" if file.at(index + 1) == "!" => {
                report(index, "assembly", "give the instruction a named function in `memory`");
            }
            "mmap" | "mmap_anonymous" | "munmap" | "mremap" => {
                report(index, "a mapping", "use a region type of `memory`");
            }
            "fence" | "compiler_fence" if is_free_call(file, index) => {
                report(index, "a fence", "use a named barrier of `memory::barrier`");
            }
            _ => {}
        }
    }
    if !is_loom_test(file) {
        for index in atomic_paths(file) {
            report(index, "an atomic of `core`", "import it from `memory::sync`");
        }
    }
    findings
}

/// A call of a function, not of a method, and not a definition.
fn is_free_call(file: &RustFile, index: usize) -> bool {
    let before = if index == 0 { "" } else { file.at(index - 1) };
    file.at(index + 1) == "(" && before != "." && before != "fn"
}

fn is_loom_test(file: &RustFile) -> bool {
    let name = file.path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
    !file.is_crate_source() && name.contains("loom")
}

/// `core::sync::atomic`, also when it is spelled as a group: `core::{sync::atomic}`.
fn atomic_paths(file: &RustFile) -> impl Iterator<Item = usize> {
    let roots = ["core", "std"].into_iter();
    roots.flat_map(|root| file.find(root)).filter(|&index| leads_to_atomic(file, index))
}

fn leads_to_atomic(file: &RustFile, root: usize) -> bool {
    // Within one path or one `use` tree: up to the end of the statement.
    let is_end = |index: &usize| matches!(file.at(*index), ";" | "(" | "=" | "" | "<" | ">");
    let mut rest = (root + 1..).take_while(|index| !is_end(index));
    if !file.matches(root + 1, ": :") {
        return false;
    }
    if file.at(root + 3) == "{" {
        return rest.any(|index| file.matches(index, "sync : : atomic"));
    }
    file.at(root + 3) == "sync" && rest.any(|index| file.at(index) == "atomic")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, code: &str) -> Vec<usize> {
        check(&Tree::from([(path, code)])).into_iter().map(|finding| finding.line).collect()
    }

    const OUTSIDE: &str = "crates/ipc/src/ring.rs";

    #[test]
    fn each_reserved_thing_is_found() {
        for code in [
            "fn f() { asm!(\"nop\") }",
            "fn f() { core::arch::global_asm!(\"nop\") }",
            "fn f() { rustix::mm::mmap(p) }",
            "fn f() { fence(Ordering::SeqCst) }",
            "use core::sync::atomic::AtomicU8;",
            "use std::sync::{Arc, atomic::AtomicU8};",
            "use std::{sync::atomic::AtomicU8, thread};",
            "static X: std::sync::atomic::AtomicU8 = f();",
        ] {
            assert_eq!(lines(OUTSIDE, code), [1], "{code}");
            assert_eq!(lines("crates/memory/src/lib.rs", code), [0; 0], "{code}");
        }
    }

    #[test]
    fn innocent_neighbours_are_not() {
        for code in [
            "// asm!(), mmap, core::sync::atomic\nuse memory::sync::atomic::AtomicU8;",
            "use std::sync::Arc; mod atomic;",
            "fn f() { builder.fence(true) }\nimpl B { fn fence(self) {} }",
            "fn f() { \"mmap\" }",
        ] {
            assert_eq!(lines(OUTSIDE, code), [0; 0], "{code}");
        }
    }

    #[test]
    fn loom_tests_may_name_atomics_but_not_assembly() {
        let path = "crates/ipc/tests/ring_loom.rs";
        assert_eq!(lines(path, "use std::sync::atomic::AtomicU8;"), [0; 0]);
        assert_eq!(lines(path, "fn f() { asm!(\"nop\") }"), [1]);
        assert_eq!(lines("crates/ipc/tests/ring.rs", "use std::sync::atomic::AtomicU8;"), [1]);
    }
}
