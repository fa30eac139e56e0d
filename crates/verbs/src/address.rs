//! Addresses of endpoints.

use ids::{DcKey, Gid, Lid, QKey, Qpn};

/// Network-layer destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PortRoute {
    /// InfiniBand inside one subnet.
    Lid(Lid),
    /// RoCE: a global route header.
    Gid(GidRoute),
    /// InfiniBand with a global route header: to a port that requires one, or to a router and a port behind it.
    Global(Lid, GidRoute),
}

/// The fields of a global route header, except those of the sending port: the row of its GID table that it
/// [sends from](crate::PortAttributes::gid_index), and the Ethernet address of the next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GidRoute {
    /// The destination.
    pub gid: Gid,
    /// Routers that may be crossed.
    pub hop_limit: u8,
    /// Traffic class: DSCP and ECN.
    pub traffic_class: u8,
    /// 20 bits; spreads flows over paths.
    pub flow_label: u32,
}

/// A route and its service level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressVector {
    /// The route to the port.
    pub route: PortRoute,
    /// 0 to 15; on RoCE the Ethernet priority, 0 to 7.
    pub service_level: u8,
}

impl AddressVector {
    /// A route at service level 0.
    #[must_use]
    pub fn new(route: PortRoute) -> Self {
        Self { route, service_level: 0 }
    }
}

/// The class of packets: a lossless one, or the lane of a torus.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PathClass {
    /// Service level; `None`: as addresses say.
    pub service_level: Option<u8>,
    /// Traffic class, where there is a global route header; `None`: as addresses say.
    pub traffic_class: Option<u8>,
}

impl PathClass {
    /// Gives the way to a peer this class.
    pub fn apply(self, address: &mut AddressVector) {
        if let Some(service_level) = self.service_level {
            address.service_level = service_level;
        }
        if let (Some(class), PortRoute::Gid(route) | PortRoute::Global(_, route)) =
            (self.traffic_class, &mut address.route)
        {
            route.traffic_class = class;
        }
    }
}

/// The address of a queue pair, which two programs exchange before they connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QpAddress {
    /// Address of the queue pair's port.
    pub address: AddressVector,
    /// Number of the queue pair. A DCT has one only after RTR.
    pub qpn: Qpn,
}

/// Per-request destination of UD and DC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Destination {
    /// A UD queue pair.
    Ud {
        /// Its port and number.
        to: QpAddress,
        /// Must equal the receiver's, or the datagram is dropped.
        qkey: QKey,
    },
    /// A DC target.
    Dc {
        /// Its port and DCT number.
        to: QpAddress,
        /// Must equal the target's access key, or the request fails.
        key: DcKey,
    },
}
