//! Opening a NIC by name, for the command line.

use std::collections::BTreeMap;

use bench::{
    traffic::{Links, Party, TrafficError},
    workers::{WorkerParty, Workers},
};
use node::config::Settings;
use serde::Serialize;
use verbs::{LinkLayer, Nic, NicAttributes, PortAttributes};

use crate::{info, knobs};

/// Why a NIC cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    /// There is none of that name, or it does not start.
    #[error(transparent)]
    Nic(#[from] copyrpc::nic::OpenError),
    /// It is there, but has no room for a benchmark's queues.
    #[error("cannot set up a benchmark on `{name}`: {cause}")]
    Party {
        /// The NIC.
        name: String,
        /// What it refused.
        cause: TrafficError,
    },
}

/// Opens the NIC `name`.
pub(crate) fn open(name: &str, settings: &Settings) -> Result<softnic::Nic, OpenError> {
    Ok(copyrpc::nic::open_named(name, |env| knobs::text_if_set(settings, env))?)
}

/// A NIC as a result names it: `soft (soft-drive=thread)`.
pub(crate) fn label(name: &str, knobs: &BTreeMap<String, String>) -> String {
    match kv::result::nic_parts(knobs) {
        parts if parts.is_empty() => name.to_owned(),
        parts => format!("{name} ({})", parts.join(", ")),
    }
}

/// Opens the NIC `name` and makes one side of a benchmark on it.
pub(crate) fn open_party(name: &str, settings: &Settings) -> Result<Box<dyn Party>, OpenError> {
    let nic = open(name, settings)?;
    let party_error = |cause| OpenError::Party { name: name.to_owned(), cause };
    Ok(Box::new(Links::create(nic).map_err(party_error)?))
}

/// Finds the NIC `name` and gives what opens workers on ports of it.
pub(crate) fn open_workers(
    name: &str,
    settings: &Settings,
) -> Result<Box<dyn WorkerParty>, OpenError> {
    open(name, settings)?; // an error now rather than at the first sample
    let (name, settings) = (name.to_owned(), settings.clone());
    Ok(Box::new(Workers::new(move || open(&name, &settings).map_err(|error| error.to_string()))))
}

/// Opens the NIC `name` to look at it.
pub(crate) fn describe(name: &str, settings: &Settings) -> Result<Description, OpenError> {
    Ok(Description::of(&open(name, settings)?))
}

/// A NIC's attributes and its port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Description {
    name: String,
    cqes_max: u32,
    wqes_max: u32,
    blueflame_bytes: u16,
    message_bytes_max: u32,
    reads_max: u8,
    link_layer: &'static str,
    lid: u16,
    gid: String,
    mtu_bytes: usize,
}

impl Description {
    fn of(nic: &impl Nic) -> Self {
        let NicAttributes {
            name,
            cqes_max,
            wqes_max,
            blueflame_bytes,
            message_bytes_max,
            reads_max,
        } = nic.attributes().clone();
        let PortAttributes { link, lid, gid, mtu, .. } = nic.port();
        let link_layer = match link {
            LinkLayer::InfiniBand => "InfiniBand",
            LinkLayer::Ethernet => "Ethernet",
        };
        Self {
            name,
            cqes_max,
            wqes_max,
            blueflame_bytes,
            message_bytes_max,
            reads_max,
            link_layer,
            lid: lid.get(),
            gid: gid.to_string(),
            mtu_bytes: mtu.bytes(),
        }
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        info::pairs(&[
            ("name", &self.name),
            ("link layer", self.link_layer),
            ("LID", &self.lid.to_string()),
            ("GID", &self.gid),
            ("MTU", &format!("{} B", self.mtu_bytes)),
            ("largest message", &format!("{} B", self.message_bytes_max)),
            ("CQ entries", &format!("up to {}", self.cqes_max)),
            ("queue entries", &format!("up to {}", self.wqes_max)),
            ("BlueFlame", &format!("{} B", self.blueflame_bytes)),
            ("READs in flight", &format!("up to {}", self.reads_max)),
        ])
    }
}
