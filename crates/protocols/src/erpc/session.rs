//! Sessions, in both roles.

use std::{collections::VecDeque, net::SocketAddr};

use ids::slots::Key;
use proto::erpc::{
    Client, Geometry, Server, WINDOW,
    congestion::{Pacer, Timely},
    management::{self, SESSION_NONE, SessionEnd},
};
use verbs::{AddressVector, Destination, Gid, GidRoute, Lid, PortRoute, QKey, Qpn};

use crate::{bodies::BodyMemory, erpc::ConnectOptions};

/// Names a session of an endpoint; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub(crate) Key);

/// Where a session is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SessionState {
    /// Waits for the server's answer.
    Connecting,
    /// Takes calls, or serves them.
    Connected,
}

/// The peer of a connected session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remote {
    pub(crate) destination: Destination,
    /// Packets of other queue pairs are not of this session.
    pub(crate) qpn: Qpn,
    /// `None` on RoCE.
    pub(crate) lid: Option<Lid>,
    pub(crate) endpoint: SessionEnd,
}

impl Remote {
    /// `None`: there is no way from a port at `own` to the endpoint.
    pub(crate) fn new(
        endpoint: SessionEnd,
        own: &AddressVector,
        config: &crate::erpc::Config,
    ) -> Option<Self> {
        let management::DatagramRoute { lid, qpn, gid, .. } = endpoint.route;
        let qpn = Qpn::new(qpn).filter(|qpn| qpn.get() > 0)?;
        let gid = Gid::new(gid);
        let global = GidRoute { gid, hop_limit: 64, traffic_class: 0, flow_label: 0 };
        let is_roce = matches!(own.route, PortRoute::Gid(_));
        let has_lid = lid != 0;
        let has_gid = gid != Gid::default();
        let lid = Lid::new(lid);
        let route = match own.route {
            PortRoute::Gid(own) if has_gid && own.gid.is_ipv4() == gid.is_ipv4() => {
                PortRoute::Gid(global)
            }
            PortRoute::Lid(_) if has_lid => PortRoute::Lid(lid),
            // The network loses packets without a global route header.
            PortRoute::Global(..) if has_lid && has_gid => PortRoute::Global(lid, global),
            _ => return None,
        };
        let mut address = AddressVector::new(route);
        config.class.apply(&mut address);
        let to = verbs::QpAddress { address, qpn };
        Some(Self {
            destination: Destination::Ud { to, qkey: QKey::new(config.q_key) },
            qpn,
            lid: (!is_roce).then_some(lid),
            endpoint,
        })
    }
}

/// Round trips and rate of a session whose congestion is controlled.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) timely: Timely,
    pub(crate) pace: Pacer,
    /// When the packet was sent that has this slot, and this number modulo 32.
    pub(crate) sent_ns: Box<[[u64; 32]; WINDOW]>,
}

/// This side calls.
#[derive(Debug)]
pub(crate) struct ClientSide {
    pub(crate) core: Client,
    /// Calls that have ended and whose packets the server may still need: at most [`WINDOW`].
    pub(crate) held: Vec<Key>,
    pub(crate) control: Option<Control>,
    /// Looked at every half millisecond.
    pub(crate) is_watched: bool,
}

/// Bytes of the request that a slot has, and of its answer.
#[derive(Debug, Default)]
pub(crate) struct ServerSlot {
    pub(crate) request: BodyMemory,
    pub(crate) response: Vec<u8>,
}

/// This side serves.
#[derive(Debug)]
pub(crate) struct ServerSide {
    pub(crate) core: Server,
    pub(crate) slots: [ServerSlot; WINDOW],
}

impl ServerSide {
    pub(crate) fn new(geometry: Geometry, dest_session: u16) -> Self {
        Self { core: Server::new(geometry, dest_session), slots: Default::default() }
    }
}

/// How this side asks for a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asking {
    /// Of the server's process.
    pub(crate) server: SocketAddr,
    pub(crate) rpc_id: u8,
    pub(crate) options: ConnectOptions,
    /// When it is given up.
    pub(crate) deadline_ns: u64,
    /// When the server is asked again.
    pub(crate) retry_ns: u64,
}

#[derive(Debug)]
pub(crate) enum Role {
    /// Asks for the session, since [`Session::asking`] says so.
    Connecting,
    Client(Box<ClientSide>),
    Server(Box<ServerSide>),
}

/// A session as one end sees it.
#[derive(Debug)]
pub(crate) struct Session {
    /// Its name in packets to this side.
    pub(crate) number: u16,
    /// How often it was connected: numbers differ.
    pub(crate) attempt: u32,
    /// Made by the client.
    pub(crate) token: u64,
    pub(crate) role: Role,
    /// Of a client's session.
    pub(crate) asking: Option<Asking>,
    pub(crate) remote: Option<Remote>,
    /// When the peer was last known to be alive.
    pub(crate) heard_ns: u64,
    pub(crate) pinged_ns: u64,
    /// Of the pings since it was heard, if any.
    pub(crate) first_pinged_ns: u64,
    /// A program has ended it, and its calls still have to.
    pub(crate) is_leaving: bool,
    /// It is in the queue of sessions with packets to send, or in the wheel.
    pub(crate) is_queued: bool,
}

impl Session {
    pub(crate) fn new(role: Role, token: u64, now_ns: u64) -> Self {
        Self {
            number: SESSION_NONE,
            attempt: 0,
            token,
            role,
            asking: None,
            remote: None,
            heard_ns: now_ns,
            pinged_ns: now_ns,
            first_pinged_ns: now_ns,
            is_leaving: false,
            is_queued: false,
        }
    }

    /// Whether its peer is an endpoint of the original, or one that does as that.
    pub(crate) fn is_original(&self) -> bool {
        self.remote.as_ref().is_some_and(|remote| !remote.endpoint.route.takes_pings)
    }

    /// Puts the session, which is `key`, in the queue of those that may have packets to send.
    #[inline]
    pub(crate) fn enqueue(&mut self, key: Key, queue: &mut VecDeque<Key>) {
        if !core::mem::replace(&mut self.is_queued, true) {
            queue.push_back(key);
        }
    }

    /// Where management packets to the peer go.
    pub(crate) fn peer_address(&self) -> Option<SocketAddr> {
        match (&self.asking, &self.remote) {
            (Some(asking), _) => Some(asking.server),
            (None, Some(remote)) => {
                let ip = remote.endpoint.host.as_str().parse().ok()?;
                Some(SocketAddr::new(ip, remote.endpoint.udp_port))
            }
            (None, None) => None,
        }
    }
}

/// Session numbers of an endpoint: slot in the low bits, and how often the slot was used in the others, so that
/// a late packet of an earlier session names no later one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers {
    slots: u32,
}

impl Numbers {
    pub(crate) fn new(sessions_max: u16) -> Self {
        Self { slots: u32::from(sessions_max).next_power_of_two() }
    }

    pub(crate) fn number(self, key: Key, attempt: u32) -> u16 {
        let laps = u32::from(SESSION_NONE) / self.slots;
        let lap = key.generation().wrapping_add(attempt) % laps;
        u16::try_from(lap * self.slots + key.slot()).unwrap_or(SESSION_NONE)
    }

    pub(crate) fn slot(self, number: u16) -> u32 {
        u32::from(number) & (self.slots - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs::PathClass;

    /// A peer on RoCE.
    fn remote(from: [u8; 16], gid: [u8; 16], config: &crate::erpc::Config) -> Option<Remote> {
        let from = Gid::new(from);
        let route = GidRoute { gid: from, hop_limit: 64, traffic_class: 0, flow_label: 0 };
        let own = AddressVector::new(PortRoute::Gid(route));
        let host = management::HostName::new("n").unwrap();
        let route = management::DatagramRoute { lid: 0, qpn: 7, gid, takes_pings: false };
        let end = SessionEnd { host, udp_port: 1, rpc_id: 0, session: 0, route };
        Remote::new(end, &own, config)
    }

    /// Rule E5.6.
    #[test]
    fn no_way_leads_from_a_gid_to_one_of_the_other_kind() {
        let ipv4 = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 1];
        let link_local = core::array::from_fn(|at| if at == 0 { 0xfe } else { 0x80 });
        let way = |from: [u8; 16], gid: [u8; 16]| {
            remote(from, gid, &crate::erpc::Config::default()).is_some()
        };
        assert!(way(ipv4, ipv4) && way(link_local, link_local));
        assert!(!way(ipv4, link_local) && !way(link_local, ipv4));
    }

    #[test]
    fn packets_have_the_class_that_is_set_and_may_cross_routers() {
        let class = PathClass { service_level: Some(3), traffic_class: Some(106) };
        let config = crate::erpc::Config { class, ..crate::erpc::Config::default() };
        let gid = [7; 16];
        let Destination::Ud { to, .. } = remote(gid, gid, &config).unwrap().destination else {
            panic!("no datagrams");
        };
        let route =
            GidRoute { gid: Gid::new(gid), hop_limit: 64, traffic_class: 106, flow_label: 0 };
        let route = PortRoute::Gid(route);
        assert_eq!(to.address, AddressVector { route, service_level: 3 });
    }

    #[test]
    fn numbers_name_their_slot_and_are_seldom_used_again() {
        for sessions_max in [1, 100, 1024, 8192] {
            let numbers = Numbers::new(sessions_max);
            let mut table = ids::slots::SlotTable::bounded(u32::from(sessions_max));
            let mut keys: Vec<_> = (0..sessions_max).map(|_| table.insert(()).unwrap()).collect();
            let last = keys.pop().unwrap();
            let all: std::collections::BTreeSet<_> =
                (0..7).map(|attempt| numbers.number(last, attempt)).collect();
            assert_eq!(all.len(), 7, "seven in a row differ");
            assert!(all.iter().all(|number| numbers.slot(*number) == last.slot()));
            assert!(!all.contains(&SESSION_NONE));
        }
    }
}
