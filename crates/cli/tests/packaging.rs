//! Recipes of packages: where the tools that build them are missing, at least what they name has to exist.

use std::{env, fs, path::PathBuf, process::Command};

const RULES: &str = "packaging/debian/rules";
const CONTAINER: &str = "packaging/Containerfile";
const SPACK: &str = "packaging/spack/package.py";

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Words of a recipe, without the quotes of any language.
fn words(text: &str) -> Vec<&str> {
    let is_between = |c: char| c.is_whitespace() || "\"'(),[]".contains(c);
    text.split(is_between).filter(|word| !word.is_empty()).collect()
}

#[test]
fn every_file_that_a_recipe_copies_exists() {
    for recipe in [RULES, CONTAINER, SPACK] {
        let text = text(recipe);
        let is_ours = |word: &&str| {
            ["crates/", "docs/", "packaging/", "LICENSE-"]
                .iter()
                .any(|start| word.starts_with(start))
        };
        let ours: Vec<_> = words(&text).into_iter().filter(is_ours).collect();
        assert!(!ours.is_empty(), "{recipe}");
        for path in ours {
            // A loop over names, in the rules.
            let names = match path.contains("$$file") {
                true => vec![
                    path.replace("$$file", "copyrpcConfig"),
                    path.replace("$$file", "copyrpcConfigVersion"),
                ],
                false => vec![path.to_owned()],
            };
            for name in names {
                assert!(root().join(&name).exists(), "{recipe} names {name}");
            }
        }
    }
}

#[test]
fn every_crate_and_profile_that_a_recipe_builds_exists() {
    let manifest = text("Cargo.toml");
    for recipe in [RULES, CONTAINER, SPACK] {
        let text = text(recipe);
        let words = words(&text);
        let after = |option: &str| -> Vec<&str> {
            let pairs = words.windows(2).filter(|pair| pair[0] == option);
            pairs.map(|pair| pair[1]).collect()
        };
        assert!(!after("-p").is_empty() && !after("--profile").is_empty(), "{recipe}");
        for package in after("-p") {
            // What `mkdir` has after its own -p is none.
            let Some(folder) = package.strip_prefix("copyrpc-") else { continue };
            let own = self::text(&format!("crates/{folder}/Cargo.toml"));
            assert!(own.contains(&format!("name = \"{package}\"")), "{recipe}: {package}");
        }
        for profile in after("--profile") {
            assert!(manifest.contains(&format!("[profile.{profile}]")), "{recipe}: {profile}");
        }
    }
}

#[test]
fn the_debian_package_has_the_version_of_the_crates_and_well_formed_files() {
    let version = concat!("copyrpc (", env!("CARGO_PKG_VERSION"), "-");
    assert!(text("packaging/debian/changelog").starts_with(version), "{version}");
    for paragraph in text("packaging/debian/control").split("\n\n") {
        let is_field = |line: &str| line.starts_with(' ') || line.contains(": ");
        assert!(paragraph.lines().all(is_field), "{paragraph}");
        assert!(paragraph.starts_with("Source: ") || paragraph.contains("\nDescription: "));
    }
    let rules = text(RULES);
    assert!(rules.starts_with("#!/usr/bin/make -f\n"));
    let recipes = rules.lines().filter(|line| line.starts_with(char::is_whitespace));
    assert!(recipes.clone().count() > 10);
    for line in recipes {
        assert!(line.starts_with('\t'), "make wants a tab: {line}");
    }
}

#[test]
fn the_container_file_has_instructions_only() {
    let text = text(CONTAINER);
    let mut stages = 0;
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (instruction, arguments) = line.split_once(' ').expect("an instruction has arguments");
        let known = ["FROM", "WORKDIR", "COPY", "ARG", "ENV", "RUN", "USER", "ENTRYPOINT", "CMD"];
        assert!(known.contains(&instruction) && !arguments.is_empty(), "{line}");
        stages += u32::from(instruction == "FROM");
    }
    assert_eq!(stages, 2);
}

#[test]
fn the_spack_recipe_is_python() {
    let parse = "import ast, sys; ast.parse(open(sys.argv[1]).read())";
    match Command::new("python3").args(["-c", parse]).arg(root().join(SPACK)).output() {
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        Err(error) => {
            assert!(env::var_os("CI").is_none(), "no python3: {error}");
            println!("skipped: no python3: {error}");
        }
    }
}
