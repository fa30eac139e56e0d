//! Layers of configuration, and the settings that they make.

use core::fmt;
use std::path::PathBuf;

use crate::knob::{Knob, PREFIX, Value, ValueError, nearest};

/// The layer that a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// From the table of knobs.
    Default,
    /// From a file.
    File {
        /// The file.
        path: PathBuf,
        /// Its line, from 1.
        line: usize,
    },
    /// From an environment variable.
    Environment {
        /// The variable.
        variable: &'static str,
    },
    /// From the command line.
    Flag {
        /// The flag.
        flag: String,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Environment { variable } => f.write_str(variable),
            Self::Flag { flag } => f.write_str(flag),
        }
    }
}

/// An error in a layer, with its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{origin}: {fault}")]
pub struct SettingError {
    /// Its place.
    pub origin: Origin,
    /// The error.
    pub fault: Box<LayerFault>,
}

/// An error in a layer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayerFault {
    /// The file is no TOML.
    #[error("{0}")]
    Syntax(String),
    /// A name that no knob has.
    #[error("there is no knob `{name}`{}", suggestion(nearest.as_deref()))]
    Unknown {
        /// The name.
        name: String,
        /// The nearest knob.
        nearest: Option<String>,
    },
    /// A value that the knob does not take.
    #[error("{key} = `{text}` {cause}")]
    Value {
        /// The knob.
        key: String,
        /// The value.
        text: String,
        /// Error of the value.
        cause: ValueError,
    },
    /// A list or a table where one value is expected.
    #[error("{key} takes one value, not a list or a table")]
    NotOneValue {
        /// The knob.
        key: String,
    },
}

impl LayerFault {
    fn at(self, origin: Origin) -> SettingError {
        SettingError { origin, fault: Box::new(self) }
    }
}

fn suggestion(nearest: Option<&str>) -> String {
    match nearest {
        Some(nearest) => format!("; did you mean `{nearest}`?"),
        None => "; `copyrpc config` lists all".to_owned(),
    }
}

/// A knob with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The knob.
    pub knob: Knob,
    /// The value as it was written.
    pub text: String,
    /// The value as it was understood.
    pub value: Value,
    /// The layer that set it.
    pub origin: Origin,
}

/// Builds [`Settings`], lowest layer first.
#[derive(Clone, Debug)]
pub struct Layers {
    settings: Vec<Setting>,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {} ({})", self.knob.key(), self.text, self.origin)
    }
}

impl Layers {
    /// All defaults.
    ///
    /// # Panics
    ///
    /// If a default is no value of its knob: an error in the table.
    #[must_use]
    pub fn new(knobs: Vec<Knob>) -> Self {
        let setting = |knob: Knob| {
            let value = if knob.default.is_empty() {
                Value::Unset
            } else {
                let checked = knob.kind.check(knob.default);
                checked.unwrap_or_else(|error| panic!("the default of {} {error}", knob.env))
            };
            Setting { knob, text: knob.default.to_owned(), value, origin: Origin::Default }
        };
        Self { settings: knobs.into_iter().map(setting).collect() }
    }

    /// The environment, through `lookup`. An empty variable counts as not set.
    ///
    /// # Errors
    ///
    /// [`LayerFault::Value`].
    pub fn environment(
        mut self,
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, SettingError> {
        for index in 0..self.settings.len() {
            let variable = self.settings[index].knob.env;
            if let Some(text) = lookup(variable).filter(|text| !text.is_empty()) {
                self.set(index, text, Origin::Environment { variable })?;
            }
        }
        Ok(self)
    }

    /// One flag, `key` being the knob's name with `-` or `_`.
    ///
    /// # Errors
    ///
    /// [`SettingError`].
    pub fn flag(self, key: &str, text: &str) -> Result<Self, SettingError> {
        let flag = format!("--{}", key.trim_start_matches('-').replace('_', "-"));
        let name = key.trim_start_matches('-').replace('-', "_");
        self.entry(&name, text.to_owned(), Origin::Flag { flag })
    }

    /// One entry of a file: `text` for the knob with this key.
    ///
    /// # Errors
    ///
    /// [`LayerFault::Unknown`] and [`LayerFault::Value`].
    pub fn entry(mut self, key: &str, text: String, origin: Origin) -> Result<Self, SettingError> {
        let index = self.index_of(key, &origin)?;
        self.set(index, text, origin)?;
        Ok(self)
    }

    /// The settings that the layers make.
    #[must_use]
    pub fn finish(self) -> Settings {
        Settings { settings: self.settings }
    }

    /// Those of `names` that begin like a knob's variable and belong to no knob, with the nearest knob.
    pub fn unknown_variables(
        &self,
        names: impl Iterator<Item = String>,
    ) -> Vec<(String, Option<&'static str>)> {
        let envs = || self.settings.iter().map(|setting| setting.knob.env);
        names
            .filter(|name| name.starts_with(PREFIX) && envs().all(|env| env != name))
            .map(|name| {
                let nearest = nearest(&name, envs());
                (name, nearest)
            })
            .collect()
    }

    /// Whether there is a knob with this key.
    ///
    /// # Errors
    ///
    /// [`LayerFault::Unknown`], with the nearest knob.
    pub fn check_key(&self, key: &str, origin: &Origin) -> Result<(), SettingError> {
        self.index_of(key, origin).map(|_| ())
    }

    fn index_of(&self, name: &str, origin: &Origin) -> Result<usize, SettingError> {
        let keys: Vec<_> = self.settings.iter().map(|setting| setting.knob.key()).collect();
        keys.iter().position(|key| key == name).ok_or_else(|| {
            let nearest = nearest(name, keys.iter().map(String::as_str)).map(str::to_owned);
            LayerFault::Unknown { name: name.to_owned(), nearest }.at(origin.clone())
        })
    }

    fn set(&mut self, index: usize, text: String, origin: Origin) -> Result<(), SettingError> {
        let knob = self.settings[index].knob;
        let checked = if text.is_empty() && knob.default.is_empty() {
            Ok(Value::Unset)
        } else if text.is_empty() {
            Err(ValueError::Empty)
        } else {
            knob.kind.check(&text)
        };
        match checked {
            Ok(value) => self.settings[index] = Setting { knob, text, value, origin },
            Err(cause) => {
                return Err(LayerFault::Value { key: knob.key(), text, cause }.at(origin));
            }
        }
        Ok(())
    }
}

/// Every knob with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    settings: Vec<Setting>,
}

impl Settings {
    /// All of them, in the order of the table.
    pub fn iter(&self) -> impl Iterator<Item = &Setting> {
        self.settings.iter()
    }

    /// The setting of the variable `env`.
    #[must_use]
    pub fn find(&self, env: &str) -> Option<&Setting> {
        self.settings.iter().find(|setting| setting.knob.env == env)
    }

    /// A knob's setting.
    ///
    /// # Panics
    ///
    /// If the knob is not in the table that these settings were made of.
    #[must_use]
    pub fn of(&self, knob: &Knob) -> &Setting {
        match self.find(knob.env) {
            Some(setting) => setting,
            None => panic!("{} is not in the table of knobs", knob.env),
        }
    }

    /// The number (a count, bytes or nanoseconds) that a knob is set to.
    ///
    /// # Panics
    ///
    /// If the knob takes no number, or may be without value.
    #[must_use]
    pub fn number(&self, knob: &Knob) -> u64 {
        match self.number_if_set(knob) {
            Some(number) => number,
            None => panic!("{} has no number", knob.env),
        }
    }

    /// The number that a knob is set to, if it is.
    ///
    /// # Panics
    ///
    /// If the knob takes no number.
    #[must_use]
    pub fn number_if_set(&self, knob: &Knob) -> Option<u64> {
        match &self.of(knob).value {
            Value::Number(number) => Some(*number),
            Value::Unset => None,
            Value::Text(_) => panic!("{} takes no number", knob.env),
        }
    }

    /// The text that a knob is set to; empty if it is not set.
    #[must_use]
    pub fn text(&self, knob: &Knob) -> &str {
        &self.of(knob).text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::knob::KnobKind;

    const CALL_TIMEOUT: Knob = Knob {
        env: "COPYRPC_CALL_TIMEOUT",
        kind: KnobKind::Duration { min_ns: 1, max_ns: 60_000_000_000 },
        default: "5s",
        meaning: "how long",
    };
    const CLIENTS_MAX: Knob = Knob {
        env: "COPYRPC_CLIENTS_MAX",
        kind: KnobKind::Count { min: 1, max: 64 },
        default: "8",
        meaning: "how many",
    };
    const BOOTSTRAP: Knob = Knob {
        env: "COPYRPC_BOOTSTRAP",
        kind: KnobKind::Choice(&["auto", "alone"]),
        default: "auto",
        meaning: "how",
    };
    const RANK: Knob = Knob {
        env: "COPYRPC_RANK",
        kind: KnobKind::Count { min: 0, max: 9 },
        default: "",
        meaning: "which",
    };

    fn layers() -> Layers {
        Layers::new(vec![CALL_TIMEOUT, CLIENTS_MAX, BOOTSTRAP, RANK])
    }

    fn in_file(key: &str, text: &str) -> Result<Layers, SettingError> {
        let origin = Origin::File { path: "copyrpc.toml".into(), line: 2 };
        layers().entry(key, text.to_owned(), origin)
    }

    #[test]
    fn a_flag_wins_over_the_environment_over_a_file_over_the_default() {
        let shown = |layers: Layers| layers.finish().of(&CALL_TIMEOUT).to_string();
        let environment = |variable: &str| (variable == CALL_TIMEOUT.env).then(|| "3s".to_owned());
        assert_eq!(shown(layers()), "call_timeout = 5s (default)");
        let file = in_file("call_timeout", "4s").unwrap();
        assert_eq!(shown(file.clone()), "call_timeout = 4s (copyrpc.toml:2)");
        let over = file.environment(environment).unwrap();
        assert_eq!(shown(over.clone()), "call_timeout = 3s (COPYRPC_CALL_TIMEOUT)");
        let over = over.flag("call-timeout", "2s").unwrap();
        assert_eq!(shown(over), "call_timeout = 2s (--call-timeout)");
    }

    #[test]
    fn an_error_names_its_layer_and_the_remedy() {
        let error = in_file("call_timeuot", "1s").unwrap_err().to_string();
        assert_eq!(
            error,
            "copyrpc.toml:2: there is no knob `call_timeuot`; did you mean `call_timeout`?"
        );
        let error = layers().flag("--frobnicate", "1").unwrap_err().to_string();
        assert_eq!(
            error,
            "--frobnicate: there is no knob `frobnicate`; `copyrpc config` lists all"
        );
        let environment = |variable: &str| (variable == CLIENTS_MAX.env).then(|| "many".to_owned());
        let error = layers().environment(environment).unwrap_err().to_string();
        let expected = "COPYRPC_CLIENTS_MAX: clients_max = `many` is no number; write for example";
        assert!(error.starts_with(expected), "{error}");
    }

    #[test]
    fn empty_means_unset_where_a_knob_may_be_without_value() {
        let settings = in_file("rank", "").unwrap().finish();
        assert_eq!(settings.number_if_set(&RANK), None);
        assert_eq!(settings.text(&BOOTSTRAP), "auto");
        assert!(matches!(*in_file("bootstrap", "").unwrap_err().fault, LayerFault::Value { .. }));
        let ignored = layers().environment(|_| Some(String::new())).unwrap().finish();
        assert_eq!(ignored.text(&BOOTSTRAP), "auto");
    }

    #[test]
    fn variables_that_look_like_knobs_are_reported_with_the_nearest() {
        let names = ["COPYRPC_CALL_TIMEOT", "COPYRPC_SOMETHING_ELSE", "PATH", CLIENTS_MAX.env];
        let unknown = layers().unknown_variables(names.into_iter().map(str::to_owned));
        assert_eq!(
            unknown,
            [
                ("COPYRPC_CALL_TIMEOT".to_owned(), Some("COPYRPC_CALL_TIMEOUT")),
                ("COPYRPC_SOMETHING_ELSE".to_owned(), None)
            ]
        );
    }
}
