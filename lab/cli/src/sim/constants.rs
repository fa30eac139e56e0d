//! Constants of a profile that the command line changes.

use std::{fs, path::PathBuf};

use anyhow::Context as _;
use clap::Args;
use command::exit::UsageError;
use sim::machine::{Constants, with_constant};

#[derive(Debug, Args)]
pub(super) struct ConstantArgs {
    /// Another value of a constant of the machine, as `wqe=0.7`, or of what it has a number of, as `clients=16`; a name
    /// that is none lists all.
    #[arg(long = "set", value_name = "FIELD=VALUE")]
    set: Vec<String>,
    /// A file with such a line for each constant; `#` begins a comment.
    #[arg(long, value_name = "PATH")]
    profile: Option<PathBuf>,
}

impl ConstantArgs {
    /// `profile` with what was set: the file first, then the command line.
    pub(super) fn apply<P: Constants>(&self, profile: &P) -> anyhow::Result<P> {
        let mut changed = profile.clone();
        if let Some(path) = &self.profile {
            let cannot = || format!("cannot read the profile {}", path.display());
            let text = fs::read_to_string(path).with_context(cannot)?;
            for (line, number) in text.lines().zip(1..) {
                let assignment = line.split('#').next().unwrap_or_default().trim();
                if !assignment.is_empty() {
                    let place = || format!("{}, line {number}", path.display());
                    changed = assign(&changed, assignment).with_context(place)?;
                }
            }
        }
        for assignment in &self.set {
            changed = assign(&changed, assignment)?;
        }
        Ok(changed)
    }
}

fn assign<P: Constants>(profile: &P, assignment: &str) -> Result<P, UsageError> {
    let Some((name, value)) = assignment.split_once('=') else {
        return Err(UsageError(format!("`{assignment}` is no `field=value`")));
    };
    let value = value.trim();
    let number = value.parse().map_err(|_| UsageError(format!("`{value}` is no number")))?;
    with_constant(profile, name.trim(), number).map_err(|error| UsageError(error.to_string()))
}
