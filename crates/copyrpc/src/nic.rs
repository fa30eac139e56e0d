//! NICs by name. The only kind so far is `soft`, the software NIC.

use std::env;

pub use softnic::{Config, ConfigError, Drive, Link, Nic};

/// Which NIC [`open`] opens.
pub const VARIABLE: &str = "COPYRPC_NIC";

/// Name of the software NIC.
pub const SOFT: &str = "soft";

/// Why a NIC cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A name that no driver here answers to.
    #[error(
        "no NIC is named `{0}`; this version drives `soft` only (`copyrpc info` lists devices)"
    )]
    Unknown(String),
    /// A setting of the software NIC makes no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The software NIC does not start.
    #[error(transparent)]
    Soft(#[from] softnic::OpenError),
}

/// Opens the NIC that `COPYRPC_NIC` names, or the software NIC if it is not set, with the settings of
/// the environment (`COPYRPC_SOFT_…`).
///
/// # Errors
///
/// [`OpenError`].
pub fn open() -> Result<Nic, OpenError> {
    let lookup = |variable: &str| env::var(variable).ok().filter(|text| !text.is_empty());
    open_named(lookup(VARIABLE).as_deref().unwrap_or(SOFT), lookup)
}

/// Opens the NIC `name`; `lookup` finds what an environment variable would say.
///
/// # Errors
///
/// [`OpenError`].
pub fn open_named(name: &str, lookup: impl Fn(&str) -> Option<String>) -> Result<Nic, OpenError> {
    if name != SOFT {
        return Err(OpenError::Unknown(name.to_owned()));
    }
    Ok(softnic::open(&Config::from_lookup(lookup)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nic_of_another_name_and_a_bad_setting_are_refused_by_name() {
        let unknown = open_named("mlx5_0", |_| None).map(drop).unwrap_err();
        assert!(unknown.to_string().contains("`mlx5_0`"), "{unknown}");
        let bad = open_named(SOFT, |_| Some("?".into())).map(drop).unwrap_err();
        assert!(matches!(bad, OpenError::Config(_)), "{bad}");
    }
}
