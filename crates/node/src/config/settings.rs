//! Layers of configuration, and what they come to.

use core::{fmt, ops::Range};
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use crate::config::knob::{Knob, PREFIX, Value, ValueError, nearest};

/// Where a value comes from.
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

/// What is wrong with a layer, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{origin}: {fault}")]
pub struct SettingError {
    /// Where it stands.
    pub origin: Origin,
    /// What is wrong.
    pub fault: Box<Fault>,
}

/// What is wrong with a layer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
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
        /// Why not.
        cause: ValueError,
    },
    /// A list or a table where one value is expected.
    #[error("{key} takes one value, not a list or a table")]
    NotOneValue {
        /// The knob.
        key: String,
    },
}

impl Fault {
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

/// A knob as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Which.
    pub knob: Knob,
    /// Value as it was written.
    pub text: String,
    /// Value as it was understood.
    pub value: Value,
    /// Where it comes from.
    pub origin: Origin,
}

/// Builds [`Settings`], lowest layer first.
///
/// ```
/// use copyrpc_node::config::{CALL_TIMEOUT, KNOBS, Layers};
///
/// let settings = Layers::new(KNOBS.to_vec())
///     .file("copyrpc.toml".as_ref(), "call_timeout = \"2s\"")?
///     .environment(|variable| (variable == CALL_TIMEOUT.env).then(|| "3s".into()))?
///     .finish();
/// assert_eq!(settings.number(&CALL_TIMEOUT), 3_000_000_000);
/// # Ok::<(), copyrpc_node::config::SettingError>(())
/// ```
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

    /// The text of a file, which is TOML with one `key = value` per knob.
    ///
    /// # Errors
    ///
    /// [`SettingError`].
    pub fn file(mut self, path: &Path, text: &str) -> Result<Self, SettingError> {
        let line_of = |span: Range<usize>| {
            text.bytes().take(span.start).filter(|byte| *byte == b'\n').count() + 1
        };
        let origin_of = |line| Origin::File { path: path.to_owned(), line };
        let table = DeTable::parse(text).map_err(|error| {
            let origin = origin_of(error.span().map_or(1, line_of));
            Fault::Syntax(error.message().to_owned()).at(origin)
        })?;
        for (key, value) in table.get_ref() {
            let origin = origin_of(line_of(key.span()));
            let name = key.get_ref().as_ref();
            let text = match value.get_ref() {
                DeValue::String(text) => text.as_ref().to_owned(),
                DeValue::Integer(number) => number.to_string(),
                DeValue::Float(number) => number.to_string(),
                DeValue::Boolean(word) => word.to_string(),
                DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => {
                    self.index_of(name, &origin)?;
                    return Err(Fault::NotOneValue { key: name.to_owned() }.at(origin));
                }
            };
            let index = self.index_of(name, &origin)?;
            self.set(index, text, origin)?;
        }
        Ok(self)
    }

    /// The environment, through `lookup`. An empty variable counts as not set.
    ///
    /// # Errors
    ///
    /// [`Fault::Value`].
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
    pub fn flag(mut self, key: &str, text: &str) -> Result<Self, SettingError> {
        let flag = format!("--{}", key.trim_start_matches('-').replace('_', "-"));
        let name = key.trim_start_matches('-').replace('-', "_");
        let origin = Origin::Flag { flag };
        let index = self.index_of(&name, &origin)?;
        self.set(index, text.to_owned(), origin)?;
        Ok(self)
    }

    /// What the layers come to.
    #[must_use]
    pub fn finish(self) -> Settings {
        Settings { settings: self.settings }
    }

    /// Variables among `names` that look like knobs and are none, each with the nearest that is.
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

    fn index_of(&self, name: &str, origin: &Origin) -> Result<usize, SettingError> {
        let keys: Vec<_> = self.settings.iter().map(|setting| setting.knob.key()).collect();
        keys.iter().position(|key| key == name).ok_or_else(|| {
            let nearest = nearest(name, keys.iter().map(String::as_str)).map(str::to_owned);
            Fault::Unknown { name: name.to_owned(), nearest }.at(origin.clone())
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
                return Err(Fault::Value { key: knob.key(), text, cause }.at(origin));
            }
        }
        Ok(())
    }
}

/// Every knob as it is now.
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
    use crate::config::table::{BOOTSTRAP, CALL_TIMEOUT, CLIENTS_MAX, KNOBS, RANK};

    const FILE: &str = "copyrpc.toml";

    fn layers() -> Layers {
        Layers::new(KNOBS.to_vec())
    }

    fn file(text: &str) -> Result<Layers, SettingError> {
        layers().file(FILE.as_ref(), text)
    }

    #[test]
    fn a_flag_wins_over_the_environment_over_a_file_over_the_default() {
        let shown = |layers: Layers| {
            let settings = layers.finish();
            let setting = settings.of(&CALL_TIMEOUT);
            format!("{} ({})", setting.text, setting.origin)
        };
        let environment = |variable: &str| (variable == CALL_TIMEOUT.env).then(|| "3s".to_owned());
        assert_eq!(shown(layers()), "5s (default)");
        let file = file("# comment\ncall_timeout = \"4s\"").unwrap();
        assert_eq!(shown(file.clone()), "4s (copyrpc.toml:2)");
        let over = file.environment(environment).unwrap();
        assert_eq!(shown(over.clone()), "3s (COPYRPC_CALL_TIMEOUT)");
        assert_eq!(shown(over.flag("call-timeout", "2s").unwrap()), "2s (--call-timeout)");
    }

    #[test]
    fn fault_e8_an_unknown_key_is_refused_with_a_suggestion_and_its_line() {
        let error = file("\ncall_timeuot = \"1s\"\n").unwrap_err().to_string();
        assert_eq!(
            error,
            "copyrpc.toml:2: there is no knob `call_timeuot`; did you mean `call_timeout`?"
        );
        let error = layers().flag("--frobnicate", "1").unwrap_err().to_string();
        assert_eq!(
            error,
            "--frobnicate: there is no knob `frobnicate`; `copyrpc config` lists all"
        );
    }

    #[test]
    fn fault_e8_a_wrong_unit_is_refused_with_the_place_and_the_remedy() {
        let error = file("call_timeout = 5").unwrap_err().to_string();
        assert_eq!(error, "copyrpc.toml:1: call_timeout = `5` needs a unit: ns, us, ms, s, min, h");
        let environment = |variable: &str| (variable == CLIENTS_MAX.env).then(|| "many".to_owned());
        let error = layers().environment(environment).unwrap_err().to_string();
        assert!(
            error.starts_with("COPYRPC_CLIENTS_MAX: clients_max = `many` is no whole"),
            "{error}"
        );
    }

    #[test]
    fn a_file_that_is_no_toml_or_nests_is_refused() {
        let fault = |text| *file(text).unwrap_err().fault;
        assert!(matches!(fault("a b"), Fault::Syntax(_)));
        assert!(matches!(fault("clients_max = [1]"), Fault::NotOneValue { .. }));
        assert!(matches!(fault("[daemon]\nrank = 1"), Fault::Unknown { .. }));
        assert!(matches!(fault("bootstrap = \"\""), Fault::Value { .. }));
    }

    #[test]
    fn numbers_and_words_need_no_quotes_and_empty_means_unset() {
        let settings = file("clients_max = 12\nrank = \"\"").unwrap().finish();
        assert_eq!(settings.number(&CLIENTS_MAX), 12);
        assert_eq!(settings.number_if_set(&RANK), None);
        assert_eq!(settings.text(&BOOTSTRAP), "auto");
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
