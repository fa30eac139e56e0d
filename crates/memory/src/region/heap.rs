//! Memory of one process, for a [`Region`](super::Region).

use core::{num::NonZeroUsize, ptr::NonNull};

/// At least `len_bytes` zeroed bytes that begin at a page. A page costs memory when it is first written: the
/// allocator would write all of an aligned block to zero it.
#[cfg(not(miri))]
pub(super) fn allocate(len_bytes: NonZeroUsize) -> Option<NonNull<u8>> {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing that Rust knows.
    let base =
        unsafe { mmap_anonymous(core::ptr::null_mut(), len_bytes.get(), prot, MapFlags::PRIVATE) };
    NonNull::new(base.ok()?.cast())
}

/// # Safety
///
/// `base` came from [`allocate`] with this length, and nobody uses the memory any more.
#[cfg(not(miri))]
pub(super) unsafe fn free(base: NonNull<u8>, len_bytes: NonZeroUsize) {
    super::map::unmap(base, len_bytes);
}

/// As above, where system calls are not interpreted.
#[cfg(miri)]
pub(super) fn allocate(len_bytes: NonZeroUsize) -> Option<NonNull<u8>> {
    // SAFETY: the size is not zero.
    NonNull::new(unsafe { std::alloc::alloc_zeroed(layout(len_bytes)?) })
}

/// # Safety
///
/// As above.
#[cfg(miri)]
pub(super) unsafe fn free(base: NonNull<u8>, len_bytes: NonZeroUsize) {
    let layout = layout(len_bytes).expect("it was possible when it was allocated");
    // SAFETY: allocated with this layout, as the caller promises.
    unsafe { std::alloc::dealloc(base.as_ptr(), layout) };
}

#[cfg(miri)]
fn layout(len_bytes: NonZeroUsize) -> Option<std::alloc::Layout> {
    std::alloc::Layout::from_size_align(len_bytes.get(), super::page_bytes()).ok()
}
