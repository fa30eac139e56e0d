//! What the kernel tells of the other end of a Unix socket (`unix(7)`: `SO_PEERCRED`, `SO_PEERPIDFD`).
//!
//! `rustix` puts the process id of `SO_PEERCRED` into a type that has no zero, and zero is what the kernel says of a
//! process in a PID namespace that this process cannot see. So this module asks by itself, for three integers.
#![expect(unsafe_code, reason = "getsockopt(2) writes to memory that a pointer names")]

use std::{
    ffi::{c_int, c_void},
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd},
};

// Source: include/uapi/asm-generic/socket.h; all architectures that Rust has a tier 1 or 2 Linux target for use
// these, but mips, sparc and parisc.
const SOL_SOCKET: c_int = 1;
const SO_PEERCRED: c_int = 17;
const SO_PEERPIDFD: c_int = 77;

/// Credentials of the peer as the kernel recorded them when it connected or began to listen.
///
/// Source: `struct ucred`, include/linux/socket.h: `pid_t`, `uid_t`, `gid_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PeerCredentials {
    /// Process id in this process's PID namespace; 0: the process is in a namespace that this one does not see.
    pub pid: u32,
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
}

unsafe extern "C" {
    fn getsockopt(
        socket: c_int,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        len: *mut u32,
    ) -> c_int;
}

/// The value of a socket option. The kernel may write any bytes: `T` consists of integers.
fn option<T: Integers>(socket: impl AsFd, name: c_int) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut len = u32::try_from(size_of::<T>()).unwrap_or(0);
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: this function owns `value` and `len`, and the kernel writes at most `len` bytes to `value`.
    let done = unsafe { getsockopt(socket, SOL_SOCKET, name, value.as_mut_ptr().cast(), &mut len) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    if len as usize != size_of::<T>() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    // SAFETY: this function owns `value`; all of its bytes are written, and any bytes are integers.
    Ok(unsafe { value.assume_init() })
}

/// Types of which any bytes are a value.
trait Integers {}
impl Integers for c_int {}
impl Integers for PeerCredentials {}

/// Credentials of the process at the other end of a Unix socket.
///
/// # Errors
///
/// The kernel's reason: `socket` is no Unix socket.
pub(crate) fn of(socket: impl AsFd) -> io::Result<PeerCredentials> {
    option(socket, SO_PEERCRED)
}

/// A pidfd of the process at the other end, which may be in a PID namespace that this process does not see.
///
/// # Errors
///
/// The kernel's reason: it is older than Linux 6.5, the process is gone, or no descriptor is left.
pub(crate) fn pidfd(socket: impl AsFd) -> io::Result<OwnedFd> {
    let fd = option(socket, SO_PEERPIDFD)?;
    // SAFETY: the kernel has made this descriptor, close-on-exec, for this process, and this function owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::ready;
    use rustix::event::PollFlags;

    #[test]
    fn both_ends_of_a_pair_belong_to_this_process() {
        let (one, _other) = UnixStream::pair().unwrap();
        let peer = of(&one).unwrap();
        let uid = rustix::process::geteuid().as_raw();
        assert_eq!((peer.pid, peer.uid), (std::process::id(), uid));
        // Linux before 6.5 has no such option.
        if let Ok(pidfd) = pidfd(&one) {
            assert_eq!(ready::wait(&pidfd, PollFlags::IN, crate::clock::NOW), Ok(false));
        }
    }

    #[test]
    fn what_is_no_socket_has_no_peer() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(of(&file).unwrap_err().raw_os_error(), Some(88), "ENOTSOCK");
    }
}
