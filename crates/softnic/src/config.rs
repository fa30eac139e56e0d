//! Settings of the software NIC, each with its environment variable.

use core::str::FromStr;

/// When the NIC does its work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Drive {
    /// In the doorbell, on the caller's thread. Timers and new connections advance when the program
    /// polls.
    #[default]
    Inline,
    /// On a thread of its own that watches doorbell records, like a device.
    Thread,
}

/// How ports are addressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Link {
    /// By LID.
    #[default]
    InfiniBand,
    /// By GID and Ethernet address.
    Roce,
}

/// Settings of one software NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Who works.
    pub drive: Drive,
    /// Seed of strict mode; `None`: off.
    pub strict: Option<u64>,
    /// Ports see each other if they have the same user, network namespace and fabric name.
    pub fabric: String,
    /// Addressing.
    pub link: Link,
    /// Address space for queues, in MiB; only what is used is allocated.
    pub card_mib: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            drive: Drive::default(),
            strict: None,
            fabric: "default".into(),
            link: Link::default(),
            card_mib: 64,
        }
    }
}

/// One setting, for listings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Knob {
    /// Environment variable.
    pub env: &'static str,
    /// Value if it is not set.
    pub default: &'static str,
    /// What it does and which values it takes.
    pub meaning: &'static str,
}

/// Every setting.
pub const KNOBS: &[Knob] = &[
    Knob {
        env: "COPYRPC_SOFT_DRIVE",
        default: "inline",
        meaning: "who does the NIC's work: `inline` (the thread that rings) or `thread` (a NIC thread)",
    },
    Knob {
        env: "COPYRPC_SOFT_STRICT",
        default: "off",
        meaning: "`off`, or a seed: delay and shuffle what hardware may, refuse what hardware refuses",
    },
    Knob {
        env: "COPYRPC_SOFT_FABRIC",
        default: "default",
        meaning: "name of the fabric; ports see each other only within one (1 to 32 of A-Z a-z 0-9 - _)",
    },
    Knob {
        env: "COPYRPC_SOFT_LINK",
        default: "infiniband",
        meaning: "addressing: `infiniband` (LID) or `roce` (GID)",
    },
    Knob {
        env: "COPYRPC_SOFT_CARD_MIB",
        default: "64",
        meaning: "address space for queues in MiB (8 to 4096); only what is used is allocated",
    },
];

/// A setting that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{env}={value}: {meaning}")]
pub struct ConfigError {
    /// Environment variable.
    pub env: &'static str,
    /// Its value.
    pub value: String,
    /// What it takes.
    pub meaning: &'static str,
}

impl Config {
    /// Defaults, overridden by what `lookup` finds for the variables in [`KNOBS`].
    ///
    /// # Errors
    ///
    /// [`ConfigError`]: the first bad value.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        for knob in KNOBS {
            let Some(value) = lookup(knob.env) else { continue };
            if config.set(knob.env, &value).is_none() {
                return Err(ConfigError { env: knob.env, value, meaning: knob.meaning });
            }
        }
        Ok(config)
    }

    fn set(&mut self, env: &str, value: &str) -> Option<()> {
        match env {
            "COPYRPC_SOFT_DRIVE" => self.drive = value.parse().ok()?,
            "COPYRPC_SOFT_STRICT" if value == "off" => self.strict = None,
            "COPYRPC_SOFT_STRICT" => self.strict = Some(value.parse().ok()?),
            "COPYRPC_SOFT_FABRIC" => {
                let legal = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
                let fits = (1..=32).contains(&value.len()) && value.chars().all(legal);
                self.fabric = fits.then(|| value.to_owned())?;
            }
            "COPYRPC_SOFT_LINK" => self.link = value.parse().ok()?,
            "COPYRPC_SOFT_CARD_MIB" => {
                self.card_mib = value.parse().ok().filter(|mib| (8..=4096).contains(mib))?;
            }
            _ => return None,
        }
        Some(())
    }
}

/// A word that is none of the choices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected one of: {0}")]
pub struct UnknownChoice(&'static str);

impl FromStr for Drive {
    type Err = UnknownChoice;

    fn from_str(word: &str) -> Result<Self, UnknownChoice> {
        match word {
            "inline" => Ok(Self::Inline),
            "thread" => Ok(Self::Thread),
            _ => Err(UnknownChoice("inline, thread")),
        }
    }
}

impl FromStr for Link {
    type Err = UnknownChoice;

    fn from_str(word: &str) -> Result<Self, UnknownChoice> {
        match word {
            "infiniband" => Ok(Self::InfiniBand),
            "roce" => Ok(Self::Roce),
            _ => Err(UnknownChoice("infiniband, roce")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_knob_can_be_set_to_its_default_and_nothing_else_is_known() {
        for knob in KNOBS {
            let set = |name: &str| (name == knob.env).then(|| knob.default.to_owned());
            assert_eq!(Config::from_lookup(set), Ok(Config::default()), "{}", knob.env);
        }
        assert_eq!(Config::default().set("COPYRPC_SOFT_OTHER", "1"), None);
    }

    #[test]
    fn bad_values_are_named() {
        for (env, bad) in [
            ("COPYRPC_SOFT_DRIVE", "fast"),
            ("COPYRPC_SOFT_STRICT", "yes"),
            ("COPYRPC_SOFT_FABRIC", "a/b"),
            ("COPYRPC_SOFT_LINK", "ethernet"),
            ("COPYRPC_SOFT_CARD_MIB", "4 MiB"),
        ] {
            let error = Config::from_lookup(|name| (name == env).then(|| bad.to_owned()));
            assert!(error.unwrap_err().to_string().starts_with(&format!("{env}={bad}: ")));
        }
    }
}
