//! Commands as libibverbs writes them, and how answers go back.
//!
//! ```text
//!  plain     command, in_words, out_words (4 B each)         │ response address, command, driver's part
//!  extended  the same (8 B each), response address, sizes    │ command, driver's part
//! ```
//!
//! Source: Linux `include/uapi/rdma/ib_user_verbs.h`, `mlx5-abi.h`; all fields in the order of the machine.

/// A command of `enum ib_uverbs_write_cmds`.
pub(crate) mod number {
    pub(crate) const GET_CONTEXT: u32 = 0;
    pub(crate) const QUERY_DEVICE: u32 = 1;
    pub(crate) const QUERY_PORT: u32 = 2;
    pub(crate) const ALLOC_PD: u32 = 3;
    pub(crate) const DEALLOC_PD: u32 = 4;
    pub(crate) const CREATE_AH: u32 = 5;
    pub(crate) const DESTROY_AH: u32 = 8;
    pub(crate) const REG_MR: u32 = 9;
    pub(crate) const DEREG_MR: u32 = 13;
    pub(crate) const CREATE_COMP_CHANNEL: u32 = 17;
    pub(crate) const CREATE_CQ: u32 = 18;
    pub(crate) const DESTROY_CQ: u32 = 20;
    pub(crate) const CREATE_QP: u32 = 24;
    pub(crate) const QUERY_QP: u32 = 25;
    pub(crate) const MODIFY_QP: u32 = 26;
    pub(crate) const DESTROY_QP: u32 = 27;
    pub(crate) const CREATE_SRQ: u32 = 32;
    pub(crate) const MODIFY_SRQ: u32 = 33;
    pub(crate) const QUERY_SRQ: u32 = 34;
    pub(crate) const DESTROY_SRQ: u32 = 35;

    const NAMES: [&str; 41] = [
        "GET_CONTEXT",
        "QUERY_DEVICE",
        "QUERY_PORT",
        "ALLOC_PD",
        "DEALLOC_PD",
        "CREATE_AH",
        "MODIFY_AH",
        "QUERY_AH",
        "DESTROY_AH",
        "REG_MR",
        "REG_SMR",
        "REREG_MR",
        "QUERY_MR",
        "DEREG_MR",
        "ALLOC_MW",
        "BIND_MW",
        "DEALLOC_MW",
        "CREATE_COMP_CHANNEL",
        "CREATE_CQ",
        "RESIZE_CQ",
        "DESTROY_CQ",
        "POLL_CQ",
        "PEEK_CQ",
        "REQ_NOTIFY_CQ",
        "CREATE_QP",
        "QUERY_QP",
        "MODIFY_QP",
        "DESTROY_QP",
        "POST_SEND",
        "POST_RECV",
        "ATTACH_MCAST",
        "DETACH_MCAST",
        "CREATE_SRQ",
        "MODIFY_SRQ",
        "QUERY_SRQ",
        "DESTROY_SRQ",
        "POST_SRQ_RECV",
        "OPEN_XRCD",
        "CLOSE_XRCD",
        "CREATE_XSRQ",
        "OPEN_QP",
    ];

    /// As `ib_user_verbs.h` calls it.
    pub(crate) fn name(number: u32) -> &'static str {
        NAMES
            .get(number as usize)
            .copied()
            .unwrap_or("a command without a number in ib_user_verbs.h")
    }
}

/// Fields by offset. What is beyond the end is zero, as kernels read short structures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    fn take<const N: usize>(self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        let rest = self.0.get(at..).unwrap_or_default();
        let len = rest.len().min(N);
        bytes[..len].copy_from_slice(&rest[..len]);
        bytes
    }

    pub(crate) fn u8(self, at: usize) -> u8 {
        self.take::<1>(at)[0]
    }

    pub(crate) fn u16(self, at: usize) -> u16 {
        u16::from_ne_bytes(self.take(at))
    }

    pub(crate) fn u32(self, at: usize) -> u32 {
        u32::from_ne_bytes(self.take(at))
    }

    pub(crate) fn u64(self, at: usize) -> u64 {
        u64::from_ne_bytes(self.take(at))
    }

    pub(crate) fn bytes<const N: usize>(self, at: usize) -> [u8; N] {
        self.take(at)
    }

    pub(crate) fn after(self, at: usize) -> Self {
        Self(self.0.get(at..).unwrap_or_default())
    }
}

/// A command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Command<'a> {
    pub(crate) number: u32,
    pub(crate) is_extended: bool,
    /// What follows the headers and, of a plain command, the response address.
    pub(crate) core: Fields<'a>,
    /// The driver's part of an extended command.
    pub(crate) extended_driver: Fields<'a>,
    /// Where the response goes, and how long its parts may be; of a plain command, one part.
    response: u64,
    response_bytes: [usize; 2],
}

/// Commands that have no response, and so no address of one.
const WITHOUT_RESPONSE: [u32; 5] = [
    number::DEALLOC_PD,
    number::DESTROY_AH,
    number::DEREG_MR,
    number::MODIFY_SRQ,
    number::MODIFY_QP,
];

impl<'a> Command<'a> {
    /// `None`: it is shorter than it says.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        const EXTENDED: u32 = 1 << 31;
        let header = Fields(bytes.get(..8)?);
        let (number, is_extended) = (header.u32(0) & 0xff, header.u32(0) & EXTENDED != 0);
        let [in_words, out_words] = [header.u16(4), header.u16(6)].map(usize::from);
        if is_extended {
            let more = Fields(bytes.get(8..24)?);
            let [driver_in, driver_out] = [more.u16(8), more.u16(10)].map(usize::from);
            let end = 24 + in_words * 8;
            return Some(Self {
                number,
                is_extended,
                core: Fields(bytes.get(24..end)?),
                extended_driver: Fields(bytes.get(end..end + driver_in * 8)?),
                response: more.u64(0),
                response_bytes: [out_words * 8, driver_out * 8],
            });
        }
        let body = Fields(bytes.get(8..in_words * 4)?);
        let has_response = !WITHOUT_RESPONSE.contains(&number);
        Some(Self {
            number,
            is_extended,
            core: if has_response { body.after(8) } else { body },
            extended_driver: Fields(&[]),
            response: if has_response { body.u64(0) } else { 0 },
            response_bytes: [out_words * 4, 0],
        })
    }

    /// The driver's part, behind `core_bytes` of a plain command.
    pub(crate) fn driver(&self, core_bytes: usize) -> Fields<'a> {
        if self.is_extended { self.extended_driver } else { self.core.after(core_bytes) }
    }

    /// Bytes that the response has room for in its first part.
    pub(crate) fn room(&self) -> usize {
        self.response_bytes[0]
    }

    /// Bytes that the driver's part of an extended command's response has room for.
    pub(crate) fn driver_room(&self) -> usize {
        self.response_bytes[1]
    }

    /// Writes the response: what does not fit is left out, and what is short is zero.
    ///
    /// # Safety
    ///
    /// The program has said that it has these bytes there, and waits for the command.
    pub(crate) unsafe fn respond(&self, core: &[u8], driver: &[u8]) {
        let [core_room, driver_room] = self.response_bytes;
        let mut bytes = vec![0; core_room + driver_room];
        if self.is_extended {
            put(&mut bytes[..core_room], core);
            put(&mut bytes[core_room..], driver);
        } else {
            put(&mut bytes, core);
            if let Some(rest) = bytes.get_mut(core.len()..) {
                put(rest, driver);
            }
        }
        let Ok(address) = usize::try_from(self.response) else { return };
        if address != 0 {
            let to = core::ptr::with_exposed_provenance_mut::<u8>(address);
            // SAFETY: by contract; `bytes` is as long as the response.
            unsafe { memory::copy::copy_out(to, &bytes) };
        }
    }
}

fn put(to: &mut [u8], from: &[u8]) {
    let len = to.len().min(from.len());
    to[..len].copy_from_slice(&from[..len]);
}

/// A structure in the making.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record(pub(crate) Vec<u8>);

impl Record {
    pub(crate) fn zeroed(bytes: usize) -> Self {
        Self(vec![0; bytes])
    }

    /// Words of 32 bits.
    pub(crate) fn words(words: &[u32]) -> Self {
        Self(words.iter().flat_map(|word| word.to_ne_bytes()).collect())
    }

    pub(crate) fn set(&mut self, at: usize, bytes: &[u8]) {
        if let Some(place) = self.0.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }

    pub(crate) fn u32(&mut self, at: usize, value: u32) {
        self.set(at, &value.to_ne_bytes());
    }

    pub(crate) fn u16(&mut self, at: usize, value: u16) {
        self.set(at, &value.to_ne_bytes());
    }

    pub(crate) fn u64(&mut self, at: usize, value: u64) {
        self.set(at, &value.to_ne_bytes());
    }

    pub(crate) fn u8(&mut self, at: usize, value: u8) {
        self.set(at, &[value]);
    }
}
