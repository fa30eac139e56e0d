//! What every object of an open device keeps.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use memory::sync::Arc;
use verbs::{Cqn, CreateError, NicAttributes};

use super::{abi::DvObj, api::Api, registers::Registers};
use crate::{
    context::Context,
    error::{cause_of, check},
};

/// What every object of the device keeps.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) context: Arc<Context>,
    pub(super) api: Api,
    pub(super) registers: Registers,
    pub(super) cqns: Cqns,
    pub(super) attributes: NicAttributes,
}

/// The numbers of completion queues, by the kernel's handles: its events name the handle.
#[derive(Debug, Default)]
pub(super) struct Cqns(Mutex<HashMap<u32, Cqn>>);

impl Cqns {
    pub(super) fn insert(&self, handle: u32, cqn: Cqn) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(handle, cqn);
    }

    pub(super) fn remove(&self, handle: u32) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&handle);
    }

    /// The number of the queue that was reported by its handle; `None`: it is gone.
    pub(super) fn number(&self, handle: Cqn) -> Option<Cqn> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&handle.get()).copied()
    }
}

impl Shared {
    /// Has the library describe the objects that `objects` names.
    pub(super) fn describe(
        &self,
        objects: &mut DvObj,
        kinds: u64,
        object: &'static str,
    ) -> Result<(), CreateError> {
        // SAFETY: objects that live, and a place for the description of each.
        check(unsafe { (self.api.mlx5dv_init_obj)(objects, kinds) })
            .map_err(|error| CreateError::System { object, cause: cause_of(&error) })
    }
}
