//! The traits of a NIC: the vocabulary that a protocol is generic over.
//!
//! A protocol names no device. It is written against [`Nic`] and its parts, with static dispatch
//! and nothing allocated on the data path, so it runs unchanged on whatever implements them. The
//! software NIC does; a ConnectX and a simulator are to come.
//!
//! ```text
//! Nic ─┬─ Pd ─┬─ Mr   memory the NIC may touch, named by an lkey and an rkey
//!      │      ├─ Srq  receive buffers that many QPs share
//!      │      └─ Qp   send and receive queue:  post_* ── ring_* ── … ── retire
//!      ├─ Cq          completions:  poll, arm
//!      └─ Channel     a file descriptor that a CQ makes readable
//! ```
//!
//! The life of a request: `post_*` writes it into the queue and never tells the NIC; `ring_*`
//! tells the NIC about everything posted since (doorbell batching); [`CompletionQueue::poll`]
//! returns its [`Completion`] exactly once; [`QueuePair::retire`] gives its queue space back.
//!
//! Sources: InfiniBand Architecture Specification 1.4, chapters 10 and 11; `ibv_post_send(3)`,
//! `ibv_poll_cq(3)`, `ibv_modify_qp(3)`.

#![forbid(unsafe_code)]

mod access;
mod address;
mod capabilities;
mod completion;
mod config;
mod error;
mod nic;
mod port_options;
mod qp_state;
mod registration;
mod request;

pub use access::Access;
pub use address::{AddressVector, Destination, GidRoute, PathClass, PortRoute, QpAddress};
pub use capabilities::Capabilities;
pub use completion::{Completion, CompletionKind, Source, WcFailure, WcStatus};
pub use config::{CqConfig, QpConfig, RecvSize, SendSize, SrqConfig};
pub use error::{
    ArmError, AsyncEvent, CreateError, MemoryError, ModifyError, PostRecvError, PostSendError,
    Shortage,
};
pub use ids::{Cqn, DcKey, Gid, Lid, Lkey, Psn, QKey, Qpn, Rkey, Srqn};
pub use nic::{
    Channel, CompletionQueue, LinkLayer, MemoryRegion, Nic, NicAttributes, PortAttributes,
    QueuePair, SharedReceiveQueue,
};
pub use port_options::{PortOptionError, PortOptions, PortTable, PortTables};
pub use qp_state::{
    InitAttr, Mtu, QpState, RcPeer, RnrTimer, RtrAttr, RtsAttr, Transition, Transport,
};
pub use registration::Registration;
pub use request::{Arm, Op, Payload, RemoteSlice, SendFlags, SendRequest, Sge};
