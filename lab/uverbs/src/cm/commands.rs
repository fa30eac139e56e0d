//! Commands as librdmacm writes them: number, bytes in, bytes out, and a structure.
//!
//! Source: Linux `include/uapi/rdma/rdma_user_cm.h`; all fields in the order of the machine.

use std::os::fd::RawFd;

use rustix::io::Errno;

use super::{
    address::{self, Address},
    id::IdOption,
    manager::Manager,
    message::Side,
};
use crate::{Refusal, abi::Fields, sysfs};

/// `RDMA_USER_CM_CMD_*`, in order.
const NAMES: [&str; 23] = [
    "CREATE_ID",
    "DESTROY_ID",
    "BIND_IP",
    "RESOLVE_IP",
    "RESOLVE_ROUTE",
    "QUERY_ROUTE",
    "CONNECT",
    "LISTEN",
    "ACCEPT",
    "REJECT",
    "DISCONNECT",
    "INIT_QP_ATTR",
    "GET_EVENT",
    "GET_OPTION",
    "SET_OPTION",
    "NOTIFY",
    "JOIN_IP_MCAST",
    "LEAVE_MCAST",
    "MIGRATE_ID",
    "QUERY",
    "BIND",
    "RESOLVE_ADDR",
    "JOIN_MCAST",
];

/// Where the address for the response is, of those commands that have one.
const RESPONSES: [(&str, usize); 7] = [
    ("CREATE_ID", 8),
    ("DESTROY_ID", 0),
    ("QUERY_ROUTE", 0),
    ("INIT_QP_ATTR", 0),
    ("GET_EVENT", 0),
    ("MIGRATE_ID", 0),
    ("QUERY", 0),
];

/// A command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Command<'a> {
    name: &'static str,
    fields: Fields<'a>,
    room: usize,
}

impl<'a> Command<'a> {
    /// `None`: it is shorter than it says.
    pub(super) fn parse(bytes: &'a [u8]) -> Option<Self> {
        const HEAD_BYTES: usize = 8;
        let head = Fields(bytes.get(..HEAD_BYTES)?);
        let len = usize::from(head.u16(4));
        let name = NAMES.get(head.u32(0) as usize).copied().unwrap_or("of an unknown number");
        let fields = Fields(bytes.get(HEAD_BYTES..HEAD_BYTES + len)?);
        Some(Self { name, fields, room: head.u16(6).into() })
    }

    pub(super) fn is_get_event(&self) -> bool {
        self.name == "GET_EVENT"
    }

    /// Whether an identifier ends with it, and its socket with the identifier.
    pub(super) fn ends_id(&self) -> bool {
        self.name == "DESTROY_ID"
    }

    pub(super) fn refusal(&self, errno: Errno) -> Refusal {
        Refusal::new(format!("rdma_cm command {}", self.name), errno, errno)
    }

    /// # Safety
    ///
    /// The program has said that it has so much room there, and waits for the command.
    pub(super) unsafe fn respond(&self, bytes: &[u8]) {
        let Some((_, at)) = RESPONSES.iter().find(|(name, _)| *name == self.name) else { return };
        let Ok(address) = usize::try_from(self.fields.u64(*at)) else { return };
        let bytes = &bytes[..bytes.len().min(self.room)];
        if address != 0 && !bytes.is_empty() {
            let to = core::ptr::with_exposed_provenance_mut::<u8>(address);
            // SAFETY: by contract.
            unsafe { memory::copy::copy_out(to, bytes) };
        }
    }
}

/// `struct rdma_ucm_conn_param`
fn side(fields: Fields<'_>) -> Side {
    let len = usize::from(fields.u8(264));
    Side {
        qpn: fields.u32(0),
        qkey: fields.u32(4),
        private: fields.bytes::<256>(8)[..len].to_vec(),
        has_srq: fields.u8(265),
        responder_resources: fields.u8(266),
        initiator_depth: fields.u8(267),
        flow_control: fields.u8(268),
        retry_count: fields.u8(269),
        rnr_retry: fields.u8(270),
        ..Side::default()
    }
}

/// Runs a command other than GET_EVENT; its response.
pub(super) fn run(
    manager: &mut Manager,
    channel: RawFd,
    command: &Command<'_>,
) -> Result<Vec<u8>, Refusal> {
    let fields = command.fields;
    let done = match command.name {
        "CREATE_ID" => {
            let id = manager.create(channel, fields.u64(0), fields.u16(16), fields.u8(18));
            id.map(|id| id.to_ne_bytes().to_vec()).ok_or(Errno::INVAL)
        }
        "DESTROY_ID" => manager.destroy(fields.u32(8)).map(|count| count.to_ne_bytes().to_vec()),
        "MIGRATE_ID" => {
            let moved = manager.migrate(fields.u32(8), channel);
            moved.map(|count| count.to_ne_bytes().to_vec())
        }
        "QUERY_ROUTE" => {
            manager.get(fields.u32(8)).map(|id| manager.port.route(id, sysfs::NODE_GUID))
        }
        "QUERY" => {
            let option = fields.u32(12);
            let answer = |id| manager.port.query(id, option, command.room, sysfs::NODE_GUID);
            manager.get(fields.u32(8)).and_then(answer)
        }
        "INIT_QP_ATTR" => manager
            .get(fields.u32(8))
            .and_then(|id| manager.port.qp_attr(id, fields.u32(12)).ok_or(Errno::INVAL)),
        _ => run_without_response(manager, command).map(|()| Vec::new()),
    };
    done.map_err(|errno| command.refusal(errno))
}

fn run_without_response(manager: &mut Manager, command: &Command<'_>) -> Result<(), Errno> {
    let fields = command.fields;
    match command.name {
        "BIND_IP" => manager.bind(fields.u32(36), ip_at(fields, 8).ok_or(Errno::INVAL)?),
        "RESOLVE_IP" => {
            let to = ip_at(fields, 28).ok_or(Errno::INVAL)?;
            manager.resolve_address(fields.u32(56), ip_at(fields, 0), to)
        }
        "BIND" => {
            let [size, reserved] = [4, 6].map(|at| fields.u16(at));
            let address = address_at(fields, 8, size).filter(|_| reserved == 0);
            manager.bind(fields.u32(0), address.ok_or(Errno::INVAL)?)
        }
        "RESOLVE_ADDR" => {
            let [from_size, to_size] = [8, 10].map(|at| fields.u16(at));
            let from = address_at(fields, 16, from_size);
            let to = address_at(fields, 144, to_size).ok_or(Errno::INVAL)?;
            if fields.u32(12) != 0 || from.is_none() && from_size != 0 {
                return Err(Errno::INVAL);
            }
            manager.resolve_address(fields.u32(0), from, to)
        }
        "RESOLVE_ROUTE" => manager.resolve_route(fields.u32(0)),
        "LISTEN" => manager.listen(fields.u32(0), fields.u32(4)),
        "CONNECT" => manager.connect(fields.u32(272), side(fields)),
        "ACCEPT" => {
            let (uid, handle, parameters) = (fields.u64(0), fields.u32(280), fields.after(8));
            let is_valid = parameters.u8(271) != 0;
            if is_valid {
                manager.name(handle, uid)?;
            }
            manager.accept(handle, is_valid.then(|| side(parameters)))
        }
        "REJECT" => {
            let len = usize::from(fields.u8(4));
            manager.reject(fields.u32(0), fields.bytes::<256>(8)[..len].to_vec())
        }
        "DISCONNECT" => manager.disconnect(fields.u32(0)),
        "SET_OPTION" => manager.set_option(fields.u32(8), &option(fields)?),
        // It tells that data came before the last message of a connection, which comes by itself.
        "NOTIFY" => manager.get(fields.u32(0)).map(drop),
        // Linux `ucma_write`: for a command without a function.
        _ => Err(Errno::NOSYS),
    }
}

/// `struct rdma_ucm_set_option`: the value is memory of the program.
fn option(fields: Fields<'_>) -> Result<IdOption, Errno> {
    const LEVEL_ID: u32 = 0;
    let [level, name, len] = [12, 16, 20].map(|at| fields.u32(at));
    let byte = || {
        let at = usize::try_from(fields.u64(0)).ok().filter(|at| *at != 0).ok_or(Errno::FAULT)?;
        let from = core::ptr::with_exposed_provenance::<u8>(at);
        let mut byte = [0];
        // SAFETY: the program says that the value is there, and waits for the command.
        unsafe { memory::copy::copy_in(&mut byte, from) };
        Ok(byte[0])
    };
    match (level, name, len) {
        (LEVEL_ID, 0, 1) => Ok(IdOption::ServiceType(byte()?)),
        (LEVEL_ID, 1 | 2, 4) => Ok(IdOption::IsShared),
        (LEVEL_ID, 3, 1) => Ok(IdOption::AckTimeout(byte()?)),
        (LEVEL_ID, 0..=3, _) => Err(Errno::INVAL),
        _ => Err(Errno::NOSYS),
    }
}

/// An address that says how long it is. Source: Linux `ucma_bind`, `ucma_resolve_addr`.
fn address_at(fields: Fields<'_>, at: usize, size: u16) -> Option<Address> {
    address::parse(&fields.bytes(at)).filter(|address| address.len() == size)
}

/// An address of a command from before there were those of InfiniBand.
fn ip_at(fields: Fields<'_>, at: usize) -> Option<Address> {
    address::parse(&fields.bytes(at)).filter(|address| !address.is_ib())
}
