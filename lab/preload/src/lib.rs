//! What `copyrpc-lab uverbs run` preloads: the calls of libc by which a verbs library reaches its kernel. Calls for
//! anything else go to the kernel as they are.
//!
//! | function | for the device |
//! |---|---|
//! | `open`, `open64`, `openat`, `openat64` | opens `/dev/null`, whose number the sysfs tree gives the device; or a channel of the connection manager |
//! | `stat`, `fstat`, `access` | it is there |
//! | `write` | runs a command |
//! | `ioctl` | a method that is absent (EPROTONOSUPPORT), so that libibverbs writes a command where there is one |
//! | `mmap` | maps doorbell registers |
//! | `close` | destroys what is left |
//! | `dup`, `fcntl`, `fcntl64` | a copy of a device's descriptor is known as one, on which commands are refused |
//! | `socket` | refuses RDMA netlink, which would tell of the kernel's devices |
//! | `ibv_open_device` | hooks `post_send` and `poll_cq`, so that the thread that polls does the NIC's work |

use std::{
    ffi::{CStr, c_char, c_int, c_long, c_uint, c_void},
    os::fd::{AsRawFd as _, IntoRawFd as _},
    sync::Once,
};

use uverbs::{process, sysfs};

pub mod hooks;

/// What the loader calls before the program begins. The function looks at none of what the loader passes.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = {
    extern "C" fn begin() {
        uverbs::launch::end_with_parent();
    }
    begin
};

/// Fails a call as libc does.
fn fail(errno: c_int) -> c_int {
    // SAFETY: it has no conditions.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the calling thread's own variable.
    unsafe { place.write(errno) };
    -1
}

fn narrow(result: c_long) -> c_int {
    c_int::try_from(result).unwrap_or(-1)
}

/// # Safety
///
/// `path` is a text that ends with a zero byte, or null.
unsafe fn is_device(path: *const c_char) -> bool {
    // SAFETY: by contract.
    !path.is_null() && unsafe { CStr::from_ptr(path) } == sysfs::DEVICE
}

/// Runs before the first call that matters: what becomes of the port in a child, and at the end.
fn prepare() {
    static ONCE: Once = Once::new();
    extern "C" fn child() {
        process::forked();
    }
    extern "C" fn end() {
        process::finish();
    }
    ONCE.call_once(|| {
        // SAFETY: both functions live as long as the process, and may run at any time.
        unsafe { libc::pthread_atfork(None, None, Some(child)) };
        // SAFETY: as above.
        unsafe { libc::atexit(end) };
    });
}

/// # Safety
///
/// As for `openat(2)`.
unsafe fn open_at(dir: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: by contract.
    if unsafe { is_device(path) } {
        prepare();
        let null = c"/dev/null".as_ptr();
        let flags = libc::O_RDWR | libc::O_CLOEXEC;
        // SAFETY: a constant path.
        let fd = narrow(unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, null, flags, 0) });
        if fd >= 0 && !process::open_device(fd) {
            // SAFETY: the descriptor was just opened, and nobody else knows it.
            unsafe { libc::syscall(libc::SYS_close, fd) };
            return fail(libc::EIO);
        }
        return fd;
    }
    // SAFETY: by contract.
    if !path.is_null() && unsafe { CStr::from_ptr(path) } == sysfs::CONNECTION_MANAGER {
        prepare();
        return match process::open_connection_manager() {
            Ok(channel) => channel.into_raw_fd(),
            Err(errno) => fail(errno.raw_os_error()),
        };
    }
    let text = if path.is_null() {
        c""
    } else {
        // SAFETY: by contract.
        unsafe { CStr::from_ptr(path) }
    };
    let bytes = text.to_bytes();
    if let Some(row) = sysfs::gid_row(bytes) {
        prepare();
        if let Some(file) = process::gid(row).and_then(|text| sysfs::text_file(&text)) {
            return file.into_raw_fd();
        }
    }
    if let Some(here) = sysfs::redirected(bytes) {
        // SAFETY: by contract, of another path.
        return narrow(unsafe { libc::syscall(libc::SYS_openat, dir, here.as_ptr(), flags, mode) });
    }
    // SAFETY: by contract.
    narrow(unsafe { libc::syscall(libc::SYS_openat, dir, path, flags, mode) })
}

/// # Safety
///
/// As for `open(2)`. The mode is there if `flags` ask for it; else it is not used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: by contract.
    unsafe { open_at(libc::AT_FDCWD, path, flags, mode) }
}

/// # Safety
///
/// As for [`open`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: by contract.
    unsafe { open_at(libc::AT_FDCWD, path, flags | libc::O_LARGEFILE, mode) }
}

/// # Safety
///
/// As for `openat(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openat(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mode: c_uint,
) -> c_int {
    // SAFETY: by contract.
    unsafe { open_at(dir, path, flags, mode) }
}

/// # Safety
///
/// As for `openat(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openat64(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mode: c_uint,
) -> c_int {
    // SAFETY: by contract.
    unsafe { open_at(dir, path, flags | libc::O_LARGEFILE, mode) }
}

/// # Safety
///
/// As for `stat(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stat(path: *const c_char, into: *mut libc::stat) -> c_int {
    // SAFETY: by contract.
    let path = if unsafe { is_device(path) } { c"/dev/null".as_ptr() } else { path };
    // SAFETY: by contract.
    narrow(unsafe { libc::syscall(libc::SYS_newfstatat, libc::AT_FDCWD, path, into, 0) })
}

/// # Safety
///
/// As for `fstat(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fstat(fd: c_int, into: *mut libc::stat) -> c_int {
    // SAFETY: by contract.
    let result = narrow(unsafe { libc::syscall(libc::SYS_fstat, fd, into) });
    if result == 0 && process::is_connection_channel(fd) {
        // SAFETY: by contract, and the kernel has just written it.
        let into = unsafe { &mut *into };
        into.st_mode = into.st_mode & !libc::S_IFMT | libc::S_IFCHR;
    }
    result
}

/// # Safety
///
/// As for `access(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: by contract.
    if unsafe { is_device(path) } {
        return 0;
    }
    // SAFETY: by contract.
    narrow(unsafe { libc::syscall(libc::SYS_faccessat, libc::AT_FDCWD, path, mode) })
}

/// # Safety
///
/// As for `ioctl(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: libc::c_ulong, argument: *mut c_void) -> c_int {
    if process::is_device(fd) {
        return fail(libc::EPROTONOSUPPORT);
    }
    // SAFETY: by contract.
    narrow(unsafe { libc::syscall(libc::SYS_ioctl, fd, request, argument) })
}

/// # Safety
///
/// As for `write(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, bytes: *const c_void, len: usize) -> isize {
    let is_connection = process::is_connection_channel(fd);
    if !is_connection && !process::is_device(fd) {
        // SAFETY: by contract.
        let written = unsafe { libc::syscall(libc::SYS_write, fd, bytes, len) };
        return isize::try_from(written).unwrap_or(-1);
    }
    // SAFETY: by contract: the caller's bytes, which it does not change meanwhile.
    let command = unsafe { core::slice::from_raw_parts(bytes.cast::<u8>(), len) };
    let ran = if is_connection {
        // SAFETY: only librdmacm, which has opened it, writes to it.
        unsafe { process::connection_command(fd, command) }
    } else {
        // SAFETY: only the libraries that have opened the device write to it.
        unsafe { process::command(fd, command) }
    };
    match ran {
        Ok(()) => len as isize,
        Err(errno) => fail(errno.raw_os_error()) as isize,
    }
}

/// # Safety
///
/// As for `close(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    process::close(fd);
    // SAFETY: by contract.
    narrow(unsafe { libc::syscall(libc::SYS_close, fd) })
}

/// # Safety
///
/// As for `dup(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup(fd: c_int) -> c_int {
    // SAFETY: by contract.
    let copy = narrow(unsafe { libc::syscall(libc::SYS_dup, fd) });
    process::duplicated(fd, copy);
    copy
}

/// # Safety
///
/// As for `fcntl(2)`. The argument is there if the command has one; else it is not used.
unsafe fn control(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: by contract.
    let result = narrow(unsafe { libc::syscall(libc::SYS_fcntl, fd, command, argument) });
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
        process::duplicated(fd, result);
    }
    result
}

/// # Safety
///
/// As for `fcntl(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: by contract.
    unsafe { control(fd, command, argument) }
}

/// # Safety
///
/// As for `fcntl(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: by contract.
    unsafe { control(fd, command, argument) }
}

/// # Safety
///
/// As for `mmap(2)`.
#[unsafe(export_name = "mmap")]
pub unsafe extern "C" fn map(
    at: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    if fd < 0 || !process::is_device(fd) {
        // SAFETY: by contract.
        let mapped =
            unsafe { libc::syscall(libc::SYS_mmap, at, len, protection, flags, fd, offset) };
        return mapped as *mut c_void;
    }
    match process::doorbells(len, offset.unsigned_abs()) {
        Err(errno) => {
            fail(errno.raw_os_error());
            libc::MAP_FAILED
        }
        Ok(page) => {
            let (protection, page) = (libc::PROT_READ | libc::PROT_WRITE, page.as_raw_fd());
            // As wide as a register: of a narrower argument the kernel would read what lies beside it.
            const OFFSET: libc::off_t = 0;
            // SAFETY: by contract; the file is as long as what is mapped.
            let mapped =
                unsafe { libc::syscall(libc::SYS_mmap, at, len, protection, flags, page, OFFSET) };
            mapped as *mut c_void
        }
    }
}

/// # Safety
///
/// As for `socket(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(family: c_int, kind: c_int, protocol: c_int) -> c_int {
    const RDMA: c_int = 20;
    if family == libc::AF_NETLINK && protocol == RDMA {
        return fail(libc::EPROTONOSUPPORT);
    }
    // SAFETY: by contract.
    narrow(unsafe { libc::syscall(libc::SYS_socket, family, kind, protocol) })
}
