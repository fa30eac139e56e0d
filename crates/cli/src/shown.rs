//! Commands that documents and help show: they exist, and they fit a terminal. The laboratory compiles this file, too.

use std::{fs, path::Path};

use clap::{Command, error::ErrorKind};

/// A word or two that name commands; without more they cannot be called.
const NAMED: [ErrorKind; 2] =
    [ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand, ErrorKind::MissingRequiredArgument];

/// Every command that the documents, or the help of `program`, show exists; `cargo` runs the program in a clone. There
/// are at least `count_min`.
pub(crate) fn assert_exist(program: &Command, cargo: &[&str], count_min: usize) {
    let texts = [documents(), afterwords(program)].concat();
    let shown = |text: &String| shown_commands(text, program.get_name(), cargo);
    let commands = texts.iter().flat_map(shown).collect::<Vec<_>>();
    assert!(commands.len() >= count_min, "{commands:?}");
    for command in commands {
        if let Err(error) = program.clone().try_get_matches_from(command.split_whitespace()) {
            let is_known = error.exit_code() == 0 || NAMED.contains(&error.kind());
            assert!(is_known, "`{command}`: {error}");
        }
    }
}

/// At 80 columns no line is broken that should not be.
pub(crate) fn assert_help_fits(program: &Command) {
    for text in afterwords(program) {
        for pair in text.lines().collect::<Vec<_>>().windows(2) {
            let is_prose = |line: &str| !line.is_empty() && !line.starts_with(' ');
            let is_heading = pair[0].ends_with(':');
            let is_one = is_heading || !is_prose(pair[0]) || !is_prose(pair[1]);
            assert!(is_one, "a paragraph is one line, which clap wraps: {pair:?}");
        }
        for line in text.lines().filter(|line| line.starts_with(' ')) {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
}

/// The text behind the options, of this command and all below it.
fn afterwords(command: &Command) -> Vec<String> {
    let own = command.get_after_help().map(ToString::to_string);
    own.into_iter().chain(command.get_subcommands().flat_map(afterwords)).collect()
}

/// Every document, from the root down, without the history of changes: it names commands that are gone.
fn documents() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folders = ["", "docs", "docs/protocol"].map(|folder| root.join(folder));
    let files = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap());
    let files = files.map(|entry| entry.unwrap().path());
    let documents = files.filter(|file| {
        file.extension().is_some_and(|e| e == "md") && !file.ends_with("CHANGELOG.md")
    });
    documents.map(|file| fs::read_to_string(file).unwrap()).collect()
}

/// Lines and spans of code that call the program, by its name or through cargo, without a pipe or a comment behind them.
fn shown_commands(text: &str, name: &str, cargo: &[&str]) -> Vec<String> {
    let code = text.lines().flat_map(|line| {
        let spans = line.split('`').skip(1).step_by(2);
        spans.chain([line.trim().trim_start_matches("$ ")])
    });
    let arguments = |code: &str| {
        let starts = || cargo.iter().copied().chain([name]);
        let arguments = starts().find_map(|start| code.strip_prefix(start)?.strip_prefix(' '))?;
        // The line of a manifest, or of a picture, has the library's name.
        let is_library = arguments.starts_with("= ") || arguments.starts_with(' ');
        let end = arguments.find(|c| "|#`".contains(c)).unwrap_or(arguments.len());
        // In help, the meaning of the command stands two blanks behind it.
        let arguments = arguments[..end].split("  ").next()?;
        (!is_library).then(|| format!("{name} {arguments}"))
    };
    code.filter_map(arguments).collect()
}
