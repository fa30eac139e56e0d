//! The record that rank 0 keeps of a bootstrap over TCP, so that it can be restarted: its rendezvous then
//! knows the others, who will not come again.
//!
//! The rendezvous writes it whenever somebody has come. A daemon that ends by itself forgets it. If all
//! daemons of a job were killed and are started again, what it remembers is stale: then the addresses
//! that heartbeats come from correct it.

use std::{fs, path::PathBuf};

/// The file, removed when this is dropped.
#[derive(Debug)]
pub(super) struct Roster(pub(super) PathBuf);

impl Drop for Roster {
    fn drop(&mut self) {
        // If it is gone already, that is what was wanted.
        let _ = fs::remove_file(&self.0);
    }
}
