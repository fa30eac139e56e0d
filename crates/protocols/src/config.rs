//! Which protocol, and its settings.

use core::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{erpc, scalerpc};

/// The protocol that carries calls.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// Batches of calls in mirrored rings.
    #[default]
    Copyrpc,
    /// Datagrams, driven by the client.
    Erpc,
    /// WRITEs into a pool that groups of clients use in turn.
    Scalerpc,
}

impl Protocol {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Copyrpc, Self::Erpc, Self::Scalerpc];

    /// As on command lines and in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Copyrpc => "copyrpc",
            Self::Erpc => "erpc",
            Self::Scalerpc => "scalerpc",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(self.name())
    }
}

/// No protocol has that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no protocol is named `{0}`; there are copyrpc, erpc and scalerpc")]
pub struct UnknownProtocol(pub String);

impl FromStr for Protocol {
    type Err = UnknownProtocol;

    fn from_str(name: &str) -> Result<Self, UnknownProtocol> {
        let found = Self::ALL.into_iter().find(|protocol| protocol.name() == name);
        found.ok_or_else(|| UnknownProtocol(name.to_owned()))
    }
}

/// Which protocol, and the settings of each.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The protocol of calls. Both sides choose alike.
    pub protocol: Protocol,
    /// Of copyrpc.
    pub copyrpc: rpc::Config,
    /// Of eRPC.
    pub erpc: erpc::Config,
    /// How lanes over eRPC connect: for how long they ask, and whether a lane that failed does so again.
    pub erpc_connect: erpc::ConnectOptions,
    /// Of ScaleRPC: of the server; clients need `slots` and `block_bytes`.
    pub scalerpc: scalerpc::ServerConfig,
}
