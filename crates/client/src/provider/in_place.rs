//! Answers that are put where the daemon reads them.

use std::fmt;

use ipc::Filler;
use proto::Status;

/// The answer to a request: see [`Provider::serve_in_place`](crate::Provider::serve_in_place).
///
/// ```no_run
/// # use copyrpc_client as copyrpc;
/// use copyrpc::{Filler, InPlace, Provider, ProvideError};
///
/// # fn serve(provider: Provider) -> Result<(), ProvideError> {
/// provider.serve_in_place(|request| {
///     let length = u64::try_from(request.body.len()).unwrap_or(u64::MAX).to_le_bytes();
///     Some(InPlace::of(length.len(), move |body: &mut Filler<'_>| {
///         let _ = body.put(&length); // the room is as long as requested
///     }))
/// })
/// # }
/// ```
pub struct InPlace<F> {
    pub(super) status: Status,
    pub(super) len_bytes: usize,
    /// `None`: nothing is put.
    pub(super) fill: Option<F>,
    /// What is told besides a status that is no success.
    pub(super) detail: Vec<u8>,
}

impl<F: FnOnce(&mut Filler<'_>)> InPlace<F> {
    /// An answer of `len_bytes` bytes, which `fill` puts. Other bytes are zeros. If it
    /// [gives up](Filler::give_up), the caller gets [`Status::Internal`].
    pub fn of(len_bytes: usize, fill: F) -> Self {
        Self { status: Status::Ok, len_bytes, fill: Some(fill), detail: Vec::new() }
    }

    /// No success: the caller gets `status`, without detail.
    #[must_use]
    pub fn refused(status: Status) -> Self {
        Self::failed(status, Vec::new())
    }

    /// No success: the caller gets `status`, and at most 1024 bytes of detail.
    #[must_use]
    pub fn failed(status: Status, detail: Vec<u8>) -> Self {
        Self { status, len_bytes: 0, fill: None, detail }
    }
}

impl<F> fmt::Debug for InPlace<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { status, len_bytes, .. } = self;
        let mut debug = f.debug_struct("InPlace");
        debug.field("status", status).field("len_bytes", len_bytes).finish_non_exhaustive()
    }
}
