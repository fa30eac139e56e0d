//! Whether the other side of a session is there, for threads that do not have the session.

use std::sync::{Arc, Weak};

use os::{process::Process, unix::UnixConnection};

/// Tells any thread whether a session has ended, or the process on its other side. It keeps neither.
#[derive(Clone, Debug)]
pub struct Lifeline {
    connection: Weak<UnixConnection>,
    /// A forked child of the process may hold a copy of its socket.
    process: Weak<Process>,
}

impl Lifeline {
    /// Without a handle of the process the socket alone tells of death.
    pub(crate) fn of(connection: &Arc<UnixConnection>, process: Option<&Arc<Process>>) -> Self {
        let process = process.map(Arc::downgrade).unwrap_or_default();
        Self { connection: Arc::downgrade(connection), process }
    }

    /// Asks the kernel, which takes two system calls.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        let Some(connection) = self.connection.upgrade() else { return true };
        // A kernel that does not say tells of no end.
        connection.is_closed().unwrap_or(false)
            || self.process.upgrade().is_some_and(|process| process.is_dead())
    }
}
