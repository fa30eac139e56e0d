//! The choice of the GID that a port sends from.
//!
//! RoCE puts its packets into Ethernet (v1) or UDP (v2), as the row of the sender's GID table says. Both ends
//! have to agree, and only v2 is routed. A row stands for an address of the network interface: that of its IPv4
//! address is the one that administrators look after.

use std::{env, fs, path::PathBuf};

use crate::abi::RawGid;

/// A row of the GID table that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) index: u8,
    pub(crate) gid: RawGid,
    pub(crate) is_v2: bool,
}

impl Row {
    /// Better rows are larger.
    fn rank(&self) -> u8 {
        let RawGid(bytes) = self.gid;
        let is_ipv4 = bytes[..10] == [0; 10] && bytes[10..12] == [0xff, 0xff];
        let is_link_local = bytes[..2] == [0xfe, 0x80];
        let address = if is_ipv4 { 2 } else { u8::from(!is_link_local) };
        3 * u8::from(self.is_v2) + address
    }
}

/// The best row to send from: the first of the highest rank.
pub(crate) fn best(rows: &[Row]) -> Option<Row> {
    rows.iter().copied().rev().max_by_key(Row::rank)
}

/// Whether a row is of RoCE v2; on InfiniBand, and if the kernel does not say, it is not.
pub(crate) fn is_v2(device: &str, port: u8, index: u8) -> bool {
    // libibverbs takes another tree than the kernel's from here (`ibv_get_sysfs_path`).
    let sysfs = env::var_os("SYSFS_PATH").filter(|path| !path.is_empty());
    let sysfs = sysfs.map_or_else(|| "/sys".into(), PathBuf::from);
    let types = sysfs.join("class/infiniband").join(device);
    let types = types.join(format!("ports/{port}/gid_attrs/types/{index}"));
    fs::read_to_string(types).is_ok_and(|text| text.trim() == "RoCE v2")
}

/// The numbers of rows, for people.
pub(crate) fn indices(rows: &[Row]) -> String {
    let known: Vec<String> = rows.iter().map(|row| row.index.to_string()).collect();
    if known.is_empty() { "none".to_owned() } else { known.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(index: u8, gid: [u8; 16], is_v2: bool) -> Row {
        Row { index, gid: RawGid(gid), is_v2 }
    }

    #[test]
    fn v2_comes_before_v1_and_ipv4_before_other_addresses() {
        let link_local = core::array::from_fn(|at| if at == 0 { 0xfe } else { 0x80 });
        let ipv4 = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 1];
        let global = [0x20; 16];
        let mut rows = vec![row(0, link_local, false), row(1, link_local, true)];
        assert_eq!(best(&rows).unwrap().index, 1);
        rows.push(row(2, ipv4, false));
        assert_eq!(best(&rows).unwrap().index, 1, "v2, though of this link alone");
        rows.push(row(3, global, true));
        assert_eq!(best(&rows).unwrap().index, 3);
        rows.extend([row(4, ipv4, true), row(5, ipv4, true)]);
        assert_eq!(best(&rows).unwrap().index, 4, "the first of equals");
        assert_eq!((best(&[]), indices(&[])), (None, "none".to_owned()));
        assert_eq!(indices(&rows[..2]), "0, 1");
    }
}
