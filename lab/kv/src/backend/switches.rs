//! What can be switched about a backend: named, listed, checked and recorded in every result.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Something that has one of a few values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch {
    /// Its name.
    pub name: &'static str,
    /// What it may be; the first is the default.
    pub values: &'static [&'static str],
    /// Effect, as a phrase for `--help`.
    pub meaning: &'static str,
}

/// The value of every switch of a backend, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Switches(BTreeMap<String, String>);

/// A switch that does not exist, or not with this value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SwitchError {
    /// No such switch.
    #[error("backend {backend} has no switch `{name}`; it has: {known}")]
    Name {
        /// Of the backend.
        backend: &'static str,
        /// As given.
        name: String,
        /// The ones there are.
        known: String,
    },
    /// No such value.
    #[error("switch `{name}` cannot be `{value}`; it can be: {known}")]
    Value {
        /// Of the switch.
        name: &'static str,
        /// As given.
        value: String,
        /// The ones there are.
        known: String,
    },
}

impl Switches {
    /// All of `table`, at their defaults unless `given` says otherwise.
    ///
    /// # Errors
    ///
    /// [`SwitchError`].
    pub fn resolve(
        backend: &'static str,
        table: &[Switch],
        given: &BTreeMap<String, String>,
    ) -> Result<Self, SwitchError> {
        let names = || table.iter().map(|switch| switch.name).collect::<Vec<_>>().join(", ");
        if let Some(name) = given.keys().find(|&name| table.iter().all(|s| s.name != name)) {
            return Err(SwitchError::Name { backend, name: name.clone(), known: names() });
        }
        let resolve = |switch: &Switch| {
            let default = switch.values[0];
            let value = given.get(switch.name).map_or(default, String::as_str);
            if !switch.values.contains(&value) {
                let known = switch.values.join(", ");
                return Err(SwitchError::Value { name: switch.name, value: value.into(), known });
            }
            Ok((switch.name.to_owned(), value.to_owned()))
        };
        table.iter().map(resolve).collect::<Result<_, _>>().map(Self)
    }

    /// The value of `name`; "" if the backend has no such switch.
    #[must_use]
    pub fn value(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Kind;

    fn given(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    /// Nobody varied RC/DC, inline/SGE, signalling or batching before explaining a slowdown: here
    /// each is a switch that is listed, accepted in all its values, and recorded.
    #[test]
    fn pitfall_30_every_switch_is_settable_and_recorded() {
        for kind in Kind::ALL {
            for switch in kind.switches() {
                assert!(switch.values.len() >= 2, "{} switches nothing", switch.name);
                assert!(!switch.meaning.is_empty());
                for value in switch.values {
                    let given = given(&[(switch.name, value)]);
                    let all = Switches::resolve(kind.name(), kind.switches(), &given).unwrap();
                    assert_eq!(all.value(switch.name), *value);
                    assert_eq!(all.iter().count(), kind.switches().len(), "all are recorded");
                    let json = serde_json::to_string(&all).unwrap();
                    assert_eq!(serde_json::from_str::<Switches>(&json).unwrap(), all);
                }
            }
        }
    }

    #[test]
    fn unknown_names_and_values_are_refused_with_the_known_ones() {
        let table = [Switch { name: "colour", values: &["red", "blue"], meaning: "paint" }];
        let resolve = |pairs| Switches::resolve("test", &table, &given(pairs));
        assert_eq!(resolve(&[]).unwrap().value("colour"), "red");
        let error = resolve(&[("color", "red")]).unwrap_err().to_string();
        assert_eq!(error, "backend test has no switch `color`; it has: colour");
        let error = resolve(&[("colour", "green")]).unwrap_err().to_string();
        assert_eq!(error, "switch `colour` cannot be `green`; it can be: red, blue");
    }
}
