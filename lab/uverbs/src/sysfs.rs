//! The sysfs tree in which libibverbs finds the device.
//!
//! It is that of one ConnectX-6 with one port. The device's number is that of `/dev/null`, which is what opening
//! it gives, so that what libibverbs compares is equal. GIDs differ between processes, so that file is not read
//! from the tree.

use std::{
    ffi::{CStr, CString},
    fs, io,
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStringExt as _, fs::symlink},
    },
    path::Path,
};

use verbs::LinkLayer;

/// The device's file, which need not exist.
pub const DEVICE: &CStr = c"/dev/infiniband/uverbs0";

/// The device's file of the connection manager.
pub const CONNECTION_MANAGER: &CStr = c"/dev/infiniband/rdma_cm";

/// GUID of the device in the tree, which is the same in all processes.
pub(crate) const NODE_GUID: [u8; 8] = [0x02, 0, 0, 0xff, 0xfe, 0, 0, 0];

/// Where libibverbs looks for the tree.
pub const PATH_ENV: &str = "SYSFS_PATH";

/// Where programs look that do not ask libibverbs.
const SYSTEM: &[u8] = b"/sys/class/infiniband/";

/// A path of the system's tree, in this one.
#[must_use]
pub fn redirected(path: &[u8]) -> Option<CString> {
    let rest = path.strip_prefix(SYSTEM)?;
    let mut here = std::env::var_os(PATH_ENV)?.into_vec();
    here.extend(b"/class/infiniband/");
    here.extend(rest);
    CString::new(here).ok()
}

/// The row of the GID table that a path is that of, in the tree.
#[must_use]
pub fn gid_row(path: &[u8]) -> Option<usize> {
    let (folder, row) = path.split_at(path.iter().rposition(|byte| *byte == b'/')? + 1);
    let row = core::str::from_utf8(row).ok()?.parse().ok()?;
    folder.ends_with(b"/mlx5_0/ports/1/gids/").then_some(row)
}

/// A file that holds `text`, from its beginning.
#[must_use]
pub fn text_file(text: &str) -> Option<OwnedFd> {
    let file = rustix::fs::memfd_create("copyrpc-gid", rustix::fs::MemfdFlags::CLOEXEC).ok()?;
    rustix::io::pwrite(&file, text.as_bytes(), 0).ok().filter(|len| *len == text.len())?;
    Some(file)
}

const VERBS: &str = "class/infiniband_verbs";
const PCI: &str = "devices/pci0000:00/0000:03:00.0";

/// Files below the device's PCI function.
const FUNCTION_FILES: [(&str, &str); 6] = [
    ("modalias", "pci:v000015B3d0000101Bsv000015B3sd00000001bc02sc07i00"),
    ("vendor", "0x15b3"),
    ("device", "0x101b"),
    ("current_link_width", "16"),
    ("current_link_speed", "16.0 GT/s PCIe"),
    ("numa_node", "-1"),
];

/// Files of the device.
const DEVICE_FILES: [(&str, &str); 10] = [
    ("node_type", "1: CA"),
    ("node_guid", "0200:00ff:fe00:0000"),
    ("sys_image_guid", "0200:00ff:fe00:0000"),
    ("fw_ver", "20.99.1000"),
    ("hca_type", "MT4123"),
    ("board_id", "COPYRPC_SOFT"),
    ("hw_rev", "0"),
    ("ports/1/pkeys/0", "0xffff"),
    ("ports/1/state", "4: ACTIVE"),
    ("ports/1/rate", "100 Gb/sec (4X EDR)"),
];

/// By link layer: its name, and the types of the rows of the GID table.
const fn link_files(link: LinkLayer) -> (&'static str, &'static [&'static str]) {
    match link {
        LinkLayer::InfiniBand => ("InfiniBand", &["IB/RoCE v1"]),
        LinkLayer::Ethernet => {
            const V1: &str = "IB/RoCE v1";
            const V2: &str = "RoCE v2";
            ("Ethernet", &[V1, V2, V1, V2, V1, V2])
        }
    }
}

/// Makes the tree in `root`.
///
/// # Errors
///
/// What the file system says.
pub fn create(root: &Path, link: LinkLayer) -> io::Result<()> {
    let write = |path: String, text: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap_or(root))?;
        fs::write(path, format!("{text}\n"))
    };
    for (name, text) in FUNCTION_FILES {
        write(format!("{PCI}/{name}"), text)?;
    }
    for (name, text) in DEVICE_FILES {
        write(format!("{PCI}/infiniband/mlx5_0/{name}"), text)?;
    }
    let port = format!("{PCI}/infiniband/mlx5_0/ports/1");
    let (link, types) = link_files(link);
    write(format!("{port}/link_layer"), link)?;
    for (row, text) in types.iter().enumerate() {
        write(format!("{port}/gid_attrs/types/{row}"), text)?;
        // What is here is not read: it differs between processes.
        write(format!("{port}/gids/{row}"), "fe80:0000:0000:0000:0200:00ff:fe00:0000")?;
    }
    write(format!("{VERBS}/abi_version"), "6")?;
    write(format!("{VERBS}/uverbs0/ibdev"), "mlx5_0")?;
    write(format!("{VERBS}/uverbs0/abi_version"), "1")?;
    write(format!("{VERBS}/uverbs0/dev"), "1:3")?;
    fs::create_dir_all(root.join("class/infiniband"))?;
    symlink("../../../bus/pci/drivers/mlx5_core", root.join(PCI).join("driver"))?;
    symlink(format!("../../{PCI}/infiniband/mlx5_0"), root.join("class/infiniband/mlx5_0"))?;
    symlink("../..", root.join(PCI).join("infiniband/mlx5_0/device"))?;
    symlink(format!("../../../{PCI}"), root.join(VERBS).join("uverbs0/device"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_as_libibverbs_reads_it() {
        let root = std::env::temp_dir().join(format!("copyrpc-sysfs-{}", std::process::id()));
        create(&root, LinkLayer::Ethernet).unwrap();
        let read = |path: &str| fs::read_to_string(root.join(path)).unwrap();
        assert_eq!(read("class/infiniband_verbs/uverbs0/ibdev"), "mlx5_0\n");
        assert_eq!(read("class/infiniband/mlx5_0/ports/1/pkeys/0"), "0xffff\n");
        assert_eq!(read("class/infiniband/mlx5_0/device/vendor"), "0x15b3\n");
        assert_eq!(read("class/infiniband_verbs/uverbs0/device/device"), "0x101b\n");
        assert_eq!(read("class/infiniband/mlx5_0/ports/1/link_layer"), "Ethernet\n");
        assert_eq!(read("class/infiniband/mlx5_0/ports/1/gid_attrs/types/3"), "RoCE v2\n");
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn rows_of_the_gid_table_are_known_by_their_paths() {
        assert_eq!(gid_row(b"/x/class/infiniband/mlx5_0/ports/1/gids/3"), Some(3));
        for other in [&b"/mlx5_0/ports/1/gids/"[..], b"3", b"/mlx5_0/ports/2/gids/0", b""] {
            assert_eq!(gid_row(other), None);
        }
    }
}
