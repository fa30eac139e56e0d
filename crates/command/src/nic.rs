//! The NIC that the knobs select, for commands.

use std::{net::Ipv4Addr, path::Path};

use daemon::config::{NIC, SECRET_FILE, Settings};
use nics::{OpenError, Opener, Selection, Visitor};
use serde::Serialize;
use verbs::{LinkLayer, Nic, NicAttributes, PortAttributes};

use crate::{knobs, table::pairs};

/// The NIC that `settings` select.
pub fn selected(settings: &Settings) -> Selection {
    named(settings.text(&NIC), settings)
}

/// The NIC that `settings` select, with the secret in this file unless they name another.
pub fn with_secret_file(settings: &Settings, path: &Path) -> Selection {
    let path = path.to_str().map(str::to_owned);
    Selection::from_lookup(settings.text(&NIC), |env| {
        let set = knobs::text_if_set(settings, env);
        set.or_else(|| path.clone().filter(|_| env == SECRET_FILE.env))
    })
}

/// The NIC `name`, set as `settings` say.
pub fn named(name: &str, settings: &Settings) -> Selection {
    Selection::from_lookup(name, |env| knobs::text_if_set(settings, env))
}

/// The device that is named for the NIC; empty: it has its choice.
#[must_use]
pub fn device_of(settings: &Settings) -> String {
    let named = ["COPYRPC_NIC_DEVICE", "COPYRPC_MLX5_DEVICE", "COPYRPC_IBVERBS_DEVICE"];
    named.into_iter().find_map(|env| knobs::text_if_set(settings, env)).unwrap_or_default()
}

/// Opens the NIC to look at it.
///
/// # Errors
///
/// If the NIC does not open.
pub fn describe(nic: &Selection) -> Result<NicDescription, OpenError> {
    struct Describe;
    impl Visitor for Describe {
        type Output = Result<NicDescription, OpenError>;
        fn visit<O: Opener>(self, opener: O) -> Self::Output {
            Ok(NicDescription::of(&opener.open()?))
        }
    }
    nic.with(Describe)?
}

/// A NIC's attributes and its port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NicDescription {
    name: String,
    port: u8,
    cqes_max: u32,
    requests_max: u32,
    message_bytes_max: u32,
    reads_max: u8,
    link_layer: &'static str,
    lid: u16,
    gid: String,
    gid_index: u8,
    pkey_index: u16,
    mtu_bytes: usize,
    /// Address space of a port of this kind, and of each that it reaches.
    #[serde(skip)]
    pub mapping_bytes: u64,
    /// A RoCE port whose network interface has no other address than its link-local one.
    #[serde(skip)]
    pub is_link_local: bool,
    /// The address of a RoCE port's network interface.
    #[serde(skip)]
    pub roce_ip: Option<Ipv4Addr>,
    /// All attributes of the NIC.
    #[serde(skip)]
    pub attributes: NicAttributes,
}

impl NicDescription {
    fn of(nic: &impl Nic) -> Self {
        let NicAttributes { name, cqes_max, requests_max, message_bytes_max, reads_max, .. } =
            nic.attributes().clone();
        let PortAttributes { number, link, lid, gid, gid_index, pkey_index, mtu } = nic.port();
        let [.., a, b, c, d] = gid.to_bytes();
        let link_layer = match link {
            LinkLayer::InfiniBand => "InfiniBand",
            LinkLayer::Ethernet => "Ethernet",
        };
        Self {
            name,
            port: number,
            cqes_max,
            requests_max,
            message_bytes_max,
            reads_max,
            link_layer,
            lid: lid.get(),
            gid: gid.to_string(),
            gid_index,
            pkey_index,
            mtu_bytes: mtu.bytes(),
            mapping_bytes: nic.peer_mapping_bytes(),
            roce_ip: (link == LinkLayer::Ethernet && gid.is_ipv4())
                .then(|| Ipv4Addr::new(a, b, c, d)),
            attributes: nic.attributes().clone(),
            is_link_local: link == LinkLayer::Ethernet && gid.to_bytes()[..2] == [0xfe, 0x80],
        }
    }

    /// The NIC, its options and the attempts, as text for people.
    pub fn text(&self) -> String {
        pairs(&[
            ("device", &self.name),
            ("port", &self.port.to_string()),
            ("link layer", self.link_layer),
            ("LID", &self.lid.to_string()),
            ("GID", &format!("{} (row {})", self.gid, self.gid_index)),
            ("P_Key", &format!("row {}", self.pkey_index)),
            ("MTU", &format!("{} B", self.mtu_bytes)),
            ("largest message", &format!("{} B", self.message_bytes_max)),
            ("CQ entries", &format!("up to {}", self.cqes_max)),
            ("queue entries", &format!("up to {}", self.requests_max)),
            ("READs in flight", &format!("up to {}", self.reads_max)),
        ])
    }
}
