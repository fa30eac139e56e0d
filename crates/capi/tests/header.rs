//! The header and the library: a program in C runs against a daemon, and the header names every function.

mod common;

use std::{collections::BTreeSet, fs, process::Command};

use common::{Node, compile, library, root, run, tool};

/// Words that look like functions of the library and are followed by an opening parenthesis.
fn functions(text: &str) -> BTreeSet<String> {
    let starts = text.match_indices("copyrpc_").map(|(start, _)| &text[start..]);
    let words = starts.filter_map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_')?;
        rest[end..].starts_with('(').then(|| rest[..end].to_owned())
    });
    words.collect()
}

#[test]
fn the_header_declares_what_the_library_has() {
    let header = fs::read_to_string(root().join("include/copyrpc.h")).unwrap();
    let code: String =
        header.split("/*").map(|part| part.split_once("*/").map_or(part, |p| p.1)).collect();
    let mut exported = BTreeSet::new();
    for entry in fs::read_dir(root().join("src")).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        for (at, _) in text.match_indices("extern \"C\" fn copyrpc_") {
            let name = &text[at + "extern \"C\" fn ".len()..];
            exported.insert(name[..name.find('(').unwrap()].to_owned());
        }
    }
    assert!(exported.len() > 25, "{exported:?}");
    assert_eq!(functions(&code), exported);
}

#[test]
fn the_header_is_c99_and_cpp() {
    for (name, language, standard) in [("cc", "c", "-std=c99"), ("c++", "c++", "-std=c++11")] {
        let Some(mut compiler) = tool(name) else { continue };
        compiler.args([
            "-Wall",
            "-Wextra",
            "-Wpedantic",
            "-Werror",
            standard,
            "-fsyntax-only",
            "-x",
            language,
        ]);
        run(compiler.arg(root().join("include/copyrpc.h")));
    }
}

#[test]
fn a_program_in_c_calls_pipelines_and_serves() {
    let Some(compiler) = tool("cc") else { return };
    let node = Node::new("c");
    let program = compile(compiler, &root().join("tests/conformance.c"), &node.folder);
    run(Command::new(&program).arg(&node.socket));
}

/// A program that loads a library of another ABI would call functions that are not what it means.
#[test]
fn the_library_is_loaded_by_a_name_that_has_the_abi() {
    let Some(mut readelf) = tool("readelf") else { return };
    let told = run(readelf.arg("-d").arg(library()));
    let line = told.lines().find(|line| line.contains("SONAME"));
    let line = line.expect("the library has a SONAME");
    assert!(line.contains("[libcopyrpc_c.so.1]"), "{line}");
}

/// Types and functions of the header, each in one line, without comments.
fn declarations(header: &str) -> Vec<String> {
    let code: String =
        header.split("/*").map(|part| part.split_once("*/").map_or(part, |p| p.1)).collect();
    let lines = code.lines().map(|line| match line.starts_with("#define COPYRPC_") {
        true if line != "#define COPYRPC_H" => format!(";{line};"),
        _ if line.starts_with('#') => String::new(),
        _ => line.to_owned(),
    });
    let code = lines.collect::<Vec<_>>().join("\n").replace("extern \"C\" {", "");
    let (mut found, mut depth, mut start) = (Vec::new(), 0_u32, 0);
    for (at, character) in code.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ';' if depth == 0 => {
                found.push(&code[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    let words = found.iter().map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "));
    words.filter(|text| !text.is_empty() && text != "}").collect()
}

/// Adding to the header is free. What programs were compiled against stays as it is, or the ABI is another one.
#[test]
fn the_header_keeps_what_programs_of_its_abi_were_compiled_against() {
    let header = fs::read_to_string(root().join("include/copyrpc.h")).unwrap();
    let now = declarations(&header);
    assert!(now.len() > 60, "{now:#?}");
    let kept = root().join("tests/abi/1.txt");
    let text = now.join("\n") + "\n";
    if std::env::var_os("COPYRPC_TEST_KEEP_ABI").is_some() {
        fs::write(&kept, &text).unwrap();
    }
    let recorded = fs::read_to_string(&kept).unwrap_or_default();
    let gone = recorded.lines().find(|line| !now.iter().any(|declared| declared == line));
    assert_eq!(gone, None, "programs were compiled against this: raise COPYRPC_ABI, or keep it");
    let note =
        "record what was added: COPYRPC_TEST_KEEP_ABI=1 cargo test -p copyrpc-capi --test header";
    assert_eq!(recorded, text, "{note}");
}

/// The library asks `getauxval` for the vDSO, which valgrind hides from it.
#[test]
fn a_program_in_c_runs_under_valgrind() {
    let (Some(compiler), Some(mut valgrind)) = (tool("cc"), tool("valgrind")) else { return };
    let node = Node::new("valgrind");
    let program = compile(compiler, &root().join("tests/one_call.c"), &node.folder);
    valgrind.args(["-q", "--error-exitcode=9", "--leak-check=full"]);
    run(valgrind.arg(&program).arg(&node.socket));
}

/// The library is loaded by a program that AddressSanitizer watches.
#[test]
fn a_program_in_c_runs_under_address_sanitizer() {
    let Some(mut compiler) = tool("cc") else { return };
    let node = Node::new("asan");
    compiler.args(["-fsanitize=address", "-fno-omit-frame-pointer"]);
    let program = compile(compiler, &root().join("tests/one_call.c"), &node.folder);
    run(Command::new(&program).arg(&node.socket));
}
