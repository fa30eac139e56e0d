//! The choice of the GID that a port sends from.
//!
//! RoCE puts its packets into Ethernet (v1) or UDP (v2), as the row of the sender's GID table says. Both ends
//! have to agree, and only v2 is routed. A row stands for an address of the network interface: that of its IPv4
//! address is the one that administrators look after.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use crate::abi::RawGid;

/// A row of the GID table that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) index: u8,
    pub(crate) gid: RawGid,
    pub(crate) is_v2: bool,
    /// Its network interface is one of this process's network namespace.
    pub(crate) is_here: bool,
}

impl Row {
    /// Better rows are larger.
    fn rank(&self) -> u8 {
        let RawGid(bytes) = self.gid;
        let is_ipv4 = bytes[..10] == [0; 10] && bytes[10..12] == [0xff, 0xff];
        let is_link_local = bytes[..2] == [0xfe, 0x80];
        let address = if is_ipv4 { 2 } else { u8::from(!is_link_local) };
        6 * u8::from(self.is_here) + 3 * u8::from(self.is_v2) + address
    }
}

/// The best row to send from: the first of the highest rank.
pub(crate) fn best(rows: &[Row]) -> Option<Row> {
    rows.iter().copied().rev().max_by_key(Row::rank)
}

/// The row to send from: `wanted`, or the one that has the address which was sent from `first`, or the best.
///
/// An address that comes back may have another row. It counts although packets have left from another address meanwhile,
/// such as the link-local one, from which no route leads to peers.
pub(crate) fn choose(
    rows: &[Row],
    wanted: Option<u8>,
    first: Option<RawGid>,
    is_ethernet: bool,
) -> Option<Row> {
    if let Some(index) = wanted {
        return rows.iter().find(|row| row.index == index).copied();
    }
    let same: Vec<Row> = rows.iter().filter(|row| Some(row.gid) == first).copied().collect();
    // The first row of an InfiniBand port is that of its GUID.
    let new = || if is_ethernet { best(rows) } else { rows.first().copied() };
    best(&same).or_else(new)
}

/// Where libibverbs and this crate look for devices.
pub(crate) fn sysfs() -> PathBuf {
    // libibverbs takes another tree than the kernel's from here (`ibv_get_sysfs_path`).
    let sysfs = env::var_os("SYSFS_PATH").filter(|path| !path.is_empty());
    sysfs.map_or_else(|| "/sys".into(), PathBuf::from)
}

/// What the kernel tells of a row.
fn attribute(device: &str, port: u8, kind: &str, index: u8) -> Option<String> {
    let row = format!("class/infiniband/{device}/ports/{port}/gid_attrs/{kind}/{index}");
    fs::read_to_string(sysfs().join(row)).ok().map(|text| text.trim().to_owned())
}

/// Whether the network interface of a row is here, and not in another network namespace, which this process sends
/// nothing from. Rows without one are here.
pub(crate) fn is_here(device: &str, port: u8, index: u8) -> bool {
    let interface = attribute(device, port, "ndevs", index).filter(|name| !name.is_empty());
    interface.is_none_or(|name| Path::new("/sys/class/net").join(name).exists())
}

/// Whether a row is of RoCE v2; on InfiniBand, and if the kernel does not say, it is not.
pub(crate) fn is_v2(device: &str, port: u8, index: u8) -> bool {
    attribute(device, port, "types", index).is_some_and(|text| text == "RoCE v2")
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
        Row { index, gid: RawGid(gid), is_v2, is_here: true }
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

    #[test]
    fn an_address_is_looked_for_before_its_row() {
        let [own, other] = [[1; 16], [2; 16]];
        let first = Some(RawGid(own));
        let moved = [row(1, other, true), row(4, own, false), row(5, own, true)];
        assert_eq!(choose(&moved, None, first, true).unwrap().index, 5);
        assert_eq!(choose(&moved, Some(1), first, true).unwrap().index, 1, "it is asked for");
        assert_eq!(choose(&moved, Some(2), first, true), None, "it is empty now");
        assert_eq!(choose(&moved[..1], None, first, true).unwrap().index, 1, "another address");
        assert_eq!(choose(&moved, None, None, false).unwrap().index, 1, "of an InfiniBand port");
        assert_eq!(choose(&[], None, first, true), None);
    }

    #[test]
    fn rows_of_other_network_namespaces_come_last() {
        let ipv4 = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 1];
        let away = Row { is_here: false, ..row(0, ipv4, true) };
        assert_eq!(best(&[away, row(1, [1; 16], false)]).unwrap().index, 1);
        assert_eq!(best(&[away]).unwrap().index, 0);
    }
}
