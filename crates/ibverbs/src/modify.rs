//! Changes of state, as attributes with a mask.

use core::{
    ptr::{self, NonNull},
    time::Duration,
};

use mlx5::device::PortRows;
use verbs::{
    AddressVector, GidRoute, InitAttr, PortRoute, QpState, RtrAttr, RtsAttr, Transition, Transport,
};

use crate::{
    abi::{self, QpAttr, mask},
    api::Api,
    context::{Context, HOP_LIMIT},
    error::check,
};

/// The most retries that software RoCE counts: it takes seven for "for ever".
const RXE_RETRIES_MAX: u8 = 6;

/// Number of a state.
pub(crate) fn number(state: QpState) -> i32 {
    match state {
        QpState::Reset => 0,
        QpState::Init => 1,
        QpState::Rtr => 2,
        QpState::Rts => 3,
        QpState::Sqd => 4,
        QpState::Sqe => 5,
        QpState::Err => 6,
    }
}

/// The state with a number; what is no state is one of no use.
pub(crate) fn state(number: i32) -> QpState {
    let known = QpState::ALL.into_iter().find(|&state| self::number(state) == number);
    known.unwrap_or(QpState::Err)
}

/// The state of a queue pair as the kernel has it. One whose device does not answer is of no use.
pub(crate) fn query_state(api: &Api, qp: NonNull<abi::Qp>) -> QpState {
    let mut attr = QpAttr::default();
    let mut init = abi::QpInitAttr {
        qp_context: ptr::null_mut(),
        send_cq: ptr::null_mut(),
        recv_cq: ptr::null_mut(),
        srq: ptr::null_mut(),
        cap: abi::QpCap::default(),
        qp_type: 0,
        sq_sig_all: 0,
    };
    // SAFETY: the caller's queue pair lives; the library writes both structures.
    let result =
        unsafe { (api.ibv_query_qp)(qp.as_ptr(), &raw mut attr, mask::STATE, &raw mut init) };
    if check(result).is_ok() { state(attr.qp_state) } else { QpState::Err }
}

/// Attributes and mask of `to`, from state `from`, of a queue pair in `rows`.
pub(crate) fn attributes(
    context: &Context,
    rows: PortRows,
    transport: Transport,
    from: QpState,
    to: &Transition,
) -> (QpAttr, i32) {
    let mut attr = QpAttr { qp_state: number(to.target()), ..QpAttr::default() };
    let more = match to {
        Transition::Init(init) => init_mask(&mut attr, rows, transport, init),
        Transition::Rtr(rtr) => rtr_mask(&mut attr, context, rows, transport, rtr),
        Transition::Rts(rts) if RtsAttr::are_taken_from(from) => {
            rts_mask(&mut attr, transport, rts, context.is_rxe)
        }
        Transition::Reset | Transition::Rts(_) | Transition::Sqd | Transition::Err => 0,
    };
    (attr, mask::STATE | more)
}

/// Of an initiator no rights are taken: nobody accesses anything through it.
///
/// Source for DC: Linux `drivers/infiniband/hw/mlx5/qp.c`, `modify_dci_qp_is_ok` and `mlx5_ib_modify_dct`.
fn init_mask(attr: &mut QpAttr, rows: PortRows, transport: Transport, init: &InitAttr) -> i32 {
    (attr.pkey_index, attr.port_num) = (rows.pkey_index, rows.port);
    let both = mask::PKEY_INDEX | mask::PORT;
    match transport {
        Transport::Ud => {
            attr.qkey = init.qkey.get();
            both | mask::QKEY
        }
        Transport::Dci => both,
        Transport::Rc | Transport::Dct => {
            attr.qp_access_flags = init.access.bits();
            both | mask::ACCESS_FLAGS
        }
    }
}

/// Of a connection its peer, of DC what holds for every peer; a queue pair of datagrams takes nothing here.
fn rtr_mask(
    attr: &mut QpAttr,
    context: &Context,
    rows: PortRows,
    transport: Transport,
    rtr: &RtrAttr,
) -> i32 {
    attr.path_mtu = i32::from(rtr.path_mtu as u8);
    attr.min_rnr_timer = rtr.rnr_timer.code();
    match transport {
        Transport::Ud => return 0,
        Transport::Dci => return mask::PATH_MTU,
        Transport::Dct => {
            attr.ah_attr = own_path(context, rows);
            return mask::AV | mask::PATH_MTU | mask::MIN_RNR_TIMER;
        }
        Transport::Rc => {}
    }
    let Some(peer) = &rtr.peer else { return 0 };
    attr.ah_attr = context.ah_attr(&peer.address);
    (attr.dest_qp_num, attr.rq_psn) = (peer.qpn.get(), peer.rq_psn.get());
    attr.max_dest_rd_atomic = rtr.reads_in_max;
    mask::AV
        | mask::PATH_MTU
        | mask::DEST_QPN
        | mask::RQ_PSN
        | mask::MAX_DEST_RD_ATOMIC
        | mask::MIN_RNR_TIMER
}

/// What a DCT is told of paths: where its answers leave from.
fn own_path(context: &Context, rows: PortRows) -> abi::AhAttr {
    let port = context.port_attributes();
    let route = GidRoute { gid: port.gid, hop_limit: HOP_LIMIT, traffic_class: 0, flow_label: 0 };
    let mut attr = context.ah_attr(&AddressVector::new(PortRoute::Global(port.lid, route)));
    (attr.port_num, attr.grh.sgid_index) = (rows.port, rows.gid_index);
    attr
}

fn rts_mask(attr: &mut QpAttr, transport: Transport, rts: &RtsAttr, is_rxe: bool) -> i32 {
    attr.sq_psn = rts.sq_psn.get();
    if transport == Transport::Ud {
        return mask::SQ_PSN;
    }
    let retries_max = if is_rxe { RXE_RETRIES_MAX } else { u8::MAX };
    (attr.timeout, attr.rnr_retry) = (timeout_code(rts.ack_timeout), rts.rnr_retry);
    attr.retry_cnt = rts.retry_count.min(retries_max);
    attr.max_rd_atomic = rts.reads_out_max;
    mask::SQ_PSN | mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY | mask::MAX_QP_RD_ATOMIC
}

/// The exponent of 4.096 µs × 2ⁿ that is not below `timeout`; 0, which waits for ever, never.
fn timeout_code(timeout: Duration) -> u8 {
    const MAX: u8 = 31;
    let is_enough = |code: &u8| Duration::from_nanos(4096 << code) >= timeout;
    (1..MAX).find(is_enough).unwrap_or(MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_the_numbers_of_verbs() {
        for (number, name) in QpState::ALL.into_iter().enumerate() {
            assert_eq!(usize::try_from(self::number(name)).unwrap(), number);
            assert_eq!(state(self::number(name)), name);
        }
        assert_eq!(state(7), QpState::Err);
    }

    #[test]
    fn timeouts_round_up() {
        assert_eq!(timeout_code(Duration::ZERO), 1);
        assert_eq!(timeout_code(Duration::from_nanos(4096 << 14)), 14);
        assert_eq!(timeout_code(Duration::from_nanos((4096 << 14) + 1)), 15);
        assert_eq!(timeout_code(Duration::from_secs(1 << 20)), 31);
    }

    #[test]
    fn software_roce_counts_to_six() {
        let mut attr = QpAttr::default();
        let rts = RtsAttr::default();
        let taken = rts_mask(&mut attr, Transport::Rc, &rts, true);
        assert_eq!((attr.retry_cnt, attr.rnr_retry), (6, 7));
        assert_eq!(taken, 0x1_2e00 | mask::TIMEOUT);
        let rts = RtsAttr { ack_timeout: Duration::from_millis(1), ..rts };
        rts_mask(&mut attr, Transport::Rc, &rts, false);
        assert_eq!((attr.retry_cnt, attr.timeout), (7, 8));
        assert_eq!(rts_mask(&mut attr, Transport::Ud, &rts, false), mask::SQ_PSN);
    }
}
