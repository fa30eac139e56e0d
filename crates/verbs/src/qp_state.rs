//! Queue-pair states as a table.
//!
//! Sources: IBTA 10.3.1, figure 124; `ibv_modify_qp(3)`; what a kernel lets through, Linux
//! `drivers/infiniband/core/verbs.c`, `qp_state_table`; for DC `drivers/infiniband/hw/mlx5/qp.c`,
//! `modify_dci_qp_is_ok` and `mlx5_ib_modify_dct`: a DCT goes from RESET to INIT to RTR, and then
//! nowhere.

use core::time::Duration;

use ids::{Psn, QKey, Qpn};

use crate::{Access, AddressVector};

/// Service type of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable datagram.
    Ud,
    /// Dynamically connected initiator: sends only, to a target named in each request.
    Dci,
    /// Dynamically connected target: receives only, from any initiator that knows its key.
    Dct,
}

/// State of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpState {
    /// Created; nothing may be posted.
    Reset,
    /// Receives may be posted.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send.
    Rts,
    /// Send queue drained or draining: queued sends wait.
    Sqd,
    /// Send queue error (UD): receives go on, sends are flushed until RTS.
    Sqe,
    /// Everything is flushed.
    Err,
}

impl QpState {
    /// Every state.
    pub const ALL: [Self; 7] =
        [Self::Reset, Self::Init, Self::Rtr, Self::Rts, Self::Sqd, Self::Sqe, Self::Err];

    /// Whether software may ask for the transition from `self` to `to`.
    #[must_use]
    pub fn may_become(self, to: Self, transport: Transport) -> bool {
        use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
        if transport == Transport::Dct {
            return matches!((self, to), (Reset, Init) | (Init, Rtr));
        }
        match (self, to) {
            (_, Reset) | (Reset | Init, Init) | (Init, Rtr) | (Rtr | Rts | Sqd, Rts) => true,
            (_, Err) => self != Reset,
            (Rts | Sqd, Sqd) => transport != Transport::Dci,
            (Sqe, Rts) => transport == Transport::Ud,
            _ => false,
        }
    }

    /// Whether an error may move a queue pair from `self` to `to` without software asking.
    #[must_use]
    pub fn may_fall_to(self, to: Self, transport: Transport) -> bool {
        match to {
            Self::Sqe => self == Self::Rts && transport == Transport::Ud,
            Self::Err => self != Self::Reset,
            _ => false,
        }
    }

    /// Whether receives may be posted.
    #[must_use]
    pub fn accepts_receives(self) -> bool {
        self != Self::Reset
    }

    /// Whether sends may be posted. (In ERR and SQE they complete with a flush error.)
    #[must_use]
    pub fn accepts_sends(self) -> bool {
        matches!(self, Self::Rts | Self::Sqd | Self::Sqe | Self::Err)
    }

    /// Whether messages from peers are taken.
    #[must_use]
    pub fn responds(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd | Self::Sqe)
    }
}

/// Path MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
#[expect(missing_docs, reason = "bytes per packet, by name")]
pub enum Mtu {
    B256 = 1,
    B512 = 2,
    B1024 = 3,
    B2048 = 4,
    B4096 = 5,
}

impl Mtu {
    /// The largest payload of a packet, in bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        128 << self as u8
    }
}

/// The delay of a sender after "receiver not ready": the 5-bit code of IBTA table 45.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// In units of 10 µs, by code; code 0 is the longest.
    const TENS_OF_US: [u32; 32] = [
        65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12_288, 16_384, 24_576, 32_768, 49_152,
    ];

    /// The shortest timer that is not below `wait`; the longest, 655.36 ms, if none is.
    #[must_use]
    pub fn at_least(wait: Duration) -> Self {
        let code = (1..32u8).find(|&code| Self(code).wait() >= wait).unwrap_or(0);
        Self(code)
    }

    /// The timer with this code; only its low five bits count.
    #[must_use]
    pub const fn from_code(code: u8) -> Self {
        Self(code & 31)
    }

    /// The wait.
    #[must_use]
    pub fn wait(self) -> Duration {
        Duration::from_micros(u64::from(Self::TENS_OF_US[usize::from(self.0)]) * 10)
    }

    /// The code as verbs write it.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }
}

/// RESET or INIT to INIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitAttr {
    /// The rights of peers through this queue pair (RC, DCT).
    pub access: Access,
    /// Key that datagrams must carry (UD).
    pub qkey: QKey,
}

/// The other end of an RC connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RcPeer {
    /// Its queue pair.
    pub qpn: Qpn,
    /// Its port.
    pub address: AddressVector,
    /// The peer's first packet sequence number.
    pub rq_psn: Psn,
}

/// INIT to RTR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtrAttr {
    /// Largest packet on the path.
    pub path_mtu: Mtu,
    /// RC: required. Others: `None`.
    pub peer: Option<RcPeer>,
    /// The delay asked of a sender that finds no receive.
    pub rnr_timer: RnrTimer,
    /// RC: READs and atomics that the peer may have outstanding here; with 0 it may run none.
    pub reads_in_max: u8,
}

/// RTR to RTS. A queue pair that comes from RTS, SQD or SQE keeps its attributes: see
/// [`are_taken_from`](Self::are_taken_from).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtsAttr {
    /// First packet sequence number sent.
    pub sq_psn: Psn,
    /// Wait for an acknowledgement before a retry; rounded up to 4.096 µs × 2ⁿ.
    pub ack_timeout: Duration,
    /// Transport retries before `retry exceeded`: 0 to 7.
    pub retry_count: u8,
    /// Retries after "receiver not ready": 0 to 6, or 7 for ever.
    pub rnr_retry: u8,
    /// READs and atomics that may be outstanding; RC: the peer refuses more than its `reads_in_max`.
    pub reads_out_max: u8,
}

impl RtsAttr {
    /// Whether a queue pair in state `from` takes these attributes. Kernels refuse each of them from RTS, SQD and
    /// SQE, so a NIC over a kernel leaves them out of the mask, and any other one ignores them.
    ///
    /// Source: Linux `drivers/infiniband/core/verbs.c`, `qp_state_table`.
    #[must_use]
    pub const fn are_taken_from(from: QpState) -> bool {
        matches!(from, QpState::Rtr)
    }

    /// Checks what a device keeps in three bits each.
    fn check(&self) -> Result<(), crate::ModifyError> {
        const MAX: u8 = 7;
        let counts = [("retry_count", self.retry_count), ("rnr_retry", self.rnr_retry)];
        match counts.into_iter().find(|&(_, value)| value > MAX) {
            Some((what, value)) => Err(crate::ModifyError::Attribute { what, value, max: MAX }),
            None => Ok(()),
        }
    }
}

impl Default for RtsAttr {
    /// Timeout 67 ms, 7 retries, RNR for ever, 16 READs.
    fn default() -> Self {
        Self {
            sq_psn: Psn::default(),
            ack_timeout: Duration::from_nanos(4096 << 14),
            retry_count: 7,
            rnr_retry: 7,
            reads_out_max: 16,
        }
    }
}

/// A change of state that software asks for, with its attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transition {
    /// Forget everything; outstanding requests vanish without completion.
    Reset,
    /// Accept receives.
    Init(InitAttr),
    /// Receive.
    Rtr(RtrAttr),
    /// Send.
    Rts(RtsAttr),
    /// Stop starting sends.
    Sqd,
    /// Flush everything.
    Err,
}

impl Transition {
    /// The state it leads to.
    #[must_use]
    pub fn target(&self) -> QpState {
        match self {
            Self::Reset => QpState::Reset,
            Self::Init(_) => QpState::Init,
            Self::Rtr(_) => QpState::Rtr,
            Self::Rts(_) => QpState::Rts,
            Self::Sqd => QpState::Sqd,
            Self::Err => QpState::Err,
        }
    }

    /// Checks the transition against the state machine and the transport's needs.
    ///
    /// # Errors
    ///
    /// [`ModifyError`](crate::ModifyError): the first rule that is broken.
    pub fn check(&self, from: QpState, transport: Transport) -> Result<(), crate::ModifyError> {
        let to = self.target();
        if !from.may_become(to, transport) {
            return Err(crate::ModifyError::WrongTransition { transport, from, to });
        }
        let peer = match self {
            Self::Rtr(attr) => attr.peer,
            Self::Rts(attr) => return attr.check(),
            _ => return Ok(()),
        };
        match (transport, peer) {
            (Transport::Rc, None) => {
                Err(crate::ModifyError::Peer { transport, rule: "needs a peer to become RTR" })
            }
            (Transport::Ud | Transport::Dci | Transport::Dct, Some(_)) => {
                Err(crate::ModifyError::Peer { transport, rule: "is not connected to a peer" })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use core::fmt::Write as _;

    use super::*;

    fn table(transport: Transport) -> String {
        let mut out = format!("{transport:?}: x = by request, e = by error, b = both\n      ");
        for to in QpState::ALL {
            write!(out, " {:>5}", format!("{to:?}")).unwrap();
        }
        for from in QpState::ALL {
            write!(out, "\n{:<6}", format!("{from:?}")).unwrap();
            for to in QpState::ALL {
                let mark = match (from.may_become(to, transport), from.may_fall_to(to, transport)) {
                    (true, true) => 'b',
                    (true, false) => 'x',
                    (false, true) => 'e',
                    (false, false) => '.',
                };
                write!(out, " {mark:>5}").unwrap();
            }
        }
        out
    }

    #[test]
    fn state_tables_are_as_reviewed() {
        let all = [Transport::Rc, Transport::Ud, Transport::Dci, Transport::Dct].map(table);
        insta::assert_snapshot!(all.join("\n\n"));
    }

    #[test]
    fn rnr_timer_rounds_up() {
        assert_eq!(RnrTimer::at_least(Duration::ZERO).wait(), Duration::from_micros(10));
        assert_eq!(RnrTimer::at_least(Duration::from_micros(11)).wait(), Duration::from_micros(20));
        assert_eq!(RnrTimer::at_least(Duration::from_secs(9)).code(), 0);
    }

    #[test]
    fn attributes_of_a_sender_are_taken_once() {
        let taken = QpState::ALL.into_iter().filter(|from| RtsAttr::are_taken_from(*from));
        assert_eq!(taken.collect::<Vec<_>>(), [QpState::Rtr]);
    }

    #[test]
    fn retries_are_counted_in_three_bits() {
        let check = |attr| Transition::Rts(attr).check(QpState::Rtr, Transport::Rc);
        let default = RtsAttr::default();
        assert_eq!(check(default), Ok(()), "seven of each");
        assert!(check(RtsAttr { retry_count: 8, ..default }).is_err());
        assert!(check(RtsAttr { rnr_retry: 8, ..default }).is_err());
    }

    #[test]
    fn rc_needs_a_peer_and_ud_has_none() {
        let rtr = Transition::Rtr(RtrAttr {
            path_mtu: Mtu::B4096,
            peer: None,
            rnr_timer: RnrTimer::at_least(Duration::ZERO),
            reads_in_max: 16,
        });
        assert!(rtr.check(QpState::Init, Transport::Rc).is_err());
        assert!(rtr.check(QpState::Init, Transport::Ud).is_ok());
        assert!(rtr.check(QpState::Reset, Transport::Ud).is_err());
    }
}
