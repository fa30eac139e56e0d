//! Regions: mappings with an owner, unmapped when the last owner drops them.
//!
//! | made by | backed by | who else may access it |
//! |---|---|---|
//! | [`Region::heap`] | zeroed pages, taken when written | threads of this process, a device |
//! | [`Region::memfd`] | memfd, every page allocated | whoever receives [`Region::fd`] |
//! | [`Region::sparse_memfd`] | memfd, pages allocated by [`Region::commit`] | the same |
//! | [`Region::map`] | somebody else's memfd | its creator, and whoever else has it |
//! | [`Region::file`] | a file, every page allocated | whoever may open the file |
//! | [`Region::lent`] | memory of the program | threads of this process |
//!
//! A mapped file is a promise of its length: touching a page past the end of the file, or one that
//! the file system cannot allocate, kills the process with SIGBUS. Hence a region made here is
//! sealed against resizing from birth and allocated before use, and one made elsewhere is mapped
//! only if its creator sealed it (`memfd_create(2)`, "File sealing"). A file with a name cannot be
//! sealed: [`Region::file`] is for what must outlive its process, in folders that others cannot enter.
//!
//! A read-only descriptor does not keep its holder from writing: it can be reopened read-write
//! through `/proc/self/fd`. [`Region::seal_future_write`] does.
//!
//! Mappings stay in the child of a `fork(2)` (no `MADV_DONTFORK`), as a program that forks while it
//! uses a library would otherwise crash in a place that has nothing to do with its cause.

use core::{num::NonZeroUsize, ops::Range, ptr::NonNull};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::io::Errno;

mod error;
mod heap;
mod map;

pub use error::{MapError, MapFault, SealError};

/// Bytes of a base page, to which lengths are rounded up and at which regions are aligned.
///
/// AArch64 kernels may use larger pages; rounding asks the kernel there.
const PAGE_BYTES_MIN: usize = 4096;

/// Bytes of the huge page that [`Region::memfd_huge`] asks for.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// The access of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Loads only; a store would raise SIGSEGV, so the safe API refuses to make one.
    ReadOnly,
    /// Loads and stores.
    ReadWrite,
}

/// One mapping, owned. Share it by `Arc`.
///
/// The address and length never change while it lives. It hands out no reference to its bytes; see
/// [`Span`](crate::Span).
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    len_bytes: NonZeroUsize,
    access: Protection,
    backing: Backing,
    unmapping: Unmapping,
}

/// The thread that unmaps a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unmapping {
    /// The one that drops it.
    Here,
    /// One of its own.
    Apart,
}

/// From this length on it is worth a thread to unmap a region: the kernel looks at each page.
const APART_BYTES_MIN: usize = 16 << 20;

#[derive(Debug)]
enum Backing {
    Heap,
    File(OwnedFd),
    /// A file whose descriptor was closed.
    Detached,
    /// Somebody else's memory in this process.
    Lent,
}

// SAFETY: a region is an address range that belongs to no thread; unmapping works from any.
unsafe impl Send for Region {}
// SAFETY: `&Region` gives access to bytes only by atomics, by `crate::copy` (which tolerates
// concurrent writers) and by raw pointers, whose users take responsibility themselves.
unsafe impl Sync for Region {}

impl Region {
    /// Allocates at least `len_bytes` zeroed bytes that only this process can reach. Pages that nobody writes
    /// take no memory.
    ///
    /// # Errors
    ///
    /// [`MapError::BadLength`] and [`MapError::NoMemory`].
    pub fn heap(len_bytes: usize) -> Result<Self, MapError> {
        let len_bytes = round_up(len_bytes, page_bytes())?;
        let base = heap::allocate(len_bytes);
        let base = base.ok_or(MapError::NoMemory { len_bytes: len_bytes.get() })?;
        Ok(Self {
            base,
            len_bytes,
            access: Protection::ReadWrite,
            backing: Backing::Heap,
            unmapping: Unmapping::Here,
        })
    }

    /// Creates a memfd of at least `len_bytes` zeroed bytes, every page of it allocated, and maps
    /// it read-write. `name` shows in `/proc/PID/maps`; it need not be unique.
    ///
    /// # Errors
    ///
    /// [`MapError`]; in particular [`MapError::NoSpace`] now instead of SIGBUS later.
    pub fn memfd(name: &str, len_bytes: usize) -> Result<Self, MapError> {
        map::create(name, round_up(len_bytes, page_bytes())?, map::Pages::Base)
    }

    /// Like [`memfd`](Self::memfd), on huge pages if the machine has some to give.
    ///
    /// Tries reserved 2 MiB pages first, then transparent ones (`madvise(2)`, `MADV_HUGEPAGE`), and
    /// settles for base pages. The length is rounded up to 2 MiB in any case.
    ///
    /// # Errors
    ///
    /// As for [`memfd`](Self::memfd); lack of huge pages is none.
    pub fn memfd_huge(name: &str, len_bytes: usize) -> Result<Self, MapError> {
        let len_bytes = round_up(len_bytes, HUGE_PAGE_BYTES)?;
        map::create(name, len_bytes, map::Pages::Reserved)
            .or_else(|_| map::create(name, len_bytes, map::Pages::Transparent))
    }

    /// Like [`memfd_huge`](Self::memfd_huge), without reserved pages: advice about a part of the mapping is taken.
    ///
    /// # Errors
    ///
    /// As for [`memfd_huge`](Self::memfd_huge).
    pub fn memfd_transparent(name: &str, len_bytes: usize) -> Result<Self, MapError> {
        map::create(name, round_up(len_bytes, HUGE_PAGE_BYTES)?, map::Pages::Transparent)
    }

    /// Creates a memfd of at least `len_bytes` zeroed bytes and maps it read-write, but allocates no
    /// page: touch only what [`commit`](Self::commit) allocated.
    ///
    /// # Errors
    ///
    /// [`MapError`].
    pub fn sparse_memfd(name: &str, len_bytes: usize) -> Result<Self, MapError> {
        map::create(name, round_up(len_bytes, page_bytes())?, map::Pages::Sparse)
    }

    /// Maps at least `len_bytes` of a memfd that another process created and sealed.
    ///
    /// # Errors
    ///
    /// [`MapError::Unsealed`] if its creator could still truncate it, [`MapError::TooShort`] if it
    /// does not hold `len_bytes`, [`MapError::NotShareable`] if it is no memfd at all,
    /// [`MapError::WriteDenied`] if it is sealed against writing, and others of [`MapError`].
    pub fn map(fd: OwnedFd, len_bytes: usize, access: Protection) -> Result<Self, MapError> {
        map::map_foreign(fd, len_bytes, access)
    }

    /// As [`map`](Self::map), writable, of memory all of whose pages its creator has allocated. Memory on reserved huge
    /// pages is refused: its creator can take pages away at any time, and a page that is gone may not be had again.
    ///
    /// # Errors
    ///
    /// [`MapError`], [`MapError::NotShareable`] also for reserved huge pages, [`MapError::Holes`].
    pub fn map_lent(fd: OwnedFd, len_bytes: usize) -> Result<Self, MapError> {
        let region = Self::map_base_pages(fd, len_bytes, Protection::ReadWrite)?;
        region.check_pages().map(|()| region)
    }

    /// As [`map_lent`](Self::map_lent), and seals the memory, so that its creator takes no page away. Nobody maps it
    /// for writing any more.
    ///
    /// # Errors
    ///
    /// As of [`map_lent`](Self::map_lent), and [`MapError::SealsFinal`].
    pub fn map_sealed(fd: OwnedFd, len_bytes: usize) -> Result<Self, MapError> {
        let region = Self::map_base_pages(fd, len_bytes, Protection::ReadWrite)?;
        region.seal_future_write().map_err(|_| MapError::SealsFinal)?;
        // After the seal: nobody takes away what is found here.
        region.check_pages().map(|()| region)
    }

    /// As [`map`](Self::map), and refuses memory on reserved huge pages.
    ///
    /// # Errors
    ///
    /// [`MapError`], [`MapError::NotShareable`] also for reserved huge pages.
    pub fn map_base_pages(
        fd: OwnedFd,
        len_bytes: usize,
        access: Protection,
    ) -> Result<Self, MapError> {
        if map::file_page_bytes(&fd)? != page_bytes() {
            return Err(MapError::NotShareable);
        }
        map::map_foreign(fd, len_bytes, access)
    }

    /// Whether every page of the file is allocated, whoever wrote to it or not. On the heap always, and if the region was
    /// [detached](Self::detach) or is [lent](Self::is_lent), nobody can tell.
    ///
    /// # Errors
    ///
    /// [`MapError::Holes`], [`MapError::Os`].
    pub fn check_pages(&self) -> Result<(), MapError> {
        match &self.backing {
            Backing::Heap | Backing::Detached | Backing::Lent => Ok(()),
            Backing::File(fd) => map::check_pages(fd.as_fd()),
        }
    }

    /// Maps a file that this process just created, at least `len_bytes` of zeros, every page of it
    /// allocated. What is stored stays readable in the file after the process has died.
    ///
    /// Whoever truncates the file kills this process by SIGBUS, so it belongs in a folder that only
    /// this user can enter.
    ///
    /// # Errors
    ///
    /// [`MapError`]; in particular [`MapError::NoSpace`] now instead of SIGBUS later.
    pub fn file(fd: OwnedFd, len_bytes: usize) -> Result<Self, MapError> {
        map::create_file(fd, round_up(len_bytes, page_bytes())?)
    }

    /// Memory of the program that this crate neither made nor gives back. `None`: it is empty, or wraps.
    ///
    /// # Safety
    ///
    /// As for memory that other threads write: whoever accesses the bytes asks before each access whether they
    /// are [there](crate::lent::is_there), and its owner forms no reference to them that this would break.
    #[must_use]
    pub unsafe fn lent(base: NonNull<u8>, len_bytes: usize) -> Option<Self> {
        let fits =
            isize::try_from(len_bytes).is_ok() && base.addr().checked_add(len_bytes).is_some();
        let len_bytes = NonZeroUsize::new(len_bytes).filter(|_| fits)?;
        Some(Self {
            base,
            len_bytes,
            access: Protection::ReadWrite,
            backing: Backing::Lent,
            unmapping: Unmapping::Here,
        })
    }

    /// Whether somebody else owns the bytes, and may take them away.
    #[must_use]
    pub fn is_lent(&self) -> bool {
        matches!(self.backing, Backing::Lent)
    }

    /// Allocates the pages of a byte range of a [`sparse_memfd`](Self::sparse_memfd). Allocating
    /// twice is harmless; on the heap, where nothing is sparse, there is nothing to do.
    ///
    /// # Errors
    ///
    /// [`MapError::BadLength`] if the range is not inside the region, [`MapError::NoSpace`],
    /// [`MapError::Os`] if the region was [detached](Self::detach).
    pub fn commit(&self, range_bytes: Range<usize>) -> Result<(), MapError> {
        if range_bytes.start > range_bytes.end || range_bytes.end > self.len() {
            return Err(MapError::BadLength { len_bytes: range_bytes.end });
        }
        match &self.backing {
            Backing::Heap | Backing::Lent => Ok(()),
            Backing::File(_) if range_bytes.is_empty() => Ok(()),
            Backing::File(fd) => map::allocate(fd.as_fd(), range_bytes),
            Backing::Detached => Err(MapError::Os { call: "fallocate", errno: Errno::BADF }),
        }
    }

    /// Appends a copy of `len_bytes` bytes, made by a system call instead of the mapping: pages that
    /// another process has taken away read as zeros, and no memory is needed for them. On the heap, whose
    /// pages nobody takes, by loads. If it fails, some of the bytes may have been appended.
    ///
    /// # Errors
    ///
    /// [`MapError::BadLength`] if the range is not inside the region, [`MapError::NoMemory`] if `to`
    /// cannot grow, [`MapError::Os`], also if the region was [detached](Self::detach).
    pub fn append_to(
        &self,
        offset_bytes: usize,
        len_bytes: usize,
        to: &mut Vec<u8>,
    ) -> Result<(), MapError> {
        let end = offset_bytes.checked_add(len_bytes).filter(|end| *end <= self.len());
        let Some(_) = end else { return Err(MapError::BadLength { len_bytes }) };
        to.try_reserve(len_bytes).map_err(|_| MapError::NoMemory { len_bytes })?;
        match &self.backing {
            Backing::Heap | Backing::Lent => {
                let (from, begin) = (self.base.as_ptr().wrapping_add(offset_bytes), to.len());
                to.resize(begin + len_bytes, 0);
                // SAFETY: inside the region by the check above, mapped while `self` lives; nobody forms a
                // reference to its bytes.
                unsafe { crate::copy::copy_in(&mut to[begin..], from) };
                Ok(())
            }
            Backing::File(fd) => map::append(fd.as_fd(), offset_bytes, len_bytes, to),
            Backing::Detached => Err(MapError::Os { call: "pread", errno: Errno::BADF }),
        }
    }

    /// Like [`append_to`](Self::append_to), by loads from the mapping, which takes a third of the time: for
    /// pages that are [present](Self::is_present) and that nobody can take away any more.
    ///
    /// # Errors
    ///
    /// [`MapError::BadLength`] and [`MapError::NoMemory`].
    pub fn append_present_to(
        &self,
        offset_bytes: usize,
        len_bytes: usize,
        to: &mut Vec<u8>,
    ) -> Result<(), MapError> {
        let end = offset_bytes.checked_add(len_bytes).filter(|end| *end <= self.len());
        let Some(_) = end else { return Err(MapError::BadLength { len_bytes }) };
        to.try_reserve(len_bytes).map_err(|_| MapError::NoMemory { len_bytes })?;
        let from = self.base.as_ptr().wrapping_add(offset_bytes).cast_const();
        let spare = to.spare_capacity_mut().as_mut_ptr().cast::<u8>();
        // SAFETY: `spare` is private and has room for as many bytes. The source is inside the region by
        // the check above and mapped while `self` lives; nobody forms a reference to its bytes.
        unsafe { crate::copy::copy_between(spare, from, len_bytes) };
        // SAFETY: that many bytes behind the length were just written.
        unsafe { to.set_len(to.len() + len_bytes) };
        Ok(())
    }

    /// Whether the file has all pages of a range, so that nothing is to be allocated when they are touched.
    /// It stays so if nobody can take pages away: see [`seal_future_write`](Self::seal_future_write). On the
    /// heap always; not if the region was [detached](Self::detach), or if its memory is [lent](Self::is_lent).
    #[must_use]
    pub fn is_present(&self, range_bytes: Range<usize>) -> bool {
        if range_bytes.start > range_bytes.end || range_bytes.end > self.len() {
            return false;
        }
        match &self.backing {
            Backing::Heap => true,
            Backing::File(_) if range_bytes.is_empty() => true,
            Backing::File(fd) => map::has_pages(fd.as_fd(), range_bytes),
            Backing::Detached | Backing::Lent => false,
        }
    }

    /// Fixes the set of seals: the file cannot be resized (that it could not before either), and no
    /// receiver can add a seal of its own.
    ///
    /// # Errors
    ///
    /// [`SealError`].
    pub fn seal_size(&self) -> Result<(), SealError> {
        map::seal(self.fd().ok_or(SealError::NotAFile)?, map::SEAL_SIZE)
    }

    /// Leaves this mapping, and those made before, as the only ones that can write: every new
    /// writable mapping, `write(2)` and hole punching is refused from now on, whoever holds the
    /// descriptor and however it is reopened. Also fixes the size and the set of seals.
    ///
    /// # Errors
    ///
    /// [`SealError`].
    pub fn seal_future_write(&self) -> Result<(), SealError> {
        map::seal(self.fd().ok_or(SealError::NotAFile)?, map::SEAL_FUTURE_WRITE)
    }

    /// Closes the descriptor; the mapping stays. For who maps many regions of others and sends none on.
    #[must_use]
    pub fn detach(mut self) -> Self {
        if matches!(self.backing, Backing::File(_)) {
            self.backing = Backing::Detached;
        }
        self
    }

    /// If it is long, a thread of its own unmaps it once it is dropped, for whose thread cannot wait: the kernel looks at
    /// each page, which takes milliseconds for a gigabyte, or many.
    #[must_use]
    pub fn unmapped_apart(mut self) -> Self {
        if self.len() >= APART_BYTES_MIN && !cfg!(miri) {
            self.unmapping = Unmapping::Apart;
        }
        self
    }

    /// Length in bytes: a multiple of the page size, never zero.
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len_bytes.get()
    }

    /// First byte, valid (and fixed) while the region lives. Others may access the bytes at any
    /// time: use it with [`crate::copy`] and atomics, never to form a reference to plain data.
    #[inline]
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.base
    }

    /// Descriptor to send to another process, unless the region is on the heap or was
    /// [detached](Self::detach).
    #[must_use]
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.backing {
            Backing::Heap | Backing::Detached | Backing::Lent => None,
            Backing::File(fd) => Some(fd.as_fd()),
        }
    }

    /// Whether stores to this mapping are allowed.
    #[inline]
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.access == Protection::ReadWrite
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        match &self.backing {
            // SAFETY: allocated with this length by `heap`; `&mut self` proves that no span borrows
            // it, and users of raw pointers promised not to outlive the region.
            Backing::Heap => unsafe { heap::free(self.base, self.len_bytes) },
            Backing::File(_) | Backing::Detached => {
                map::Mapping { base: self.base, len_bytes: self.len_bytes }.end(self.unmapping);
            }
            Backing::Lent => {}
        }
    }
}

/// Rounds up to a multiple of `unit_bytes`, a power of two.
fn round_up(len_bytes: usize, unit_bytes: usize) -> Result<NonZeroUsize, MapError> {
    len_bytes
        .checked_next_multiple_of(unit_bytes)
        .filter(|&len_bytes| isize::try_from(len_bytes).is_ok())
        .and_then(NonZeroUsize::new)
        .ok_or(MapError::BadLength { len_bytes })
}

fn page_bytes() -> usize {
    if cfg!(miri) { PAGE_BYTES_MIN } else { rustix::param::page_size().max(PAGE_BYTES_MIN) }
}
