//! The GID table, whose rows come and go with the addresses of the interface.
//!
//! ```text
//!  row   active, down     unaddressed   moved
//!  0, 1  link-local       the same      the same
//!  2, 3  IPv4             none          none
//!  4, 5  none             none          IPv4
//! ```

use rustix::io::Errno;
use softnic::Packet;
use verbs::{Gid, LinkLayer, Qpn};

use super::{Engine, Service};
use crate::{abi::Fields, condition::AdapterCondition};

/// Rows of the table on RoCE that addresses come and go in.
const MOVING_ROWS: usize = 2;

impl Engine {
    /// Rows of the table; those that are zero are empty.
    pub(crate) fn gid_table(&self) -> Vec<Gid> {
        let mut rows = self.device.gid_table();
        if self.link == LinkLayer::Ethernet {
            let moving = rows.len() - MOVING_ROWS;
            rows.resize(rows.len() + MOVING_ROWS, Gid::default());
            match self.condition.now {
                AdapterCondition::Unaddressed => rows[moving..].fill(Gid::default()),
                AdapterCondition::Moved => rows[moving..].rotate_left(MOVING_ROWS),
                _ => {}
            }
        }
        rows
    }

    /// Whether a row may be sent from.
    ///
    /// Source: Linux `drivers/infiniband/core/cache.c`, `rdma_get_gid_attr`.
    pub(crate) fn gid_row(&self, row: u8) -> Result<(), (String, Errno)> {
        match self.gid_table().get(usize::from(row)) {
            None => Err((format!("the table of GIDs has no row {row}"), Errno::INVAL)),
            Some(gid) if *gid == Gid::default() => {
                Err((format!("row {row} of the table of GIDs is empty"), Errno::NODATA))
            }
            Some(_) => Ok(()),
        }
    }

    /// Whether the row that a packet leaves from has its address: an adapter loses it with the row.
    pub(super) fn has_source(&mut self, packet: &Packet) -> bool {
        if packet.is_datagram() {
            return packet.source_gid_row().is_none_or(|row| self.gid_row(row).is_ok());
        }
        self.has_row_of(packet.source().1)
    }

    /// Whether the answers of the queue pair that a packet goes to leave.
    pub(super) fn can_answer(&mut self, packet: &Packet) -> bool {
        packet.is_datagram() || self.has_row_of(packet.destination().1)
    }

    fn has_row_of(&mut self, qpn: Qpn) -> bool {
        if matches!(self.condition.now, AdapterCondition::Active) {
            return true;
        }
        let is_it = |qp: &&mut super::Qp| {
            qp.device.number() == qpn && matches!(qp.service, Service::Rc | Service::Uc)
        };
        let dest = self.qps.values_mut().find(is_it).map(|qp| qp.attributes.dest);
        let row = dest.filter(|dest| Fields(dest).u8(30) != 0).map(|dest| Fields(&dest).u8(24));
        row.is_none_or(|row| self.gid_row(row).is_ok())
    }
}
