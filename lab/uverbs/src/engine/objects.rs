//! Objects that programs have created, by handle.

use std::{collections::BTreeMap, sync::Arc};

use verbs::QpState;

use super::event_pipe::{EventPipe, Written};

/// Objects of one kind. Handles are not used twice.
#[derive(Debug)]
pub(crate) struct Table<T> {
    objects: BTreeMap<u32, T>,
    last: u32,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), last: 0 }
    }
}

impl<T> Table<T> {
    pub(crate) fn insert(&mut self, object: T) -> u32 {
        self.last += 1;
        self.objects.insert(self.last, object);
        self.last
    }

    pub(crate) fn get(&self, handle: u32) -> Option<&T> {
        self.objects.get(&handle)
    }

    pub(crate) fn get_mut(&mut self, handle: u32) -> Option<&mut T> {
        self.objects.get_mut(&handle)
    }

    pub(crate) fn remove(&mut self, handle: u32) -> Option<T> {
        self.objects.remove(&handle)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.objects.values_mut()
    }

    pub(crate) fn handles(&self) -> Vec<u32> {
        self.objects.keys().copied().collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    pub(crate) fn retain(&mut self, keeps: impl Fn(&T) -> bool) {
        self.objects.retain(|_, object| keeps(object));
    }
}

/// Counts the objects that are made on one. While there are any it is not destroyed, as by a kernel (`EBUSY`):
/// programs leave queues to several queue pairs, and destroy them with the first.
#[derive(Debug, Default)]
pub(crate) struct Users(Arc<()>);

/// That an object is made on another.
pub(crate) type Use = Arc<()>;

impl Users {
    pub(crate) fn one_more(&self) -> Use {
        Arc::clone(&self.0)
    }

    pub(crate) fn are_there(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

/// What other objects are made on.
pub(crate) trait HasUsers {
    fn users(&self) -> &Users;
}

impl HasUsers for Pd {
    fn users(&self) -> &Users {
        &self.users
    }
}

impl HasUsers for Cq {
    fn users(&self) -> &Users {
        &self.users
    }
}

impl HasUsers for Srq {
    fn users(&self) -> &Users {
        &self.users
    }
}

/// An open device.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) events: EventPipe,
}

/// A protection domain.
#[derive(Debug)]
pub(crate) struct Pd {
    pub(crate) context: u32,
    pub(crate) device: softnic::Pd,
    pub(crate) users: Users,
}

/// A memory region.
#[derive(Debug)]
pub(crate) struct Mr {
    pub(crate) context: u32,
    pub(crate) device: softnic::Mr,
    pub(crate) _domain: Use,
}

/// An address.
#[derive(Debug)]
pub(crate) struct Ah {
    pub(crate) context: u32,
    pub(crate) _domain: Use,
}

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Cq {
    pub(crate) context: u32,
    pub(crate) device: softnic::Cq,
    pub(crate) user_handle: u64,
    pub(crate) channel: Option<Arc<EventPipe>>,
    /// Address of the word that asks for an event.
    pub(crate) arm_record: usize,
    /// What it said when it was last looked at.
    pub(crate) arm_seen: u32,
    pub(crate) is_armed: bool,
    pub(crate) written: Written,
    pub(crate) written_async: Written,
    pub(crate) users: Users,
}

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct Srq {
    pub(crate) context: u32,
    pub(crate) device: softnic::Srq,
    pub(crate) user_handle: u64,
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    /// Below so many receives an event is due; 0: none is.
    pub(crate) limit: u16,
    pub(crate) written: Written,
    pub(crate) _domain: Use,
    pub(crate) users: Users,
}

/// What a program says of a queue pair when it changes its state; kept until it says otherwise.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Attributes {
    pub(crate) access: u32,
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) peer: u32,
    /// `struct ib_uverbs_qp_dest`
    pub(crate) dest: [u8; 32],
    pub(crate) pkey_index: u16,
    pub(crate) path_mtu: u8,
    pub(crate) reads_out: u8,
    pub(crate) reads_in: u8,
    pub(crate) rnr_timer: u8,
    pub(crate) port: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry: u8,
}

/// Service type, as verbs programs know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    Rc,
    Uc,
    Ud,
    Dci,
    Dct,
}

/// What a queue pair waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Nothing: it has something to do.
    Ready,
    /// Another doorbell, or an answer.
    Posted(Option<u16>),
    /// The same, or this time.
    Until { at_ns: u64, posted: Option<u16> },
}

impl Wait {
    pub(crate) fn is_over(self, posted: Option<u16>, now_ns: u64) -> bool {
        match self {
            Self::Ready => true,
            Self::Posted(seen) => seen != posted,
            Self::Until { at_ns, posted: seen } => seen != posted || now_ns >= at_ns,
        }
    }
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) context: u32,
    pub(crate) device: softnic::Qp,
    pub(crate) service: Service,
    pub(crate) user_handle: u64,
    /// Receives that its own ring has room for, and entries of a list in each.
    pub(crate) ring: [u32; 2],
    pub(crate) signals_all: u8,
    pub(crate) attributes: Attributes,
    /// State after the last transition or query, as a kernel has it.
    pub(crate) known_state: QpState,
    pub(crate) wait: Wait,
    pub(crate) written: Written,
    /// Domain and queues.
    pub(crate) _uses: Vec<Use>,
}
