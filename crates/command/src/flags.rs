//! A flag for every knob, made from the table, and the flag that names the file.

use std::{ffi::OsString, fmt::Debug, marker::PhantomData, path::PathBuf};

use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches};
use config::{Knob, KnobKind, Settings};
use daemon::config::{CALL_TIMEOUT, INSTANCE, JOB, NIC, RUNTIME_DIR};

use crate::knobs;

/// Which knobs a command has as flags.
pub trait KnobChoice: Clone + Debug + 'static {
    /// Whether the command has this one.
    fn has(knob: &Knob) -> bool;
}

/// Every knob.
#[derive(Clone, Debug)]
pub enum EveryKnob {}

/// Knobs that choose the NIC, its device and its port.
#[derive(Clone, Debug)]
pub enum NicKnobs {}

/// Which daemon to ask, and for how long to wait.
#[derive(Clone, Debug)]
pub enum CallKnobs {}

/// Where daemons have their sockets and counters.
#[derive(Clone, Debug)]
pub enum FolderKnobs {}

impl KnobChoice for EveryKnob {
    fn has(_: &Knob) -> bool {
        true
    }
}

impl KnobChoice for NicKnobs {
    fn has(knob: &Knob) -> bool {
        knob.env == NIC.env || nics::port_knobs().any(|port| port.env == knob.env)
    }
}

impl KnobChoice for CallKnobs {
    fn has(knob: &Knob) -> bool {
        [JOB, INSTANCE, RUNTIME_DIR, CALL_TIMEOUT].iter().any(|call| call.env == knob.env)
    }
}

impl KnobChoice for FolderKnobs {
    fn has(knob: &Knob) -> bool {
        knob.env == RUNTIME_DIR.env
    }
}

/// Where the settings of a command come from: its flags, the file, and what both leave to the environment.
#[derive(Clone, Debug, Args)]
pub struct SettingsArgs<C: KnobChoice> {
    /// TOML file of knobs [env: COPYRPC_CONFIG].
    #[arg(long = "config", value_name = "PATH")]
    file: Option<PathBuf>,
    #[command(flatten)]
    flags: KnobFlags<C>,
}

impl<C: KnobChoice> SettingsArgs<C> {
    /// Every knob as all layers come to.
    ///
    /// # Errors
    ///
    /// If a layer has a value that its knob does not take, or the file cannot be read.
    pub fn load(&self) -> anyhow::Result<Settings> {
        knobs::load(self.file.as_deref(), self.flags.iter())
    }

    /// The same for a program that this one starts.
    pub fn to_arguments(&self) -> Vec<OsString> {
        let flags = self.flags.iter();
        let flags = flags.flat_map(|(key, text)| {
            [format!("--{}", key.replace('_', "-")).into(), text.to_owned().into()]
        });
        let file = self.file.iter().flat_map(|path| ["--config".into(), path.clone().into()]);
        flags.chain(file).collect()
    }
}

/// Knobs given on the command line, as `(key, text)`.
#[derive(Clone, Debug)]
pub struct KnobFlags<C>(Vec<(String, String)>, PhantomData<C>);

impl<C: KnobChoice> KnobFlags<C> {
    /// As [`SettingsArgs::load`], where no flag names a file.
    ///
    /// # Errors
    ///
    /// As of [`SettingsArgs::load`].
    pub fn load(&self) -> anyhow::Result<Settings> {
        knobs::load(None, self.iter())
    }

    /// Whether the command line has any.
    pub fn is_set(&self) -> bool {
        !self.0.is_empty()
    }

    fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, text)| (key.as_str(), text.as_str()))
    }
}

impl<C: KnobChoice> Args for KnobFlags<C> {
    fn augment_args(command: Command) -> Command {
        command.args(knobs::all().into_iter().filter(C::has).map(|knob| {
            let mut help = format!("{} [env: {}]", knob.meaning, knob.env);
            if !knob.default.is_empty() {
                help += &format!(" [default: {}]", knob.default);
            }
            let long = knob.flag().trim_start_matches('-').to_owned();
            let arg = Arg::new(knob.env).long(long).value_name(value_name(knob.kind));
            arg.help(help).help_heading("Knobs")
        }))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn value_name(kind: KnobKind) -> &'static str {
    match kind {
        KnobKind::Text => "TEXT",
        KnobKind::Name { .. } => "NAME",
        KnobKind::CountOrOff => "N|off",
        KnobKind::Choice(_) => "WORD",
        KnobKind::Count { .. } => "N",
        KnobKind::Bytes { .. } => "BYTES",
        KnobKind::Duration { .. } => "TIME",
    }
}

impl<C: KnobChoice> FromArgMatches for KnobFlags<C> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let given = knobs::all().into_iter().filter(C::has).filter_map(|knob| {
            let text = matches.get_one::<String>(knob.env)?;
            Some((knob.key(), text.clone()))
        });
        Ok(Self(given.collect(), PhantomData))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
