//! The part of the library's ABI that is used here.
//!
//! Sizes, offsets and numbers are those of a C compiler with the headers of OpenPMIx 4.2.2. The same soname,
//! `libpmix.so.2`, promises them for OpenPMIx 3 to 5.

use core::{
    ffi::{c_char, c_int},
    mem::{align_of, offset_of, size_of},
};

/// `pmix_status_t`.
pub(crate) type Status = c_int;

/// `PMIX_SUCCESS`.
pub(crate) const SUCCESS: Status = 0;

/// `PMIX_GLOBAL`, a `pmix_scope_t`: for ranks of this host and of all others.
pub(crate) const GLOBAL: u8 = 3;

/// `PMIX_MAX_KEYLEN` and its terminator.
pub(crate) const KEY_BYTES: usize = 512;

/// `PMIX_COLLECT_DATA`: a fence carries what ranks have put.
pub(crate) const COLLECT_DATA: &[u8] = b"pmix.collect";

/// `PMIX_TIMEOUT`, in seconds.
pub(crate) const TIMEOUT: &[u8] = b"pmix.timeout";

/// `PMIX_BOOL`, `PMIX_STRING`, `PMIX_INT`: each a `pmix_data_type_t`.
pub(crate) const BOOL: u16 = 1;
pub(crate) const STRING: u16 = 3;
pub(crate) const INT: u16 = 6;

/// `pmix_proc_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Proc {
    /// The launch.
    pub(crate) nspace: [u8; 256],
    pub(crate) rank: u32,
}

const _: () = assert!(size_of::<Proc>() == 260 && align_of::<Proc>() == 4);
const _: () = assert!(offset_of!(Proc, rank) == 256);

/// The union in `pmix_value_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union Data {
    pub(crate) flag: bool,
    pub(crate) integer: c_int,
    pub(crate) string: *mut c_char,
    /// Its longest member is a `pmix_envar_t`.
    pub(crate) words: [u64; 3],
}

/// `pmix_value_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Value {
    /// Which member of the union counts.
    pub(crate) kind: u16,
    pub(crate) data: Data,
}

const _: () = assert!(size_of::<Value>() == 32 && align_of::<Value>() == 8);
const _: () = assert!(offset_of!(Value, data) == 8);

impl Value {
    pub(crate) const fn flag(flag: bool) -> Self {
        let mut data = Data { words: [0; 3] };
        data.flag = flag;
        Self { kind: BOOL, data }
    }

    pub(crate) const fn integer(integer: c_int) -> Self {
        let mut data = Data { words: [0; 3] };
        data.integer = integer;
        Self { kind: INT, data }
    }

    pub(crate) const fn string(string: *mut c_char) -> Self {
        let mut data = Data { words: [0; 3] };
        data.string = string;
        Self { kind: STRING, data }
    }
}

/// `pmix_info_t`: an attribute of a call.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Info {
    key: [u8; KEY_BYTES],
    /// 0: the library may ignore the attribute.
    flags: u32,
    value: Value,
}

const _: () = assert!(size_of::<Info>() == 552 && align_of::<Info>() == 8);
const _: () = assert!(offset_of!(Info, flags) == 512 && offset_of!(Info, value) == 520);

impl Info {
    pub(crate) fn new(name: &[u8], value: Value) -> Self {
        let mut key = [0; KEY_BYTES];
        key[..name.len()].copy_from_slice(name);
        Self { key, flags: 0, value }
    }
}
