//! One identifier of the connection manager: a listener, or one end of a connection.

use std::{net::SocketAddr, os::fd::RawFd, time::Instant};

use rustix::fd::OwnedFd;

use super::message::Side;

/// `enum rdma_ucm_port_space`
const PORT_SPACE_UDP: u16 = 0x111;

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
    pub(super) source: Option<SocketAddr>,
    pub(super) destination: Option<SocketAddr>,
    /// Whether it belongs to the device: it has an address that is not that of all.
    pub(super) has_device: bool,
    pub(super) has_route: bool,
    pub(super) socket: Option<OwnedFd>,
    /// Of one that is arriving or requested: its listener.
    pub(super) listener: u32,
    pub(super) own: Side,
    pub(super) peer: Side,
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
            is_datagram: port_space == PORT_SPACE_UDP || qp_type == TYPE_UD,
            state: State::Idle,
            source: None,
            destination: None,
            has_device: false,
            has_route: false,
            socket: None,
            listener: 0,
            own: Side::default(),
            peer: Side::default(),
            reported: 0,
        }
    }
}
