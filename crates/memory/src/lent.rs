//! Memory that belongs to somebody else in this process, who may unmap it at any time.

use core::ffi::c_void;
use std::sync::OnceLock;

use rustix::{
    io::Errno,
    mm::{Advice, MapFlags, ProtFlags},
};

/// Whether `len` bytes at `ptr` are mapped, and may be read, or written if `write`; their pages are present afterwards.
///
/// What another thread unmaps or protects between this call and the access is not seen. Kernels before Linux 5.14
/// cannot tell, and the answer is yes.
#[must_use]
pub fn is_there(ptr: *mut u8, len: usize, write: bool) -> bool {
    if cfg!(miri) || len == 0 {
        return true;
    }
    let page = rustix::param::page_size();
    let into_page = ptr.addr() % page;
    let begin = ptr.wrapping_sub(into_page).cast::<c_void>();
    let end = len.checked_add(into_page).and_then(|end| end.checked_next_multiple_of(page));
    let Some(end) = end.filter(|end| begin.addr().checked_add(*end).is_some()) else {
        return false;
    };
    let advice = if write { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
    // SAFETY: populating changes no byte, and fails where nothing is mapped.
    match unsafe { rustix::mm::madvise(begin, end, advice) } {
        Ok(()) | Err(Errno::AGAIN | Errno::INTR) => true,
        // Of a kernel that knows the advice: the mapping has no such right.
        Err(Errno::INVAL) => !kernel_can_tell(),
        Err(_) => false,
    }
}

/// Whether the kernel knows the advice: asked once, with a page of which it can only say yes.
fn kernel_can_tell() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        let page = rustix::param::page_size();
        let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping, of which nobody knows.
        let mapped =
            unsafe { rustix::mm::mmap_anonymous(core::ptr::null_mut(), page, rights, flags) };
        let Ok(own) = mapped else { return false };
        // SAFETY: populating changes no byte of the page.
        let asked = unsafe { rustix::mm::madvise(own, page, Advice::LinuxPopulateWrite) };
        // SAFETY: the mapping of above, which nothing refers to.
        let _ = unsafe { rustix::mm::munmap(own, page) };
        asked.is_ok()
    })
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::Region;

    #[test]
    fn what_is_mapped_is_there_and_what_is_unmapped_is_not() {
        let region = Region::memfd("lent", 8192).unwrap();
        let ptr = region.as_ptr().as_ptr();
        assert!(is_there(ptr, 8192, true) && is_there(ptr.wrapping_add(4000), 200, false));
        assert!(is_there(core::ptr::null_mut(), 0, true));
        assert!(!is_there(core::ptr::without_provenance_mut(4096), 1, false));
        assert!(!is_there(core::ptr::without_provenance_mut(usize::MAX - 8), 100, false));
    }

    #[test]
    fn memory_is_there_for_what_its_mapping_allows() {
        let page = rustix::param::page_size();
        let region = Region::memfd("rights", 2 * page).unwrap();
        let ptr = region.as_ptr().as_ptr();
        let protect = |rights| {
            // SAFETY: a mapping of this test, which nothing refers to.
            unsafe { rustix::mm::mprotect(ptr.cast(), page, rights) }.unwrap();
            [false, true].map(|write| is_there(ptr, 2 * page, write))
        };
        use rustix::mm::MprotectFlags as Rights;
        assert_eq!(protect(Rights::READ | Rights::WRITE), [true, true]);
        assert_eq!(protect(Rights::READ), [true, false]);
        assert_eq!(protect(Rights::empty()), [false, false]);
        assert!(is_there(ptr.wrapping_add(page), page, true), "the other page is as it was");
        assert_eq!(protect(Rights::READ | Rights::WRITE), [true, true]);
    }

    #[test]
    fn a_lent_region_is_not_given_back() {
        let mut bytes = vec![7u8; 100];
        let base = core::ptr::NonNull::new(bytes.as_mut_ptr()).unwrap();
        // SAFETY: `bytes` outlives the region, and nothing refers to it meanwhile.
        let region = unsafe { Region::lent(base, 100) }.unwrap();
        assert!(region.is_lent() && region.len() == 100 && region.fd().is_none());
        drop(region);
        assert_eq!(bytes, [7; 100]);
        // SAFETY: as above; it has no byte.
        assert!(unsafe { Region::lent(base, 0) }.is_none());
    }
}
