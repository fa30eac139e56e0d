//! Session management packets: how a session begins and ends, over UDP beside the datapath.
//!
//! ```text
//!  0          4           8       16                204               392
//!  │ pkt type │ err type  │ token │ client endpoint │ server endpoint │
//!
//!  endpoint  0           4              132       134      135   136       138            186   188
//!            │ transport │ host name, 0 │ UDP port│ rpc id │ pad │ session │ routing info │ pad │
//! ```
//!
//! The original sends a C structure of the host's byte order; here that is little-endian. Source: eRPC,
//! commit de83dab3, `sm_types.h`.

/// Bytes of every management packet.
pub const MANAGEMENT_BYTES: usize = 392;
const ENDPOINT_BYTES: usize = 188;
const HOST_BYTES: usize = 128;
const ROUTING_BYTES: usize = 48;
/// In the routing information of an endpoint that answers pings, at this offset; the original has zeros there: eRPC
/// `ib_transport.cc`, `fill_local_routing_info`.
const PINGS: [u8; 4] = *b"ping";
const PINGS_AT: usize = 32;
/// UDP port of the first process of a host; the others follow.
pub const MANAGEMENT_PORT: u16 = 31850;
/// Processes of a host that can listen.
pub const MANAGEMENT_PORTS: u16 = 32;
/// Q_Key of the UD queue pairs of the original since November 2021.
pub const Q_KEY: u32 = 0x0205;
/// The number of no session.
pub const SESSION_NONE: u16 = u16::MAX;
/// Largest number of an endpoint within its process.
pub const RPC_ID_MAX: u8 = 254;

/// The content of a management packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Operation {
    /// Wakes the receiver's thread; never sent to another process.
    Unblock = 0,
    /// Asks whether the process is alive.
    PingRequest = 1,
    /// The answer.
    PingResponse = 2,
    /// Asks for a session.
    ConnectRequest = 3,
    /// The answer: with the server's endpoint, or an error.
    ConnectResponse = 4,
    /// Asks for the end of a session.
    DisconnectRequest = 5,
    /// The answer.
    DisconnectResponse = 6,
}

const OPERATIONS: [Operation; 7] = [
    Operation::Unblock,
    Operation::PingRequest,
    Operation::PingResponse,
    Operation::ConnectRequest,
    Operation::ConnectResponse,
    Operation::DisconnectRequest,
    Operation::DisconnectResponse,
];

/// Why a server refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[repr(u8)]
pub enum Refusal {
    /// The session is being disconnected.
    #[error("the server disconnected the session")]
    Disconnected = 1,
    /// No receives are left for another session.
    #[error("the server has receives for no more sessions")]
    RingExhausted = 2,
    /// No memory for its responses.
    #[error("the server has no memory for another session")]
    OutOfMemory = 3,
    /// The server cannot address the client.
    #[error("the server found no route to the client's address")]
    RoutingResolution = 4,
    /// No endpoint has that number yet.
    #[error("no endpoint of the server's process has that number; it may not have started yet")]
    InvalidRpcId = 5,
    /// The two use different transports.
    #[error("client and server use different transports")]
    InvalidTransport = 6,
}

const REFUSALS: [Refusal; 6] = [
    Refusal::Disconnected,
    Refusal::RingExhausted,
    Refusal::OutOfMemory,
    Refusal::RoutingResolution,
    Refusal::InvalidRpcId,
    Refusal::InvalidTransport,
];

/// Where datagrams to an endpoint go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DatagramRoute {
    /// Local id; 0 on RoCE.
    pub lid: u16,
    /// Queue pair.
    pub qpn: u32,
    /// Global id.
    pub gid: [u8; 16],
    /// The endpoint answers pings. The original's process ends by the first one.
    pub takes_pings: bool,
}

/// The name of a host, as the other side resolves it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct HostName {
    bytes: [u8; HOST_BYTES],
    len: u8,
}

impl HostName {
    /// `None` if `name` is longer than 127 bytes, or has a NUL.
    #[must_use]
    pub fn new(name: &str) -> Option<Self> {
        let len = u8::try_from(name.len()).ok().filter(|len| usize::from(*len) < HOST_BYTES)?;
        if name.bytes().any(|byte| byte == 0) {
            return None;
        }
        let mut bytes = [0; HOST_BYTES];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        Some(Self { bytes, len })
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or_default()
    }
}

impl core::fmt::Debug for HostName {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.as_str().fmt(f)
    }
}

/// One end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionEnd {
    /// Where management packets to it go, with `udp_port`.
    pub host: HostName,
    /// [`MANAGEMENT_PORT`] and above.
    pub udp_port: u16,
    /// Number of the endpoint within its process.
    pub rpc_id: u8,
    /// Its number of the session; [`SESSION_NONE`] if it has none yet.
    pub session: u16,
    /// Where datagrams to it go.
    pub route: DatagramRoute,
}

/// A management packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Management {
    /// Operation that the packet asks for or answers.
    pub operation: Operation,
    /// Why not, in a response that refuses.
    pub refusal: Option<Refusal>,
    /// Random, made by the client: the server answers a connection that is asked for twice with one session.
    pub token: u64,
    /// The client that asked.
    pub client: SessionEnd,
    /// The server that was asked.
    pub server: SessionEnd,
}

/// Why bytes are no management packet. They are dropped and counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ManagementError {
    /// Of another length.
    #[error("{0} B are no management packet, which has 392")]
    Length(usize),
    /// No such operation.
    #[error("operation {0} does not exist")]
    Operation(u32),
    /// No such error.
    #[error("error {0} does not exist")]
    Refusal(u32),
    /// Not InfiniBand or RoCE, which share a number.
    #[error("transport {0} is neither InfiniBand nor RoCE")]
    Transport(u32),
    /// The name has no end, or is no UTF-8.
    #[error("the host name of an endpoint is malformed")]
    HostName,
}

impl Management {
    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; MANAGEMENT_BYTES] {
        let mut bytes = [0; MANAGEMENT_BYTES];
        bytes[0] = self.operation as u8;
        bytes[4] = self.refusal.map_or(0, |refusal| refusal as u8);
        bytes[8..16].copy_from_slice(&self.token.to_le_bytes());
        let (client, server) = bytes[16..].split_at_mut(ENDPOINT_BYTES);
        self.client.encode(client);
        self.server.encode(server);
        bytes
    }

    /// From bytes of a peer.
    ///
    /// # Errors
    ///
    /// [`ManagementError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, ManagementError> {
        let bytes: &[u8; MANAGEMENT_BYTES] =
            bytes.try_into().map_err(|_| ManagementError::Length(bytes.len()))?;
        let operation = u32::from_le_bytes(field(bytes, 0));
        let refusal = u32::from_le_bytes(field(bytes, 4));
        let (client, server) = bytes[16..].split_at(ENDPOINT_BYTES);
        Ok(Self {
            operation: *OPERATIONS
                .get(operation as usize)
                .ok_or(ManagementError::Operation(operation))?,
            refusal: match refusal {
                0 => None,
                code => {
                    Some(*REFUSALS.get(code as usize - 1).ok_or(ManagementError::Refusal(code))?)
                }
            },
            token: u64::from_le_bytes(field(bytes, 8)),
            client: SessionEnd::decode(client)?,
            server: SessionEnd::decode(server)?,
        })
    }
}

impl SessionEnd {
    fn encode(&self, to: &mut [u8]) {
        // Transport 0 is InfiniBand, which RoCE shares.
        to[4..4 + HOST_BYTES].copy_from_slice(&self.host.bytes);
        to[132..134].copy_from_slice(&self.udp_port.to_le_bytes());
        to[134] = self.rpc_id;
        to[136..138].copy_from_slice(&self.session.to_le_bytes());
        let routing = &mut to[138..138 + ROUTING_BYTES];
        routing[0..2].copy_from_slice(&self.route.lid.to_le_bytes());
        routing[4..8].copy_from_slice(&self.route.qpn.to_le_bytes());
        routing[8..24].copy_from_slice(&self.route.gid);
        if self.route.takes_pings {
            routing[PINGS_AT..PINGS_AT + 4].copy_from_slice(&PINGS);
        }
    }

    fn decode(from: &[u8]) -> Result<Self, ManagementError> {
        let transport = u32::from_le_bytes(field(from, 0));
        if transport != 0 {
            return Err(ManagementError::Transport(transport));
        }
        let name = &from[4..4 + HOST_BYTES];
        let end = name.iter().position(|byte| *byte == 0).ok_or(ManagementError::HostName)?;
        let name = core::str::from_utf8(&name[..end]).map_err(|_| ManagementError::HostName)?;
        let routing = &from[138..138 + ROUTING_BYTES];
        Ok(Self {
            host: HostName::new(name).ok_or(ManagementError::HostName)?,
            udp_port: u16::from_le_bytes(field(from, 132)),
            rpc_id: from[134],
            session: u16::from_le_bytes(field(from, 136)),
            route: DatagramRoute {
                lid: u16::from_le_bytes(field(routing, 0)),
                qpn: u32::from_le_bytes(field(routing, 4)),
                gid: field(routing, 8),
                takes_pings: field(routing, PINGS_AT) == PINGS,
            },
        })
    }
}

/// `N` bytes at an offset that the caller took from the layout.
fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[at..at + N]);
    field
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    extern crate std;

    fn endpoint(name: &str, session: u16) -> SessionEnd {
        SessionEnd {
            host: HostName::new(name).unwrap(),
            udp_port: 31851,
            rpc_id: 7,
            session,
            route: DatagramRoute {
                lid: 0x1234,
                qpn: 0x00ab_cdef,
                gid: [0x5a; 16],
                takes_pings: true,
            },
        }
    }

    fn packet() -> Management {
        Management {
            operation: Operation::ConnectResponse,
            refusal: Some(Refusal::InvalidRpcId),
            token: 0x0102_0304_0506_0708,
            client: endpoint("node1", 3),
            server: endpoint("node2.cluster", SESSION_NONE),
        }
    }

    /// Rule E5.1: bytes laid out by hand from the structure of the original.
    #[test]
    fn golden_bytes_of_a_management_packet() {
        let bytes = packet().encode();
        let mut golden = [0; MANAGEMENT_BYTES];
        golden[0] = 4;
        golden[4] = 5;
        golden[8..16].copy_from_slice(&[8, 7, 6, 5, 4, 3, 2, 1]);
        for (at, name, session) in [(16, "node1", [3, 0]), (204, "node2.cluster", [0xff, 0xff])] {
            golden[at + 4..at + 4 + name.len()].copy_from_slice(name.as_bytes());
            golden[at + 132..at + 135].copy_from_slice(&[0x6b, 0x7c, 7]);
            golden[at + 136..at + 138].copy_from_slice(&session);
            golden[at + 138..at + 140].copy_from_slice(&[0x34, 0x12]);
            golden[at + 142..at + 146].copy_from_slice(&[0xef, 0xcd, 0xab, 0]);
            golden[at + 146..at + 162].fill(0x5a);
            golden[at + 170..at + 174].copy_from_slice(b"ping");
        }
        assert_eq!(bytes, golden);
        assert_eq!(Management::decode(&golden), Ok(packet()));
        golden[170 + 16..174 + 16].fill(0);
        let original = Management::decode(&golden).unwrap();
        assert_eq!(
            (original.client.route.takes_pings, original.server.route.takes_pings),
            (false, true)
        );
    }

    /// Rule E5.2.
    #[test]
    fn malformed_packets_say_why() {
        let spoil = |at: usize, value: u8| {
            let mut bytes = packet().encode();
            bytes[at] = value;
            Management::decode(&bytes)
        };
        assert_eq!(Management::decode(&[0; 391]), Err(ManagementError::Length(391)));
        assert_eq!(spoil(0, 7), Err(ManagementError::Operation(7)));
        assert_eq!(spoil(4, 7), Err(ManagementError::Refusal(7)));
        assert_eq!(spoil(204, 2), Err(ManagementError::Transport(2)));
        assert_eq!(spoil(20, 0xff), Err(ManagementError::HostName));
        let mut endless = packet().encode();
        endless[20..148].fill(b'a');
        assert_eq!(Management::decode(&endless), Err(ManagementError::HostName));
    }

    #[test]
    fn host_names_have_room_for_their_end() {
        let long = "a".repeat(127);
        assert_eq!(HostName::new(&long).unwrap().as_str(), long);
        assert_eq!(HostName::new(&"a".repeat(128)), None);
        assert_eq!(HostName::new("a\0b"), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 4 } else { 256 }, failure_persistence: None, ..Default::default()
        })]

        #[test]
        fn no_bytes_make_decoding_panic(bytes in proptest::collection::vec(any::<u8>(), 392)) {
            if let Ok(packet) = Management::decode(&bytes) {
                prop_assert_eq!(Management::decode(&packet.encode()), Ok(packet));
            }
        }

        #[test]
        fn any_operation_and_refusal_survive(operation in 0..7usize, refusal in 0..7usize) {
            let refusal = refusal.checked_sub(1).map(|at| REFUSALS[at]);
            let packet = Management { operation: OPERATIONS[operation], refusal, ..packet() };
            prop_assert_eq!(Management::decode(&packet.encode()), Ok(packet));
        }
    }
}
