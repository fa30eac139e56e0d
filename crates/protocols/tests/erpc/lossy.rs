//! A software NIC that loses datagrams: it sends some of them under a key that their receiver does not have.

use std::{cell::Cell, rc::Rc};

use conformance::wrapped::{Hooks, Wrapped};
use verbs::{Access, Destination, Op, PostSendError, QKey, SendRequest};

/// How much is lost, and how much has been.
#[derive(Debug, Default)]
pub(crate) struct Loss {
    /// Of ten million datagrams.
    pub(crate) per_ten_million: Cell<u64>,
    pub(crate) lost: Cell<u64>,
    /// Datagrams have immediate data, as those of the original.
    pub(crate) has_immediate: Cell<bool>,
    random: Cell<u64>,
}

impl Loss {
    fn is_next_lost(&self) -> bool {
        let state =
            self.random.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_041);
        self.random.set(state);
        let is_lost = (state >> 33) % 10_000_000 < self.per_ten_million.get();
        self.lost.set(self.lost.get() + u64::from(is_lost));
        is_lost
    }
}

/// The loss of a NIC.
#[derive(Clone, Default)]
pub(crate) struct Losing {
    pub(crate) loss: Rc<Loss>,
}

pub(crate) type Lossy = Wrapped<softnic::Nic, Losing>;

impl Hooks for Losing {
    type Region = ();

    fn registers(&self, _: Access) {}

    fn posts(
        &self,
        request: &SendRequest<'_>,
        inner: impl FnOnce(&SendRequest<'_>) -> Result<u16, PostSendError>,
    ) -> Result<u16, PostSendError> {
        let mut request = *request;
        if let Op::Send { imm, .. } = &mut request.op
            && self.loss.has_immediate.get()
        {
            *imm = Some(0);
        }
        match request.to {
            Some(Destination::Ud { to, qkey }) if self.loss.is_next_lost() => {
                let wrong = Destination::Ud { to: *to, qkey: QKey::new(qkey.get() ^ 1) };
                inner(&SendRequest { to: Some(&wrong), ..request })
            }
            _ => inner(&request),
        }
    }
}
