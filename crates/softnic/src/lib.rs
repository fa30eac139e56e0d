//! A software ConnectX: the real driver's work queues, executed in shared memory.
//!
//! [`open()`] gives a [`Nic`]: the `mlx5` driver, unchanged, on a device made of memory. It needs no
//! hardware, no privilege and no kernel module; every process of one user on one machine that uses
//! the same fabric name is on the same network.
//!
//! ```text
//!  process A                                   process B
//!   mlx5 driver ── WQE, doorbell record         mlx5 driver ◀── CQE
//!        │ doorbell = function call                   ▲
//!   engine (requester) ─── Request ──▶ (responder, on A's thread) ── bytes and CQE into
//!                                                       B's mapped segments and card
//! ```
//!
//! The *inline* drive does all work in the caller's doorbell; the *thread* drive on one NIC thread
//! per port. Module `engine` says where other drives fit. A peer that is killed leaves its
//! name in whatever it held, and module `reap` finishes it.
//!
//! It finds bugs; it is no security boundary: peers are processes of the same user, and each maps
//! the memory that the other registers.

pub mod shared;

#[cfg(not(loom))]
mod card;
#[cfg(not(loom))]
mod channel;
#[cfg(not(loom))]
mod config;
#[cfg(not(loom))]
mod context;
#[cfg(not(loom))]
mod device;
#[cfg(not(loom))]
mod engine;
#[cfg(not(loom))]
mod fabric;
#[cfg(all(any(test, fuzzing), not(loom)))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(not(loom))]
mod left_behind;
#[cfg(not(loom))]
mod memory;
#[cfg(not(loom))]
mod mr;
#[cfg(not(loom))]
mod objects;
#[cfg(not(loom))]
mod qp;
#[cfg(not(loom))]
mod reap;
#[cfg(all(any(test, fuzzing), not(loom)))]
mod rig;
#[cfg(not(loom))]
mod strict;
#[cfg(not(loom))]
mod thread;

#[cfg(not(loom))]
pub use self::{
    channel::Channel,
    config::{Config, ConfigError, Drive, KNOBS, Knob, Link, UnknownChoice},
    device::{Cq, Device, Pd, Qp, Srq},
    mr::Mr,
    open::{Nic, OpenError, open},
    strict::Violation,
};

#[cfg(not(loom))]
mod open {
    use super::{Config, Device, Violation, context::Context, left_behind::InUse};

    /// The mlx5 driver on a software device.
    pub type Nic = mlx5::Nic<Device>;

    /// Why a software NIC could not be opened.
    #[derive(Debug, thiserror::Error)]
    #[error("cannot open a software NIC on fabric `{fabric}`: {cause}")]
    pub struct OpenError {
        /// Name of the fabric.
        pub fabric: String,
        /// What went wrong and what helps.
        pub cause: String,
    }

    /// Opens a port of its own on the fabric that `config` names.
    ///
    /// # Errors
    ///
    /// [`OpenError`].
    pub fn open(config: &Config) -> Result<Nic, OpenError> {
        let context = Context::open(config.clone()).map_err(|error| OpenError {
            fabric: config.fabric.clone(),
            cause: error.to_string(),
        })?;
        let in_use = InUse::new(&context);
        Ok(mlx5::Nic::new(Device(context, in_use)))
    }

    impl Device {
        /// What strict mode refused since the last call.
        #[must_use]
        pub fn take_violations(&self) -> Vec<Violation> {
            self.0.take_violations()
        }
    }
}
