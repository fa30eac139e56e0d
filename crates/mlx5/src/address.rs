//! Destinations of UD and DC sends as address vectors.
//!
//! Source: rdma-core `providers/mlx5/verbs.c`, `mlx5_create_ah`; for the UDP source port,
//! `libibverbs/verbs.h`, `ibv_flow_label_to_udp_sport`.

use verbs::{
    Destination, Endpoint, GidRoute, LinkLayer, Op, PortAttributes, PostSendError, Route, Transport,
};
use wire::wqe::{Av, AvExtension, AvKey};

/// Dynamic UDP ports start here (`IB_ROCE_UDP_ENCAP_VALID_PORT_MIN`).
const UDP_PORT_MIN: u16 = 0xc000;

/// The address vector that a request from `port` needs; `None` where its WQE has none.
#[inline]
pub(crate) fn resolve(
    transport: Transport,
    port: &PortAttributes,
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
    match (port.link, to.address.route) {
        (LinkLayer::InfiniBand, _) if level > 15 => {
            broken("on InfiniBand has service levels 0 to 15")
        }
        (LinkLayer::Ethernet, _) if level > 7 => {
            broken("on Ethernet has service levels 0 to 7: they are priorities")
        }
        (LinkLayer::InfiniBand, Route::Lid(lid)) => {
            Ok(Some(Av::infiniband(key, to.qpn, lid, level)))
        }
        (LinkLayer::Ethernet, Route::Gid(route)) => Ok(Some(roce(key, to, &route, port.gid_index))),
        (LinkLayer::InfiniBand, Route::Gid(_)) => {
            broken("on InfiniBand needs a LID route: a GID names no port of the subnet")
        }
        (LinkLayer::Ethernet, Route::Lid(_)) => {
            broken("on Ethernet needs a GID route: there are no LIDs")
        }
    }
}

#[inline]
fn roce(key: AvKey, to: &Endpoint, route: &GidRoute, source_gid_index: u8) -> Av {
    let flow_label = route.flow_label & 0xf_ffff;
    Av {
        key,
        destination: to.qpn,
        // The Ethernet priority, three bits, is one bit further up than a service level.
        stat_rate_sl: to.address.service_level << 1,
        fl_mlid: 0,
        rlid: udp_source_port(flow_label),
        extension: Some(AvExtension {
            rmac: route.mac,
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

#[cfg(test)]
mod tests {
    use verbs::{AddressVector, DcKey, Lid, Qpn};

    use super::*;

    /// What a peer says of itself comes over the network.
    #[test]
    fn service_levels_that_a_link_does_not_have_are_refused() {
        let gid = GidRoute {
            gid: verbs::Gid::new([1; 16]),
            mac: [2; 6],
            hop_limit: 64,
            traffic_class: 0,
            flow_label: 0,
        };
        let ports = [
            (LinkLayer::InfiniBand, Route::Lid(Lid::new(3)), 15, 15),
            (LinkLayer::Ethernet, Route::Gid(gid), 7, 7 << 1),
        ];
        for (link, route, level_max, stat_rate_sl) in ports {
            let (lid, gid) = (Lid::new(0), verbs::Gid::default());
            let port = PortAttributes { link, lid, gid, gid_index: 0, mtu: verbs::Mtu::B4096 };
            let resolve = |service_level| {
                let address = AddressVector { route, service_level };
                let to = Endpoint { address, qpn: Qpn::from_low_bits(9) };
                let to = Destination::Dc { to, key: DcKey::new(4) };
                let op = Op::Send { payload: verbs::Payload::Inline(&[]), imm: None };
                resolve(Transport::Dci, &port, &op, Some(&to))
            };
            let av = resolve(level_max).unwrap().unwrap();
            assert_eq!(av.stat_rate_sl, stat_rate_sl, "`mlx5_create_ah`");
            for level in [level_max + 1, u8::MAX] {
                let refused = resolve(level);
                assert!(matches!(refused, Err(PostSendError::Transport { .. })), "{refused:?}");
            }
        }
    }

    /// `ibv_flow_label_to_udp_sport`: `(fl & 0x3fff) ^ (fl >> 14) | 0xc000`.
    #[test]
    fn flow_labels_become_dynamic_ports() {
        assert_eq!(udp_source_port(0), 0xc000);
        assert_eq!(udp_source_port(0x3fff), 0xffff);
        assert_eq!(udp_source_port(0xf_ffff), 0xc000 | (0x3fff ^ 0x3f));
    }
}
