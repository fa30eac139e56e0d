//! What programs ask of the kernel, and what becomes of it.

mod device;
mod objects;
mod qp;

use rustix::io::Errno;

use crate::{
    abi::{Command, number},
    engine::{Engine, HasUsers, Table},
};

/// Why a command is refused: what the program sees, and what it is told if it asks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {cause}")]
pub struct Refusal {
    /// What was asked for.
    pub what: String,
    /// Cause of the refusal.
    pub cause: String,
    /// Value for `errno`.
    pub errno: Errno,
}

impl Refusal {
    pub(crate) fn new(what: impl Into<String>, cause: impl ToString, errno: Errno) -> Self {
        Self { what: what.into(), cause: cause.to_string(), errno }
    }

    pub(crate) fn lacks(what: impl Into<String>) -> Self {
        Self::new(what, "the software NIC lacks it", Errno::OPNOTSUPP)
    }

    pub(crate) fn no_such(what: &str) -> Self {
        Self::new(what, "no such handle", Errno::INVAL)
    }
}

/// Runs a command of the device that is open as `context`.
///
/// # Safety
///
/// `bytes` come from libibverbs and libmlx5, or from something that keeps their word: what the command names is
/// memory of this process, and stays until the object is destroyed.
pub(crate) unsafe fn run(engine: &mut Engine, context: u32, bytes: &[u8]) -> Result<(), Refusal> {
    let short = || Refusal::new("a command", "it is shorter than it says", Errno::INVAL);
    let command = &Command::parse(bytes).ok_or_else(short)?;
    if engine.dead.contains(&context) {
        return Err(Refusal::new("a command", "the device has failed", Errno::IO));
    }
    let (core, driver) = match command.number {
        number::GET_CONTEXT => device::get_context(engine, context, command)?,
        number::QUERY_DEVICE => device::query_device(engine, command),
        number::QUERY_PORT => device::query_port(engine, command)?,
        number::ALLOC_PD => objects::alloc_pd(engine, context)?,
        number::DEALLOC_PD => objects::dealloc_pd(engine, command)?,
        number::CREATE_AH => device::create_ah(engine, context, command)?,
        number::DESTROY_AH => device::destroy_ah(engine, command)?,
        number::REG_MR => objects::register(engine, context, command)?,
        number::DEREG_MR => objects::deregister(engine, command)?,
        number::CREATE_COMP_CHANNEL => objects::create_channel(engine)?,
        number::CREATE_CQ => objects::create_cq(engine, context, command)?,
        number::DESTROY_CQ => objects::destroy_cq(engine, command)?,
        number::CREATE_SRQ => objects::create_srq(engine, context, command)?,
        number::MODIFY_SRQ => objects::modify_srq(engine, command)?,
        number::QUERY_SRQ => objects::query_srq(engine, command)?,
        number::DESTROY_SRQ => objects::destroy_srq(engine, command)?,
        number::CREATE_QP => qp::create(engine, context, command)?,
        number::QUERY_QP => qp::query(engine, command)?,
        number::MODIFY_QP => qp::modify(engine, command)?,
        number::DESTROY_QP => qp::destroy(engine, command)?,
        other => {
            let kind = if command.is_extended { "extended command " } else { "command " };
            return Err(Refusal::lacks(format!("{kind}{other} ({})", number::name(other))));
        }
    };
    // SAFETY: by contract.
    unsafe { command.respond(&core, &driver) };
    Ok(())
}

/// The two parts of a response.
type Response = (Vec<u8>, Vec<u8>);

/// Takes an object that is to be destroyed, and that nobody uses.
fn take_unused<T: HasUsers>(objects: &mut Table<T>, handle: u32, what: &str) -> Result<T, Refusal> {
    let no_such = || Refusal::no_such(what);
    if objects.get(handle).ok_or_else(no_such)?.users().are_there() {
        return Err(Refusal::new(what, "there are objects that are made on it", Errno::BUSY));
    }
    objects.remove(handle).ok_or_else(no_such)
}

#[cfg(test)]
mod tests;
