//! `copyrpc generate`: completions and man pages, for packages.

use std::{fs, io, path::Path};

use anyhow::Context as _;
use clap::CommandFactory as _;
use clap_complete::{Shell, generate_to};

use crate::args::{Args, Generated};

/// Writes completions of all shells, or a page per command, into a folder.
pub(crate) fn run(what: Generated, into: &Path) -> anyhow::Result<()> {
    let cannot = || format!("cannot write to {}", into.display());
    fs::create_dir_all(into).with_context(cannot)?;
    let written = match what {
        Generated::Completions => completions(into),
        Generated::Man => clap_mangen::generate_to(Args::command(), into),
    };
    written.with_context(cannot)
}

fn completions(into: &Path) -> io::Result<()> {
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        generate_to(shell, &mut Args::command(), "copyrpc", into)?;
    }
    Ok(())
}
