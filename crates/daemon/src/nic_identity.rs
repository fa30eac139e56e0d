//! The NIC of a daemon, as it tells the others: whether their NICs reach each other is known before anybody serves.

use core::{fmt, str::FromStr};
use std::net::SocketAddr;

use verbs::{Gid, LinkLayer, Nic};

/// NICs of this project that are made of software, by the names of their devices.
const SOFTWARE: [&str; 3] = ["soft", "tcp", "hosts"];
/// The one of them that reaches its own host only.
const SOFT: &str = SOFTWARE[0];

/// Between the name of a software NIC's device and its fabric.
const AT: char = '@';

/// Device, port and network of a NIC: `mlx5_0/1/InfiniBand`, `soft@0.default/1/soft`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicIdentity {
    device: String,
    port: u8,
    /// The link layer of a device, with its subnet, or the name of software.
    network: String,
}

/// Name of a subnet of InfiniBand, with its prefix if that is not the usual one: requests are routed by LID, which ends with
/// the subnet.
fn subnet(gid: Gid) -> String {
    const USUAL: u64 = 0xfe80 << 48;
    let [prefix @ .., _, _, _, _, _, _, _, _] = gid.to_bytes();
    match u64::from_be_bytes(prefix) {
        USUAL | 0 => "InfiniBand".to_owned(),
        prefix => format!("InfiniBand-{prefix:016x}"),
    }
}

impl NicIdentity {
    /// Of an open port.
    #[must_use]
    pub fn of(nic: &impl Nic) -> Self {
        let (mut device, port) = (nic.attributes().name.clone(), nic.port());
        let network = match port.link {
            _ if SOFTWARE.contains(&device.as_str()) => device.clone(),
            LinkLayer::InfiniBand => subnet(port.gid),
            LinkLayer::Ethernet => "Ethernet".to_owned(),
        };
        // The others reach ports of other fabrics, too.
        if let Some(fabric) = nic.fabric().filter(|_| device == SOFT) {
            device = format!("{device}{AT}{fabric}");
        }
        Self { device, port: port.number, network }
    }

    /// Whether queue pairs of both can be connected, as far as that is known of their networks.
    pub(crate) fn meets(&self, other: &Self) -> bool {
        self.network == other.network
    }

    /// Whether both are of one fabric, as far as both tell.
    pub(crate) fn shares_fabric(&self, other: &Self) -> bool {
        let [own, theirs] = [self, other].map(|it| it.device.split_once(AT));
        own.zip(theirs).is_none_or(|(own, theirs)| own == theirs)
    }

    /// Whether it reaches a daemon at `theirs` from one at `own`.
    pub(crate) fn reaches(&self, own: SocketAddr, theirs: SocketAddr) -> bool {
        let is_here = own.ip() == theirs.ip() || theirs.ip().is_loopback();
        self.network != SOFT || is_here
    }
}

impl fmt::Display for NicIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, port, network } = self;
        write!(f, "{device}/{port}/{network}")
    }
}

impl FromStr for NicIdentity {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.split('/');
        let (Some(device), Some(port), Some(network), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(());
        };
        let port = port.parse().map_err(drop)?;
        Ok(Self { device: device.to_owned(), port, network: network.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subnet_of_infiniband_is_named_where_it_is_not_the_usual_one() {
        let of = |prefix: u64| subnet(Gid::new((u128::from(prefix) << 64 | 7).to_be_bytes()));
        assert_eq!([of(0xfe80 << 48), of(0)], ["InfiniBand"; 2]);
        assert_eq!(of(0xfec0_0000_0000_0001), "InfiniBand-fec0000000000001");
    }

    #[test]
    fn what_reaches_each_other_is_told_from_what_does_not() {
        let [soft, ib, roce] = ["soft/1/soft", "mlx5_2/1/InfiniBand", "mlx5_0/1/Ethernet"]
            .map(|text| text.parse::<NicIdentity>().unwrap());
        assert_eq!(roce.to_string(), "mlx5_0/1/Ethernet");
        assert!(ib.meets(&"mlx5_7/2/InfiniBand".parse().unwrap()));
        assert!(!ib.meets(&roce) && !soft.meets(&ib));
        let elsewhere: NicIdentity = "mlx5_2/1/InfiniBand-fec0000000000001".parse().unwrap();
        assert!(!ib.meets(&elsewhere) && elsewhere.meets(&elsewhere));
        let [here, there, local] = ["10.0.0.1:1", "10.0.0.2:1", "127.0.0.1:1"]
            .map(|text| text.parse::<SocketAddr>().unwrap());
        assert!(soft.reaches(here, here) && soft.reaches(here, local) && ib.reaches(here, there));
        assert!(!soft.reaches(here, there));
        let [ours, other] = ["soft@0.default/1/soft", "soft@77.default/1/soft"]
            .map(|text| text.parse::<NicIdentity>().unwrap());
        assert!(ours.meets(&other) && !ours.shares_fabric(&other) && ours.shares_fabric(&ours));
        // An earlier daemon tells none.
        assert!(ours.shares_fabric(&soft) && soft.shares_fabric(&ours));
        for text in ["", "soft", "soft/x/soft", "a/1/b/c"] {
            assert!(text.parse::<NicIdentity>().is_err(), "{text}");
        }
    }
}
