//! The system calls behind a [`Region`] that is backed by a file.

use core::{
    num::NonZeroUsize,
    ops::Range,
    ptr::{NonNull, null_mut},
};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::{
    fs::{FallocateFlags, MemfdFlags, SealFlags, SeekFrom},
    io::Errno,
    mm::{Advice, MapFlags, ProtFlags},
};

use super::{
    Backing, HUGE_PAGE_BYTES, MapError, Protection, Region, SealError, Unmapping, page_bytes,
    round_up,
};

/// The seals that a file needs before it can be mapped without fear of SIGBUS.
const SEAL_RESIZE: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
pub(super) const SEAL_SIZE: SealFlags = SEAL_RESIZE.union(SealFlags::SEAL);
pub(super) const SEAL_FUTURE_WRITE: SealFlags = SEAL_SIZE.union(SealFlags::FUTURE_WRITE);

/// `f_type` of a file on reserved huge pages, whose mappings are whole huge pages (`statfs(2)`).
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pages {
    Base,
    Reserved,
    Transparent,
    /// Base pages, allocated later.
    Sparse,
}

pub(super) fn create(
    name: &str,
    len_bytes: NonZeroUsize,
    pages: Pages,
) -> Result<Region, MapError> {
    let fail = |call, errno| MapError::from_errno(call, errno, len_bytes.get());
    let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    if pages == Pages::Reserved {
        flags |= MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    }
    let fd = rustix::fs::memfd_create(name, flags).map_err(|e| fail("memfd_create", e))?;
    rustix::fs::ftruncate(&fd, len_bytes.get() as u64).map_err(|e| fail("ftruncate", e))?;
    rustix::fs::fcntl_add_seals(&fd, SEAL_RESIZE).map_err(|e| fail("fcntl(F_ADD_SEALS)", e))?;
    let region = map_fd(fd, len_bytes, Protection::ReadWrite)?;
    if pages == Pages::Transparent {
        // SAFETY: the mapping was just made, and huge pages do not change what it contains.
        let advised = unsafe {
            rustix::mm::madvise(region.base.as_ptr().cast(), region.len(), Advice::LinuxHugepage)
        };
        // Advice that a kernel without transparent huge pages refuses: base pages do as well.
        let _ = advised;
    }
    if pages != Pages::Sparse {
        region.commit(0..region.len())?;
    }
    Ok(region)
}

pub(super) fn create_file(fd: OwnedFd, len_bytes: NonZeroUsize) -> Result<Region, MapError> {
    let fail = |call, errno| MapError::from_errno(call, errno, len_bytes.get());
    rustix::fs::ftruncate(&fd, len_bytes.get() as u64).map_err(|e| fail("ftruncate", e))?;
    let region = map_fd(fd, len_bytes, Protection::ReadWrite)?;
    region.commit(0..region.len())?;
    Ok(region)
}

pub(super) fn map_foreign(
    fd: OwnedFd,
    len_bytes: usize,
    access: Protection,
) -> Result<Region, MapError> {
    let seals = rustix::fs::fcntl_get_seals(&fd).map_err(|errno| match errno {
        Errno::INVAL => MapError::NotShareable,
        errno => MapError::Os { call: "fcntl(F_GET_SEALS)", errno },
    })?;
    if !seals.contains(SEAL_RESIZE) {
        return Err(MapError::Unsealed);
    }
    let len_bytes = round_up(len_bytes, file_page_bytes(&fd)?)?;
    let stat = rustix::fs::fstat(&fd).map_err(|errno| MapError::Os { call: "fstat", errno })?;
    let file_bytes = u64::try_from(stat.st_size).unwrap_or(0);
    if file_bytes < len_bytes.get() as u64 {
        return Err(MapError::TooShort { len_bytes: len_bytes.get(), file_bytes });
    }
    map_fd(fd, len_bytes, access)
}

pub(super) fn file_page_bytes(fd: &OwnedFd) -> Result<usize, MapError> {
    let stat = rustix::fs::fstatfs(fd).map_err(|errno| MapError::Os { call: "fstatfs", errno })?;
    let huge = u64::try_from(stat.f_type).is_ok_and(|magic| magic == HUGETLBFS_MAGIC);
    Ok(if huge { usize::try_from(stat.f_bsize).unwrap_or(HUGE_PAGE_BYTES) } else { page_bytes() })
}

fn map_fd(fd: OwnedFd, len_bytes: NonZeroUsize, access: Protection) -> Result<Region, MapError> {
    let prot = match access {
        Protection::ReadOnly => ProtFlags::READ,
        Protection::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
    };
    // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing that Rust knows.
    let base =
        unsafe { rustix::mm::mmap(null_mut(), len_bytes.get(), prot, MapFlags::SHARED, &fd, 0) };
    let base = base.map_err(|errno| match errno {
        Errno::PERM | Errno::ACCESS if access == Protection::ReadWrite => MapError::WriteDenied,
        errno => MapError::from_errno("mmap", errno, len_bytes.get()),
    })?;
    let base =
        NonNull::new(base.cast()).ok_or(MapError::NoMemory { len_bytes: len_bytes.get() })?;
    Ok(Region { base, len_bytes, access, backing: Backing::File(fd), unmapping: Unmapping::Here })
}

/// A mapping that nobody uses any more: it is unmapped with the value.
pub(super) struct Mapping {
    pub(super) base: NonNull<u8>,
    pub(super) len_bytes: NonZeroUsize,
}

// SAFETY: an address range belongs to no thread, and nobody else has this one.
unsafe impl Send for Mapping {}

impl Mapping {
    pub(super) fn end(self, unmapping: Unmapping) {
        if unmapping == Unmapping::Apart {
            let thread = std::thread::Builder::new().name("copyrpc-unmap".to_owned());
            // Without a thread the closure is dropped here, and the mapping with it.
            let _ = thread.spawn(move || drop(self));
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        unmap(self.base, self.len_bytes);
    }
}

pub(super) fn unmap(base: NonNull<u8>, len_bytes: NonZeroUsize) {
    // SAFETY: mapped by `map_fd` or `heap::allocate` with this length, and only its dropped owner unmaps it.
    let unmapped = unsafe { rustix::mm::munmap(base.as_ptr().cast(), len_bytes.get()) };
    debug_assert!(unmapped.is_ok(), "munmap of a whole mapping cannot fail: {unmapped:?}");
}

pub(super) fn allocate(fd: BorrowedFd<'_>, range_bytes: Range<usize>) -> Result<(), MapError> {
    let (offset, len) = (range_bytes.start as u64, range_bytes.len() as u64);
    rustix::io::retry_on_intr(|| rustix::fs::fallocate(fd, FallocateFlags::empty(), offset, len))
        .map_err(|errno| MapError::from_errno("fallocate", errno, range_bytes.len()))
}

/// Whether no page of a range is a hole. A page that was allocated and never written may count as one.
pub(super) fn has_pages(fd: BorrowedFd<'_>, range_bytes: Range<usize>) -> bool {
    let hole = rustix::fs::seek(fd, SeekFrom::Hole(range_bytes.start as u64));
    hole.is_ok_and(|hole| hole >= range_bytes.end as u64)
}

/// Whether all pages of a file are allocated. The kernel counts them; a search for holes would find those that were
/// allocated and never written, too.
pub(super) fn check_pages(fd: BorrowedFd<'_>) -> Result<(), MapError> {
    const BLOCK_BYTES: u64 = 512;
    let stat = rustix::fs::fstat(fd).map_err(|errno| MapError::Os { call: "fstat", errno })?;
    let file_bytes = u64::try_from(stat.st_size).unwrap_or(0);
    let allocated_bytes = u64::try_from(stat.st_blocks).unwrap_or(0) * BLOCK_BYTES;
    if allocated_bytes < file_bytes {
        return Err(MapError::Holes { file_bytes, allocated_bytes });
    }
    Ok(())
}

pub(super) fn append(
    fd: BorrowedFd<'_>,
    offset_bytes: usize,
    len_bytes: usize,
    to: &mut Vec<u8>,
) -> Result<(), MapError> {
    let mut copied_bytes = 0;
    while copied_bytes < len_bytes {
        let offset = (offset_bytes + copied_bytes) as u64;
        let spare = &mut to.spare_capacity_mut()[..len_bytes - copied_bytes];
        let read = match rustix::io::pread(fd, spare, offset) {
            Ok((read, _)) => read.len(),
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(MapError::Os { call: "pread", errno }),
        };
        if read == 0 {
            return Err(MapError::Os { call: "pread", errno: Errno::NODATA });
        }
        // SAFETY: the kernel has just initialized as many bytes of the spare capacity.
        unsafe { to.set_len(to.len() + read) };
        copied_bytes += read;
    }
    Ok(())
}

pub(super) fn seal(fd: BorrowedFd<'_>, seals: SealFlags) -> Result<(), SealError> {
    match rustix::fs::fcntl_add_seals(fd, seals) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) if has_seals(fd, seals) => Ok(()),
        Err(Errno::PERM) => Err(SealError::Final),
        Err(errno) => Err(SealError::Os(errno)),
    }
}

fn has_seals(fd: BorrowedFd<'_>, seals: SealFlags) -> bool {
    rustix::fs::fcntl_get_seals(fd.as_fd()).is_ok_and(|present| present.contains(seals))
}
