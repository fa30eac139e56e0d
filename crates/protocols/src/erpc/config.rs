//! The settings of an endpoint.

use core::time::Duration;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use proto::erpc::{CREDITS, Geometry, Link, congestion::TimelyConfig, management::Q_KEY};
use verbs::{LinkLayer, PathClass, PortAttributes};

/// How fast a session sends.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Congestion {
    /// As fast as credits allow: right for a fabric that is not congested.
    #[default]
    Off,
    /// Timely measures the round trip of each packet and computes a rate; Carousel sends at it.
    Timely(TimelyConfig),
}

/// Settings of an [`Endpoint`](crate::erpc::Endpoint).
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Where management packets arrive. Port 0: the first free one of 31850 to 31881.
    pub management: SocketAddr,
    /// Number of the endpoint within its process: 0 to 254.
    pub rpc_id: u8,
    /// The addressing of packets. `None`: that of the NIC's port.
    pub link: Option<Link>,
    /// Longest packet, header included; both sides choose it alike. `None`: that of the original, or the
    /// port's MTU if that is smaller.
    pub packet_bytes: Option<u32>,
    /// Sessions in both roles together, at most 8192.
    pub sessions_max: u16,
    /// Calls in flight and waiting, of all sessions together.
    pub calls_max: u32,
    /// Receives that are posted: at most 32768. The original has 4096 and allows 128 sessions of 32 credits.
    /// With more sessions, packets may find no receive; they are sent again.
    pub receives: u16,
    /// Sends outstanding.
    pub sends: u16,
    /// Packets of a session without an answer.
    pub credits: u32,
    /// Calls of a session that wait for one of its eight slots.
    pub backlog_max: usize,
    /// Time without progress after which packets are sent again.
    pub retransmit: Duration,
    /// Time between two management packets that ask the same.
    pub management_retry: Duration,
    /// Silence after which a peer that owes an answer is asked whether it is alive.
    pub ping_after: Duration,
    /// Silence after which it is taken for dead.
    pub failure_after: Duration,
    /// Silence after which a client without calls is asked whether it is alive.
    pub idle_after: Duration,
    /// The same for a server that takes no pings, as the original's: its thread answers nothing while a handler runs.
    pub original_failure_after: Duration,
    /// Silence after which the session of a client that takes no pings makes room for another, if there is none left.
    pub abandoned_after: Duration,
    /// Service level and traffic class of packets.
    pub class: PathClass,
    /// How fast sessions send.
    pub congestion: Congestion,
    /// Packets received, and packets sent by a session, per turn.
    pub burst: u32,
    /// Datagrams with another key are dropped by the NIC.
    pub q_key: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            management: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0),
            rpc_id: 0,
            link: None,
            packet_bytes: None,
            sessions_max: 1024,
            calls_max: 1 << 16,
            receives: 4096,
            sends: 128,
            credits: CREDITS,
            backlog_max: 1024,
            retransmit: Duration::from_millis(5),
            management_retry: Duration::from_millis(100),
            ping_after: Duration::from_millis(50),
            failure_after: Duration::from_millis(500),
            idle_after: Duration::from_secs(10),
            original_failure_after: Duration::from_secs(30),
            abandoned_after: Duration::from_secs(60),
            class: PathClass::default(),
            congestion: Congestion::Off,
            burst: 32,
            q_key: Q_KEY,
        }
    }
}

/// Settings that contradict each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A value outside its range.
    #[error("`{name}` is {value}, possible are {min} to {max}")]
    Range {
        /// Of the setting.
        name: &'static str,
        /// As set.
        value: u64,
        /// The least value that is allowed.
        min: u64,
        /// The greatest value that is allowed.
        max: u64,
    },
    /// A packet has no room for data, or the port cannot carry it.
    #[error("packets of {packet_bytes} B are not possible on a port whose MTU is {mtu_bytes} B")]
    Packet {
        /// As set.
        packet_bytes: u32,
        /// Of the port.
        mtu_bytes: usize,
    },
    /// The original's management packets carry IPv4.
    #[error("the management address must be IPv4")]
    Address,
}

impl Config {
    /// Packet sizes on `port`.
    pub(crate) fn geometry(&self, port: &PortAttributes) -> Result<Geometry, ConfigError> {
        let range = |name, value: u64, min, max| match (min..=max).contains(&value) {
            true => Ok(()),
            false => Err(ConfigError::Range { name, value, min, max }),
        };
        range("rpc_id", self.rpc_id.into(), 0, 254)?;
        range("sessions_max", self.sessions_max.into(), 1, 8192)?;
        range("receives", self.receives.into(), 1, 1 << 15)?;
        range("sends", self.sends.into(), 2, 1 << 14)?;
        range("credits", self.credits.into(), 1, CREDITS.into())?;
        range("burst", self.burst.into(), 1, 1 << 16)?;
        if !self.management.is_ipv4() {
            return Err(ConfigError::Address);
        }
        let link = self.link.unwrap_or(match port.link {
            LinkLayer::InfiniBand => Link::InfiniBand,
            LinkLayer::Ethernet => Link::Roce,
        });
        let mtu_bytes = port.mtu.bytes();
        let mtu = u32::try_from(mtu_bytes).unwrap_or(u32::MAX);
        let packet_bytes = self.packet_bytes.unwrap_or_else(|| link.mtu_bytes().min(mtu));
        let geometry = Geometry::with_mtu(link, packet_bytes).filter(|_| packet_bytes <= mtu);
        geometry.ok_or(ConfigError::Packet { packet_bytes, mtu_bytes })
    }
}

/// How a session is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectOptions {
    /// Time after which a server that does not answer, or has no such endpoint yet, is given up.
    pub timeout: Duration,
    /// Connects again when the session fails, for as long as `timeout` each time.
    pub reconnect: bool,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(10), reconnect: true }
    }
}
