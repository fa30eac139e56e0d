//! Registered memory for bodies that do not fit the ring.

use std::{collections::HashMap, hash::Hash};

use proto::copyrpc::Large;
use verbs::{Access, MemoryError, MemoryRegion as _, Nic, Sge};

/// Smallest buffer.
const BUFFER_BYTES_MIN: usize = 1 << 14;
/// Free buffers that are kept for each peer.
const FREE_MAX: usize = 8;

/// Registered memory that holds one large body.
pub(crate) struct Buffer<N: Nic> {
    mr: N::Mr,
    len_bytes: usize,
}

impl<N: Nic> Buffer<N> {
    pub(crate) fn write(&self, body: &[u8]) {
        self.mr.write(0, &body[..self.len_bytes]);
    }

    /// Copies the body to private memory.
    pub(crate) fn copy_to(&self, to: &mut Vec<u8>) {
        to.resize(self.len_bytes, 0);
        self.mr.read(0, to);
    }

    pub(crate) fn sge(&self) -> Sge {
        self.mr.sge(0, self.len_bytes)
    }

    /// What the peer must know to fetch it.
    pub(crate) fn large(&self) -> Large {
        let remote = self.mr.remote(0);
        let len_bytes = self.sge().len_bytes;
        Large { addr: remote.addr, rkey: remote.rkey.get(), len_bytes }
    }
}

/// Why there is no buffer.
#[derive(Debug)]
pub(crate) enum NoBuffer {
    /// The peer's share is in use.
    Limit,
    Memory(MemoryError),
}

/// Buffers of one peer, and no other's: a key that a peer was told must never reach the data of
/// another.
pub(crate) struct Buffers<N: Nic> {
    limit_bytes: usize,
    /// Registered, in use or free.
    held_bytes: usize,
    free: Vec<N::Mr>,
}

impl<N: Nic> Buffers<N> {
    pub(crate) fn new(limit_bytes: usize) -> Self {
        Self { limit_bytes, held_bytes: 0, free: Vec::new() }
    }

    /// Memory for `len_bytes`, not cleared.
    pub(crate) fn take(
        &mut self,
        nic: &N,
        pd: &N::Pd,
        len_bytes: usize,
    ) -> Result<Buffer<N>, NoBuffer> {
        let size = len_bytes.max(BUFFER_BYTES_MIN).next_power_of_two();
        if let Some(at) = self.free.iter().position(|mr| mr.len_bytes() == size) {
            return Ok(Buffer { mr: self.free.swap_remove(at), len_bytes });
        }
        while self.held_bytes + size > self.limit_bytes {
            let mr = self.free.pop().ok_or(NoBuffer::Limit)?;
            self.held_bytes -= mr.len_bytes();
        }
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
        let mr = nic.alloc_mr(pd, size, access).map_err(NoBuffer::Memory)?;
        self.held_bytes += size;
        Ok(Buffer { mr, len_bytes })
    }

    /// Gives memory back that neither the NIC nor the peer uses any more.
    pub(crate) fn give(&mut self, buffer: Buffer<N>) {
        if self.free.len() < FREE_MAX {
            self.free.push(buffer.mr);
        } else {
            self.held_bytes -= buffer.mr.len_bytes();
        }
    }
}

/// Buffers that a peer may read, by what ends that.
pub(crate) struct Lent<N: Nic, K> {
    buffers: HashMap<K, Buffer<N>>,
}

impl<N: Nic, K: Eq + Hash> Lent<N, K> {
    pub(crate) fn new() -> Self {
        Self { buffers: HashMap::new() }
    }

    pub(crate) fn put(&mut self, key: K, buffer: Buffer<N>) -> &Buffer<N> {
        self.buffers.entry(key).insert_entry(buffer).into_mut()
    }

    #[inline]
    pub(crate) fn end(&mut self, key: &K) -> Option<Buffer<N>> {
        if self.buffers.is_empty() { None } else { self.buffers.remove(key) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those that are not kept count no more.
    #[test]
    fn all_buffers_that_were_given_back_can_be_taken_again() {
        let fabric = format!("large-{}", std::process::id());
        let nic = softnic::open(&softnic::Config { fabric, ..softnic::Config::default() }).unwrap();
        let pd = nic.alloc_pd().unwrap();
        let mut buffers = Buffers::<softnic::Nic>::new((FREE_MAX + 1) * BUFFER_BYTES_MIN);
        for _ in 0..3 {
            let taken = [(); FREE_MAX + 1].map(|()| buffers.take(&nic, &pd, 1).unwrap());
            assert!(matches!(buffers.take(&nic, &pd, 1), Err(NoBuffer::Limit)));
            taken.into_iter().for_each(|buffer| buffers.give(buffer));
            assert_eq!(buffers.free.len(), FREE_MAX);
        }
    }
}
