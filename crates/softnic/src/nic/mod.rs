//! The NIC: everything but the protocols over atomics of [`shared`](crate::shared).

mod card;
mod channel;
mod config;
mod device;
mod engine;
mod fabric;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod gid;
mod housekeeping;
mod in_use;
mod left_behind;
mod lent;
mod memory;
mod mr;
mod objects;
mod open;
mod port_state;
mod profile;
mod qp;
mod reap;
#[cfg(any(test, fuzzing))]
mod rig;
mod runner;
mod segments;
mod strict;
mod thread;
mod timeline;
mod virtual_port;

pub use self::{
    channel::Channel,
    config::{Atomics, Config, CqeVersion, Drive, KNOBS},
    device::{Cq, Device, Pd, Qp, Srq},
    lent::{LentQp, LentQueue},
    mr::Mr,
    open::{Membership, Nic, OpenError, open, open_member, open_virtual},
    profile::AdapterProfile,
    qp::Amendment,
    strict::Violation,
    timeline::{Cause, Issued, NextWqe, Timeline},
    virtual_port::{DecodeError, Packet, Refusal, ReplyPacket, VirtualPort},
};
