//! This process's port, as crate `preload` uses it: which descriptors are the device's, its commands, its thread.

use core::num::NonZeroU64;
use std::{
    os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use memory::{
    Region,
    sync::{AtomicU32, Ordering},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use verbs::LinkLayer;

use crate::{
    clock_page, cm,
    commands::{self, Refusal},
    descriptors::{self, Descriptor},
    engine::Engine,
    notice::tell,
    per_process::{self, PerProcess},
    polls,
};

/// Name of the fabric; programs see each other only within one.
pub const FABRIC_ENV: &str = "COPYRPC_UVERBS_FABRIC";

/// Link layer of the port: `infiniband` (default), addressed by LID, or `roce`, addressed by GID.
pub const LINK_ENV: &str = "COPYRPC_UVERBS_LINK";

/// The value of [`LINK_ENV`] for RoCE.
pub const ROCE: &str = "roce";

/// `0`: what a program does with its queues and hardware would not take is not told on standard error.
pub const STRICT_ENV: &str = "COPYRPC_UVERBS_STRICT";

/// The value of [`STRICT_ENV`] with which nothing is told.
pub const LENIENT: &str = "0";

/// Name of the adapter that the device is ([`softnic::AdapterProfile`]).
pub const PROFILE_ENV: &str = "COPYRPC_UVERBS_PROFILE";

/// Not empty: what is refused is told on standard error.
pub const EXPLAIN_ENV: &str = "COPYRPC_UVERBS_EXPLAIN";

static ENGINE: PerProcess<Option<Mutex<Engine>>> = PerProcess::new();
/// Threads of the program that want the engine: its own thread makes room.
static WANTED: AtomicU32 = AtomicU32::new(0);

/// A thread of the program that has polled so lately does the work, and the own thread sleeps: for long if it had
/// nothing to do itself, and else only so long that it does not take the core of who polls. A program that polls for
/// the completions of what it sends, and then waits for bytes in its memory, needs both.
const POLLED_LATELY_NS: u64 = 500_000;
const POLLED_NOW_NS: u64 = 5_000;
const ALERT_NS: u64 = 2_000_000;

/// How long the own thread sleeps while others do its work, where it may be rung at any time, and where there is
/// nothing that could be rung.
const SLEEP_BESIDE: Duration = Duration::from_micros(200);
const SLEEP_ALERT: Duration = Duration::from_micros(5);
const SLEEP_BUSY: Duration = Duration::from_micros(20);
const SLEEP_USED: Duration = Duration::from_micros(500);
const SLEEP_UNUSED: Duration = Duration::from_millis(5);

/// How long the end of a process waits for the engine.
const FINISH_NS: u64 = 1_000_000_000;

/// Since the last work: how long it stays on the alert.
const BUSY_NS: u64 = 100_000_000;

/// Whether a descriptor is an open device.
#[must_use]
pub fn is_device(fd: RawFd) -> bool {
    matches!(descriptors::kind(fd), Descriptor::Device | Descriptor::Inherited)
}

fn is_set(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| !value.is_empty())
}

fn profile() -> softnic::AdapterProfile {
    let named =
        std::env::var(PROFILE_ENV).ok().and_then(|name| softnic::AdapterProfile::named(&name));
    named.unwrap_or_default()
}

fn is_strict() -> bool {
    std::env::var_os(STRICT_ENV).is_none_or(|value| value != LENIENT)
}

/// Says on standard error what is refused, if it is asked for.
fn explain(text: core::fmt::Arguments<'_>) {
    if is_set(EXPLAIN_ENV) {
        tell(text);
    }
}

fn fabric() -> String {
    std::env::var(FABRIC_ENV).unwrap_or_else(|_| "default".to_owned())
}

fn engine() -> Option<&'static Mutex<Engine>> {
    let started = ENGINE.get_or_init(|| {
        let fabric = fabric();
        let is_roce = std::env::var_os(LINK_ENV).is_some_and(|link| link == ROCE);
        let link = if is_roce { LinkLayer::Ethernet } else { LinkLayer::InfiniBand };
        match Engine::start(&fabric, link, profile(), is_strict()) {
            Ok(engine) => Some(Mutex::new(engine)),
            Err(error) => {
                explain(format_args!("no software NIC: {error}"));
                None
            }
        }
    });
    static THREAD: PerProcess<()> = PerProcess::new();
    let engine = started?.as_ref()?;
    THREAD.get_or_init(|| {
        let thread = std::thread::Builder::new().name("uverbs-nic".into());
        if let Err(error) = thread.spawn(move || work(engine)) {
            explain(format_args!("no NIC thread: {error}"));
        }
    });
    Some(engine)
}

/// Has the engine for a program's thread.
struct Turn(MutexGuard<'static, Engine>);

impl Turn {
    fn take() -> Option<Self> {
        let engine = engine()?;
        WANTED.fetch_add(1, Ordering::Relaxed);
        let guard = engine.lock().unwrap_or_else(PoisonError::into_inner);
        WANTED.fetch_sub(1, Ordering::Relaxed);
        Some(Self(guard))
    }
}

/// The device was opened, as a descriptor that the caller has made.
#[must_use]
pub fn open_device(fd: RawFd) -> bool {
    engine().is_some() && descriptors::set(fd, Descriptor::Device)
}

/// Whether a descriptor is a channel of the connection manager.
#[must_use]
pub fn is_connection_channel(fd: RawFd) -> bool {
    descriptors::kind(fd) == Descriptor::Connections
}

/// Opens the connection manager: a channel of its events.
///
/// # Errors
///
/// For `errno`.
pub fn open_connection_manager() -> Result<OwnedFd, Errno> {
    let Turn(engine) = Turn::take().ok_or(Errno::NODEV)?;
    let manager = cm::start(&engine, &fabric(), catch_up).ok_or(Errno::MFILE)?;
    drop(engine);
    let channel = manager.open()?;
    if descriptors::set(channel.as_raw_fd(), Descriptor::Connections) {
        return Ok(channel);
    }
    manager.close(channel.as_raw_fd());
    Err(Errno::MFILE)
}

/// Runs a command that was written to a channel of the connection manager.
///
/// # Errors
///
/// For `errno`.
///
/// # Safety
///
/// It comes from librdmacm: the response that it names is memory of this process.
pub unsafe fn connection_command(fd: RawFd, bytes: &[u8]) -> Result<(), Errno> {
    let manager = cm::get().ok_or(Errno::IO)?;
    // SAFETY: by contract.
    unsafe { manager.command(fd, bytes) }.map_err(|refusal| {
        if !matches!(refusal.errno, Errno::AGAIN | Errno::INTR) {
            explain(format_args!("{refusal}"));
        }
        refusal.errno
    })
}

/// A descriptor is about to be closed: a device loses its objects, a channel its pipe.
pub fn close(fd: RawFd) {
    let was = descriptors::kind(fd);
    if matches!(was, Descriptor::Hidden | Descriptor::Inherited) {
        descriptors::set(fd, Descriptor::Other);
    }
    let is_ours = matches!(was, Descriptor::Device | Descriptor::Channel | Descriptor::Connections);
    if !is_ours {
        return;
    }
    descriptors::set(fd, Descriptor::Other);
    if was == Descriptor::Connections {
        if let Some(manager) = cm::get() {
            manager.close(fd);
        }
        return;
    }
    let Some(Turn(mut engine)) = Turn::take() else { return };
    if was == Descriptor::Device {
        engine.close(context_of(fd));
    } else {
        engine.channels.remove(&fd);
    }
}

/// `copy` is another descriptor of what `fd` is, and whatever it was before is closed.
pub fn duplicated(fd: RawFd, copy: RawFd) {
    if copy >= 0 && copy != fd && is_device(fd) {
        close(copy);
        descriptors::set(copy, Descriptor::Inherited);
    }
}

fn context_of(fd: RawFd) -> u32 {
    u32::try_from(fd).unwrap_or(0)
}

/// Runs a command that was written to a device.
///
/// # Errors
///
/// For `errno`.
///
/// # Safety
///
/// It comes from libibverbs and libmlx5: what it names is memory of this process, and stays until the object is
/// destroyed.
pub unsafe fn command(fd: RawFd, bytes: &[u8]) -> Result<(), Errno> {
    if descriptors::kind(fd) == Descriptor::Inherited {
        explain(format_args!("a command on a copy of a device, or in a child of its process"));
        return Err(Errno::IO);
    }
    let Some(Turn(mut engine)) = Turn::take() else {
        explain(format_args!("there is no software NIC in this process"));
        return Err(Errno::IO);
    };
    // A port that has ended is forgotten before anything is connected to another one of the same LID.
    engine.step();
    // SAFETY: by contract.
    let ran = unsafe { commands::run(&mut engine, context_of(fd), bytes) };
    engine.step();
    ran.map_err(|refusal: Refusal| {
        explain(format_args!("{refusal}"));
        refusal.errno
    })
}

/// A page of doorbell registers, or that of the clock: the descriptor of the memory that the program is to map. Offsets are
/// those of the mlx5 driver, whose page number says in its upper bits what is to be mapped.
///
/// # Errors
///
/// For `errno`.
pub fn doorbells(len: usize, offset: u64) -> Result<OwnedFd, Errno> {
    const REGULAR: [u64; 3] = [0, 2, 3];
    let command = (offset / 4096) >> 8;
    if command == clock_page::COMMAND {
        return clock_page::create(len);
    }
    if !REGULAR.contains(&command) {
        explain(format_args!("mapping {command} of the driver: the software NIC lacks it"));
        return Err(Errno::OPNOTSUPP);
    }
    let region = Region::memfd("copyrpc-uar", len).map_err(|_| Errno::NOMEM)?;
    let fd = region.fd().ok_or(Errno::NOMEM)?.try_clone_to_owned().map_err(|_| Errno::MFILE)?;
    let Turn(mut engine) = Turn::take().ok_or(Errno::IO)?;
    engine.doorbells.push(region.detach());
    Ok(fd)
}

/// A row of this process's GID table, as sysfs shows it.
#[must_use]
pub fn gid(row: usize) -> Option<String> {
    let Turn(engine) = Turn::take()?;
    let bytes = engine.gid_table().get(row)?.to_bytes();
    let groups: Vec<String> =
        bytes.chunks_exact(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect();
    Some(format!("{}\n", groups.join(":")))
}

/// A thread of the program has found nothing: it does the engine's work if nobody else does. Whether there was any.
pub fn poll_engine() -> bool {
    polls::found_nothing();
    let Some(engine) = ENGINE.get().and_then(Option::as_ref) else { return false };
    let Ok(mut engine) = engine.try_lock() else { return false };
    let did = engine.step();
    polls::worked();
    did
}

/// Takes in what has arrived, and so completes it.
fn catch_up() {
    if let Some(Turn(mut engine)) = Turn::take() {
        engine.catch_up();
    }
}

/// A thread of the program has posted: it sends that if nobody else does.
pub fn send_posted() {
    let Some(engine) = ENGINE.get().and_then(Option::as_ref) else { return };
    if let Ok(mut engine) = engine.try_lock() {
        engine.step_sends();
    }
}

/// In the child of a `fork`: what it has of its parent's port is closed, so that the port ends with the parent. Devices
/// that the parent has opened are of no use here; the child may open its own.
pub fn forked() {
    per_process::forked();
    WANTED.store(0, Ordering::Relaxed);
    for fd in descriptors::inherit() {
        // SAFETY: the child's copy of a descriptor that nothing in the child uses any more.
        unsafe { rustix::io::close(fd) };
    }
}

/// The process ends: answers that wait are sent, and peers are told that this is a good end.
pub fn finish() {
    let Some(engine) = ENGINE.get().and_then(Option::as_ref) else { return };
    WANTED.fetch_add(1, Ordering::Relaxed);
    // Not for ever: the thread that has it may be the one that ends the process.
    let deadline_ns = os::clock::now_ns() + FINISH_NS;
    while os::clock::now_ns() < deadline_ns {
        if let Ok(mut engine) = engine.try_lock() {
            return engine.finish(64);
        }
        std::thread::yield_now();
    }
}

/// The engine's own thread.
fn work(engine: &'static Mutex<Engine>) {
    // Its sleeps are short. Without it they last 50 µs longer.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let mut worked_ns = 0;
    loop {
        let now_ns = os::clock::now_ns();
        let polled_ns = polls::last_ns_ago();
        let is_alert = now_ns.saturating_sub(worked_ns) < ALERT_NS;
        if polled_ns < if is_alert { POLLED_NOW_NS } else { POLLED_LATELY_NS } {
            std::thread::sleep(if is_alert { SLEEP_ALERT } else { SLEEP_BESIDE });
            continue;
        }
        if WANTED.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now();
        }
        let mut guard = engine.lock().unwrap_or_else(PoisonError::into_inner);
        if guard.step() {
            worked_ns = now_ns;
            continue;
        }
        let is_busy = now_ns.saturating_sub(worked_ns) < BUSY_NS;
        let timeout = match guard.is_used() {
            true if is_busy => SLEEP_BUSY,
            true => SLEEP_USED,
            false => SLEEP_UNUSED,
        };
        let descriptors: Vec<RawFd> =
            guard.descriptors().into_iter().map(|fd| fd.as_raw_fd()).collect();
        drop(guard);
        sleep(&descriptors, timeout);
    }
}

/// Sleeps until one of the descriptors is readable. One that another thread closes meanwhile ends the sleep, or
/// makes it last its time.
fn sleep(descriptors: &[RawFd], timeout: Duration) {
    let mut fds: Vec<PollFd<'_>> = descriptors
        .iter()
        // SAFETY: only numbers for `poll`, which refuses what is closed.
        .map(|fd| PollFd::from_borrowed_fd(unsafe { BorrowedFd::borrow_raw(*fd) }, PollFlags::IN))
        .collect();
    let timeout = Timespec::try_from(timeout).ok();
    let _ = poll(&mut fds, timeout.as_ref());
}
