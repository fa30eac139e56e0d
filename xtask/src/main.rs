//! Everything a developer or CI runs on this workspace, behind `cargo xtask`.
//!
//! `tidy` judges the tree without compiling it; the other commands start cargo with the flags
//! that each kind of test needs. Tests are discovered from `cargo metadata`, never listed.

mod commands;
mod libtest;
mod step;
mod tidy;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::{step::Report, workspace::Workspace};

/// Checks and runs this workspace.
#[derive(Parser)]
#[command(
    bin_name = "cargo xtask",
    after_help = "Before sending a change run `cargo xtask ci`. A step whose tool is missing is \
                  skipped on your machine and fails when the environment has CI=true."
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Fast checks on the tree: crate arrows, SYNC pairs, sizes, words, links, manifests,
    /// tests, rules, commands, files and items that documents name
    Tidy,
    /// Lines of code by kind (product, laboratory, tools, tests) and by crate, as a table
    Lines,
    /// Steps that tell what a change can break: format, tidy, packages, licences, clippy, documentation, its site, tests
    Check,
    /// Slower judges: tests whose names end in `_slow`, benchmarks in smoke mode, seeds, platforms, loom, Miri,
    /// AddressSanitizer, fuzz targets
    Judges {
        /// Also run long tests, minutes of storm, and the mutants, which take minutes per crate
        #[arg(long)]
        full: bool,
    },
    /// All that CI runs, in CI's order: `check`, then `judges`
    Ci {
        /// Also run long tests, minutes of storm, and the mutants, which take minutes per crate
        #[arg(long)]
        full: bool,
    },
    /// The documents as a site, in target/book
    Book {
        /// Where code is published; without it, in this tree
        #[arg(long, value_name = "URL")]
        source_url: Option<String>,
    },
    /// Packages every crate that is published, in order, without a registry: licences and readme are in each
    Package,
    /// Compiles for every supported machine with the oldest supported toolchain
    Platforms,
    /// Loom tests: the test targets with `loom` in their name, built with --cfg loom
    Loom,
    /// Tests under Miri, of crates with `[package.metadata.xtask] miri = true`
    Miri,
    /// Tests under AddressSanitizer, of crates with `[package.metadata.xtask] asan = true`
    Asan,
    /// Every target of `fuzz/fuzz_targets`, from an empty corpus and `fuzz/seeds/<target>`
    Fuzz {
        /// Seconds per target
        #[arg(long, default_value_t = commands::fuzz::SECONDS_DEFAULT)]
        seconds: u32,
    },
    /// Daemons of this tree beside those of an earlier commit, which is built first
    TwoBuilds {
        /// The commit, as git names it: a release's tag
        commit: String,
    },
    /// The Debian packages of the commit: built by Debian's tools, unpacked, and used
    Deb,
    /// Relax each ordering, or leave out each barrier, below a SYNC comment: some loom test must fail
    Mutants {
        /// Crates to mutate, by short name; without any, all that have a loom test
        crates: Vec<String>,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments.command) {
        Ok(report) => {
            report.print_summary();
            if report.is_green() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command) -> anyhow::Result<Report> {
    let workspace = Workspace::load()?;
    let mut report = Report::from_env();
    match command {
        Command::Tidy => report.run("tidy", || tidy::run(&workspace)),
        Command::Lines => report.run("lines", || tidy::lines::run(&workspace)),
        Command::Ci { full } => commands::ci::run(&workspace, &mut report, *full),
        Command::Check => commands::ci::check(&workspace, &mut report),
        Command::Judges { full } => commands::ci::judges(&workspace, &mut report, *full),
        Command::Book { source_url } => {
            report.run("book", || commands::book::run(&workspace, source_url.as_deref()));
        }
        Command::Package => report.run("package", || commands::package::run(&workspace)),
        Command::Platforms => report.run("platforms", || commands::platforms::run(&workspace)),
        Command::Loom => report.run("loom", || commands::loom::run(&workspace)),
        Command::Miri => report.run("miri", || commands::miri::run(&workspace)),
        Command::Asan => report.run("asan", || commands::asan::run(&workspace)),
        Command::Fuzz { seconds } => {
            report.run("fuzz", || commands::fuzz::run(&workspace, *seconds));
        }
        Command::TwoBuilds { commit } => {
            report.run("two-builds", || commands::two_builds::run(&workspace, commit));
        }
        Command::Deb => report.run("deb", || commands::deb::run(&workspace)),
        Command::Mutants { crates } => {
            report.run("mutants", || commands::mutants::run(&workspace, crates));
        }
    }
    Ok(report)
}
