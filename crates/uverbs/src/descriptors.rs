//! What the descriptors of this process are: devices, channels of completion events, or the engine's own.

use std::os::fd::{AsRawFd, RawFd};

use memory::sync::{AtomicU8, Ordering};

/// Descriptors that are watched; others with greater numbers are never the device's.
const DESCRIPTORS: usize = 1 << 16;

/// What a descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Descriptor {
    Other = 0,
    Channel = 1,
    /// The program does not know it.
    Hidden = 2,
    /// A device; contexts are numbered by descriptor.
    Device = 3,
    /// A channel of the connection manager.
    Connections = 4,
}

use Descriptor::{Channel, Connections, Device, Hidden, Other};

static KINDS: [AtomicU8; DESCRIPTORS] = [const { AtomicU8::new(Other as u8) }; DESCRIPTORS];

fn entry(fd: RawFd) -> Option<&'static AtomicU8> {
    usize::try_from(fd).ok().and_then(|fd| KINDS.get(fd))
}

/// `Other` for a number that is not watched.
pub(crate) fn kind(fd: RawFd) -> Descriptor {
    let byte = entry(fd).map_or(Other as u8, |entry| entry.load(Ordering::Acquire));
    [Channel, Hidden, Device, Connections]
        .into_iter()
        .find(|kind| *kind as u8 == byte)
        .unwrap_or(Other)
}

/// Returns `false` if the number is too great to be watched.
pub(crate) fn set(fd: RawFd, to: Descriptor) -> bool {
    entry(fd).map(|entry| entry.store(to as u8, Ordering::Release)).is_some()
}

/// A descriptor that the program does not know, until it is closed.
pub(crate) fn hide(fd: &impl AsRawFd) {
    set(fd.as_raw_fd(), Hidden);
}

/// Descriptors that the program does not know.
pub(crate) fn hidden() -> impl Iterator<Item = RawFd> {
    (0..)
        .zip(&KINDS)
        .filter(|(_, kind)| kind.load(Ordering::Relaxed) == Hidden as u8)
        .map(|(fd, _)| fd)
}
