//! Every environment variable that changes what the program does: one table, from which values are
//! parsed, shown and checked.

use std::env;

use serde::Serialize;
use softnic::Knob;

/// Which NIC is used.
pub(crate) const NIC: Knob = Knob {
    env: "COPYRPC_NIC",
    default: "soft",
    meaning: "The NIC to use: `soft`, the software NIC, is the only one that this version drives",
};

/// Variables that start like knobs are checked for typing errors.
const PREFIX: &str = "COPYRPC_";
/// Edits that a typing error may have.
const DISTANCE_MAX: usize = 4;

/// Every knob.
pub(crate) fn all() -> Vec<Knob> {
    [NIC].into_iter().chain(softnic::KNOBS.iter().copied()).collect()
}

/// A knob as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Setting {
    /// Name of the variable.
    pub(crate) env: &'static str,
    /// What holds now.
    pub(crate) value: String,
    /// Where that comes from: `default`, `environment`, or a flag.
    pub(crate) origin: &'static str,
    /// What holds without the variable.
    pub(crate) default: &'static str,
    /// What it does.
    pub(crate) meaning: &'static str,
}

/// Every knob as it is now; `nic` is what the command line came to.
pub(crate) fn settings(nic: &str) -> Vec<Setting> {
    let from_environment = |knob: &Knob| env::var(knob.env).ok();
    let setting = |knob: Knob| {
        let Knob { env, default, meaning } = knob;
        let variable = from_environment(&knob);
        let (value, origin) = match variable {
            _ if knob == NIC => (nic.to_owned(), origin_of_nic(nic, variable.as_deref())),
            Some(value) => (value, "environment"),
            None => (default.to_owned(), "default"),
        };
        Setting { env, value, origin, default, meaning }
    };
    all().into_iter().map(setting).collect()
}

/// The flag wins over the variable, the variable over the default.
fn origin_of_nic(nic: &str, variable: Option<&str>) -> &'static str {
    match variable {
        Some(value) if value == nic => "environment",
        None if nic == NIC.default => "default",
        _ => "--nic",
    }
}

/// Warns about variables that look like knobs and are none.
pub(crate) fn warn_about_unknown() {
    let names = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for name in names.filter(|name| is_unknown(name)) {
        match suggestion(&name) {
            Some(knob) => tracing::warn!("{name} has no effect; did you mean {knob}?"),
            None => tracing::warn!("{name} has no effect; `copyrpc info` lists what has"),
        }
    }
}

fn is_unknown(name: &str) -> bool {
    name.starts_with(PREFIX) && all().iter().all(|knob| knob.env != name)
}

/// The knob that `name` is most like, if it is like any.
fn suggestion(name: &str) -> Option<&'static str> {
    all()
        .into_iter()
        .map(|knob| (strsim::damerau_levenshtein(name, knob.env), knob.env))
        .min()
        .filter(|&(distance, _)| distance <= DISTANCE_MAX)
        .map(|(_, knob)| knob)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn knobs_are_unique_prefixed_and_explained() {
        let names = all().iter().map(|knob| knob.env).collect::<BTreeSet<_>>();
        assert_eq!(names.len(), all().len());
        for knob in all() {
            assert!(knob.env.starts_with(PREFIX), "{}", knob.env);
            assert!(!knob.meaning.is_empty(), "{}", knob.env);
        }
    }

    #[test]
    fn a_typing_error_is_answered_with_the_nearest_knob() {
        assert!(is_unknown("COPYRPC_NCI"));
        assert_eq!(suggestion("COPYRPC_NCI"), Some(NIC.env));
        assert_eq!(suggestion("COPYRPC_SOMETHING_ELSE"), None);
        assert!(!is_unknown(NIC.env));
        assert!(!is_unknown("PATH"));
    }

    #[test]
    fn origins_follow_the_precedence() {
        assert_eq!(origin_of_nic("soft", None), "default");
        assert_eq!(origin_of_nic("soft", Some("soft")), "environment");
        assert_eq!(origin_of_nic("mlx5_0", None), "--nic");
        assert_eq!(origin_of_nic("soft", Some("mlx5_0")), "--nic");
    }
}
