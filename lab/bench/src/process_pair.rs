//! Two pinned processes: this program runs itself a second time as the other side.
//!
//! ```text
//! initiator (parent)                                  responder (child)
//!   ProcessPair ── channel of `os::child`: orders, replies ── stdin
//!    └──── memfd of the shared words ──────────────────────── stdout
//! ```
//!
//! The child inherits both as standard streams, so no path or number needs to be agreed on, and dies with its
//! parent. Dropping [`ProcessPair`] kills and reaps it.

use std::{
    ffi::OsStr,
    io,
    os::fd::{AsFd as _, OwnedFd},
    process::Stdio,
    time::Duration,
};

use os::{
    child::{Child, ChildChannel, channel_to_parent, this_program},
    clock,
};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    cores::{self, Cores},
    error::Error,
    shared_words::{PATIENCE, SharedWords},
};

/// Longest wait for a message that the other side should send or take soon.
pub const REPLY_DEADLINE: Duration = PATIENCE;

/// One end of the control channel.
#[derive(Debug)]
pub struct PairChannel(ChildChannel);

impl PairChannel {
    /// Sends `message`.
    ///
    /// # Errors
    ///
    /// [`Error::Control`].
    pub fn send(&mut self, message: &impl Serialize) -> Result<(), Error> {
        Ok(self.0.send_json(message, clock::deadline_ns(REPLY_DEADLINE))?)
    }

    /// Waits for the next message; `None`: for ever, until the other side is gone. After a timeout it may be
    /// called again: nothing is lost.
    ///
    /// # Errors
    ///
    /// [`Error::Control`].
    pub fn receive<T: DeserializeOwned>(&mut self, timeout: Option<Duration>) -> Result<T, Error> {
        Ok(self.0.recv_json(timeout.map_or(u64::MAX, clock::deadline_ns))?)
    }
}

/// The parent's hold on both sides.
#[derive(Debug)]
pub struct ProcessPair {
    /// The shared words.
    pub shared: SharedWords,
    /// To and from the child.
    pub control: PairChannel,
    child: Child,
}

impl ProcessPair {
    /// Starts this program again with `arguments`, which must lead it to [`ChildSide::of_child`], and
    /// pins the calling thread.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn start<S: AsRef<OsStr>>(cores: Cores, arguments: &[S]) -> Result<Self, Error> {
        cores::pin(cores.initiator).map_err(Error::refused("cannot pin to the first core"))?;
        let shared = SharedWords::new()?;
        let cannot = Error::refused("cannot start the second process");
        let mut command = this_program().map_err(Error::refused("cannot find this program"))?;
        command.args(arguments).stdout(Stdio::from(shared.descriptor()?));
        let (child, channel) = Child::spawn_with_channel(&mut command).map_err(cannot)?;
        let mut control = PairChannel(channel);
        control.send(&cores.responder)?;
        match control.receive(Some(REPLY_DEADLINE))? {
            Ok(()) => Ok(Self { shared, control, child }),
            Err(cause) => {
                let what = "cannot pin the second process to its core";
                Err(Error::refused::<String>(what)(cause))
            }
        }
    }

    /// Process id of the child.
    #[must_use]
    pub fn child_id(&self) -> u32 {
        self.child.id()
    }
}

/// What the child has.
#[derive(Debug)]
pub struct ChildSide {
    /// The shared words.
    pub shared: SharedWords,
    /// To and from the parent.
    pub control: PairChannel,
}

impl ChildSide {
    /// Takes over standard input and output, and pins the calling thread. Do not print afterwards.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn of_child() -> Result<Self, Error> {
        let mut control = PairChannel(channel_to_parent()?);
        let memory: io::Result<OwnedFd> = io::stdout().as_fd().try_clone_to_owned();
        let memory = memory.map_err(Error::refused("cannot duplicate standard output"))?;
        let core = control.receive(Some(REPLY_DEADLINE))?;
        control.send(&cores::pin(core).map_err(|error| error.to_string()))?;
        Ok(Self { shared: SharedWords::open(memory)?, control })
    }
}
