//! Working space of the requester.

use wire::wqe;

use super::{Chunk, port::WQE_BYTES_MAX};

/// Private copy of a WQE, aligned as the ring is.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct WqeBuffer(pub(super) [u8; WQE_BYTES_MAX]);

/// Working space of `Requester::advance`, reused so that the data path allocates nothing.
#[derive(Debug)]
pub(crate) struct Scratch {
    pub(super) wqe: Box<WqeBuffer>,
    pub(super) chunks: Vec<Chunk>,
}

impl Scratch {
    pub(crate) fn new() -> Self {
        let chunks = Vec::with_capacity(usize::from(wqe::OCTOWORDS_MAX));
        Self { wqe: Box::new(WqeBuffer([0; WQE_BYTES_MAX])), chunks }
    }
}
