//! What a kernel with the driver of a ConnectX takes of `ibv_modify_qp`: which transitions, which attributes with each, and
//! which values. Nothing is changed here.
//!
//! | rule | source: Linux `drivers/infiniband` |
//! |---|---|
//! | [`TABLE`], RC, UC, UD | `core/verbs.c`, `qp_state_table` and `ib_modify_qp_is_ok` |
//! | [`TABLE`], DC initiator and target | `hw/mlx5/qp.c`, `modify_dci_qp_is_ok` and `mlx5_ib_modify_dct` |
//! | [`OPERATIONS`] | `hw/mlx5/qp.c`, `optab` of `__mlx5_ib_modify_qp`: no way from RTS to SQD |
//! | [`command`] | `core/uverbs_cmd.c`, `modify_qp`; `core/verbs.c`, `rdma_check_ah_attr` |
//! | [`values`] | `hw/mlx5/qp.c`, `mlx5_ib_modify_qp`, `validate_rd_atomic`, `mlx5_set_path`, `ib_rate_to_mlx5` |
//!
//! The driver writes timers and counters of retries into fields of 5 and 3 bits, and looks at nothing else of them
//! ([`RNR_TIMER_BITS`], [`RETRY_BITS`]): what is too large is cut, and not refused.

use rustix::io::Errno;
use verbs::{LinkLayer, QpState};

use crate::{
    abi::Fields,
    engine::Service::{self, Dci, Dct, Rc, Uc, Ud},
};

/// `enum ib_uverbs_qp_attr_mask`
pub(super) mod mask {
    pub(crate) const STATE: u32 = 1;
    pub(crate) const CURRENT_STATE: u32 = 1 << 1;
    pub(crate) const SQD_NOTIFY: u32 = 1 << 2;
    pub(crate) const ACCESS: u32 = 1 << 3;
    pub(crate) const PKEY_INDEX: u32 = 1 << 4;
    pub(crate) const PORT: u32 = 1 << 5;
    pub(crate) const QKEY: u32 = 1 << 6;
    pub(crate) const AV: u32 = 1 << 7;
    pub(crate) const PATH_MTU: u32 = 1 << 8;
    pub(crate) const TIMEOUT: u32 = 1 << 9;
    pub(crate) const RETRY_COUNT: u32 = 1 << 10;
    pub(crate) const RNR_RETRY: u32 = 1 << 11;
    pub(crate) const RQ_PSN: u32 = 1 << 12;
    pub(crate) const READS_OUT: u32 = 1 << 13;
    pub(crate) const ALTERNATE_PATH: u32 = 1 << 14;
    pub(crate) const RNR_TIMER: u32 = 1 << 15;
    pub(crate) const SQ_PSN: u32 = 1 << 16;
    pub(crate) const READS_IN: u32 = 1 << 17;
    pub(crate) const MIGRATION: u32 = 1 << 18;
    pub(crate) const DEST_QPN: u32 = 1 << 20;
    pub(crate) const RATE_LIMIT: u32 = 1 << 25;
    /// `IB_QP_ATTR_STANDARD_BITS`
    pub(crate) const STANDARD: u32 = (1 << 21) - 1;
}

use mask::{
    ACCESS, ALTERNATE_PATH, AV, CURRENT_STATE, DEST_QPN, MIGRATION, PATH_MTU, PKEY_INDEX, PORT,
    QKEY, READS_IN, READS_OUT, RETRY_COUNT, RNR_RETRY, RNR_TIMER, RQ_PSN, SQ_PSN, SQD_NOTIFY,
    STATE, TIMEOUT,
};

/// What a field of the queue pair's context holds of a timer, and of a count of retries.
pub(super) const RNR_TIMER_BITS: u8 = 31;
pub(super) const TIMEOUT_BITS: u8 = 31;
pub(super) const RETRY_BITS: u8 = 7;

/// `IB_QP_SET_QKEY`: keys of which only who may open raw sockets uses one.
const PRIVILEGED_QKEY: u32 = 1 << 31;

/// `IB_ACCESS_REMOTE_{WRITE,READ,ATOMIC}`
pub(super) const REMOTE_WRITE: u32 = 1 << 1;
pub(super) const REMOTE_READ: u32 = 1 << 2;
pub(super) const REMOTE_ATOMIC: u32 = 1 << 3;

/// Attributes of a transition for one kind of queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attributes {
    /// There is no such transition.
    Refused,
    /// Those that have to be there, and those that may be.
    Taken { needed: u32, optional: u32 },
}

use Attributes::Refused;

const fn takes(needed: u32, optional: u32) -> Attributes {
    Attributes::Taken { needed, optional }
}

const NOTHING: Attributes = takes(0, 0);

/// A transition, and what it takes for RC, UC, UD, DC initiators and DC targets.
struct Row {
    from: QpState,
    to: QpState,
    takes: [Attributes; 5],
}

const fn row(from: QpState, to: QpState, takes: [Attributes; 5]) -> Row {
    Row { from, to, takes }
}

use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};

const INIT: u32 = PKEY_INDEX | PORT | ACCESS;
const UD_INIT: u32 = PKEY_INDEX | PORT | QKEY;
const PEER: u32 = AV | PATH_MTU | DEST_QPN | RQ_PSN;
const SENDER: u32 = TIMEOUT | RETRY_COUNT | RNR_RETRY | SQ_PSN | READS_OUT;
const PATHS: u32 = CURRENT_STATE | ACCESS | ALTERNATE_PATH | MIGRATION;
const ANEW: u32 = PORT | AV | TIMEOUT | RETRY_COUNT | RNR_RETRY | READS_OUT | READS_IN;

/// To RESET from anywhere, to ERR from anywhere but RESET; a DC target goes nowhere any more.
const LEAVES: [Attributes; 5] = [NOTHING, NOTHING, NOTHING, NOTHING, Refused];

/// Every transition that some queue pair may make.
#[rustfmt::skip]
const TABLE: &[Row] = &[
    row(Reset, Reset, LEAVES),
    row(Init, Reset, LEAVES),
    row(Rtr, Reset, LEAVES),
    row(Rts, Reset, LEAVES),
    row(Sqd, Reset, LEAVES),
    row(Sqe, Reset, LEAVES),
    row(Err, Reset, LEAVES),
    row(Init, Err, LEAVES),
    row(Rtr, Err, LEAVES),
    row(Rts, Err, LEAVES),
    row(Sqd, Err, LEAVES),
    row(Sqe, Err, LEAVES),
    row(Err, Err, LEAVES),
    row(Reset, Init, [takes(INIT, 0), takes(INIT, 0), takes(UD_INIT, 0), takes(PKEY_INDEX | PORT, 0), takes(INIT, 0)]),
    row(Init, Init, [takes(0, INIT), takes(0, INIT), takes(0, UD_INIT), takes(0, PKEY_INDEX | PORT), Refused]),
    row(Init, Rtr, [
        takes(PEER | READS_IN | RNR_TIMER, ALTERNATE_PATH | ACCESS | PKEY_INDEX),
        takes(PEER, ALTERNATE_PATH | ACCESS | PKEY_INDEX),
        takes(0, PKEY_INDEX | QKEY),
        takes(PATH_MTU, PKEY_INDEX | AV),
        takes(RNR_TIMER | AV | PATH_MTU, 0),
    ]),
    row(Rtr, Rts, [takes(SENDER, PATHS | RNR_TIMER), takes(SQ_PSN, PATHS), takes(SQ_PSN, CURRENT_STATE | QKEY), takes(SENDER, RNR_TIMER), Refused]),
    row(Rts, Rts, [takes(0, PATHS | RNR_TIMER), takes(0, PATHS), takes(0, CURRENT_STATE | QKEY), takes(0, RNR_TIMER), Refused]),
    row(Rts, Sqd, [takes(0, SQD_NOTIFY), takes(0, SQD_NOTIFY), takes(0, SQD_NOTIFY), Refused, Refused]),
    row(Sqd, Rts, [takes(0, PATHS | RNR_TIMER), takes(0, PATHS), takes(0, CURRENT_STATE | QKEY), Refused, Refused]),
    row(Sqd, Sqd, [
        takes(0, ANEW | ALTERNATE_PATH | ACCESS | PKEY_INDEX | RNR_TIMER | MIGRATION),
        takes(0, AV | ALTERNATE_PATH | ACCESS | PKEY_INDEX | MIGRATION),
        takes(0, PKEY_INDEX | QKEY),
        Refused,
        Refused,
    ]),
    row(Sqe, Rts, [NOTHING, takes(0, CURRENT_STATE | ACCESS), takes(0, CURRENT_STATE | QKEY), Refused, Refused]),
];

/// Transitions for which the device has an operation.
const OPERATIONS: &[(QpState, &[QpState])] = &[
    (Reset, &[Reset, Err, Init]),
    (Init, &[Reset, Err, Init, Rtr]),
    (Rtr, &[Reset, Err, Rts]),
    (Rts, &[Reset, Err, Rts]),
    (Sqd, &[Reset, Err, Rts]),
    (Sqe, &[Reset, Err, Rts]),
    (Err, &[Reset, Err]),
];

/// The part of `struct ib_uverbs_modify_qp` that rules speak of.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asked {
    pub(super) mask: u32,
    /// Numbers of states: the wanted one, and that which the program takes for the current one.
    pub(super) state: u8,
    pub(super) current_state: u8,
    pub(super) qkey: u32,
    pub(super) access: u32,
    pub(super) pkey_index: u16,
    pub(super) port: u8,
    pub(super) path_mtu: u8,
    pub(super) reads_out: u8,
    pub(super) reads_in: u8,
    pub(super) path: Path,
    pub(super) alternate_port: u8,
    pub(super) alternate: Path,
    /// Written as the extended command, which has a rate limit.
    pub(super) is_extended: bool,
}

/// The part of `struct ib_uverbs_qp_dest` that rules speak of.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Path {
    pub(super) port: u8,
    pub(super) is_global: bool,
    pub(super) gid_row: u8,
    pub(super) rate: u8,
    /// It leads to an IPv4 address.
    pub(super) is_ipv4: bool,
}

impl Path {
    fn of(dest: Fields<'_>) -> Self {
        let [gid_row, rate, is_global, port] = [24, 29, 30, 31].map(|at| dest.u8(at));
        let is_ipv4 = verbs::Gid::new(dest.bytes(0)).is_ipv4();
        Self { port, is_global: is_global != 0, gid_row, rate, is_ipv4 }
    }
}

impl Asked {
    pub(super) fn of(fields: Fields<'_>, is_extended: bool) -> Self {
        Self {
            mask: fields.u32(68),
            qkey: fields.u32(72),
            access: fields.u32(88),
            pkey_index: fields.u16(92),
            state: fields.u8(96),
            current_state: fields.u8(97),
            path_mtu: fields.u8(98),
            reads_out: fields.u8(101),
            reads_in: fields.u8(102),
            port: fields.u8(104),
            path: Path::of(fields),
            alternate_port: fields.u8(108),
            alternate: Path::of(fields.after(32)),
            is_extended,
        }
    }

    const fn has(&self, attribute: u32) -> bool {
        self.mask & attribute != 0
    }
}

/// What the device has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) link: LinkLayer,
    /// InfiniBand addresses have a global route header.
    pub(super) needs_grh: bool,
    /// A bit for each row of the GID table that is an IPv4 address.
    pub(super) ipv4_rows: u32,
    /// A bit for each row that has no GID now.
    pub(super) empty_rows: u32,
    pub(super) ports: u8,
    pub(super) pkeys: u16,
    pub(super) gids: usize,
    pub(super) reads_max: u8,
    pub(super) has_atomics: bool,
    /// Whether the program may open raw sockets.
    pub(super) is_privileged: bool,
}

/// A queue pair as the kernel knows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) service: Service,
    /// After the last transition or query; what an error has made of it since then, the device knows alone.
    pub(super) state: QpState,
    /// State in the device.
    pub(super) device_state: QpState,
    /// 0: none yet.
    pub(super) port: u8,
    /// What it has been given of rights, and of READs and atomics of peers.
    pub(super) access: u32,
    pub(super) reads_in: u8,
}

/// A rule that is broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Broken {
    pub(super) rule: String,
    pub(super) errno: Errno,
}

fn broken<T>(errno: Errno, rule: impl Into<String>) -> Result<T, Broken> {
    Result::Err(Broken { rule: rule.into(), errno })
}

fn invalid<T>(rule: impl Into<String>) -> Result<T, Broken> {
    broken(Errno::INVAL, rule)
}

/// A transition that every rule allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Allowed {
    pub(super) from: QpState,
    pub(super) to: QpState,
    /// With what the kernel adds.
    pub(super) mask: u32,
}

/// Whether a kernel takes what is asked.
pub(super) fn check(asked: &Asked, known: &Known, limits: &Limits) -> Result<Allowed, Broken> {
    let asked = &command(asked, known, limits)?;
    let current = if asked.has(CURRENT_STATE) && known.service != Dct {
        state_of(asked.current_state)?
    } else {
        known.state
    };
    let target = if asked.has(STATE) { state_of(asked.state)? } else { current };
    attributes(asked, known.service, current, target)?;
    values(asked, known, (current, target), limits)?;
    device(known, current, target)?;
    Ok(Allowed { from: current, to: target, mask: asked.mask })
}

fn state_of(number: u8) -> Result<QpState, Broken> {
    let states = [Reset, Init, Rtr, Rts, Sqd, Sqe, Err];
    let found = states.get(usize::from(number)).copied();
    found.ok_or_else(|| Broken {
        rule: format!("{number} is not the number of a state"),
        errno: Errno::INVAL,
    })
}

/// Rules of the command, whatever the device.
fn command(asked: &Asked, known: &Known, limits: &Limits) -> Result<Asked, Broken> {
    let mut asked = *asked;
    let all = mask::STANDARD | if asked.is_extended { mask::RATE_LIMIT } else { 0 };
    if asked.mask & !all != 0 {
        let unknown = asked.mask & !all;
        return broken(Errno::OPNOTSUPP, format!("attributes {unknown:#x} have no meaning"));
    }
    let is_port = |port: u8| (1..=limits.ports).contains(&port);
    if asked.has(PORT) && !is_port(asked.port) {
        return invalid(format!("the device has no port {}", asked.port));
    }
    if asked.has(AV) {
        if !is_port(asked.path.port) {
            return invalid(format!("the path begins at port {}", asked.path.port));
        }
        if asked.has(STATE) && asked.state == 2 {
            if asked.path.port != known.port {
                return invalid("the path begins at another port than the queue pair has");
            }
        } else if !asked.has(PORT) {
            (asked.mask, asked.port) = (asked.mask | PORT, asked.path.port);
        } else if asked.port != asked.path.port {
            return invalid("the path begins at another port than the one that is named beside it");
        }
    }
    let [named, begins] = [asked.alternate_port, asked.alternate.port];
    if asked.has(ALTERNATE_PATH) && (named != begins || !is_port(named)) {
        return invalid(format!("the alternate path begins at port {begins}, which is no port"));
    }
    if asked.has(CURRENT_STATE) {
        state_of(asked.current_state)?;
    }
    if asked.has(STATE) {
        state_of(asked.state)?;
    }
    if asked.has(QKEY) && asked.qkey & PRIVILEGED_QKEY != 0 && !limits.is_privileged {
        return broken(Errno::PERM, "a Q_Key with the highest bit needs CAP_NET_RAW");
    }
    if asked.has(AV) {
        path(&asked.path, limits)?;
        route(&asked.path, known.service, limits)?;
    }
    if asked.has(ALTERNATE_PATH) {
        path(&asked.alternate, limits)?;
        if limits.link == LinkLayer::Ethernet {
            return invalid("RoCE has no alternate paths");
        }
    }
    Ok(asked)
}

fn path(path: &Path, limits: &Limits) -> Result<(), Broken> {
    if !path.is_global && limits.link == LinkLayer::Ethernet {
        return invalid("on RoCE an address has a GID");
    }
    if !path.is_global && limits.needs_grh {
        return invalid("addresses of this port have a global route header");
    }
    if path.is_global && usize::from(path.gid_row) >= limits.gids {
        return invalid(format!("the table of GIDs has no row {}", path.gid_row));
    }
    if path.is_global && limits.empty_rows >> path.gid_row.min(31) & 1 != 0 {
        return broken(
            Errno::NODATA,
            format!("row {} of the table of GIDs is empty", path.gid_row),
        );
    }
    Ok(())
}

/// The kernel looks for the way to the peer of a connected queue pair alone: `ib_resolve_eth_dmac` of Linux
/// `drivers/infiniband/core/verbs.c`. A DC target has an address without a peer.
fn route(path: &Path, service: Service, limits: &Limits) -> Result<(), Broken> {
    let is_connected = matches!(service, Rc | Uc);
    let is_ipv4_row = limits.ipv4_rows >> path.gid_row.min(31) & 1 != 0;
    if is_connected && limits.link == LinkLayer::Ethernet && is_ipv4_row != path.is_ipv4 {
        return invalid(super::device::NO_ROUTE);
    }
    Ok(())
}

/// Whether there is such a transition, with these attributes.
fn attributes(asked: &Asked, service: Service, from: QpState, to: QpState) -> Result<(), Broken> {
    let column = match service {
        Rc => 0,
        Uc => 1,
        Ud => 2,
        Dci => 3,
        Dct => 4,
    };
    let row = TABLE.iter().find(|row| (row.from, row.to) == (from, to));
    let taken = row.map_or(Refused, |row| row.takes[column]);
    let Attributes::Taken { needed, optional } = taken else {
        return invalid(format!("there is no way from {from:?} to {to:?} for {service:?}"));
    };
    // The driver's own types of queue pair name the state in every case.
    let needed = if matches!(service, Dci | Dct) { needed | STATE } else { needed };
    let missing = needed & !asked.mask;
    if missing != 0 {
        let names = names(missing);
        return invalid(format!("{service:?} from {from:?} to {to:?} needs {names} in the mask"));
    }
    let refused = asked.mask & !(needed | optional | STATE);
    if refused != 0 {
        let names = names(refused);
        return invalid(format!(
            "{service:?} from {from:?} to {to:?} takes no {names} in the mask"
        ));
    }
    Ok(())
}

/// The ranges of values.
fn values(
    asked: &Asked,
    known: &Known,
    transition: (QpState, QpState),
    limits: &Limits,
) -> Result<(), Broken> {
    if asked.has(PKEY_INDEX) && asked.pkey_index >= limits.pkeys {
        return invalid(format!("the table of P_Keys has no row {}", asked.pkey_index));
    }
    let reads = [(READS_OUT, asked.reads_out), (READS_IN, asked.reads_in)];
    for (attribute, reads) in reads {
        if asked.has(attribute) && reads > limits.reads_max {
            let max = limits.reads_max;
            return invalid(format!("{reads} READs and atomics, where the device has {max}"));
        }
    }
    if transition == (Reset, Reset) {
        return Ok(());
    }
    let mtus = 1..=5;
    if asked.has(PATH_MTU) && known.service != Ud && !mtus.contains(&asked.path_mtu) {
        return invalid(format!("{} is not the number of an MTU", asked.path_mtu));
    }
    // IB_RATE_2_5_GBPS to IB_RATE_600_GBPS; of a DC target the driver takes no rate.
    if asked.has(AV) && known.service != Dct && !matches!(asked.path.rate, 0 | 2..=22) {
        return invalid(format!("{} is not the number of a rate", asked.path.rate));
    }
    if asked.has(ACCESS | READS_IN) {
        let access = if asked.has(ACCESS) { asked.access } else { known.access };
        let reads_in = if asked.has(READS_IN) { asked.reads_in } else { known.reads_in };
        let granted = granted(access, if known.service == Dct { u8::MAX } else { reads_in });
        if granted & REMOTE_ATOMIC != 0 && !limits.has_atomics {
            return broken(Errno::OPNOTSUPP, "the device has no atomics");
        }
    }
    Ok(())
}

/// What the device itself has no operation for, or is in no state for.
fn device(known: &Known, from: QpState, to: QpState) -> Result<(), Broken> {
    let has_operation =
        OPERATIONS.iter().any(|(state, targets)| *state == from && targets.contains(&to));
    if !has_operation && known.service != Dct {
        return invalid(format!("the device has no way from {from:?} to {to:?}"));
    }
    if from != known.device_state && !matches!(to, Reset | Err) {
        let is = known.device_state;
        return invalid(format!("it is in state {is:?}, and not in {from:?}"));
    }
    Ok(())
}

/// Rights of peers that the device grants. Without READs in flight nobody reads (`set_qpc_atomic_flags`).
pub(super) const fn granted(access: u32, reads_in: u8) -> u32 {
    let all = REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC;
    access & if reads_in == 0 { REMOTE_WRITE } else { all }
}

/// The power of two that the device keeps of a number of READs.
pub(super) const fn kept_reads(reads: u8) -> u8 {
    if reads == 0 { 0 } else { 1 << reads.ilog2() }
}

const NAMES: [&str; 21] = [
    "STATE",
    "CUR_STATE",
    "EN_SQD_ASYNC_NOTIFY",
    "ACCESS_FLAGS",
    "PKEY_INDEX",
    "PORT",
    "QKEY",
    "AV",
    "PATH_MTU",
    "TIMEOUT",
    "RETRY_CNT",
    "RNR_RETRY",
    "RQ_PSN",
    "MAX_QP_RD_ATOMIC",
    "ALT_PATH",
    "MIN_RNR_TIMER",
    "SQ_PSN",
    "MAX_DEST_RD_ATOMIC",
    "PATH_MIG_STATE",
    "CAP",
    "DEST_QPN",
];

/// As `ibv_modify_qp(3)` calls them, without `IBV_QP_`.
pub(super) fn names(mask: u32) -> String {
    let all = (0..32).filter(|bit| mask & 1 << bit != 0);
    let names = all.map(|bit| NAMES.get(bit).copied().unwrap_or("RATE_LIMIT"));
    names.collect::<Vec<_>>().join(" and ")
}
