//! The notes of the callbacks of UCX, for the worker to look at when `ucp_worker_progress` has returned.
//!
//! All callbacks of a worker run inside its calls of UCX, on its thread. They take a queue out of its cell, add to it
//! and put it back, and call nothing else.

use core::{cell::Cell, ffi::c_void, fmt, ops::Range, slice};

use crate::ucp::abi::{AmRecvParam, IN_PROGRESS, OK, RawEndpoint, RawStatus, am_recv_attr};

/// Bytes of a header, if a message has one.
pub(crate) const HEADER_BYTES: usize = 8;

/// Notes since the worker last looked. A progress adds as many as UCX handles at once.
#[derive(Default)]
pub(crate) struct Mailbox {
    pub(crate) arrived: Cell<Vec<Arrived>>,
    /// Bytes of messages that UCX does not keep.
    pub(crate) bytes: Cell<Vec<u8>>,
    /// Requests that are complete.
    pub(crate) ended: Cell<Vec<(*mut c_void, RawStatus)>>,
    /// Endpoints that failed, by address.
    pub(crate) failed: Cell<Vec<(usize, RawStatus)>>,
    /// Messages with a header of another length.
    pub(crate) malformed: Cell<u64>,
}

/// A message, or the announcement of a large one.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) header: Option<u64>,
    /// Address of the endpoint for a reply; 0 if the sender wants none.
    pub(crate) from: usize,
    pub(crate) data: Data,
}

#[derive(Debug)]
pub(crate) enum Data {
    /// In [`Mailbox::bytes`].
    Copied(Range<usize>),
    /// UCX keeps the bytes until they are released.
    Kept(*mut c_void, usize),
    /// The sender has the bytes; this describes them.
    Announced(*mut c_void, usize),
}

fn push<T>(queue: &Cell<Vec<T>>, note: T) {
    let mut notes = queue.take();
    notes.push(note);
    queue.set(notes);
}

impl fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").field("malformed", &self.malformed).finish_non_exhaustive()
    }
}

impl Mailbox {
    fn copy(&self, bytes: &[u8]) -> Range<usize> {
        let mut all = self.bytes.take();
        let begin = all.len();
        all.extend_from_slice(bytes);
        let range = begin..all.len();
        self.bytes.set(all);
        range
    }
}

/// A message has arrived: `ucp_am_recv_callback_t`.
///
/// # Safety
///
/// `mailbox` is of the worker that makes progress, and all else is as UCX describes it.
pub(crate) unsafe extern "C" fn on_message(
    mailbox: *mut c_void,
    header: *const c_void,
    header_bytes: usize,
    data: *mut c_void,
    data_bytes: usize,
    param: *const AmRecvParam,
) -> RawStatus {
    // SAFETY: the worker keeps its mailbox until UCX has destroyed it, and no other reference to it is mutable.
    let mailbox = unsafe { &*mailbox.cast::<Mailbox>() };
    // SAFETY: UCX describes each message.
    let param = unsafe { &*param };
    let header = match header_bytes {
        0 => None,
        // SAFETY: so many bytes are readable during the callback, at any alignment.
        HEADER_BYTES => Some(unsafe { header.cast::<u64>().read_unaligned() }),
        _ => {
            mailbox.malformed.set(mailbox.malformed.get() + 1);
            return OK; // nothing is kept: an announcement is turned down, and its sender gets an error
        }
    };
    let has = |bit| param.recv_attr & bit != 0;
    let from = if has(am_recv_attr::FIELD_REPLY_EP) { param.reply_ep.addr() } else { 0 };
    let data = if has(am_recv_attr::FLAG_RNDV) {
        Data::Announced(data, data_bytes)
    } else if data_bytes == 0 {
        Data::Copied(0..0)
    } else if has(am_recv_attr::FLAG_DATA) {
        Data::Kept(data, data_bytes)
    } else {
        // SAFETY: so many bytes are readable during the callback.
        Data::Copied(mailbox.copy(unsafe { slice::from_raw_parts(data.cast::<u8>(), data_bytes) }))
    };
    let status = if matches!(data, Data::Copied(_)) { OK } else { IN_PROGRESS };
    push(&mailbox.arrived, Arrived { header, from, data });
    status
}

/// A send or a close is complete: `ucp_send_nbx_callback_t`.
///
/// # Safety
///
/// As of [`on_message`].
pub(crate) unsafe extern "C" fn on_sent(
    request: *mut c_void,
    status: RawStatus,
    mailbox: *mut c_void,
) {
    // SAFETY: as in `on_message`.
    let mailbox = unsafe { &*mailbox.cast::<Mailbox>() };
    push(&mailbox.ended, (request, status));
}

/// A large message is there: `ucp_am_recv_data_nbx_callback_t`.
///
/// # Safety
///
/// As of [`on_message`].
pub(crate) unsafe extern "C" fn on_received(
    request: *mut c_void,
    status: RawStatus,
    _bytes: usize,
    mailbox: *mut c_void,
) {
    // SAFETY: as in `on_message`.
    let mailbox = unsafe { &*mailbox.cast::<Mailbox>() };
    push(&mailbox.ended, (request, status));
}

/// An endpoint failed: `ucp_err_handler_cb_t`.
///
/// # Safety
///
/// As of [`on_message`].
pub(crate) unsafe extern "C" fn on_failure(
    mailbox: *mut c_void,
    endpoint: *mut RawEndpoint,
    status: RawStatus,
) {
    // SAFETY: as in `on_message`.
    let mailbox = unsafe { &*mailbox.cast::<Mailbox>() };
    push(&mailbox.failed, (endpoint.addr(), status));
}
