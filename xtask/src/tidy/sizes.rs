//! Functions of at most 70 lines, files of at most 600 before their tests.

use super::{Finding, source::RustFile, tree::Tree};

/// From `fn` to the closing brace.
const FUNCTION_LINES_MAX: usize = 70;
/// Up to the module that `#[cfg(test)]` guards.
const FILE_LINES_MAX: usize = 600;

const RULE: &str = "sizes";

/// Judges every Rust file, tests and macro bodies included.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    tree.rust().iter().flat_map(check_file).collect()
}

fn check_file(file: &RustFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut report = |line, problem, remedy| {
        findings.push(Finding { path: file.path.clone(), line, rule: RULE, problem, remedy });
    };
    let lines = lines_before_tests(file);
    if lines > FILE_LINES_MAX {
        let problem = format!("{lines} lines before the tests, more than {FILE_LINES_MAX}");
        report(FILE_LINES_MAX + 1, problem, "find the second idea and give it a module");
    }
    for (index, body) in file.find("fn").filter_map(|index| Some((index, body(file, index)?))) {
        let line = file.tokens[index].line;
        let lines = file.tokens[file.closing(body)].line - line + 1;
        if lines > FUNCTION_LINES_MAX {
            let name = file.at(index + 1);
            let problem = format!("`{name}` has {lines} lines, more than {FUNCTION_LINES_MAX}");
            report(line, problem, "name its parts and make them functions");
        }
    }
    findings
}

/// Index of the brace that opens the body of the function whose `fn` is at `index`.
fn body(file: &RustFile, index: usize) -> Option<usize> {
    if file.at(index + 1) == "(" {
        return None; // the type of a function pointer
    }
    let mut next = index + 1;
    loop {
        match file.at(next) {
            "{" => return Some(next),
            ";" | "}" | ")" | "]" | "" => return None,
            "(" | "[" => next = file.closing(next) + 1,
            _ => next += 1,
        }
    }
}

/// None of an integration test; of any other file, those above its test module.
fn lines_before_tests(file: &RustFile) -> usize {
    let is_test = file.path.parent().is_some_and(|dir| dir.iter().any(|part| part == "tests"));
    if is_test {
        return 0;
    }
    tests_line(file).map_or(file.text.lines().count(), |line| line - 1)
}

/// Line of the first `#[cfg(test)]` that guards a module written in place.
pub(super) fn tests_line(file: &RustFile) -> Option<usize> {
    file.find("# [ cfg (").find_map(|attribute| {
        let end = file.closing(attribute + 1);
        let mut names = attribute + 3..end;
        let is_test = names.any(|i| file.at(i) == "test" && !file.matches(i - 2, "not ( test"));
        let mut item = end + 1;
        while file.at(item) == "#" {
            item = file.closing(item + 1) + 1;
        }
        let is_module = file.at(item) == "mod" && file.at(item + 2) == "{";
        (is_test && is_module).then(|| file.tokens[attribute].line)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(code: &str) -> Vec<String> {
        check(&Tree::from([("a.rs", code)])).into_iter().map(|f| f.problem).collect()
    }

    fn function(lines: usize) -> String {
        format!("fn long(a: [u8; 2]) {{\n{}}}\n", "f();\n".repeat(lines - 2))
    }

    #[test]
    fn a_function_of_71_lines_is_too_long() {
        assert_eq!(problems(&function(70)), [""; 0]);
        assert_eq!(problems(&function(71)), ["`long` has 71 lines, more than 70"]);
    }

    #[test]
    fn a_macro_hides_no_function() {
        assert_eq!(problems(&format!("proptest! {{ {} }}", function(71))).len(), 1);
    }

    #[test]
    fn declarations_and_pointers_have_no_body() {
        let filler = "// line\n".repeat(80);
        let code =
            format!("trait T {{ fn a(&self);\n{filler} }}\ntype F = fn(u8);\nmod m {{ {filler} }}");
        assert_eq!(problems(&code), [""; 0]);
    }

    #[test]
    fn a_file_of_601_lines_is_too_long_unless_its_tests_begin_before() {
        let lines = "// line\n".repeat(600);
        assert_eq!(problems(&lines), [""; 0]);
        assert_eq!(problems(&format!("{lines}// line\n")).len(), 1);
        let tests = "#[cfg(test)]\nmod tests {\n}\n";
        assert_eq!(problems(&format!("{lines}{tests}{lines}")), [""; 0]);
    }

    #[test]
    fn an_integration_test_is_all_tests_but_its_functions_count() {
        let text = format!("{}{}", function(71), "// line\n".repeat(600));
        assert_eq!(check(&Tree::from([("crates/a/tests/b.rs", text.as_str())])).len(), 1);
        assert_eq!(check(&Tree::from([("crates/a/src/b.rs", text.as_str())])).len(), 2);
    }

    #[test]
    fn only_a_test_module_in_place_ends_the_count() {
        let lines = "// line\n".repeat(600);
        for head in
            ["#[cfg(test)]\nuse a;\n", "#[cfg(test)]\nmod a;\n", "#[cfg(not(test))]\nmod a {}\n"]
        {
            assert_eq!(problems(&format!("{head}{lines}")).len(), 1, "{head}");
        }
        let loom = "#[cfg(all(test, not(loom)))]\n#[expect(x)]\nmod tests {}\n";
        assert_eq!(problems(&format!("{loom}{lines}")), [""; 0]);
    }
}
