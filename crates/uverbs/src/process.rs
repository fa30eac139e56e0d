//! This process's port, as crate `preload` uses it: which descriptors are the device's, its commands, its thread.

use std::{
    fmt::Write as _,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd},
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use memory::{
    Region,
    sync::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

use crate::{
    commands::{self, Refusal},
    descriptors::{self, Descriptor},
    engine::Engine,
};

/// Name of the fabric; programs see each other only within one.
pub const FABRIC_ENV: &str = "COPYRPC_UVERBS_FABRIC";

/// Not empty: what is refused is told on standard error.
pub const EXPLAIN_ENV: &str = "COPYRPC_UVERBS_EXPLAIN";

static ENGINE: OnceLock<Option<Mutex<Engine>>> = OnceLock::new();
/// Threads of the program that want the engine: its own thread makes room.
static WANTED: AtomicU32 = AtomicU32::new(0);
/// When a thread of the program last did the engine's work.
static POLLED_NS: AtomicU64 = AtomicU64::new(0);
/// In a child after `fork`: the port is its parent's.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// A thread of the program that has polled so lately does the work; the own thread sleeps.
const POLLED_LATELY_NS: u64 = 500_000;

/// How long the own thread sleeps while others do its work, where it may be rung at any time, and where there is
/// nothing that could be rung.
const SLEEP_BESIDE: Duration = Duration::from_micros(200);
const SLEEP_BUSY: Duration = Duration::from_micros(20);
const SLEEP_USED: Duration = Duration::from_micros(500);
const SLEEP_UNUSED: Duration = Duration::from_millis(5);

/// Since the last work: how long it stays on the alert.
const BUSY_NS: u64 = 100_000_000;

/// Whether a descriptor is an open device.
#[must_use]
pub fn is_device(fd: RawFd) -> bool {
    descriptors::kind(fd) == Descriptor::Device
}

/// Says on standard error what is refused, if it is asked for.
fn explain(text: core::fmt::Arguments<'_>) {
    if std::env::var_os(EXPLAIN_ENV).is_some_and(|value| !value.is_empty()) {
        let mut line = String::new();
        let _ = writeln!(line, "copyrpc uverbs [{}]: {text}", std::process::id());
        let _ = rustix::io::write(rustix::stdio::stderr(), line.as_bytes());
    }
}

fn engine() -> Option<&'static Mutex<Engine>> {
    if IS_CHILD.load(Ordering::Relaxed) {
        return None;
    }
    let started = ENGINE.get_or_init(|| {
        let fabric = std::env::var(FABRIC_ENV).unwrap_or_else(|_| "default".to_owned());
        match Engine::start(&fabric) {
            Ok(engine) => Some(Mutex::new(engine)),
            Err(error) => {
                explain(format_args!("no software NIC: {error}"));
                None
            }
        }
    });
    static THREAD: OnceLock<()> = OnceLock::new();
    let engine = started.as_ref()?;
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

/// A descriptor is about to be closed: a device loses its objects, a channel its pipe.
pub fn close(fd: RawFd) {
    let was = descriptors::kind(fd);
    if was == Descriptor::Hidden {
        descriptors::set(fd, Descriptor::Other);
    }
    let is_ours = matches!(was, Descriptor::Device | Descriptor::Channel);
    if !is_ours || IS_CHILD.load(Ordering::Relaxed) {
        return;
    }
    descriptors::set(fd, Descriptor::Other);
    let Some(Turn(mut engine)) = Turn::take() else { return };
    if was == Descriptor::Device {
        engine.close(context_of(fd));
    } else {
        engine.channels.remove(&fd);
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
    let Some(Turn(mut engine)) = Turn::take() else {
        explain(format_args!("a command in a child of the process that opened the device"));
        return Err(Errno::IO);
    };
    // SAFETY: by contract.
    let ran = unsafe { commands::run(&mut engine, context_of(fd), bytes) };
    engine.step();
    ran.map_err(|refusal: Refusal| {
        explain(format_args!("{refusal}"));
        refusal.errno
    })
}

/// A page of doorbell registers: the descriptor of the memory that the program is to map. Offsets are those of the
/// mlx5 driver, whose page number says in its upper bits what is to be mapped.
///
/// # Errors
///
/// For `errno`.
pub fn doorbells(len: usize, offset: u64) -> Result<OwnedFd, Errno> {
    const REGULAR: [u64; 3] = [0, 2, 3];
    let command = (offset / 4096) >> 8;
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

/// The first entry of this process's GID table, as sysfs shows it.
#[must_use]
pub fn gid() -> Option<String> {
    let Turn(engine) = Turn::take()?;
    let [a, b, c, d, e, f, g, h] = commands::guid(engine.lid);
    let pairs = [[0xfe, 0x80], [0, 0], [0, 0], [0, 0], [a, b], [c, d], [e, f], [g, h]];
    let groups: Vec<String> =
        pairs.iter().map(|[high, low]| format!("{high:02x}{low:02x}")).collect();
    Some(format!("{}\n", groups.join(":")))
}

/// A thread of the program has posted, or found nothing: it does the engine's work if nobody else does. Whether
/// there was any.
pub fn poll_engine() -> bool {
    if IS_CHILD.load(Ordering::Relaxed) {
        return false;
    }
    let Some(engine) = ENGINE.get().and_then(Option::as_ref) else { return false };
    let Ok(mut engine) = engine.try_lock() else { return false };
    let did = engine.step();
    POLLED_NS.store(os::clock::now_ns(), Ordering::Relaxed);
    did
}

/// In the child of a `fork`: what it has of its parent's port is closed, so that the port ends with the parent.
pub fn forked() {
    IS_CHILD.store(true, Ordering::Relaxed);
    for fd in descriptors::hidden() {
        // SAFETY: the child's copy of a descriptor that nothing in the child uses any more.
        unsafe { rustix::io::close(fd) };
    }
}

/// The process ends: answers that wait are sent.
pub fn finish() {
    if IS_CHILD.load(Ordering::Relaxed) {
        return;
    }
    if let Some(Ok(mut engine)) = ENGINE.get().and_then(Option::as_ref).map(Mutex::try_lock) {
        engine.finish(64);
    }
}

/// The engine's own thread.
fn work(engine: &'static Mutex<Engine>) {
    let mut worked_ns = 0;
    loop {
        let now_ns = os::clock::now_ns();
        if now_ns.saturating_sub(POLLED_NS.load(Ordering::Relaxed)) < POLLED_LATELY_NS {
            std::thread::sleep(SLEEP_BESIDE);
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
