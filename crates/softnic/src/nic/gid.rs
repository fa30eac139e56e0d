//! GIDs of ports, which end like their LIDs.

use verbs::{Gid, Lid};

/// GID of a port: link-local, with its LID in the last bytes.
pub(crate) fn gid_of(lid: Lid) -> Gid {
    let [high, low] = lid.get().to_be_bytes();
    Gid::new([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0xff, 0xfe, 0, high, low])
}

/// IPv4 address of a port as a GID: of the range for tests between networks (RFC 2544), with its LID at the end.
pub(crate) fn ipv4_gid_of(lid: Lid) -> Gid {
    let [high, low] = lid.get().to_be_bytes();
    Gid::new([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 198, 18, high, low])
}
