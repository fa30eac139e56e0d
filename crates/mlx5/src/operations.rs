//! Every operation once, on queue pairs of one port that are connected to each other, and the bytes that driver and
//! device have written for it. For reports from machines that nobody here has.

use core::time::Duration;
use std::time::Instant;

use verbs::{
    Access, Capabilities, CompletionQueue as _, CqConfig, CreateError, Destination, InitAttr,
    MemoryError, MemoryRegion as _, ModifyError, Nic as _, Op, Payload, PostRecvError,
    PostSendError, Psn, QKey, QpConfig, QueuePair as _, RcPeer, RecvSize, RnrTimer, RtrAttr,
    RtsAttr, SendRequest, SendSize, Transition, Transport,
};

use crate::{Cq, Nic, Qp, device::Device};

/// The bytes of one operation, in the order of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationDump {
    /// Service and operation.
    pub operation: String,
    /// The request.
    pub wqe: Vec<u8>,
    /// Its completion.
    pub cqe: Vec<u8>,
    /// The receive that it took, and the completion of that.
    pub received: Option<[Vec<u8>; 2]>,
}

/// Why an operation has no bytes.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    /// A queue cannot be made.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// There is no memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A queue pair does not change its state.
    #[error(transparent)]
    Modify(#[from] ModifyError),
    /// A request is not taken.
    #[error("{operation}: {cause}")]
    Post {
        /// The operation.
        operation: String,
        /// The queue that refuses it.
        cause: PostSendError,
    },
    /// A receive is not taken.
    #[error("a receive: {0}")]
    PostRecv(#[from] PostRecvError),
    /// Nothing has come.
    #[error("{operation}: no completion within {} s: is the port up?", DEADLINE.as_secs())]
    NoCompletion {
        /// The operation.
        operation: String,
    },
    /// It has failed.
    #[error("{operation}: completed with {status}")]
    Failed {
        /// The operation.
        operation: String,
        /// The status.
        status: verbs::WcStatus,
    },
}

/// For one completion.
const DEADLINE: Duration = Duration::from_secs(10);

const QKEY: QKey = QKey::new(0x1122_3344);

/// A queue pair with a completion queue for each direction.
struct End<D: Device> {
    qp: Qp<D>,
    sends: Cq<D>,
    recvs: Cq<D>,
}

impl<D: Device> End<D> {
    fn new(nic: &Nic<D>, pd: &D::Pd, transport: Transport) -> Result<Self, DumpError> {
        let (sends, recvs) =
            (nic.create_cq(&CqConfig::new(64), None)?, nic.create_cq(&CqConfig::new(64), None)?);
        let mut config = QpConfig::<Nic<D>>::new(transport, &sends);
        config.recv_cq = &recvs;
        config.send = SendSize { requests: 16, sges_max: 2, inline_bytes_max: 64 };
        config.recv = RecvSize { requests: 16, sges_max: 2 };
        let mut qp = nic.create_qp(pd, &config)?;
        let access = OPEN.of_queue_pairs(nic.attributes().capabilities);
        qp.modify(&Transition::Init(InitAttr { access, qkey: QKEY }))?;
        Ok(Self { qp, sends, recvs })
    }

    fn activate(&mut self, nic: &Nic<D>, peer: Option<&Self>) -> Result<(), DumpError> {
        let rq_psn = Psn::from_low_bits(0);
        let peer = peer.map(|peer| RcPeer { qpn: peer.qp.qpn(), address: nic.address(), rq_psn });
        self.qp.modify(&Transition::Rtr(RtrAttr {
            path_mtu: nic.port().mtu,
            peer,
            rnr_timer: RnrTimer::from_code(1),
            reads_in_max: 1,
        }))?;
        self.qp.modify(&Transition::Rts(RtsAttr { reads_out_max: 1, ..RtsAttr::default() }))?;
        Ok(())
    }
}

const OPEN: Access = Access::all();

/// The entry of the next completion.
fn next<D: Device>(cq: &mut Cq<D>, qp: &mut Qp<D>, operation: &str) -> Result<Vec<u8>, DumpError> {
    let end = Instant::now() + DEADLINE;
    loop {
        if let Some(done) = cq.poll() {
            qp.retire(&done);
            return match done.failure {
                None => Ok(cq.last_entry()),
                Some(failure) => {
                    let operation = operation.to_owned();
                    Err(DumpError::Failed { operation, status: failure.status })
                }
            };
        }
        if Instant::now() > end {
            return Err(DumpError::NoCompletion { operation: operation.to_owned() });
        }
        std::thread::yield_now();
    }
}

/// Runs one operation from `from` to `to`, where a receive waits for it if it `takes_receive`.
fn run<D: Device>(
    [from, to]: [&mut End<D>; 2],
    memory: &D::Mr,
    name: &str,
    request: &SendRequest<'_>,
    takes_receive: bool,
) -> Result<OperationDump, DumpError> {
    let received = if takes_receive {
        let at = to.qp.post_recv(&[memory.sge(RECV_AT, 128), memory.sge(RECV_AT + 128, 128)])?;
        to.qp.ring_recv();
        to.qp.recv_wqe(at)
    } else {
        None
    };
    let failed = |cause| DumpError::Post { operation: name.to_owned(), cause };
    let index = from.qp.post_send(request).map_err(failed)?;
    let wqe = from.qp.send_wqe(index).unwrap_or_default();
    from.qp.ring_send();
    let cqe = next(&mut from.sends, &mut from.qp, name)?;
    let received = match received {
        Some(wqe) => Some([wqe, next(&mut to.recvs, &mut to.qp, name)?]),
        None => None,
    };
    Ok(OperationDump { operation: name.to_owned(), wqe, cqe, received })
}

/// Where in the memory receives are.
const RECV_AT: usize = 1024;

/// Runs every operation of RC, and datagrams.
///
/// # Errors
///
/// [`DumpError`]: the first operation that does not work.
pub fn operations<D: Device>(nic: &Nic<D>) -> Result<Vec<OperationDump>, DumpError> {
    let pd = nic.alloc_pd()?;
    let memory = nic.alloc_mr(&pd, 4096, OPEN)?;
    let mut dumps = connected(nic, &pd, &memory)?;
    let [mut from, mut to] =
        [End::new(nic, &pd, Transport::Ud)?, End::new(nic, &pd, Transport::Ud)?];
    from.activate(nic, None)?;
    to.activate(nic, None)?;
    let target = Destination::Ud { to: nic.endpoint(&to.qp), qkey: QKEY };
    let entries = [memory.sge(0, 32), memory.sge(64, 8)];
    for (name, imm) in [("UD SEND", None), ("UD SEND_IMM", Some(0x0102_0304))] {
        let op = Op::Send { payload: Payload::Gather(&entries), imm };
        let request = SendRequest::signaled(op).to(&target);
        dumps.push(run([&mut from, &mut to], &memory, name, &request, true)?);
    }
    Ok(dumps)
}

fn connected<D: Device>(
    nic: &Nic<D>,
    pd: &D::Pd,
    memory: &D::Mr,
) -> Result<Vec<OperationDump>, DumpError> {
    let [mut from, mut to] = [End::new(nic, pd, Transport::Rc)?, End::new(nic, pd, Transport::Rc)?];
    from.activate(nic, Some(&to))?;
    to.activate(nic, Some(&from))?;
    let entries = [memory.sge(0, 32), memory.sge(64, 8)];
    let (gather, inline) = (Payload::Gather(&entries), Payload::Inline(&[b"twenty-one inline B"]));
    let (remote, into) = (memory.remote(2048), entries[1]);
    let imm = Some(0x0102_0304);
    let all = [
        ("RC SEND", Op::Send { payload: gather, imm: None }, true),
        ("RC SEND_IMM", Op::Send { payload: gather, imm }, true),
        ("RC SEND inline", Op::Send { payload: inline, imm: None }, true),
        ("RC WRITE", Op::Write { remote, payload: gather, imm: None }, false),
        ("RC WRITE_IMM", Op::Write { remote, payload: gather, imm }, true),
        ("RC WRITE inline", Op::Write { remote, payload: inline, imm: None }, false),
        ("RC READ", Op::Read { remote, into: &entries }, false),
        ("RC CAS", Op::CompareSwap { remote, into, compare: 1, swap: 2 }, false),
        ("RC FADD", Op::FetchAdd { remote, into, add: 3 }, false),
        ("RC NOP", Op::Nop, false),
    ];
    let one = |(name, op, takes_receive): (&str, Op<'_>, bool)| {
        let request = SendRequest::signaled(op);
        run([&mut from, &mut to], memory, name, &request, takes_receive)
    };
    // Queue pairs of a NIC without atomics do not grant them.
    let has_atomics = nic.attributes().capabilities.contains(Capabilities::ATOMICS);
    let is_atomic = |op: &Op<'_>| matches!(op, Op::CompareSwap { .. } | Op::FetchAdd { .. });
    all.into_iter().filter(|(_, op, _)| has_atomics || !is_atomic(op)).map(one).collect()
}
