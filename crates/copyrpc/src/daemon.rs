//! A daemon inside one's own program: what `copyrpc daemon` runs.
//!
//! Services that the program offers itself are functions ([`Services::offer`]), and cost no hand-over
//! to another process. [`serve`] stays in its thread until it is told to stop:
//!
//! ```no_run
//! use std::sync::atomic::AtomicBool;
//! use copyrpc::{Runtime, Status, daemon};
//!
//! # #[cfg(feature = "nic")] {
//! let mut services = daemon::Services::default();
//! services.offer(17, Box::new(|request, answer| {
//!     answer.extend_from_slice(request.body);
//!     Status::Ok
//! }))?;
//! let stop = AtomicBool::new(false); // for a signal handler, or another thread, to set
//! daemon::serve(&daemon::alone(Runtime::from_env()?), copyrpc::nic::open()?, services, &stop)?;
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[doc(inline)]
pub use node::{
    bootstrap::{self, Place, Secret, SecretError},
    config::{self, DaemonConfig},
    daemon::{Handler, IpcFront, OfferError, ServeError, Services, Serving, serve, serve_threads},
};

use crate::Runtime;

/// The only daemon of its job, at `runtime`, with the default of every setting.
///
/// # Panics
///
/// Never: the defaults agree with each other.
#[must_use]
pub fn alone(runtime: Runtime) -> Serving {
    let defaults = config::Layers::new(config::KNOBS.to_vec()).finish();
    let config = DaemonConfig::from_settings(&defaults).expect("the defaults agree");
    Serving { config, runtime, place: Place::ALONE, secret: Secret::random() }
}
