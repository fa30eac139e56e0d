//! The knobs of every command: those of the node and those of every NIC, in one table.

use std::{
    env::{self, VarError},
    io::ErrorKind,
    path::{Path, PathBuf},
};

use client::waiting::{WAIT_VARIABLE, wait_of};
use config::{Knob, Layers, Origin, Setting, Settings};
use daemon::config::with_file;
use os::plain_file;
use serde::Serialize;

use crate::exit::UsageError;

/// Names the file, where no flag does.
const FILE_VARIABLE: &str = "COPYRPC_CONFIG";
/// The file, where nothing names one; it need not exist.
const FILE_DEFAULT: &str = "/etc/copyrpc.toml";

/// Longest file of knobs: every knob with a long value takes a tenth of it.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Variables that are no knobs, but not mistyped either.
const OTHER_VARIABLES: [&str; 10] = [
    FILE_VARIABLE,
    // Of the processes that call and serve.
    WAIT_VARIABLE,
    "COPYRPC_PAUSE",
    // The shared library that the Python package opens.
    "COPYRPC_LIBRARY",
    // Of `copyrpc-lab uverbs run`, whose programs may be daemons.
    "COPYRPC_UVERBS_EXPLAIN",
    "COPYRPC_UVERBS_FABRIC",
    "COPYRPC_UVERBS_LIBRARY",
    "COPYRPC_UVERBS_LINK",
    "COPYRPC_UVERBS_PARENT",
    "COPYRPC_UVERBS_STRICT",
];

/// Every knob.
pub fn all() -> Vec<Knob> {
    daemon::config::KNOBS.iter().copied().chain(nics::knobs()).collect()
}

/// Every knob as all layers come to. `file` is what a flag names.
///
/// # Errors
///
/// If a layer has a value that its knob does not take, or the file cannot be read.
pub fn load<'a>(
    file: Option<&Path>,
    flags: impl Iterator<Item = (&'a str, &'a str)>,
) -> anyhow::Result<Settings> {
    let mut layers = Layers::new(all());
    if let Some((path, text)) = read_file(file)? {
        layers = with_file(layers, &path, &text)?;
    }
    if let Some(knob) = all().iter().find(|knob| is_garbled(knob.env)) {
        return Err(UsageError(format!("the value of {} is no valid UTF-8", knob.env)).into());
    }
    layers = layers.environment(|variable| env::var(variable).ok())?;
    for (key, text) in flags {
        layers = layers.flag(key, text)?;
    }
    Ok(layers.finish())
}

fn is_garbled(variable: &str) -> bool {
    matches!(env::var(variable), Err(VarError::NotUnicode(_)))
}

/// The file that was asked for, or the usual one if it exists.
fn read_file(file: Option<&Path>) -> anyhow::Result<Option<(PathBuf, String)>> {
    let asked_for =
        file.map(Path::to_owned).or_else(|| env::var_os(FILE_VARIABLE).map(PathBuf::from));
    let path = asked_for.clone().unwrap_or_else(|| FILE_DEFAULT.into());
    match plain_file::read_text(&path, FILE_BYTES_MAX) {
        Ok(text) => Ok(Some((path, text))),
        Err(error) if asked_for.is_none() && error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => {
            let path = path.display();
            let text = format!("cannot read {path}: {error}; --config or {FILE_VARIABLE} names it");
            Err(UsageError(text).into())
        }
    }
}

/// The text of a knob that something sets.
pub fn text_if_set(settings: &Settings, env: &str) -> Option<String> {
    let setting = settings.find(env)?;
    (setting.origin != Origin::Default).then(|| setting.text.clone())
}

/// A knob as it is now, for people and programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shown {
    /// Name of the variable.
    pub env: &'static str,
    /// The value in force.
    pub value: String,
    /// Where that comes from.
    pub origin: String,
    /// The value if nothing sets it.
    pub default: &'static str,
    /// Which values it takes.
    pub takes: String,
    /// Effect, as a phrase for `--help`.
    pub meaning: &'static str,
}

/// Every knob as it is now.
pub fn shown(settings: &Settings) -> Vec<Shown> {
    let shown = |setting: &Setting| Shown {
        env: setting.knob.env,
        value: setting.text.clone(),
        origin: setting.origin.to_string(),
        default: setting.knob.default,
        takes: setting.knob.kind.to_string(),
        meaning: setting.knob.meaning,
    };
    settings.iter().map(shown).collect()
}

/// Warns about variables that look like knobs and are none.
pub fn warn_about_unknown() {
    let names = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for (name, nearest) in unknown(names) {
        match nearest {
            Some(knob) => tracing::warn!("{name} has no effect; did you mean {knob}?"),
            None => tracing::warn!("{name} has no effect; `copyrpc config` lists what has"),
        }
    }
    if let Some(way) = env::var_os(WAIT_VARIABLE)
        && way.to_str().and_then(wait_of).is_none()
    {
        let way = way.display();
        tracing::warn!("{WAIT_VARIABLE} = `{way}` has no effect; say busy, adaptive or block");
    }
}

/// Whether no warning is due about a variable: it is a knob, or read elsewhere.
#[must_use]
pub fn is_known(variable: &str) -> bool {
    unknown(std::iter::once(variable.to_owned())).is_empty()
}

/// Which of some variables look like knobs and are none, each with the knob that may be meant.
fn unknown(names: impl Iterator<Item = String>) -> Vec<(String, Option<&'static str>)> {
    let names = names.filter(|name| !OTHER_VARIABLES.contains(&name.as_str()));
    Layers::new(all()).unknown_variables(names)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_knobs_share_a_name() {
        let names = all().iter().map(|knob| knob.env).collect::<BTreeSet<_>>();
        assert_eq!(names.len(), all().len());
        assert!(OTHER_VARIABLES.iter().all(|other| !names.contains(other)));
    }

    #[test]
    fn the_variable_of_the_python_package_is_not_warned_about() {
        let names = ["COPYRPC_LIBRARY", "COPYRPC_LIBRARIE"].map(String::from);
        let warned = unknown(names.into_iter());
        assert_eq!(warned.len(), 1, "{warned:?}");
        assert_eq!(warned[0].0, "COPYRPC_LIBRARIE");
    }

    #[test]
    fn a_knob_of_the_software_nic_can_be_set_like_any_other() {
        let settings = Layers::new(all()).flag("--soft-drive", "thread").unwrap().finish();
        assert_eq!(text_if_set(&settings, "COPYRPC_SOFT_DRIVE").as_deref(), Some("thread"));
        assert_eq!(text_if_set(&settings, "COPYRPC_SOFT_LINK"), None);
    }
}
