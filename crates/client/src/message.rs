//! The headers in front of the body of a request or a response.
//!
//! ```text
//! client ─▶ daemon   CallHead: rank, service, method, timeout, room for the response │ body
//! daemon ─▶ daemon   method of the protocol: the service; PeerHead: method, caller   │ body
//! client ─▶ daemon   CallHead with HAS_EXTRA; CallExtra: what a trace is called      │ body
//! provider ─▶ daemon CallHead to the own daemon, method SERVE; ServeHead: an answer  │ body
//! daemon ─▶ provider WorkHead: which request, of whom, method; ContextHead if asked  │ body
//! provider ─▶ daemon CallHead to the own daemon, method WATCH; number of the service
//! daemon ─▶ provider numbers of requests that nobody waits for any more, 8 bytes each
//! client ─▶ daemon   CallHead to the own daemon, method CANCEL; numbers of own calls, 2 bytes each
//! client ─▶ daemon   CallHead to the own daemon, method MEET; WantedHead: a service
//! client ─▶ provider DirectHead: method, timeout; CallExtra: what a trace is called  │ body
//! ```
//!
//! An answer that is no success begins with who says so ([`origin`]), and what that says about it. An empty
//! one comes from a daemon, and leaves open whether the request was executed.

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

/// The daemon itself, as a service.
pub const DAEMON: u16 = 0;

/// Methods of [`DAEMON`].
pub mod method {
    /// Answers with the body. The only one that other nodes may call.
    pub const PING: u16 = 0;
    /// Offers a service: the body is its number. The answer has 8 bytes: nanoseconds of the daemon's
    /// `CLOCK_MONOTONIC`. Time namespaces of one node have different ones, and deadlines of requests are the daemon's.
    pub const REGISTER: u16 = 1;
    /// Answers a request, and asks for the next.
    pub const SERVE: u16 = 2;
    /// Answers with this daemon's rank and the number of ranks.
    pub const WHO: u16 = 3;
    /// Answers with the description of the service whose number is the body. Other nodes may call it.
    pub const DESCRIBE: u16 = 4;
    /// Answers with a part of what the daemon knows of itself: the body is a
    /// [`ReportHead`](super::ReportHead), the answer a [`ReportAnswer`](super::ReportAnswer) and records.
    pub const REPORT: u16 = 6;
    /// Waits until nobody waits any more for requests that this provider has: the body is the number of the
    /// service, the answer the numbers of the requests ([`WorkHead::work`](super::WorkHead::work)).
    pub const WATCH: u16 = 7;
    /// Calls that this process made and does not wait for any more end: the body is their numbers in its ring, 2 bytes
    /// each ([`CallId::call`](ipc::CallId::call)). They end with [`Status::Cancelled`](proto::Status::Cancelled), and
    /// whoever executes them is told. Numbers of calls that have ended mean nothing.
    pub const CANCEL: u16 = 8;
    /// Whether this process may be introduced to the process that provides a service, as a client of its own: the body is
    /// a [`WantedHead`](super::WantedHead).
    pub const MAY_MEET: u16 = 9;
    /// Introduces this process: the same body, after a descriptor that
    /// [`Newcomer::new`](ipc::Newcomer::new) made.
    pub const MEET: u16 = 10;
    /// Clients may be introduced to this provider: the body is the number of its service, after the descriptor that
    /// [`Server::introduced`](ipc::Server::introduced) made. The answer is the rank of this node, 4 bytes.
    pub const RECEIVE: u16 = 11;
    /// A provider tells of calls that went without the daemon: the body consists of
    /// [`DirectRecord`](super::DirectRecord)s.
    pub const COUNTS: u16 = 12;
}

/// The first byte of an answer that is no success: the party that refused the call.
pub mod origin {
    /// The service; what it says about it follows.
    pub const SERVICE: u8 = 1;
    /// A daemon or a provider that did not hand the request to the service.
    pub const NOT_EXECUTED: u8 = 2;
    /// In a [`ServeHead`](super::ServeHead) alone: a provider that says nothing of the service. The request may have been
    /// executed.
    pub const ENDED: u8 = 3;
}

/// Longest text that a service may add to a status that is no success.
pub const DETAIL_BYTES_MAX: usize = 1024;

/// A bit of [`CallHead::response_bytes`]: a [`CallExtra`] follows the head.
pub const HAS_EXTRA: u32 = 1 << 31;

/// Behind a [`CallHead`] with [`HAS_EXTRA`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CallExtra {
    /// Number of the caller's trace; 0: none.
    pub trace: U64,
}

/// The caller's process, user and trace, as daemons tell each other and providers.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CallerHead {
    /// User of the caller, as the kernel of its node knows it.
    pub uid: U32,
    /// Process of the caller on its node; [`UNSEEN`]: the daemon of that node cannot see it, and its user is known
    /// all the same; 0: neither is known.
    pub pid: U32,
    /// Number of the caller's trace; 0: none.
    pub trace: U64,
}

/// In the place of the id of a process in a PID namespace that its daemon cannot see. No process has this id.
pub const UNSEEN: u32 = u32::MAX;

/// A process and its user, as messages tell them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// The user, if that is known.
    pub uid: Option<u32>,
    /// The process, if the daemon of its node sees it.
    pub pid: Option<u32>,
}

impl Known {
    /// From the numbers of a message.
    #[inline]
    #[must_use]
    pub fn of(uid: U32, pid: U32) -> Self {
        match pid.get() {
            0 => Self::default(),
            UNSEEN => Self { uid: Some(uid.get()), pid: None },
            pid => Self { uid: Some(uid.get()), pid: Some(pid) },
        }
    }
}

impl CallerHead {
    /// A process as its daemon's kernel tells it: the id is 0 where that is of another PID namespace.
    #[inline]
    #[must_use]
    pub fn of(uid: u32, pid: u32, trace: u64) -> Self {
        let pid = if pid == 0 { UNSEEN } else { pid };
        Self { uid: uid.into(), pid: pid.into(), trace: trace.into() }
    }

    /// What is known of the caller.
    #[inline]
    #[must_use]
    pub fn known(&self) -> Known {
        Known::of(self.uid, self.pid)
    }
}

/// Before the body of a client's request.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct CallHead {
    /// The rank of the service; [`HERE`]: this node.
    pub rank: U32,
    /// The service.
    pub service: U16,
    /// The method.
    pub method: U16,
    /// The deadline of the call; 0: the daemon's default.
    pub timeout_us: U32,
    /// Longest response that needs no detour.
    pub response_bytes: U32,
}

/// The node of the caller.
///
/// ```no_run
/// # use copyrpc_client as copyrpc;
/// use copyrpc::{Client, HERE, To};
///
/// # fn call(client: &mut Client) -> Result<(), copyrpc::CallError> {
/// client.call(To::new(HERE, 17, 1), b"a service of this node")?;
/// # Ok(()) }
/// ```
pub const HERE: u32 = u32::MAX;

/// Bytes before the body of a client's request.
pub const CALL_HEAD_BYTES: usize = size_of::<CallHead>();
const _: () = assert!(CALL_HEAD_BYTES == 16);

/// The body of [`method::MEET`]: who is to be met.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct WantedHead {
    /// The rank of the service; [`HERE`]: this node.
    pub rank: U32,
    /// The service.
    pub service: U16,
    /// [`IS_SINGLE`].
    pub flags: U16,
}

/// A bit of [`WantedHead::flags`]: the client makes its calls one at a time.
pub const IS_SINGLE: u16 = 1;

/// Before the body of a request that goes to a provider without a daemon in between.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DirectHead {
    /// The method of the service.
    pub method: U16,
    /// [`HAS_TRACE`], or 0.
    pub flags: U16,
    /// The deadline of the call, from when it is taken.
    pub timeout_us: U32,
}

/// Calls that a provider answered to one client without the daemon, since it told of them last.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DirectRecord {
    /// The client, by the name of its introduction.
    pub tag: U64,
    /// Answers.
    pub count: U32,
    /// Their status.
    pub status: u8,
    /// Whether the service said so, which is 1; otherwise nobody waited for the answer any more.
    pub is_of_service: u8,
    /// Zero.
    pub reserved: [u8; 2],
}

/// A bit of [`DirectHead::flags`]: a [`CallExtra`] follows the head.
pub const HAS_TRACE: u16 = 1;

/// Before the body of a request to another node. The service is the method of the protocol.
///
/// ```text
/// bit 0 method │ 16 a CallerHead follows │ 17 the rest names the caller │ 18 process │ 40 user
/// ```
///
/// A caller that has a trace, or numbers that do not fit, has a [`CallerHead`] behind the head.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PeerHead(U64);

/// Bytes before the body of a request to another node, of a caller that has no [`CallerHead`].
pub const PEER_HEAD_BYTES: usize = size_of::<PeerHead>();

const CALLER_FOLLOWS: u64 = 1 << 16;
const NAMES_CALLER: u64 = 1 << 17;
const PID_SHIFT: u32 = 18;
const UID_SHIFT: u32 = 40;
/// The kernel gives no process a number of more than 22 bits.
const PID_MAX: u32 = (1 << (UID_SHIFT - PID_SHIFT)) - 1;
const UID_MAX: u32 = (1 << (u64::BITS - UID_SHIFT)) - 1;

impl PeerHead {
    /// Names a method and its caller. What is returned beside the head follows it.
    #[inline]
    #[must_use]
    pub fn new(method: u16, who: &CallerHead) -> (Self, &[u8]) {
        let (uid, pid, method) = (who.uid.get(), who.pid.get(), u64::from(method));
        if who.trace.get() != 0 || pid > PID_MAX || uid > UID_MAX {
            return (Self((method | CALLER_FOLLOWS).into()), who.as_bytes());
        }
        if pid == 0 {
            return (Self(method.into()), &[]);
        }
        let caller = u64::from(uid) << UID_SHIFT | u64::from(pid) << PID_SHIFT | NAMES_CALLER;
        (Self((method | caller).into()), &[])
    }

    /// Reads what a daemon says before the body of a request: method, caller, and the body. `None`: it is too
    /// short.
    #[expect(clippy::cast_possible_truncation, reason = "takes fields of a word apart")]
    #[inline]
    #[must_use]
    pub fn read(message: &[u8]) -> Option<(u16, CallerHead, &[u8])> {
        let (Self(head), body) = Self::read_from_prefix(message).ok()?;
        let word = head.get();
        let method = word as u16;
        if word & CALLER_FOLLOWS != 0 {
            let (who, body) = CallerHead::read_from_prefix(body).ok()?;
            return Some((method, who, body));
        }
        let mut who = CallerHead::default();
        if word & NAMES_CALLER != 0 {
            who.pid = ((word >> PID_SHIFT) as u32 & PID_MAX).into();
            who.uid = ((word >> UID_SHIFT) as u32).into();
        }
        Some((method, who, body))
    }
}

/// First in the body of [`method::SERVE`]; the body of the answer follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ServeHead {
    /// The request that is answered; 0: none.
    pub work: U64,
    /// The service that the provider offers.
    pub service: U16,
    /// The result of the request: a status of the protocol.
    pub status: u8,
    /// The party that says so if it is no success: one of [`origin`], or 0 for the service.
    pub origin: u8,
    /// Zero.
    pub reserved: [u8; 4],
}

/// Bytes before the body of a provider's answer, behind a [`CallHead`].
pub const SERVE_HEAD_BYTES: usize = size_of::<ServeHead>();

/// First in what answers [`method::SERVE`]; the body of the request follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct WorkHead {
    /// The request.
    pub work: U64,
    /// Rank of the caller.
    pub rank: U32,
    /// The method of the service.
    pub method: U16,
    /// [`HAS_CONTEXT`], or 0.
    pub flags: U16,
}

/// A bit of [`WorkHead::flags`]: a [`ContextHead`] follows the head.
pub const HAS_CONTEXT: u16 = 1;

/// Behind a [`WorkHead`] with [`HAS_CONTEXT`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ContextHead {
    /// The caller's deadline, in nanoseconds of the daemon's `CLOCK_MONOTONIC`.
    pub deadline_ns: U64,
    /// Process that called.
    pub caller: CallerHead,
}

/// A bit of [`OfferHead::flags`]: other processes may offer the service beside this one.
pub const IS_SHARED: u16 = 1;
/// A bit of [`OfferHead::flags`]: requests come with a [`ContextHead`].
pub const WANTS_CONTEXT: u16 = 2;

/// First in the body of [`method::REGISTER`]; the service's name and then the table of its methods follow.
/// A body that ends with the number offers the service to one process alone, without a name.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct OfferHead {
    /// Number of the service.
    pub service: U16,
    /// [`IS_SHARED`] and [`WANTS_CONTEXT`].
    pub flags: U16,
    /// Bytes of the name.
    pub name_bytes: U16,
    /// Zero.
    pub reserved: U16,
}

/// Longest description of a service: its name, and the table of its methods.
pub const DESCRIPTION_BYTES_MAX: usize = 4096;

/// A method in the table of a service.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct MethodRecord {
    /// Its number.
    pub method: U16,
    /// Zero.
    pub reserved: [u8; 6],
    /// Fingerprint of the method's types: caller and service have to agree on it.
    pub fingerprint: U64,
}

/// A service of a node.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct ServiceRecord {
    /// Its number.
    pub service: U16,
    /// Processes that offer it; 0: a function of the daemon's program does.
    pub providers: U16,
    /// Requests that wait for one of them.
    pub waiting: U32,
    /// Requests that they have not answered.
    pub given: U32,
    /// Bytes of the name.
    pub name_bytes: U16,
    /// [`LENDS_MEMORY`], or 0.
    pub flags: U16,
}

/// In [`ServiceRecord::flags`]: calls of the service lend memory.
pub const LENDS_MEMORY: u16 = 1;

/// The subjects of [`method::REPORT`].
pub mod report {
    /// [`ClientRecord`](super::ClientRecord) of each client.
    pub const CLIENTS: u16 = 0;
    /// [`PeerRecord`](super::PeerRecord) of each rank whose connection the thread owns.
    pub const PEERS: u16 = 1;
    /// [`ServiceReport`](super::ServiceReport) of each service, each with its name behind it.
    pub const SERVICES: u16 = 2;
    /// Answers to clients of the thread by status: a count of 64 bits for each of 17 numbers.
    pub const STATUSES: u16 = 3;
    /// Records in an answer, at most.
    pub const RECORDS_MAX: usize = 1000;
}

/// The body of [`method::REPORT`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ReportHead {
    /// The thread of the daemon that is asked.
    pub thread: U16,
    /// One of [`report`].
    pub what: U16,
    /// Records that are left out: those that were told already.
    pub skip: U32,
}

/// First in what answers [`method::REPORT`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ReportAnswer {
    /// Threads of the daemon.
    pub threads: U16,
    /// Zero.
    pub reserved: U16,
    /// Records that follow.
    pub records: U32,
}

/// A client of the daemon.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct ClientRecord {
    /// Its process, as in a [`CallerHead`].
    pub pid: U32,
    /// The user of that.
    pub uid: U32,
    /// Requests that it ever made.
    pub requests: U64,
    /// Its requests that are not answered yet.
    pub in_flight: U32,
    /// Services that it offers.
    pub services: U32,
}

/// Another rank, as a daemon sees it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct PeerRecord {
    /// Rank of the peer.
    pub rank: U32,
    /// 1: it is up.
    pub is_up: U32,
    /// Calls to it that were made.
    pub calls: U64,
    /// Calls that it has not answered yet.
    pub in_flight: U32,
    /// Calls that wait for room there.
    pub waiting: U32,
    /// Calls that ended without its answer.
    pub unanswered: U64,
    /// Requests that it made.
    pub requests: U64,
}

/// A service of a node, and how much it was asked for.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct ServiceReport {
    /// The service, and who offers it.
    pub service: ServiceRecord,
    /// Requests that came for it.
    pub requests: U64,
}

/// Bytes before the body of a request to a provider.
pub const WORK_HEAD_BYTES: usize = size_of::<WorkHead>();
const _: () = assert!(CALL_HEAD_BYTES + SERVE_HEAD_BYTES == 32 && WORK_HEAD_BYTES == 16);

/// Longest message of the client's protocol that carries a body of `body_bytes`.
#[must_use]
pub fn message_bytes_max(body_bytes: u32) -> u32 {
    // A provider's answer lies behind two heads; a request to one, behind a head and its context.
    body_bytes.saturating_add(40)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_to_another_node_names_its_caller_in_the_head_if_that_has_room() {
        let caller = |uid: u32, pid: u32, trace: u64| CallerHead {
            uid: uid.into(),
            pid: pid.into(),
            trace: trace.into(),
        };
        for (who, follows) in [
            (caller(0, 0, 0), false),
            (caller(0, 1, 0), false),
            (caller(1000, 4_194_303, 0), false),
            (caller(0x00ff_ffff, 7, 0), false),
            (caller(0x0100_0000, 7, 0), true),
            (caller(5, 1 << 22, 0), true),
            (caller(5, 6, 7), true),
            (caller(0, 0, 7), true),
            (caller(0, UNSEEN, 0), true),
        ] {
            let (head, behind) = PeerHead::new(0xabcd, &who);
            assert_eq!(behind.is_empty(), !follows, "{who:?}");
            let message = [head.as_bytes(), behind, b"body"].concat();
            let (method, told, body) = PeerHead::read(&message).unwrap();
            assert_eq!((method, body), (0xabcd, &b"body"[..]));
            assert_eq!(told.as_bytes(), who.as_bytes());
            assert!(PeerHead::read(&message[..PEER_HEAD_BYTES - 1]).is_none());
            assert_eq!(PeerHead::read(&message[..PEER_HEAD_BYTES]).is_none(), follows);
        }
    }

    #[test]
    fn the_user_of_a_process_that_the_daemon_cannot_see_is_known() {
        let unseen = CallerHead::of(0, 0, 0);
        assert_eq!(unseen.known(), Known { uid: Some(0), pid: None });
        let (head, behind) = PeerHead::new(3, &unseen);
        let message = [head.as_bytes(), behind].concat();
        assert_eq!(PeerHead::read(&message).unwrap().1.known(), unseen.known());
        assert_eq!(CallerHead::of(7, 8, 0).known(), Known { uid: Some(7), pid: Some(8) });
        assert_eq!(CallerHead::default().known(), Known::default());
    }

    #[test]
    fn the_bytes_of_a_head_are_these() {
        let who = CallerHead { uid: 0x0001_0203.into(), pid: 5.into(), trace: 0.into() };
        let (head, _) = PeerHead::new(0x1234, &who);
        assert_eq!(head.as_bytes(), [0x34, 0x12, 0x16, 0, 0, 3, 2, 1]);
    }

    /// Another build may be on the other side: whoever changes these bytes raises the version of crate `ipc`.
    #[test]
    fn fault_e7_the_heads_have_the_bytes_that_builds_in_use_have() {
        let (rank, service) = (0x0403_0201.into(), 0x0605.into());
        let (timeout_us, response_bytes) = (0x0c0b_0a09.into(), 0x100f_0e0d.into());
        let call = CallHead { rank, service, method: 0x0807.into(), timeout_us, response_bytes };
        assert_eq!(call.as_bytes(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]);
        let (work, reserved) = (0x0807_0605_0403_0201.into(), [0; 4]);
        let serve = ServeHead { work, service: 0x0a09.into(), status: 11, origin: 12, reserved };
        assert_eq!(serve.as_bytes(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 0, 0, 0]);
        let direct = DirectHead { method: 0x0201.into(), flags: 0x0403.into(), timeout_us };
        assert_eq!(direct.as_bytes(), [1, 2, 3, 4, 9, 10, 11, 12]);
        let methods = [
            method::PING,
            method::REGISTER,
            method::SERVE,
            method::WHO,
            method::DESCRIBE,
            method::REPORT,
            method::WATCH,
            method::CANCEL,
            method::MAY_MEET,
            method::MEET,
            method::RECEIVE,
            method::COUNTS,
        ];
        assert_eq!(methods, [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12]);
    }
}
