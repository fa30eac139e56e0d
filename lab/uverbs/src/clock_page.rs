//! The page that tells a program what the clock of the device says of the time of day: `struct mlx5_ib_clock_info`.
//!
//! The device counts nanoseconds, as the monotonic clock of the machine does. So one pair of both clocks is right for as
//! long as nobody sets the time of day; a kernel writes another one now and then.

use std::{
    os::fd::OwnedFd,
    time::{SystemTime, UNIX_EPOCH},
};

use memory::Region;
use rustix::io::Errno;

use crate::abi::Record;

/// Command of the mlx5 driver's `mmap` that maps it: `MLX5_IB_MMAP_CLOCK_INFO`.
pub(crate) const COMMAND: u64 = 7;

/// `MLX5_IB_CLOCK_INFO_V1`
pub(crate) const VERSION_1: u8 = 0;

/// Frequency of the clock.
pub(crate) const KILOHERTZ: u64 = 1_000_000;

/// What the page says now.
fn contents() -> Record {
    let mut page = Record::zeroed(56);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    page.u64(8, os::clock::duration_ns(since)); // nsec
    page.u64(16, os::clock::now_ns()); // cycles
    page.u32(32, 1); // mult; shift is 0
    page.u64(40, u64::MAX); // mask
    page.u64(48, u64::MAX); // overflow_period
    page
}

/// The memory that a program is to map.
pub(crate) fn create(len: usize) -> Result<OwnedFd, Errno> {
    let region = Region::memfd("copyrpc-clock", len).map_err(|_| Errno::NOMEM)?;
    let fd = region.fd().ok_or(Errno::NOMEM)?.try_clone_to_owned().map_err(|_| Errno::MFILE)?;
    rustix::io::pwrite(&fd, &contents().0, 0)?;
    Ok(fd)
}
