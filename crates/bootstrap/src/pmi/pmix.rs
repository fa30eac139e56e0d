//! PMIx: the library's calls on a thread of their own, as they may block for longer than a rank waits.

use std::{
    ffi::{CStr, CString},
    io,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use super::{PmiError, Wait};
use crate::{
    RankInfo,
    pmix::{PmixError, Session},
};

const KEY: &CStr = c"copyrpc.meeting";

/// Returns what rank 0 passes as `own`.
///
/// After the deadline the thread stays in the library until this process ends.
pub(super) fn broadcast(own: Option<&str>, wait: &Wait<'_>) -> Result<String, PmiError> {
    let own = own.map(|text| CString::new(text).expect("an address and digits have no NUL"));
    let (rank_info, timeout) = (wait.rank_info, wait.timeout);
    let (send, receive) = mpsc::sync_channel(1);
    let talk = move || {
        // Nobody listens any more after the deadline.
        let _ = send.send(talk(own.as_deref(), rank_info, timeout));
    };
    let started = thread::Builder::new().name("pmix".to_owned()).spawn(talk);
    started.map_err(|source| PmiError::Os { step: "start a thread for PMIx", source })?;
    loop {
        let slice = wait.slice("PMIx", "bring the address of rank 0")?;
        match receive.recv_timeout(slice) {
            Ok(text) => return text,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                let source = io::Error::other("its thread panicked");
                return Err(PmiError::Os { step: "call PMIx", source });
            }
        }
    }
}

fn talk(own: Option<&CStr>, rank_info: RankInfo, timeout: Duration) -> Result<String, PmiError> {
    let session = Session::start()?;
    if session.rank() != rank_info.rank() {
        return Err(PmiError::Rank { rank_info, theirs: session.rank() });
    }
    if let Some(text) = own {
        session.put(KEY, text)?;
    }
    session.fence(timeout)?;
    session.get(0, KEY, timeout).map_err(|error: PmixError| error.into())
}
