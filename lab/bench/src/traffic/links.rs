//! The links of one side: created alike on both, connected by what they tell each other.

use core::time::Duration;

use os::child::from_json;
use serde::{Deserialize, Serialize};
use verbs::{
    Access, AddressVector, CqConfig, Destination, Gid, GidRoute, InitAttr, Lid, MemoryRegion, Nic,
    PortRoute, Psn, QKey, QpAddress, QpConfig, Qpn, QueuePair, RcPeer, RecvSize, RemoteSlice, Rkey,
    RnrTimer, RtrAttr, RtsAttr, SendSize, SrqConfig, Transition, Transport,
};

use super::link::{Event, INLINE_BYTES, Link, RECEIVES, REGION_BYTES, SENDS};
use crate::error::Error;

/// Gather entries per send.
const SGES: u8 = 1;
/// Queue key of the datagrams.
const QKEY: QKey = QKey::new(0x1111_1111);

/// Which link carries the traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkKind {
    /// Reliable connection.
    Rc,
    /// Reliable connection, memory registered with relaxed ordering.
    Relaxed,
    /// Reliable connection that receives from a shared receive queue.
    Srq,
    /// Unreliable datagrams.
    Ud,
}

impl LinkKind {
    /// Every link, in the order in which they are created and told.
    pub const ALL: [Self; 4] = [Self::Rc, Self::Relaxed, Self::Srq, Self::Ud];

    fn transport(self) -> Transport {
        if self == Self::Ud { Transport::Ud } else { Transport::Rc }
    }

    fn access(self) -> Access {
        let all = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC;
        if self == Self::Relaxed { all | Access::RELAXED_ORDERING } else { all }
    }
}

/// What one side tells the other about one link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Contact {
    qpn: u32,
    route: ContactRoute,
    service_level: u8,
    addr: u64,
    rkey: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ContactRoute {
    Lid(u16),
    Gid { gid: [u8; 16], hop_limit: u8, traffic_class: u8, flow_label: u32 },
    Global { lid: u16, gid: [u8; 16], hop_limit: u8, traffic_class: u8, flow_label: u32 },
}

impl Contact {
    pub(crate) fn new(endpoint: QpAddress, region: &impl MemoryRegion) -> Self {
        let route = match endpoint.address.route {
            PortRoute::Lid(lid) => ContactRoute::Lid(lid.get()),
            PortRoute::Gid(route) => ContactRoute::Gid {
                gid: route.gid.to_bytes(),
                hop_limit: route.hop_limit,
                traffic_class: route.traffic_class,
                flow_label: route.flow_label,
            },
            PortRoute::Global(lid, route) => ContactRoute::Global {
                lid: lid.get(),
                gid: route.gid.to_bytes(),
                hop_limit: route.hop_limit,
                traffic_class: route.traffic_class,
                flow_label: route.flow_label,
            },
        };
        Self {
            qpn: endpoint.qpn.get(),
            route,
            service_level: endpoint.address.service_level,
            addr: region.addr(),
            rkey: region.rkey().get(),
        }
    }

    /// Where its memory is.
    pub(crate) fn region(&self) -> RemoteSlice {
        RemoteSlice { addr: self.addr, rkey: Rkey::new(self.rkey) }
    }

    pub(crate) fn endpoint(&self) -> Result<QpAddress, Error> {
        let qpn = Qpn::new(self.qpn).ok_or_else(|| no_contact(format!("{self:?}")))?;
        let route = match self.route {
            ContactRoute::Lid(lid) => PortRoute::Lid(Lid::new(lid)),
            ContactRoute::Gid { gid, hop_limit, traffic_class, flow_label } => {
                PortRoute::Gid(GidRoute {
                    gid: Gid::new(gid),
                    hop_limit,
                    traffic_class,
                    flow_label,
                })
            }
            ContactRoute::Global { lid, gid, hop_limit, traffic_class, flow_label } => {
                let gid = Gid::new(gid);
                let route = GidRoute { gid, hop_limit, traffic_class, flow_label };
                PortRoute::Global(Lid::new(lid), route)
            }
        };
        let address = AddressVector { route, service_level: self.service_level };
        Ok(QpAddress { address, qpn })
    }
}

fn no_contact(told: String) -> Error {
    Error::refused::<String>("the other process named what cannot be connected to")(told)
}

/// Every link of one side.
pub struct Links<N: Nic> {
    nic: N,
    links: Vec<Link<N>>,
    is_connected: bool,
}

impl<N: Nic> Links<N> {
    /// Creates every link, unconnected.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn create(nic: N) -> Result<Self, Error> {
        let pd = nic.alloc_pd()?;
        let create = |kind| create_link(&nic, &pd, kind);
        let links = LinkKind::ALL.into_iter().map(create).collect::<Result<_, _>>()?;
        Ok(Self { nic, links, is_connected: false })
    }

    /// What the other side needs to connect, in the order of [`LinkKind::ALL`]; nothing once they are connected.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn contacts(&self) -> Result<Vec<String>, Error> {
        let links = if self.is_connected { &[] } else { &self.links[..] };
        let contact = |link: &Link<N>| Contact::new(self.nic.endpoint(&link.qp), &link.region);
        links.iter().map(|link| Ok(serde_json::to_string(&contact(link))?)).collect()
    }

    /// Connects to the other side; does nothing once connected.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn connect(&mut self, contacts: &[String]) -> Result<(), Error> {
        if self.is_connected && contacts.is_empty() {
            return Ok(());
        }
        if contacts.len() != self.links.len() {
            return Err(no_contact(format!("{} links", contacts.len())));
        }
        let mtu = self.nic.port().mtu;
        let reads_max = self.nic.attributes().reads_max;
        for ((link, contact), kind) in self.links.iter_mut().zip(contacts).zip(LinkKind::ALL) {
            let contact = from_json::<Contact>(contact)?;
            let to = contact.endpoint()?;
            link.peer = contact.region();
            if kind.transport() == Transport::Ud {
                link.destination = Some(Destination::Ud { to, qkey: QKEY });
            }
            let peer = (kind.transport() == Transport::Rc).then_some(RcPeer {
                qpn: to.qpn,
                address: to.address,
                rq_psn: Psn::default(),
            });
            link.qp.modify(&Transition::Rtr(RtrAttr {
                path_mtu: mtu,
                peer,
                rnr_timer: RnrTimer::at_least(Duration::from_micros(10)),
                reads_in_max: reads_max,
            }))?;
            let attr = RtsAttr { reads_out_max: reads_max, ..RtsAttr::default() };
            link.qp.modify(&Transition::Rts(attr))?;
        }
        self.is_connected = true;
        Ok(())
    }

    /// Polls every link, which must have nothing to tell.
    pub(crate) fn idle(&mut self) -> Result<Option<Duration>, Error> {
        for link in &mut self.links {
            if let Some(Event::Received { .. }) = link.poll()? {
                return Err(Error::Stray);
            }
        }
        Ok(self.nic.poll_timeout())
    }

    pub(crate) fn link(&mut self, kind: LinkKind) -> &mut Link<N> {
        &mut self.links[kind as usize]
    }
}

fn create_link<N: Nic>(nic: &N, pd: &N::Pd, kind: LinkKind) -> Result<Link<N>, Error> {
    let region = nic.alloc_mr(pd, REGION_BYTES, kind.access())?;
    let send_cq = nic.create_cq(&CqConfig::new(u32::from(SENDS)), None)?;
    let recv_cq = nic.create_cq(&CqConfig::new(u32::from(RECEIVES)), None)?;
    let receives = RecvSize { requests: u32::from(RECEIVES), sges_max: 1 };
    let srq = (kind == LinkKind::Srq)
        .then(|| nic.create_srq(pd, &SrqConfig { entries: receives.requests, sges_max: 1 }))
        .transpose()?;
    let config = QpConfig {
        srq: srq.as_ref(),
        send: SendSize {
            requests: u32::from(SENDS),
            sges_max: SGES,
            inline_bytes_max: INLINE_BYTES,
        },
        recv: receives,
        recv_cq: &recv_cq,
        ..QpConfig::new(kind.transport(), &send_cq)
    };
    let mut qp = nic.create_qp(pd, &config)?;
    qp.modify(&Transition::Init(InitAttr {
        access: kind.access().of_queue_pairs(nic.attributes().capabilities),
        qkey: QKEY,
    }))?;
    let peer = RemoteSlice { addr: 0, rkey: Rkey::new(0) };
    Ok(Link { region, send_cq, recv_cq, qp, srq, peer, destination: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_under_the_index_of_their_kind() {
        for (index, kind) in LinkKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index);
        }
    }

    #[test]
    fn a_contact_survives_its_journey() {
        let route = ContactRoute::Gid {
            gid: [7; 16],
            hop_limit: 64,
            traffic_class: 106,
            flow_label: 0xf_ffff,
        };
        let contact = Contact { qpn: 0x48, route, service_level: 3, addr: 1 << 47, rkey: 0xabcd };
        let text = serde_json::to_string(&contact).unwrap();
        let read: Contact = from_json(&text).unwrap();
        assert_eq!(read, contact);
        assert_eq!(read.endpoint().unwrap().qpn.get(), 0x48);
        let impossible = Contact { qpn: 1 << 24, ..contact };
        assert!(matches!(impossible.endpoint(), Err(Error::Refused { .. })));
    }
}
