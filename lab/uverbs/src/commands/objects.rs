//! Domains, memory, channels, completion queues, shared receive queues.

use std::{os::fd::IntoRawFd as _, sync::Arc};

use mlx5::device::Device as _;
use rustix::io::Errno;
use softnic::LentQueue;
use verbs::{Access, MemoryRegion as _};

use super::{Refusal, Response, device, take_unused};
use crate::{
    abi::{Command, Fields, Record},
    descriptors::{self, Descriptor},
    engine::{Cq, Engine, EventPipe, Mr, Pd, Srq, Users},
};

/// Base-2 logarithm of the ring that holds `count` entries.
fn log_of(count: u32) -> u8 {
    count.max(1).next_power_of_two().ilog2().to_le_bytes()[0]
}

pub(super) fn alloc_pd(engine: &mut Engine, context: u32) -> Result<Response, Refusal> {
    let device = engine.device.alloc_pd();
    let device = device.map_err(|error| Refusal::new("ALLOC_PD", error, Errno::NOMEM))?;
    let handle = engine.pds.insert(Pd { context, device, users: Users::default() });
    Ok((handle.to_ne_bytes().to_vec(), handle.to_ne_bytes().to_vec()))
}

pub(super) fn dealloc_pd(engine: &mut Engine, command: &Command<'_>) -> Result<Response, Refusal> {
    take_unused(&mut engine.pds, command.core.u32(0), "DEALLOC_PD")?;
    Ok(Response::default())
}

/// `enum ib_uverbs_access_flags` that a region may have, beside those of [`Access`]: ZERO_BASED and HUGETLB, which
/// change nothing here.
const HARMLESS: u32 = 1 << 5 | 1 << 7;

pub(super) fn register(
    engine: &mut Engine,
    context: u32,
    command: &Command<'_>,
) -> Result<Response, Refusal> {
    let fields = command.core;
    let [start, length, iova] = [fields.u64(0), fields.u64(8), fields.u64(16)];
    let (pd, flags) = (fields.u32(24), fields.u32(28));
    let access = Access::from_bits_truncate(flags);
    let unknown = flags & !HARMLESS & !access.bits();
    if unknown != 0 {
        let names = [(1 << 4, "MW_BIND"), (1 << 6, "ON_DEMAND")];
        let name = names.iter().find(|(bit, _)| unknown & bit != 0).map_or("?", |(_, name)| name);
        return Err(Refusal::lacks(format!("REG_MR with access {unknown:#x} ({name})")));
    }
    let what = || format!("REG_MR of {length} B at {start:#x}");
    let pd = engine.pds.get(pd).ok_or_else(|| Refusal::no_such("REG_MR: domain"))?;
    let page = rustix::param::page_size() as u64;
    if start % page != iova % page {
        let cause = format!("requests name it {iova:#x}, which is at another place of a page");
        return Err(Refusal::new(what(), cause, Errno::INVAL));
    }
    let writes = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);
    let is_written = access.intersects(writes);
    if is_written && !access.contains(Access::LOCAL_WRITE) {
        return Err(Refusal::new(what(), verbs::MemoryError::Access(access), Errno::INVAL));
    }
    let refused = |error: verbs::MemoryError| {
        let errno = match error {
            verbs::MemoryError::NoKey { .. } | verbs::MemoryError::System { .. } => Errno::NOMEM,
            _ => Errno::INVAL,
        };
        Refusal::new(what(), error, errno)
    };
    let is_there = usize::try_from(start).is_ok_and(|at| {
        let len = usize::try_from(length).unwrap_or(usize::MAX);
        memory::lent::is_there(core::ptr::with_exposed_provenance_mut(at), len, is_written)
    });
    if !is_there {
        let right = if is_written { "written" } else { "read" };
        let cause = format!("not all of it is mapped and may be {right}");
        return Err(Refusal::new(what(), cause, Errno::FAULT));
    }
    // SAFETY: memory of the program, which shares it with its NIC by registering it.
    let mr = unsafe { engine.device.lend_memory(&pd.device, (start, length), iova, access) };
    let mr = mr.map_err(refused)?;
    let (lkey, rkey) = (mr.lkey().get(), mr.rkey().get());
    let handle = engine.mrs.insert(Mr { context, device: mr, _domain: pd.users.one_more() });
    Ok((Record::words(&[handle, lkey, rkey]).0, Vec::new()))
}

pub(super) fn deregister(engine: &mut Engine, command: &Command<'_>) -> Result<Response, Refusal> {
    let mr = engine.mrs.remove(command.core.u32(0));
    let mr = mr.ok_or_else(|| Refusal::no_such("DEREG_MR"))?.device;
    mr.deregister().map_err(|error| Refusal::new("DEREG_MR", error, Errno::BUSY))?;
    Ok(Response::default())
}

pub(super) fn create_channel(engine: &mut Engine) -> Result<Response, Refusal> {
    let pipe = EventPipe::new();
    let (pipe, reader) = pipe.map_err(|errno| Refusal::new("CREATE_COMP_CHANNEL", errno, errno))?;
    let reader = reader.into_raw_fd();
    descriptors::set(reader, Descriptor::Channel);
    engine.channels.insert(reader, Arc::new(pipe));
    Ok((reader.to_ne_bytes().to_vec(), Vec::new()))
}

pub(super) fn create_cq(
    engine: &mut Engine,
    context: u32,
    command: &Command<'_>,
) -> Result<Response, Refusal> {
    let core = command.core;
    let (user_handle, cqe, vector) = (core.u64(0), core.u32(8), core.u32(12));
    let channel = i32::from_ne_bytes(core.bytes(16));
    let refused = |cause: String, errno| Err(Refusal::new("CREATE_CQ", cause, errno));
    let cqes_max = device::limits(engine).cqes;
    if !(1..=cqes_max).contains(&cqe) {
        let cause = format!("{cqe} entries, where 1 to {cqes_max} are possible");
        return refused(cause, Errno::INVAL);
    }
    if vector >= device::VECTORS {
        return refused(format!("there is no completion vector {vector}"), Errno::INVAL);
    }
    if channel >= 0 && !engine.channels.contains_key(&channel) {
        return refused(format!("descriptor {channel} is no completion channel"), Errno::BADF);
    }
    // struct mlx5_ib_create_cq
    let driver = command.driver(24 + if command.is_extended { 8 } else { 0 });
    let entry_bytes = driver.u32(16);
    if driver.u8(20) != 0 {
        return Err(Refusal::lacks("CREATE_CQ with compressed entries"));
    }
    if !matches!(entry_bytes, 64 | 128) {
        return Err(Refusal::lacks(format!("CREATE_CQ with entries of {entry_bytes} B")));
    }
    let channel = engine.channels.get(&channel).cloned();
    let queue = LentQueue {
        ring: driver.u64(0),
        dbrec: driver.u64(8),
        log_entries: log_of(cqe.saturating_add(1)),
        log_stride: log_of(entry_bytes),
    };
    let armable = channel.is_some().then_some(&engine.armable);
    // SAFETY: libmlx5 keeps ring and record until the queue is destroyed.
    let device = unsafe { engine.device.lend_cq(&queue, armable) };
    let device = device.map_err(|error| Refusal::new("CREATE_CQ", error, Errno::NOMEM))?;
    let number = device.number().get();
    let arm_record = usize::try_from(queue.dbrec).unwrap_or(0) + 4;
    let mut cq = Cq {
        context,
        device,
        user_handle,
        channel,
        arm_record,
        arm_seen: 0,
        is_armed: false,
        written: Default::default(),
        written_async: Default::default(),
        users: Users::default(),
    };
    cq.clear_request();
    let handle = engine.cqs.insert(cq);
    let mut response = Record::words(&[handle, cqe]);
    if command.is_extended {
        let length = u32::try_from(command.room()).unwrap_or(0);
        response.0.extend(Record::words(&[0, length]).0);
    }
    Ok((response.0, Record::words(&[number, 0]).0))
}

pub(super) fn destroy_cq(engine: &mut Engine, command: &Command<'_>) -> Result<Response, Refusal> {
    let cq = take_unused(&mut engine.cqs, command.core.u32(0), "DESTROY_CQ")?;
    let completions =
        cq.channel.as_ref().map_or(0, |pipe| cq.written.read(pipe, cq.user_handle, false));
    let context = engine.contexts.get(&cq.context);
    let others =
        context.map_or(0, |context| cq.written_async.read(&context.events, cq.user_handle, true));
    Ok((Record::words(&[completions, others]).0, Vec::new()))
}

pub(super) fn create_srq(
    engine: &mut Engine,
    context: u32,
    command: &Command<'_>,
) -> Result<Response, Refusal> {
    let core = command.core;
    let [pd, max_wr, max_sge] = [core.u32(8), core.u32(12), core.u32(16)];
    // struct mlx5_ib_create_srq
    let driver: Fields<'_> = command.driver(24);
    let pd = engine.pds.get(pd).ok_or_else(|| Refusal::no_such("CREATE_SRQ: domain"))?;
    let srq_wqes = device::limits(engine).srq_wqes;
    if max_wr > srq_wqes || max_sge > device::SRQ_SGES {
        let what = format!("CREATE_SRQ of {max_wr} requests with {max_sge} entries");
        let [requests, entries] = [srq_wqes, device::SRQ_SGES];
        let cause = format!("{requests} with {entries} are possible");
        return Err(Refusal::new(what, cause, Errno::INVAL));
    }
    let entry_bytes = (16 + max_sge.saturating_mul(16)).max(32);
    let queue = LentQueue {
        ring: driver.u64(0),
        dbrec: driver.u64(8),
        log_entries: log_of(max_wr.saturating_add(1)),
        log_stride: log_of(entry_bytes),
    };
    // SAFETY: libmlx5 keeps ring and record until the queue is destroyed.
    let device = unsafe { engine.device.lend_srq(&pd.device, &queue) };
    let device = device.map_err(|error| Refusal::new("CREATE_SRQ", error, Errno::NOMEM))?;
    let number = device.number().get();
    let user_handle = core.u64(0);
    let handle = engine.srqs.insert(Srq {
        context,
        device,
        user_handle,
        max_wr,
        max_sge,
        limit: 0,
        written: Default::default(),
        _domain: pd.users.one_more(),
        users: Users::default(),
    });
    Ok((Record::words(&[handle, max_wr, max_sge, number]).0, Record::words(&[number, 0]).0))
}

/// `IBV_SRQ_MAX_WR`
const SRQ_MAX_WR: u32 = 1;
/// `IBV_SRQ_LIMIT`
const SRQ_LIMIT: u32 = 1 << 1;

pub(super) fn modify_srq(engine: &mut Engine, command: &Command<'_>) -> Result<Response, Refusal> {
    let [handle, mask, _, limit] = [0, 4, 8, 12].map(|at| command.core.u32(at));
    let srq = engine.srqs.get_mut(handle).ok_or_else(|| Refusal::no_such("MODIFY_SRQ"))?;
    if mask & SRQ_MAX_WR != 0 {
        // A ConnectX lacks it, too.
        let cause = "a shared receive queue does not change its size";
        return Err(Refusal::new("MODIFY_SRQ", cause, Errno::INVAL));
    }
    if mask & SRQ_LIMIT != 0 {
        let fits = u16::try_from(limit).ok().filter(|_| limit <= srq.max_wr);
        let what = format!("MODIFY_SRQ: a limit of {limit}");
        srq.limit = fits.ok_or_else(|| Refusal::new(what, "it has fewer entries", Errno::INVAL))?;
    }
    Ok(Response::default())
}

pub(super) fn query_srq(engine: &mut Engine, command: &Command<'_>) -> Result<Response, Refusal> {
    let srq = engine.srqs.get(command.core.u32(0));
    let srq = srq.ok_or_else(|| Refusal::no_such("QUERY_SRQ"))?;
    Ok((Record::words(&[srq.max_wr, srq.max_sge, srq.limit.into(), 0]).0, Vec::new()))
}

pub(super) fn destroy_srq(engine: &mut Engine, command: &Command<'_>) -> Result<Response, Refusal> {
    let srq = take_unused(&mut engine.srqs, command.core.u32(0), "DESTROY_SRQ")?;
    let context = engine.contexts.get(&srq.context);
    let read = context.map_or(0, |at| srq.written.read(&at.events, srq.user_handle, true));
    Ok((Record::words(&[read]).0, Vec::new()))
}
