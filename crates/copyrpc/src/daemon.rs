//! A daemon inside one's own program: what `copyrpc daemon` runs.
//!
//! [`BackgroundDaemon`] has a thread of its own; [`serve_on`] uses the caller's, until `stop` is set.
//! Services that the program offers itself are functions ([`Services::offer`]): a call of them involves no
//! other process.
//!
//! ```no_run
//! use std::sync::atomic::AtomicBool;
//! use copyrpc::{Runtime, Status, daemon::{self, Services}};
//!
//! # #[cfg(feature = "nic")] {
//! let services = |_thread| {
//!     let mut services = Services::default();
//!     services
//!         .offer(17, Box::new(|request, answer| {
//!             answer.extend_from_slice(request.body);
//!             Status::Ok
//!         }))
//!         .expect("17 is offered once");
//!     services
//! };
//! let nic = copyrpc::nic::Selection::from_env();
//! let stop = AtomicBool::new(false); // for a signal handler, or another thread, to set
//! daemon::serve_on(&daemon::alone(Runtime::from_env()?), &nic, services, &stop)?;
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(feature = "nic")]
use std::{
    io,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

#[cfg(feature = "nic")]
use memory::sync::{AtomicBool, Ordering};

#[cfg(feature = "nic")]
use nics::{OpenError, Selection};

#[cfg(feature = "nic")]
use daemon::serve_selected;

#[doc(inline)]
pub use bootstrap::{self, RankInfo, Secret, SecretError};
pub use daemon::{
    IpcPort, OfferError, ServeError, ServiceFn, Services, Serving,
    config::{self, DaemonConfig},
    serve, serve_threads,
};

use crate::Runtime;
#[cfg(feature = "nic")]
use crate::{Client, ClientConfig};

/// The only daemon of its job, at `runtime`, with the default of every setting.
///
/// # Panics
///
/// Never: the defaults agree with each other.
#[must_use]
pub fn alone(runtime: Runtime) -> Serving {
    let defaults = config::Layers::new(config::KNOBS.to_vec()).finish();
    let config = DaemonConfig::from_settings(&defaults).expect("the defaults agree");
    Serving { config, runtime, rank_info: RankInfo::ALONE, secret: Secret::random() }
}

/// Why a daemon does not serve, or no longer.
#[cfg(feature = "nic")]
#[derive(Debug, thiserror::Error)]
pub enum ServeOnError {
    /// The NIC cannot be used.
    #[error(transparent)]
    Nic(#[from] OpenError),
    /// The daemon cannot serve.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The daemon has no thread.
    #[error("cannot start a thread for the daemon: {0}")]
    Thread(#[from] io::Error),
    /// The daemon's thread panicked.
    #[error("the daemon panicked; its message is on standard error")]
    Panicked,
}

/// Serves until `stop` is set, with a port of the NIC `nic` for each thread of the daemon. `services`
/// is called once on each thread, with the thread's number.
///
/// # Errors
///
/// [`ServeOnError`].
#[cfg(feature = "nic")]
pub fn serve_on(
    serving: &Serving,
    nic: &Selection,
    services: impl Fn(usize) -> Services<IpcPort> + Sync,
    stop: &AtomicBool,
) -> Result<(), ServeOnError> {
    Ok(serve_selected(serving, nic, &services, stop)??)
}

/// Between two looks whether a daemon listens.
#[cfg(feature = "nic")]
const STARTING_PERIOD: Duration = Duration::from_millis(1);

/// A daemon on a thread of its own. Dropping it stops the daemon, and waits for it.
#[cfg(feature = "nic")]
#[derive(Debug)]
pub struct BackgroundDaemon {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), ServeOnError>>>,
}

#[cfg(feature = "nic")]
impl BackgroundDaemon {
    /// As [`serve_on`]; returns when clients can connect.
    ///
    /// # Errors
    ///
    /// [`ServeOnError`].
    pub fn start(
        serving: Serving,
        nic: Selection,
        services: impl Fn(usize) -> Services<IpcPort> + Send + Sync + 'static,
    ) -> Result<Self, ServeOnError> {
        let (socket, stop) = (serving.runtime.socket(), Arc::new(AtomicBool::new(false)));
        let its_stop = Arc::clone(&stop);
        let serve = move || serve_on(&serving, &nic, services, &its_stop);
        let thread = thread::Builder::new().name("copyrpc-daemon".to_owned()).spawn(serve)?;
        let mut daemon = Self { stop, thread: Some(thread) };
        while daemon.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            if Client::connect(&socket, ClientConfig::default()).is_ok() {
                return Ok(daemon);
            }
            thread::sleep(STARTING_PERIOD);
        }
        daemon.end()?;
        Ok(daemon)
    }

    /// Stops the daemon: it lets calls in flight end, for as long as its configuration says.
    ///
    /// # Errors
    ///
    /// [`ServeOnError`], if it has ended before.
    pub fn stop(mut self) -> Result<(), ServeOnError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), ServeOnError> {
        // Relaxed: the flag is all there is to see.
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(served)) => served,
            Some(Err(_)) => Err(ServeOnError::Panicked),
            None => Ok(()),
        }
    }
}

#[cfg(feature = "nic")]
impl Drop for BackgroundDaemon {
    fn drop(&mut self) {
        // `stop` returns the reason of its end.
        let _ = self.end();
    }
}
