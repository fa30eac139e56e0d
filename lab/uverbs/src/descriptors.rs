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
    /// A device, or a channel of the connection manager, of a parent that has forked; or a copy of a device's descriptor.
    /// Commands on it are refused.
    Inherited = 5,
}

use Descriptor::{Channel, Connections, Device, Hidden, Inherited, Other};

static KINDS: [AtomicU8; DESCRIPTORS] = [const { AtomicU8::new(Other as u8) }; DESCRIPTORS];

fn entry(fd: RawFd) -> Option<&'static AtomicU8> {
    usize::try_from(fd).ok().and_then(|fd| KINDS.get(fd))
}

/// `Other` for a number that is not watched.
pub(crate) fn kind(fd: RawFd) -> Descriptor {
    let byte = entry(fd).map_or(Other as u8, |entry| entry.load(Ordering::Acquire));
    [Channel, Hidden, Device, Connections, Inherited]
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

/// In the child of a `fork`: what the program has is its parent's, and what it does not know is to be closed.
pub(crate) fn inherit() -> impl Iterator<Item = RawFd> {
    (0..).zip(&KINDS).filter_map(|(fd, _)| {
        let was = kind(fd);
        match was {
            Other | Inherited => {}
            Hidden | Channel => drop(set(fd, Other)),
            Device | Connections => drop(set(fd, Inherited)),
        }
        (was == Hidden).then_some(fd)
    })
}
