//! A flag for every knob, made from the table, and the flag that names the file.

use std::path::PathBuf;

use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches};

use crate::knobs;

/// Which file to read.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ConfigFile {
    /// TOML file of knobs [env: COPYRPC_CONFIG].
    #[arg(long = "config", value_name = "PATH")]
    pub(crate) path: Option<PathBuf>,
}

/// Knobs given on the command line, as `(key, text)`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KnobFlags(Vec<(String, String)>);

impl KnobFlags {
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, text)| (key.as_str(), text.as_str()))
    }
}

impl FromIterator<(String, String)> for KnobFlags {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(flags: I) -> Self {
        Self(flags.into_iter().collect())
    }
}

impl Args for KnobFlags {
    fn augment_args(command: Command) -> Command {
        command.next_help_heading("Knobs").args(knobs::all().into_iter().map(|knob| {
            let mut help = format!("{} [env: {}]", knob.meaning, knob.env);
            if !knob.default.is_empty() {
                help += &format!(" [default: {}]", knob.default);
            }
            let long = knob.flag().trim_start_matches('-').to_owned();
            Arg::new(knob.env).long(long).value_name(value_name(knob.kind)).help(help)
        }))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn value_name(kind: node::config::Kind) -> &'static str {
    match kind {
        node::config::Kind::Text => "TEXT",
        node::config::Kind::Choice(_) => "WORD",
        node::config::Kind::Count { .. } => "N",
        node::config::Kind::Bytes { .. } => "BYTES",
        node::config::Kind::Duration { .. } => "TIME",
    }
}

impl FromArgMatches for KnobFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let given = knobs::all().into_iter().filter_map(|knob| {
            let text = matches.get_one::<String>(knob.env)?;
            Some((knob.key(), text.clone()))
        });
        Ok(given.collect())
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
