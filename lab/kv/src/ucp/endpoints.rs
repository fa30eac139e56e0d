//! The endpoints of a worker, by number and by handle.

use std::{collections::BTreeMap, ptr::NonNull};

use crate::ucp::abi::RawEndpoint;

/// An endpoint of a worker: a way to one peer. Numbers are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UcxEndpoint(pub(crate) usize);

#[derive(Debug, Default)]
pub(crate) struct Endpoints {
    /// `None`: it is closed, and its handle belongs to UCX again.
    handles: Vec<Option<NonNull<RawEndpoint>>>,
    /// Those that are open, by the addresses of their handles.
    numbers: BTreeMap<usize, UcxEndpoint>,
}

impl Endpoints {
    pub(crate) fn add(&mut self, handle: NonNull<RawEndpoint>) -> UcxEndpoint {
        let number = UcxEndpoint(self.handles.len());
        self.handles.push(Some(handle));
        self.numbers.insert(handle.addr().get(), number);
        number
    }

    pub(crate) fn handle(&self, endpoint: UcxEndpoint) -> Option<NonNull<RawEndpoint>> {
        self.handles.get(endpoint.0).copied().flatten()
    }

    /// The endpoint with the handle at `address`, if it is open.
    pub(crate) fn find(&self, address: usize) -> Option<UcxEndpoint> {
        self.numbers.get(&address).copied()
    }

    /// Takes a handle out: the caller closes it.
    pub(crate) fn remove(&mut self, endpoint: UcxEndpoint) -> Option<NonNull<RawEndpoint>> {
        let handle = self.handles.get_mut(endpoint.0)?.take()?;
        self.numbers.remove(&handle.addr().get());
        Some(handle)
    }

    /// One that is open.
    pub(crate) fn any(&self) -> Option<UcxEndpoint> {
        self.numbers.values().next().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_that_was_removed_is_found_no_more() {
        let handle = |address| NonNull::new(std::ptr::without_provenance_mut(address)).unwrap();
        let mut endpoints = Endpoints::default();
        let first = endpoints.add(handle(64));
        let second = endpoints.add(handle(128));
        assert_eq!(
            (endpoints.find(128), endpoints.handle(second)),
            (Some(second), Some(handle(128)))
        );
        assert_eq!(endpoints.remove(first), Some(handle(64)));
        assert_eq!((endpoints.find(64), endpoints.handle(first)), (None, None));
        // UCX may use the memory again.
        let third = endpoints.add(handle(64));
        assert_eq!((endpoints.find(64), endpoints.handle(first)), (Some(third), None));
        assert_eq!((endpoints.any(), endpoints.remove(first)), (Some(third), None));
    }
}
