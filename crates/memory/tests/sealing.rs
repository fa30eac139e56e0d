//! What a region promises to the other holders of its file, and what it demands of theirs.
#![cfg(not(any(miri, loom)))]

use std::{
    fs::OpenOptions,
    os::fd::{AsRawFd as _, OwnedFd},
};

use copyrpc_memory::{
    MapError, MapFault, Protection, Region, SealError,
    sync::{AtomicU64, Ordering},
};
use rustix::{
    fs::{FallocateFlags, MemfdFlags, SealFlags},
    io::Errno,
};

const LEN_BYTES: usize = 64 << 10;

fn duplicate(region: &Region) -> OwnedFd {
    region.fd().unwrap().try_clone_to_owned().unwrap()
}

fn unsealed_memfd(len_bytes: u64) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("copyrpc-test", flags).unwrap();
    rustix::fs::ftruncate(&fd, len_bytes).unwrap();
    fd
}

#[test]
fn two_mappings_are_the_same_memory() {
    let ours = Region::memfd("copyrpc-test", LEN_BYTES).unwrap();
    let theirs = Region::map(duplicate(&ours), LEN_BYTES, Protection::ReadWrite).unwrap();
    ours.shared::<AtomicU64>(4096).unwrap().store(42, Ordering::Relaxed);
    assert_eq!(theirs.shared::<AtomicU64>(4096).unwrap().load(Ordering::Relaxed), 42);
    assert_ne!(ours.as_ptr(), theirs.as_ptr());
    assert_eq!(ours.len(), LEN_BYTES);
}

#[test]
fn a_detached_region_stays_mapped() {
    let ours = Region::memfd("copyrpc-test", LEN_BYTES).unwrap();
    let theirs = Region::map(duplicate(&ours), LEN_BYTES, Protection::ReadWrite).unwrap().detach();
    assert!(theirs.fd().is_none());
    assert!(theirs.commit(0..LEN_BYTES).is_err() && theirs.seal_size().is_err());
    theirs.shared::<AtomicU64>(4096).unwrap().store(42, Ordering::Relaxed);
    assert_eq!(ours.shared::<AtomicU64>(4096).unwrap().load(Ordering::Relaxed), 42);
}

#[test]
fn a_region_cannot_be_resized_from_birth() {
    let region = Region::memfd("copyrpc-test", LEN_BYTES).unwrap();
    let fd = duplicate(&region);
    for len_bytes in [0, LEN_BYTES as u64 - 1, LEN_BYTES as u64 + 1] {
        assert_eq!(rustix::fs::ftruncate(&fd, len_bytes), Err(Errno::PERM));
    }
}

#[test]
fn an_unsealed_file_is_refused() {
    let fd = unsealed_memfd(LEN_BYTES as u64);
    rustix::fs::fcntl_add_seals(&fd, SealFlags::GROW).unwrap();
    let mapped = Region::map(fd, LEN_BYTES, Protection::ReadOnly);
    assert_eq!(mapped.unwrap_err(), MapError::Unsealed);
}

#[test]
fn a_file_that_cannot_be_sealed_is_refused() {
    let file = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
    let mapped = Region::map(file, 4096, Protection::ReadOnly);
    assert_eq!(mapped.unwrap_err(), MapError::NotShareable);
}

#[test]
fn a_file_shorter_than_announced_is_refused() {
    let region = Region::memfd("copyrpc-test", LEN_BYTES).unwrap();
    let mapped = Region::map(duplicate(&region), LEN_BYTES + 1, Protection::ReadOnly);
    let file_bytes = LEN_BYTES as u64;
    assert!(matches!(mapped, Err(MapError::TooShort { file_bytes: f, .. }) if f == file_bytes));
}

#[test]
fn no_length_is_silently_wrong() {
    for len_bytes in [0, usize::MAX, isize::MAX as usize] {
        assert!(Region::memfd("copyrpc-test", len_bytes).is_err());
        assert!(matches!(Region::heap(len_bytes), Err(MapError::BadLength { .. })));
    }
    assert!(matches!(
        Region::memfd("copyrpc-test", 1 << 50),
        Err(MapError::NoSpace { .. } | MapError::NoMemory { .. })
    ));
    let region = Region::sparse_memfd("copyrpc-test", LEN_BYTES).unwrap();
    assert!(matches!(region.commit(0..LEN_BYTES + 1), Err(MapError::BadLength { .. })));
}

#[test]
fn only_committed_pages_of_a_sparse_region_take_memory() {
    let region = Region::sparse_memfd("copyrpc-test", 1 << 30).unwrap();
    let allocated_bytes = || rustix::fs::fstat(region.fd().unwrap()).unwrap().st_blocks * 512;
    assert_eq!(allocated_bytes(), 0);
    region.commit(8192..16384).unwrap();
    assert_eq!(allocated_bytes(), 8192);
    region.commit(8192..16384).unwrap();
    assert_eq!(allocated_bytes(), 8192, "committing twice is harmless");
}

/// Pages that were written are there; with the seal nobody takes them away, and they can be loaded.
#[test]
fn written_pages_of_a_sealed_region_are_present_and_stay() {
    let region = Region::sparse_memfd("copyrpc-test", 1 << 20).unwrap();
    assert!(!region.is_present(0..4096) && region.is_present(100..100));
    region.commit(0..8192).unwrap();
    region.span(0, 8192).unwrap().copy_out(&[7; 8192]).unwrap();
    assert!(region.is_present(0..8192) && region.is_present(5000..8192));
    assert!(!region.is_present(0..8193), "a page behind them");
    assert!(!region.is_present(0..usize::MAX));
    region.seal_future_write().unwrap();
    let holes = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let punched = rustix::fs::fallocate(region.fd().unwrap(), holes, 0, 4096);
    assert_eq!(punched, Err(Errno::PERM));
    region.commit(8192..12_288).unwrap();
    let mut copy = vec![1];
    region.append_present_to(4000, 4192, &mut copy).unwrap();
    assert!(copy[0] == 1 && copy[1..] == [7; 4192]);
    let beyond = region.append_present_to(1 << 20, 1, &mut copy);
    assert!(matches!(beyond, Err(MapError::BadLength { .. })));
}

#[test]
fn every_page_of_a_dense_region_is_allocated() {
    let region = Region::memfd("copyrpc-test", LEN_BYTES).unwrap();
    assert_eq!(rustix::fs::fstat(region.fd().unwrap()).unwrap().st_blocks * 512, 64 << 10);
}

#[test]
fn huge_pages_or_not_the_region_works() {
    let region = Region::memfd_huge("copyrpc-test", 1).unwrap();
    assert_eq!(region.len(), 2 << 20);
    let last = region.shared::<AtomicU64>(region.len() - 8).unwrap();
    last.store(1, Ordering::Relaxed);
    let other = Region::map(duplicate(&region), region.len(), Protection::ReadOnly).unwrap();
    assert_eq!(other.whole().load_u64(region.len() - 8, Ordering::Relaxed), Ok(1));
}

#[test]
fn after_sealing_future_writes_only_our_mapping_writes() {
    let ours = Region::memfd("copyrpc-test", LEN_BYTES).unwrap();
    ours.seal_future_write().unwrap();
    let word = ours.shared::<AtomicU64>(0).unwrap();
    word.store(1, Ordering::Relaxed);

    let refused = Region::map(duplicate(&ours), LEN_BYTES, Protection::ReadWrite);
    assert_eq!(refused.unwrap_err(), MapError::WriteDenied);
    assert_eq!(rustix::io::pwrite(ours.fd().unwrap(), b"x", 0), Err(Errno::PERM));
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert_eq!(rustix::fs::fallocate(ours.fd().unwrap(), punch, 0, 4096), Err(Errno::PERM));

    let path = format!("/proc/self/fd/{}", ours.fd().unwrap().as_raw_fd());
    let reopened = OpenOptions::new().read(true).write(true).open(path).unwrap();
    assert_eq!(rustix::io::pwrite(&reopened, b"x", 0), Err(Errno::PERM));
    let refused = Region::map(reopened.into(), LEN_BYTES, Protection::ReadWrite);
    assert_eq!(refused.unwrap_err(), MapError::WriteDenied);

    let theirs = Region::map(duplicate(&ours), LEN_BYTES, Protection::ReadOnly).unwrap();
    word.store(2, Ordering::Relaxed);
    assert_eq!(theirs.whole().load_u64(0, Ordering::Relaxed), Ok(2));
}

#[test]
fn seals_are_final_and_idempotent() {
    let region = Region::memfd("copyrpc-test", LEN_BYTES).unwrap();
    region.seal_size().unwrap();
    region.seal_size().unwrap();
    assert_eq!(region.seal_future_write(), Err(SealError::Final));
    assert_eq!(Region::heap(1).unwrap().seal_size(), Err(SealError::NotAFile));
}

#[test]
fn a_file_keeps_what_was_stored_and_a_full_disk_is_an_error_and_no_signal() {
    let path = std::env::temp_dir().join(format!("copyrpc-region-{}", std::process::id()));
    let open = || {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true).open(&path).unwrap()
    };
    let region = Region::file(open().into(), LEN_BYTES).unwrap();
    region.shared::<AtomicU64>(8).unwrap().store(7, Ordering::Relaxed);
    drop(region);
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!((bytes.len(), bytes[8]), (LEN_BYTES, 7));
    let too_large = Region::file(open().into(), 1 << 60);
    assert!(too_large.is_err(), "{too_large:?}");
    std::fs::remove_file(&path).unwrap();
}

/// The kernel may have none to give; what it gives is refused.
#[test]
fn reserved_huge_pages_of_a_stranger_are_refused_and_base_pages_are_read_with_holes() {
    let huge = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    if let Ok(fd) = rustix::fs::memfd_create("copyrpc-test", huge | MemfdFlags::HUGE_2MB) {
        rustix::fs::ftruncate(&fd, 2 << 20).unwrap();
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        let refused = Region::map_lent(fd, 2 << 20).map(drop);
        assert_eq!(refused, Err(MapError::NotShareable));
    }
    let ours = Region::memfd("copyrpc-test", LEN_BYTES).unwrap();
    let theirs = Region::map_lent(duplicate(&ours), LEN_BYTES).unwrap();
    theirs.shared::<AtomicU64>(0).unwrap().store(u64::MAX, Ordering::Relaxed);
    let holes = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(duplicate(&ours), holes, 0, 4096).unwrap();
    let mut copy = vec![7];
    theirs.append_to(0, 8192, &mut copy).unwrap();
    assert_eq!((copy.len(), copy[0]), (8193, 7));
    assert!(copy[1..].iter().all(|byte| *byte == 0));
    let outside = theirs.append_to(LEN_BYTES - 1, 2, &mut copy);
    assert_eq!(outside, Err(MapError::BadLength { len_bytes: 2 }));
    assert_eq!(copy.len(), 8193);
}

/// What its creator did not allocate, or takes away before the seal, is not mapped on another one's account.
#[test]
fn memory_with_holes_is_refused_and_gets_none_once_it_is_sealed() {
    let holes = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    for map in [Region::map_lent, Region::map_sealed] {
        let sparse = Region::sparse_memfd("copyrpc-test", LEN_BYTES).unwrap();
        let refused = map(duplicate(&sparse), LEN_BYTES).map(drop).unwrap_err();
        let file_bytes = LEN_BYTES as u64;
        assert_eq!(refused, MapError::Holes { file_bytes, allocated_bytes: 0 });
        assert_eq!(refused.fault(), MapFault::Request);
    }
    for punched_bytes in [4096, LEN_BYTES as u64] {
        let ours = Region::memfd("copyrpc-test", LEN_BYTES).unwrap();
        rustix::fs::fallocate(duplicate(&ours), holes, 0, punched_bytes).unwrap();
        let refused = Region::map_lent(duplicate(&ours), LEN_BYTES).map(drop);
        assert!(matches!(refused, Err(MapError::Holes { .. })), "{refused:?}");
    }
    let ours = Region::memfd("copyrpc-test", LEN_BYTES).unwrap();
    let lent = Region::map_lent(duplicate(&ours), LEN_BYTES).unwrap();
    let sealed = Region::map_sealed(duplicate(&ours), LEN_BYTES).unwrap();
    assert_eq!(rustix::fs::fallocate(duplicate(&ours), holes, 0, 4096), Err(Errno::PERM));
    ours.shared::<AtomicU64>(0).unwrap().store(7, Ordering::Relaxed);
    assert_eq!(sealed.shared::<AtomicU64>(0).unwrap().load(Ordering::Relaxed), 7);
    assert!(lent.check_pages().is_ok() && sealed.check_pages().is_ok());
    let other = Region::memfd("copyrpc-test", LEN_BYTES).unwrap();
    let lent = Region::map_lent(duplicate(&other), LEN_BYTES).unwrap();
    rustix::fs::fallocate(duplicate(&other), holes, 4096, 4096).unwrap();
    assert!(lent.check_pages().is_err(), "a page is gone");
    other.seal_size().unwrap();
    let refused = Region::map_sealed(duplicate(&other), LEN_BYTES).map(drop);
    assert_eq!(refused, Err(MapError::SealsFinal));
}

/// The mapping ends, whichever thread ends it.
#[test]
fn a_long_region_that_is_unmapped_apart_is_unmapped() {
    let mapped =
        || std::fs::read_to_string("/proc/self/maps").unwrap().matches("copyrpc-long").count();
    for len_bytes in [4096, 16 << 20, 32 << 20] {
        let ours = Region::sparse_memfd("copyrpc-long", len_bytes).unwrap();
        let map = |_| Region::map(duplicate(&ours), len_bytes, Protection::ReadWrite).unwrap();
        let theirs: Vec<_> = (0..10).map(map).map(Region::unmapped_apart).collect();
        // The kernel may show neighbors as one.
        assert!(mapped() > 1);
        drop((theirs, ours));
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while mapped() > 0 {
            assert!(std::time::Instant::now() < deadline, "{len_bytes} B stay mapped");
            std::thread::yield_now();
        }
    }
}
