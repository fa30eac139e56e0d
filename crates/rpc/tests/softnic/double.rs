//! A software NIC between a worker and its test.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use conformance::wrapped::{Hooks, Wrapped};
use verbs::{
    Access, AsyncEvent, Lid, ModifyError, Mtu, Nic as _, NicAttributes, Op, Payload,
    PortAttributes, PostSendError, QpState, SendRequest, Shortage, Transition,
};

use crate::rig::soft;

pub(crate) type Soft = softnic::Nic;

/// A software NIC that a test restricts, listens to, or makes refuse.
pub(crate) type Faulty = Wrapped<Soft, Faults>;

/// What is wrong with it.
#[derive(Clone)]
pub(crate) struct Faults {
    /// State changes are refused.
    pub(crate) is_refusing: Rc<Cell<bool>>,
    /// Memory of peers is not reached.
    pub(crate) is_short: Rc<Cell<bool>>,
    /// Told before what the NIC has to tell.
    pub(crate) event: Rc<Cell<Option<AsyncEvent>>>,
    /// It never tells that a port is gone.
    pub(crate) is_deaf: bool,
    /// Registered memory that is there.
    pub(crate) regions: Rc<()>,
    pub(crate) attributes: NicAttributes,
    pub(crate) mtu: Mtu,
    /// What it was told and asked, in order.
    pub(crate) log: Rc<RefCell<Log>>,
}

/// What a NIC was told and asked.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Log {
    pub(crate) channels: usize,
    pub(crate) transitions: Vec<Transition>,
    /// Bytes that went inline, and immediates.
    pub(crate) inline: Vec<(Vec<u8>, Option<u32>)>,
    /// Lengths of READs, and of WRITEs that are gathered and announce nothing.
    pub(crate) transfers: Vec<u32>,
    /// Rights of memory that was registered.
    pub(crate) registered: Vec<Access>,
}

/// A NIC with which nothing is wrong yet.
pub(crate) fn faulty(fabric: &str) -> Faulty {
    let nic = softnic::open(&soft(fabric, None)).unwrap();
    let (attributes, mtu) = (nic.attributes().clone(), nic.port().mtu);
    let hooks = Faults {
        is_refusing: Rc::default(),
        is_short: Rc::default(),
        event: Rc::default(),
        is_deaf: false,
        regions: Rc::default(),
        attributes,
        mtu,
        log: Rc::default(),
    };
    Wrapped { nic, hooks }
}

impl Hooks for Faults {
    /// Counts as long as it is there.
    type Region = Rc<()>;

    fn registers(&self, access: Access) -> Rc<()> {
        self.log.borrow_mut().registered.push(access);
        Rc::clone(&self.regions)
    }

    fn makes_channel(&self) {
        self.log.borrow_mut().channels += 1;
    }

    fn attributes<'a>(&'a self, _: &'a NicAttributes) -> &'a NicAttributes {
        &self.attributes
    }

    fn port(&self, inner: PortAttributes) -> PortAttributes {
        PortAttributes { mtu: self.mtu, ..inner }
    }

    fn event(&self, inner: impl FnOnce() -> Option<AsyncEvent>) -> Option<AsyncEvent> {
        let is_told =
            |event: &AsyncEvent| !(self.is_deaf && matches!(event, AsyncEvent::PeerGone(_)));
        self.event.take().or_else(|| inner().filter(is_told))
    }

    fn reaches(&self, peer: Lid) -> Result<(), Shortage> {
        match self.is_short.get() {
            true => Err(Shortage { what: "a test", len_bytes: 1, peer }),
            false => Ok(()),
        }
    }

    fn modifies(&self, to: &Transition) -> Result<(), ModifyError> {
        if self.is_refusing.get() {
            return Err(ModifyError::Device { to: QpState::Reset, cause: "a test".into() });
        }
        self.log.borrow_mut().transitions.push(*to);
        Ok(())
    }

    fn posts(
        &self,
        request: &SendRequest<'_>,
        inner: impl FnOnce(&SendRequest<'_>) -> Result<u16, PostSendError>,
    ) -> Result<u16, PostSendError> {
        let posted = inner(request)?;
        let mut log = self.log.borrow_mut();
        match request.op {
            Op::Write { payload: Payload::Inline(parts), imm, .. } => {
                log.inline.push((parts.concat(), imm));
            }
            Op::Write { payload: Payload::Gather(sges), imm: None, .. }
            | Op::Read { into: sges, .. } => log.transfers.push(sges[0].len_bytes),
            _ => {}
        }
        Ok(posted)
    }
}
