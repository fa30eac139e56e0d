//! The devices that libibverbs lists, and why it lists none.

use core::{ffi::CStr, ptr::NonNull};
use std::io;

use crate::{abi, api::Api, error::OpenError, gid};

/// The library's list of devices.
pub(crate) struct List<'a> {
    api: &'a Api,
    raw: NonNull<*mut abi::Device>,
    names: Vec<(*mut abi::Device, String)>,
}

impl Drop for List<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `ibv_get_device_list`, and freed once.
        unsafe { (self.api.ibv_free_device_list)(self.raw.as_ptr()) };
    }
}

impl<'a> List<'a> {
    pub(crate) fn new(api: &'a Api) -> Result<Self, OpenError> {
        let mut count = 0;
        // SAFETY: the library writes the number of devices.
        let raw = unsafe { (api.ibv_get_device_list)(&raw mut count) };
        let raw = NonNull::new(raw).ok_or_else(|| OpenError::List(io::Error::last_os_error()))?;
        let mut list = Self { api, raw, names: Vec::new() };
        for at in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the list has `count` entries.
            let device = unsafe { *raw.as_ptr().wrapping_add(at) };
            // SAFETY: a device of the list.
            let name = unsafe { (api.ibv_get_device_name)(device) };
            // SAFETY: a string of the library, which lives as long as the list.
            let name = unsafe { CStr::from_ptr(name) };
            list.names.push((device, name.to_string_lossy().into_owned()));
        }
        Ok(list)
    }

    /// The device called `name`; every device, if that is empty.
    pub(crate) fn matching(&self, name: &str) -> Result<Vec<(*mut abi::Device, &str)>, OpenError> {
        if self.names.is_empty() {
            return Err(no_device(&kernel_devices(), has_nodes()));
        }
        let all = self.names.iter().map(|(device, known)| (*device, known.as_str()));
        let found: Vec<_> = all.filter(|(_, known)| name.is_empty() || *known == name).collect();
        if found.is_empty() {
            let known: Vec<&str> = self.names.iter().map(|(_, known)| known.as_str()).collect();
            let (name, known) = (name.to_owned(), known.join(", "));
            return Err(OpenError::UnknownDevice { name, known });
        }
        Ok(found)
    }
}

/// Why libibverbs lists no device: it leaves those out, without a word, whose node is missing or that no library
/// drives. Source: rdma-core `libibverbs/init.c`, `try_access_device` and `match_driver`.
fn no_device(kernel: &[String], has_nodes: bool) -> OpenError {
    let devices = kernel.join(", ");
    match (kernel, has_nodes) {
        ([], _) => OpenError::NoDevice,
        (_, false) => OpenError::NoNode { devices },
        (_, true) => OpenError::NoProvider { devices },
    }
}

/// Names of devices that the kernel has.
fn kernel_devices() -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(gid::sysfs().join("class/infiniband")) else {
        return Vec::new();
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// Whether this process sees the node of any device.
fn has_nodes() -> bool {
    let entries = std::fs::read_dir("/dev/infiniband");
    let mut names = entries.into_iter().flatten().filter_map(|entry| Some(entry.ok()?.file_name()));
    names.any(|name| name.to_string_lossy().starts_with("uverbs"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_the_library_leaves_out_has_a_remedy() {
        let kernel = ["mlx5_0".to_owned(), "mlx5_1".to_owned()];
        let told = |kernel: &[String], has_nodes| no_device(kernel, has_nodes).to_string();
        assert!(told(&[], false).contains("no RDMA device"));
        let container = told(&kernel, false);
        assert!(
            container.contains("mlx5_0, mlx5_1") && container.contains("--device"),
            "{container}"
        );
        assert!(told(&kernel, true).contains("ibverbs-providers"));
    }
}
