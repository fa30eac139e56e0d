//! What an identifier is told of its addresses and paths since there are addresses of InfiniBand: command QUERY.
//!
//! Source: Linux `drivers/infiniband/core/ucma.c`, `ucma_query`; `core/sa_query.c`, `ib_sa_pack_path`.

use rustix::io::Errno;

use super::{
    address::{self, Address, IbAddress},
    attributes::{PKEY, PortIdentity},
    id::Id,
};
use crate::abi::Record;

/// Bytes of `struct rdma_ucm_query_addr_resp` up to what later kernels added, and of all of it.
const ADDRESSES_BYTES_MIN: usize = 272;
const ADDRESSES_BYTES: usize = 280;

/// Places of `src_addr` and `dst_addr`.
const PLACES: [usize; 2] = [16, 144];

impl PortIdentity {
    /// The answer to a question of one of the `RDMA_USER_CM_QUERY_*`, for which there is so much room; `guid` is that of
    /// the device in sysfs.
    pub(super) fn query(
        &self,
        id: &Id,
        option: u32,
        room: usize,
        guid: [u8; 8],
    ) -> Result<Vec<u8>, Errno> {
        const ADDRESSES: u32 = 0;
        const PATHS: u32 = 1;
        const GIDS: u32 = 2;
        const PATHS_BYTES_MIN: usize = 8;
        let (bytes_min, answer) = match option {
            ADDRESSES => {
                (ADDRESSES_BYTES_MIN, self.addresses(id, guid, [id.source, id.destination]))
            }
            GIDS => {
                let lid = id.peer.lid;
                let gids = [self.gid(), if lid == 0 { self.gid() } else { self.gid_of(lid) }];
                let [source, destination] = [(id.source, gids[0]), (id.destination, gids[1])]
                    .map(|(address, gid)| Some(as_ib(address, gid, id)));
                (ADDRESSES_BYTES_MIN, self.addresses(id, guid, [source, destination]))
            }
            PATHS => (PATHS_BYTES_MIN, self.paths(id)),
            _ => return Err(Errno::NOSYS),
        };
        if room < bytes_min { Err(Errno::NOSPC) } else { Ok(answer) }
    }

    /// `struct rdma_ucm_query_addr_resp`
    fn addresses(&self, id: &Id, guid: [u8; 8], addresses: [Option<Address>; 2]) -> Vec<u8> {
        let mut bytes = Record::zeroed(ADDRESSES_BYTES);
        if id.has_device {
            bytes.set(0, &guid);
            bytes.set(8, &[1]); // port
            bytes.set(10, &PKEY.to_be_bytes());
        }
        for (nth, address) in addresses.into_iter().enumerate() {
            let Some(address) = address else { continue };
            bytes.u16(12 + 2 * nth, address.len());
            bytes.set(PLACES[nth], &address::encode(address));
        }
        bytes.u32(272, u32::MAX); // device index: found by GUID
        bytes.0
    }

    /// `struct rdma_ucm_query_path_resp`, with `struct ib_path_rec_data` for each path, packed as on the wire.
    fn paths(&self, id: &Id) -> Vec<u8> {
        // IB_PATH_GMP, PRIMARY, OUTBOUND, INBOUND_REVERSE
        const FLAGS: u32 = 1 | 1 << 1 | 1 << 3 | 1 << 5;
        const RECORD: usize = 16;
        /// `IB_SA_EQ`, and one path that is reversible.
        const EXACTLY: u8 = 2 << 6;
        const REVERSIBLE: u8 = 1 << 7 | 1;
        if !id.has_route {
            return vec![0; 8];
        }
        let path = self.path(self.lid_of_peer(id), id.service_type);
        let mut bytes = Record::zeroed(8 + 72);
        bytes.u32(0, 1);
        bytes.u32(8, FLAGS);
        let mut record = |at: usize, value: &[u8]| bytes.set(RECORD + at, value);
        let service = id.destination.map_or(0, |to| to.service(id.port_space));
        record(0, &service.to_be_bytes());
        // Both GIDs and both LIDs lie beside each other in either form.
        record(8, &path[..36]);
        let [hops, class] = [path[54], path[55]];
        record(44, &u32::from(hops).to_be_bytes());
        record(48, &[class, REVERSIBLE]);
        record(50, &PKEY.to_be_bytes());
        // MTU 4096, rate 10 Gb/s, lifetime
        record(54, &[EXACTLY | 5, EXACTLY | 3, EXACTLY | 18]);
        bytes.0
    }
}

/// An address as one of InfiniBand.
fn as_ib(address: Option<Address>, gid: [u8; 16], id: &Id) -> Address {
    match address {
        Some(Address::Ib(address)) => Address::Ib(address),
        address => {
            let service = address.map_or(0, |address| address.service(id.port_space));
            let gid = if id.has_device { gid } else { [0; 16] };
            Address::Ib(IbAddress::of(gid, PKEY, service))
        }
    }
}
