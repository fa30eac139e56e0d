//! Settings of ports on TCP, each with its environment variable.

use core::time::Duration;
use std::path::PathBuf;

use config::{Knob, KnobKind, Layers, SettingError, Settings};
use verbs::PortOptions;

const MS: u64 = 1_000_000;

/// Settings of one port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// IPv4 address that it listens at and publishes; empty: with a secret the one that others reach, without
    /// one loopback.
    pub address: String,
    /// TCP port that it listens at, or the first free one after it; 0: any.
    pub port: u16,
    /// File with the secret; `None`: the user's own, on loopback only.
    pub secret_file: Option<PathBuf>,
    /// Where ports of the job meet, `HOST:PORT`: tells which address of this host they reach.
    pub rendezvous: Option<String>,
    /// A port that is silent for so long, though answers are due, is lost.
    pub timeout: Duration,
    /// Address space for queues, in MiB; queues allocate what they use.
    pub card_mib: usize,
    /// Reaches queue pairs of ports on the same host, of the same user and secret, by shared memory, and all others
    /// over TCP: NIC `hosts`.
    pub shares_memory: bool,
    /// The device has one port, and each of its tables one row. All else is refused.
    pub options: PortOptions,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            address: String::new(),
            port: 0,
            secret_file: None,
            rendezvous: None,
            timeout: Duration::from_secs(10),
            card_mib: 64,
            shares_memory: false,
            options: PortOptions::default(),
        }
    }
}

/// [`Config::address`].
const ADDRESS: Knob = Knob {
    env: "COPYRPC_TCP_ADDRESS",
    kind: KnobKind::Text,
    default: "",
    meaning: "IPv4 address that NICs `tcp` and `hosts` listen at and tell others [default: with COPYRPC_SECRET_FILE \
              the one that others reach: on the way to COPYRPC_RENDEZVOUS, or to other networks; without it 127.0.0.1]",
};

/// [`Config::port`].
const PORT: Knob = Knob {
    env: "COPYRPC_TCP_PORT",
    kind: KnobKind::Count { min: 0, max: 65_535 },
    default: "0",
    meaning: "TCP port that NICs `tcp` and `hosts` listen at, or the first free one of the 64 after it; 0: any",
};

/// [`Config::timeout`].
const TIMEOUT: Knob = Knob {
    env: "COPYRPC_TCP_TIMEOUT",
    kind: KnobKind::Duration { min_ns: 10 * MS, max_ns: 3_600_000 * MS },
    default: "10s",
    meaning: "NICs `tcp` and `hosts`: a port that is silent for so long, though answers are due, is lost",
};

/// [`Config::card_mib`].
const CARD_MIB: Knob = Knob {
    env: "COPYRPC_TCP_CARD_MIB",
    kind: KnobKind::Count { min: 8, max: 4096 },
    default: "64",
    meaning: "NICs `tcp` and `hosts`: address space for queues in MiB; only what is used is allocated",
};

/// The variable that names the file with the secret: a knob of the daemon, too.
pub(crate) const SECRET_FILE_VARIABLE: &str = "COPYRPC_SECRET_FILE";

/// The variable that says where daemons meet, another knob of the daemon.
pub(crate) const RENDEZVOUS_VARIABLE: &str = "COPYRPC_RENDEZVOUS";

/// Every setting of this NIC alone.
pub const KNOBS: &[Knob] = &[ADDRESS, PORT, TIMEOUT, CARD_MIB];

impl Config {
    /// Defaults, overridden by what `lookup` finds for the variables in [`KNOBS`], for
    /// `COPYRPC_SECRET_FILE` and `COPYRPC_RENDEZVOUS`.
    ///
    /// # Errors
    ///
    /// [`SettingError`]: the first bad value.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, SettingError> {
        let settings = Layers::new(KNOBS.to_vec()).environment(&lookup)?.finish();
        let secret_file = lookup(SECRET_FILE_VARIABLE).filter(|path| !path.is_empty());
        // A folder has a slash; HOST:PORT has none.
        let rendezvous = lookup(RENDEZVOUS_VARIABLE).filter(|place| !place.contains('/'));
        let secret_file = secret_file.map(PathBuf::from);
        Ok(Self { secret_file, rendezvous, ..Self::from_settings(&settings) })
    }

    fn from_settings(settings: &Settings) -> Self {
        Self {
            address: settings.text(&ADDRESS).to_owned(),
            port: u16::try_from(settings.number(&PORT)).unwrap_or(0),
            secret_file: None,
            rendezvous: None,
            timeout: Duration::from_nanos(settings.number(&TIMEOUT)),
            card_mib: usize::try_from(settings.number(&CARD_MIB)).unwrap_or(64),
            shares_memory: false,
            options: PortOptions::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_knob_can_be_set_to_its_default_and_sets_its_field() {
        for knob in KNOBS {
            let set = |name: &str| (name == knob.env).then(|| knob.default.to_owned());
            assert_eq!(Config::from_lookup(set), Ok(Config::default()), "{}", knob.env);
        }
        let set = |name: &str| {
            let text = match name {
                "COPYRPC_TCP_ADDRESS" => "10.0.0.1",
                "COPYRPC_TCP_PORT" => "7000",
                "COPYRPC_TCP_TIMEOUT" => "1s",
                "COPYRPC_TCP_CARD_MIB" => "8",
                "COPYRPC_SECRET_FILE" => "/a/file",
                "COPYRPC_RENDEZVOUS" => "host:7000",
                _ => return None,
            };
            Some(text.to_owned())
        };
        let expected = Config {
            address: "10.0.0.1".into(),
            port: 7000,
            secret_file: Some("/a/file".into()),
            rendezvous: Some("host:7000".into()),
            timeout: Duration::from_secs(1),
            card_mib: 8,
            shares_memory: false,
            options: PortOptions::default(),
        };
        assert_eq!(Config::from_lookup(set), Ok(expected));
    }

    #[test]
    fn a_bad_value_is_named() {
        let bad = |name: &str| (name == "COPYRPC_TCP_PORT").then(|| "x".to_owned());
        assert!(Config::from_lookup(bad).unwrap_err().to_string().starts_with("COPYRPC_TCP_PORT"));
    }
}
