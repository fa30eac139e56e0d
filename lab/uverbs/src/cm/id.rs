//! One identifier of the connection manager: a listener, or one end of a connection.

use std::{os::fd::RawFd, time::Instant};

use rustix::fd::OwnedFd;

use super::{
    address::{Address, PORT_SPACE_IB, PORT_SPACE_IPOIB, PORT_SPACE_TCP, PORT_SPACE_UDP},
    message::Side,
    private::{MessageKind, PrivateRoom},
};

/// Those that there are.
pub(super) const PORT_SPACES: [u16; 4] =
    [PORT_SPACE_IPOIB, PORT_SPACE_TCP, PORT_SPACE_UDP, PORT_SPACE_IB];

/// What a connection waits for an acknowledgement if the program does not say otherwise: `CMA_IBOE_PACKET_LIFETIME`.
const ACK_TIMEOUT: u8 = 18;

/// An option of an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdOption {
    /// The traffic class of what is sent.
    ServiceType(u8),
    /// Code of the wait for an acknowledgement.
    AckTimeout(u8),
    /// Who may share the address: there are as many addresses as processes want.
    IsShared,
}

/// `enum ib_qp_type`
const TYPE_UD: u8 = 4;

/// What an identifier is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Idle,
    Listening,
    /// Somebody has connected to a listener, and not said yet what it wants.
    Arriving,
    /// Its request finds no room at the listener, and is sent again; it gives up at this time.
    Waiting(Instant),
    /// Its request was sent; it gives up at this time.
    Requesting(Instant),
    /// A request has come, and the program has not answered yet.
    Requested,
    /// One side has answered, and the other is not ready yet.
    Answered,
    Connected,
    /// The other side has disconnected, or is gone; the program is not told yet.
    Parting(Parting),
    /// It was connected, or was to be.
    Over,
}

/// How far the end of a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parting {
    /// Completions of what the peer has sent before may be missing.
    Heard,
    /// They are in their queues; the program had so many empty polls then, and is told at this time if not before.
    Completed { empty_polls: u64, until: Instant },
}

#[derive(Debug)]
pub(super) struct Id {
    /// Descriptor of the channel that its events go to.
    pub(super) channel: RawFd,
    /// What the program calls it.
    pub(super) uid: u64,
    pub(super) port_space: u16,
    /// Whether its queue pair is one for datagrams: then there is no connection, and it only finds out its peer's.
    pub(super) is_datagram: bool,
    pub(super) state: State,
    pub(super) source: Option<Address>,
    pub(super) destination: Option<Address>,
    /// Whether it belongs to the device: it has an address that is not that of all.
    pub(super) has_device: bool,
    pub(super) has_route: bool,
    pub(super) socket: Option<OwnedFd>,
    /// Of one that is arriving or requested: its listener.
    pub(super) listener: u32,
    pub(super) own: Side,
    pub(super) peer: Side,
    /// As the program wants it.
    pub(super) service_type: u8,
    pub(super) ack_timeout: u8,
    /// Events that the program has read.
    pub(super) reported: u32,
}

impl Id {
    /// `qp_type` is that of the queue pair that the program means to use.
    pub(super) fn new(channel: RawFd, uid: u64, port_space: u16, qp_type: u8) -> Self {
        Self {
            channel,
            uid,
            port_space,
            is_datagram: matches!(port_space, PORT_SPACE_UDP | PORT_SPACE_IPOIB)
                || port_space == PORT_SPACE_IB && qp_type == TYPE_UD,
            state: State::Idle,
            source: None,
            destination: None,
            has_device: false,
            has_route: false,
            socket: None,
            listener: 0,
            own: Side::default(),
            peer: Side::default(),
            service_type: 0,
            ack_timeout: ACK_TIMEOUT,
            reported: 0,
        }
    }

    /// Room of its messages for private data.
    pub(super) fn room(&self, kind: MessageKind) -> PrivateRoom {
        PrivateRoom::of(kind, self.is_datagram, self.is_ib())
    }

    /// Whether its addresses are those of InfiniBand: Linux `cma_family`.
    pub(super) fn is_ib(&self) -> bool {
        self.source.is_some_and(|source| source.is_ib())
    }
}
