//! Destinations of UD and DC sends as address vectors.
//!
//! A route names a GID, not the Ethernet address of the next hop: that is this port's business, because
//! between two routed networks it is a router's. A device resolves it once per GID. [`Resolver`] keeps the
//! answers of a NIC, and [`NextHops`] the last one of a queue pair, until the port's addresses change.
//!
//! Source: rdma-core `providers/mlx5/verbs.c`, `mlx5_create_ah`; for the UDP source port,
//! `libibverbs/verbs.h`, `ibv_flow_label_to_udp_sport`.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use memory::sync::{Arc, AtomicU32, Ordering};
use verbs::{
    Destination, Gid, GidRoute, LinkLayer, Op, PortAttributes, PortRoute, PostSendError, QpAddress,
    Transport,
};
use wire::wqe::{Av, AvExtension, AvKey};

use crate::device::{Device, PortRows};

/// Dynamic UDP ports start here (`IB_ROCE_UDP_ENCAP_VALID_PORT_MIN`).
const UDP_PORT_MIN: u16 = 0xc000;

/// Ethernet address.
type Mac = [u8; 6];

/// The way to a GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NextHop {
    mac: Mac,
    /// UDP source port of flows without a flow label.
    port: u16,
}

/// The port's part of address vectors: one word, so that all queue pairs see a change at once.
///
/// `version << 16 | is Ethernet << 8 | row of the GID table`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Source(u32);

impl Source {
    fn new(version: u32, port: &PortAttributes) -> Self {
        let is_ethernet = u32::from(port.link == LinkLayer::Ethernet);
        Self(version << 16 | is_ethernet << 8 | u32::from(port.gid_index))
    }

    #[inline]
    fn link(self) -> LinkLayer {
        if self.0 & 1 << 8 == 0 { LinkLayer::InfiniBand } else { LinkLayer::Ethernet }
    }

    #[inline]
    fn gid_index(self) -> u8 {
        self.0.to_le_bytes()[0]
    }
}

/// The port's addresses, and the next hops that were resolved from it.
#[derive(Debug)]
pub(crate) struct Resolver<D: Device> {
    device: D,
    source: AtomicU32,
    /// Of the present version of `source`.
    known: Mutex<HashMap<Gid, NextHop>>,
}

impl<D: Device> Resolver<D> {
    pub(crate) fn new(device: D) -> Self {
        let source = AtomicU32::new(Source::new(0, &device.port()).0);
        Self { device, source, known: Mutex::default() }
    }

    /// The port's addresses may have changed.
    pub(crate) fn refresh(&self) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.clear();
        let version = (self.source.load(Ordering::Relaxed) >> 16).wrapping_add(1) & 0xffff;
        self.source.store(Source::new(version, &self.device.port()).0, Ordering::Relaxed);
    }

    #[inline]
    fn source(&self) -> Source {
        Source(self.source.load(Ordering::Relaxed))
    }

    #[cold]
    fn next_hop(&self, route: &GidRoute) -> Result<NextHop, PostSendError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&hop) = known.get(&route.gid) {
            return Ok(hop);
        }
        let mac = self.device.resolve(route);
        let mac = mac.map_err(|_| PostSendError::Unreachable(route.gid))?;
        let hop = NextHop { mac, port: drawn_port(self.device.port().gid, route.gid) };
        known.insert(route.gid, hop);
        Ok(hop)
    }
}

/// A queue pair's way to next hops: the resolver, and its last answer.
#[derive(Debug)]
pub(crate) struct NextHops<D: Device> {
    resolver: Arc<Resolver<D>>,
    last: Option<(Source, Gid, NextHop)>,
}

impl<D: Device> NextHops<D> {
    pub(crate) fn new(resolver: &Arc<Resolver<D>>) -> Self {
        Self { resolver: resolver.clone(), last: None }
    }

    /// The rows that transitions and address vectors name.
    pub(crate) fn rows(&self) -> PortRows {
        let port = self.resolver.device.port();
        PortRows { gid_index: self.resolver.source().gid_index(), ..PortRows::of(&port) }
    }

    #[inline]
    fn next_hop(&mut self, source: Source, route: &GidRoute) -> Result<NextHop, PostSendError> {
        match self.last {
            Some((at, gid, hop)) if (at, gid) == (source, route.gid) => Ok(hop),
            _ => {
                let hop = self.resolver.next_hop(route)?;
                self.last = Some((source, route.gid, hop));
                Ok(hop)
            }
        }
    }
}

/// The address vector that a request needs; `None` where its WQE has none.
#[inline]
pub(crate) fn resolve<D: Device>(
    transport: Transport,
    hops: &mut NextHops<D>,
    op: &Op<'_>,
    to: Option<&Destination>,
) -> Result<Option<Av>, PostSendError> {
    let broken = |rule| Err(PostSendError::Transport { transport, rule });
    let (key, to) = match (transport, to) {
        (Transport::Rc, None) => return Ok(None),
        (Transport::Rc, Some(_)) => return broken("sends to its peer alone: name no destination"),
        (Transport::Dct, _) => return broken("receives only"),
        (Transport::Ud | Transport::Dci, _) if matches!(op, Op::Nop) => return Ok(None),
        (Transport::Ud, _) if !matches!(op, Op::Send { .. }) => {
            return broken("has no operation but SEND");
        }
        (Transport::Ud, Some(Destination::Ud { to, qkey })) => (AvKey::Queue(*qkey), to),
        (Transport::Ud, _) => return broken("needs a `Destination::Ud` in each request"),
        (Transport::Dci, Some(Destination::Dc { to, key })) => (AvKey::Dc(*key), to),
        (Transport::Dci, _) => return broken("needs a `Destination::Dc` in each request"),
    };
    let level = to.address.service_level;
    let source = hops.resolver.source();
    match (source.link(), to.address.route) {
        (LinkLayer::InfiniBand, _) if level > 15 => {
            broken("on InfiniBand has service levels 0 to 15")
        }
        (LinkLayer::Ethernet, _) if level > 7 => {
            broken("on Ethernet has service levels 0 to 7: they are priorities")
        }
        (LinkLayer::InfiniBand, PortRoute::Lid(lid)) => {
            Ok(Some(Av::infiniband(key, to.qpn, lid, level)))
        }
        (LinkLayer::InfiniBand, PortRoute::Global(lid, route)) => {
            let av = Av::infiniband(key, to.qpn, lid, level);
            Ok(Some(
                av.with_grh(route.gid, source.gid_index(), route.hop_limit)
                    .with_path(route.traffic_class, route.flow_label),
            ))
        }
        (LinkLayer::Ethernet, PortRoute::Gid(route)) => {
            let hop = hops.next_hop(source, &route)?;
            Ok(Some(roce(key, to, &route, hop, source.gid_index())))
        }
        (LinkLayer::InfiniBand, PortRoute::Gid(_)) => {
            broken("on InfiniBand needs a LID route: a GID names no port of the subnet")
        }
        (LinkLayer::Ethernet, PortRoute::Lid(_) | PortRoute::Global(..)) => {
            broken("on Ethernet needs a GID route: there are no LIDs")
        }
    }
}

#[inline]
fn roce(key: AvKey, to: &QpAddress, route: &GidRoute, hop: NextHop, source_gid_index: u8) -> Av {
    let flow_label = route.flow_label & 0xf_ffff;
    Av {
        key,
        destination: to.qpn,
        // The Ethernet priority, three bits, is one bit further up than a service level.
        stat_rate_sl: to.address.service_level << 1,
        fl_mlid: 0,
        rlid: if flow_label == 0 { hop.port } else { udp_source_port(flow_label) },
        extension: Some(AvExtension {
            rmac: hop.mac,
            tclass: route.traffic_class,
            hop_limit: route.hop_limit,
            // `GRH present` stays clear: RoCE packets always have the header.
            grh_gid_fl: u32::from(source_gid_index) << 20 | flow_label,
            rgid: route.gid,
        }),
    }
}

/// Folds a flow label into the dynamic ports, so that flows spread over equal-cost paths.
#[inline]
fn udp_source_port(flow_label: u32) -> u16 {
    let folded = (flow_label ^ flow_label >> 14) & 0x3fff;
    let [low, high, ..] = folded.to_le_bytes();
    UDP_PORT_MIN | u16::from_le_bytes([low, high])
}

/// The port of flows without a label between two GIDs: they would all take one of several equal-cost paths
/// otherwise. libmlx5 draws one with `rand` for each address handle; this one is the same in each run.
fn drawn_port(from: Gid, to: Gid) -> u16 {
    // FNV-1a, folded.
    let bytes = from.to_bytes().into_iter().chain(to.to_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    let [a, b, c, d, e, f, g, h] = (hash ^ hash >> 29).to_le_bytes();
    let fold = |x: [u8; 2], y: [u8; 2]| u16::from_le_bytes(x) ^ u16::from_le_bytes(y);
    UDP_PORT_MIN | fold([a, b], [c, d]) ^ fold([e, f], [g, h])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Source: rdma-core `providers/mlx5/verbs.c`, `mlx5_create_ah`, where the flow label is 0.
    #[test]
    fn flows_without_a_label_spread_over_the_dynamic_ports() {
        let gid = |n: u16| Gid::new(core::array::from_fn(|i| n.to_be_bytes()[i % 2]));
        let ports: std::collections::BTreeSet<_> =
            (0..1000).map(|n| drawn_port(gid(7), gid(n))).collect();
        assert!(ports.iter().all(|port| *port >= UDP_PORT_MIN));
        assert!(ports.len() > 900, "{}", ports.len());
        // As equal-cost paths are chosen: by few bits.
        for path in 0..8 {
            let count = ports.iter().filter(|port| **port % 8 == path).count();
            assert!((60..200).contains(&count), "{count} of {} on path {path}", ports.len());
        }
        assert_ne!(drawn_port(gid(1), gid(2)), drawn_port(gid(2), gid(1)));
    }

    /// `ibv_flow_label_to_udp_sport`: `(fl & 0x3fff) ^ (fl >> 14) | 0xc000`.
    #[test]
    fn flow_labels_become_dynamic_ports() {
        assert_eq!(udp_source_port(0), 0xc000);
        assert_eq!(udp_source_port(0x3fff), 0xffff);
        assert_eq!(udp_source_port(0xf_ffff), 0xc000 | (0x3fff ^ 0x3f));
    }
}
