//! Files of at most 600 lines before their tests. Clippy bounds functions.

use super::{Finding, source::RustFile, tree::Tree};

/// Up to the module that `#[cfg(test)]` guards.
const FILE_LINES_MAX: usize = 600;

const RULE: &str = "sizes";

/// Judges every Rust file.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    tree.rust().iter().filter_map(check_file).collect()
}

fn check_file(file: &RustFile) -> Option<Finding> {
    let lines = lines_before_tests(file);
    (lines > FILE_LINES_MAX).then(|| Finding {
        path: file.path.clone(),
        line: FILE_LINES_MAX + 1,
        rule: RULE,
        problem: format!("{lines} lines before the tests, more than {FILE_LINES_MAX}"),
        remedy: "find the second idea and give it a module",
    })
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

    #[test]
    fn a_file_of_601_lines_is_too_long_unless_its_tests_begin_before() {
        let lines = "// line\n".repeat(600);
        assert_eq!(problems(&lines), [""; 0]);
        assert_eq!(problems(&format!("{lines}// line\n")).len(), 1);
        let tests = "#[cfg(test)]\nmod tests {\n}\n";
        assert_eq!(problems(&format!("{lines}{tests}{lines}")), [""; 0]);
    }

    #[test]
    fn an_integration_test_is_all_tests() {
        let text = "// line\n".repeat(601);
        assert_eq!(check(&Tree::from([("crates/a/tests/b.rs", text.as_str())])).len(), 0);
        assert_eq!(check(&Tree::from([("crates/a/src/b.rs", text.as_str())])).len(), 1);
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
