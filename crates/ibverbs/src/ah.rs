//! Protection domains, and the addresses that datagrams of each are sent to.

use core::ptr::NonNull;
use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{Mutex, PoisonError},
};

use memory::sync::Arc;
use verbs::{AddressVector, CreateError, Gid, PortRoute, PostSendError};

use crate::{abi, context::Context, error::last_cause, huge::HugePages, registrar::Registrar};

/// Addresses that one domain knows: more than a subnet has ports.
const ADDRESSES_MAX: usize = 1 << 16;

/// A protection domain.
#[derive(Clone, Debug)]
pub struct Pd(pub(crate) Arc<PdShared>);

/// Its one copy.
#[derive(Debug)]
pub(crate) struct PdShared {
    pub(crate) context: Arc<Context>,
    raw: NonNull<abi::Pd>,
    /// Handles that requests name addresses by; each is looked up in the kernel once.
    addresses: Mutex<HashMap<AddressVector, NonNull<abi::Ah>>>,
    registrar: Mutex<Registrar>,
    /// Memory that regions of this domain share.
    pub(crate) pages: HugePages,
}

// SAFETY: objects of libibverbs belong to no thread.
unsafe impl Send for PdShared {}
// SAFETY: the library only reads the domain, and the addresses have a lock.
unsafe impl Sync for PdShared {}

impl Pd {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, CreateError> {
        // SAFETY: the context is open.
        let raw = unsafe { (context.api.ibv_alloc_pd)(context.raw()) };
        let failed = || CreateError::System { object: "protection domain", cause: last_cause() };
        let raw = NonNull::new(raw).ok_or_else(failed)?;
        let addresses = Mutex::default();
        let registrar = Mutex::default();
        let (context, pages) = (context.clone(), HugePages::new(context.forks.splits_no_pages()));
        Ok(Self(Arc::new(PdShared { context, raw, addresses, registrar, pages })))
    }
}

impl PdShared {
    pub(crate) fn raw(&self) -> *mut abi::Pd {
        self.raw.as_ptr()
    }

    /// Lets the thread of this domain do what takes long.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        self.registrar.lock().unwrap_or_else(PoisonError::into_inner).run(job);
    }

    /// The handle of `address`, which lives as long as this domain.
    pub(crate) fn ah(&self, address: &AddressVector) -> Result<NonNull<abi::Ah>, PostSendError> {
        let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = addresses.len() >= ADDRESSES_MAX;
        let entry = match addresses.entry(*address) {
            Entry::Occupied(known) => return Ok(*known.get()),
            Entry::Vacant(entry) => entry,
        };
        let unreachable = PostSendError::Unreachable(gid_of(address));
        if is_full {
            return Err(unreachable);
        }
        let mut attr = self.context.ah_attr(address);
        // SAFETY: the domain lives; the library copies the attributes.
        let ah = unsafe { (self.context.api.ibv_create_ah)(self.raw(), &raw mut attr) };
        Ok(*entry.insert(NonNull::new(ah).ok_or(unreachable)?))
    }
}

impl Drop for PdShared {
    fn drop(&mut self) {
        let addresses = self.addresses.get_mut().unwrap_or_else(PoisonError::into_inner);
        for ah in addresses.values() {
            // SAFETY: made by `ibv_create_ah`; every queue pair that named it held `self`.
            let _ = unsafe { (self.context.api.ibv_destroy_ah)(ah.as_ptr()) };
        }
        // SAFETY: every object in this domain held `self`.
        let _ = unsafe { (self.context.api.ibv_dealloc_pd)(self.raw()) };
    }
}

/// The GID in errors; zero for a port that is addressed by LID alone.
fn gid_of(address: &AddressVector) -> Gid {
    match address.route {
        PortRoute::Lid(_) => Gid::new([0; 16]),
        PortRoute::Gid(route) | PortRoute::Global(_, route) => route.gid,
    }
}
