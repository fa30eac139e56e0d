//! The part of UCP's ABI that is used here: structures up to the last field used, and numbers.
//!
//! Each structure begins with a mask of the fields that are valid, which is how UCX adds fields: one whose bit is
//! not set is not read.
//!
//! Source: UCX 1.13.1 (Debian 12), API version 1.10 and later.

use core::ffi::{c_int, c_uint, c_void};

/// `ucs_status_t`, an enumeration packed into a byte.
pub(crate) type RawStatus = i8;

pub(crate) const OK: RawStatus = 0;
pub(crate) const IN_PROGRESS: RawStatus = 1;
pub(crate) const BUSY: RawStatus = -15;
/// `UCS_ERR_LAST`: addresses from this one on are statuses.
const ERR_LAST: isize = -100;

/// The version of the API that is asked for: the first whose active messages have handlers of today's kind.
pub(crate) const API_VERSION: (c_uint, c_uint) = (1, 10);

macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident)*) => {
        $($(#[$doc])* #[repr(C)] #[derive(Debug)] pub(crate) struct $name { _opaque: [u8; 0] })*
    };
}

opaque! {
    /// `ucp_config_t`.
    RawConfig
    /// `struct ucp_context`.
    RawContext
    /// `struct ucp_worker`.
    RawWorker
    /// `struct ucp_ep`.
    RawEndpoint
    /// `ucp_address_t`.
    RawAddress
}

/// `ucp_params_t`, as far as `mt_workers_shared`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Params {
    pub(crate) field_mask: u64,
    pub(crate) features: u64,
    pub(crate) unused: [usize; 4],
    pub(crate) mt_workers_shared: c_int,
}

/// `enum ucp_params_field`.
pub(crate) mod params_field {
    pub(crate) const FEATURES: u64 = 1 << 0;
    pub(crate) const MT_WORKERS_SHARED: u64 = 1 << 5;
}

/// `enum ucp_feature`.
pub(crate) mod feature {
    pub(crate) const WAKEUP: u64 = 1 << 4;
    pub(crate) const AM: u64 = 1 << 6;
}

/// `ucp_worker_params_t`, as far as `thread_mode`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct WorkerParams {
    pub(crate) field_mask: u64,
    pub(crate) thread_mode: c_uint,
}

/// `UCP_WORKER_PARAM_FIELD_THREAD_MODE`.
pub(crate) const WORKER_FIELD_THREAD_MODE: u64 = 1 << 0;
/// `UCS_THREAD_MODE_SINGLE`.
pub(crate) const THREAD_MODE_SINGLE: c_uint = 0;

/// `ucp_err_handler_cb_t`.
pub(crate) type ErrorCallback = unsafe extern "C" fn(*mut c_void, *mut RawEndpoint, RawStatus);

/// `ucp_ep_params_t`, as far as `err_handler`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct EndpointParams {
    pub(crate) field_mask: u64,
    pub(crate) address: *const RawAddress,
    pub(crate) err_mode: c_uint,
    pub(crate) err_callback: Option<ErrorCallback>,
    pub(crate) err_arg: *mut c_void,
}

/// `enum ucp_ep_params_field`.
pub(crate) mod endpoint_field {
    pub(crate) const REMOTE_ADDRESS: u64 = 1 << 0;
    pub(crate) const ERR_HANDLING_MODE: u64 = 1 << 1;
    pub(crate) const ERR_HANDLER: u64 = 1 << 2;
}

/// `UCP_ERR_HANDLING_MODE_NONE` and `_PEER`.
pub(crate) const ERR_MODE_NONE: c_uint = 0;
pub(crate) const ERR_MODE_PEER: c_uint = 1;
/// `UCP_EP_CLOSE_FLAG_FORCE`.
pub(crate) const CLOSE_FORCE: u32 = 1 << 0;

/// `ucp_am_recv_callback_t`.
pub(crate) type AmCallback = unsafe extern "C" fn(
    *mut c_void,
    *const c_void,
    usize,
    *mut c_void,
    usize,
    *const AmRecvParam,
) -> RawStatus;

/// `ucp_am_handler_param_t`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct AmHandlerParam {
    pub(crate) field_mask: u64,
    pub(crate) id: c_uint,
    pub(crate) flags: u32,
    pub(crate) callback: Option<AmCallback>,
    pub(crate) arg: *mut c_void,
}

/// `enum ucp_am_handler_param_field`: identifier, callback and its argument.
pub(crate) const AM_HANDLER_FIELDS: u64 = 1 << 0 | 1 << 2 | 1 << 3;

/// `ucp_am_recv_param_t`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct AmRecvParam {
    pub(crate) recv_attr: u64,
    pub(crate) reply_ep: *mut RawEndpoint,
}

/// `ucp_am_recv_attr_t`.
pub(crate) mod am_recv_attr {
    pub(crate) const FIELD_REPLY_EP: u64 = 1 << 0;
    pub(crate) const FLAG_DATA: u64 = 1 << 16;
    pub(crate) const FLAG_RNDV: u64 = 1 << 17;
}

/// `UCP_AM_SEND_FLAG_REPLY`.
pub(crate) const AM_SEND_REPLY: u32 = 1 << 0;

/// `ucp_send_nbx_callback_t`.
pub(crate) type SendCallback = unsafe extern "C" fn(*mut c_void, RawStatus, *mut c_void);
/// `ucp_am_recv_data_nbx_callback_t`.
pub(crate) type RecvCallback = unsafe extern "C" fn(*mut c_void, RawStatus, usize, *mut c_void);

/// The callback of a `ucp_request_param_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union RequestCallback {
    pub(crate) send: SendCallback,
    pub(crate) recv: RecvCallback,
}

/// `ucp_request_param_t`, as far as `user_data`.
#[repr(C)]
pub(crate) struct RequestParam {
    pub(crate) op_attr_mask: u32,
    pub(crate) flags: u32,
    pub(crate) request: *mut c_void,
    pub(crate) callback: RequestCallback,
    pub(crate) datatype: u64,
    pub(crate) user_data: *mut c_void,
}

/// `ucp_op_attr_t`: callback, user data and flags.
pub(crate) const OP_FIELDS: u32 = 1 << 1 | 1 << 2 | 1 << 4;

/// The result of a function that starts a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Started {
    /// It is complete, and there is no request.
    Complete,
    /// It will be; this is the request.
    Pending(*mut c_void),
    /// It was not started.
    Failed(RawStatus),
}

impl Started {
    /// Reads a `ucs_status_ptr_t`.
    pub(crate) fn read(pointer: *mut c_void) -> Self {
        match pointer.addr() {
            0 => Self::Complete,
            address if address >= ERR_LAST.cast_unsigned() => {
                let status = address.cast_signed();
                Self::Failed(RawStatus::try_from(status).unwrap_or(RawStatus::MIN))
            }
            _ => Self::Pending(pointer),
        }
    }
}

#[cfg(test)]
mod tests {
    use core::{
        mem::{offset_of, size_of},
        ptr,
    };
    use std::{
        fs,
        process::{Command, Stdio},
    };

    use super::*;

    /// In C, and here: what both have to agree upon.
    fn layouts() -> Vec<(&'static str, usize)> {
        vec![
            ("sizeof(ucs_status_t)", size_of::<RawStatus>()),
            ("UCP_PARAM_FIELD_FEATURES", 1),
            ("UCP_PARAM_FIELD_MT_WORKERS_SHARED", 32),
            ("offsetof(ucp_params_t, features)", offset_of!(Params, features)),
            ("offsetof(ucp_params_t, mt_workers_shared)", offset_of!(Params, mt_workers_shared)),
            ("offsetof(ucp_worker_params_t, thread_mode)", offset_of!(WorkerParams, thread_mode)),
            ("offsetof(ucp_ep_params_t, address)", offset_of!(EndpointParams, address)),
            ("offsetof(ucp_ep_params_t, err_mode)", offset_of!(EndpointParams, err_mode)),
            ("offsetof(ucp_ep_params_t, err_handler.cb)", offset_of!(EndpointParams, err_callback)),
            ("offsetof(ucp_ep_params_t, err_handler.arg)", offset_of!(EndpointParams, err_arg)),
            ("sizeof(ucp_am_handler_param_t)", size_of::<AmHandlerParam>()),
            ("offsetof(ucp_am_handler_param_t, id)", offset_of!(AmHandlerParam, id)),
            ("offsetof(ucp_am_handler_param_t, cb)", offset_of!(AmHandlerParam, callback)),
            ("offsetof(ucp_am_handler_param_t, arg)", offset_of!(AmHandlerParam, arg)),
            ("sizeof(ucp_am_recv_param_t)", size_of::<AmRecvParam>()),
            ("offsetof(ucp_am_recv_param_t, reply_ep)", offset_of!(AmRecvParam, reply_ep)),
            ("offsetof(ucp_request_param_t, flags)", offset_of!(RequestParam, flags)),
            ("offsetof(ucp_request_param_t, cb)", offset_of!(RequestParam, callback)),
            ("offsetof(ucp_request_param_t, user_data)", offset_of!(RequestParam, user_data)),
        ]
    }

    /// In C, and here: the same numbers.
    fn numbers() -> Vec<(&'static str, i64)> {
        let unsigned = |bits: u64| bits.cast_signed();
        vec![
            ("UCS_INPROGRESS", IN_PROGRESS.into()),
            ("UCS_ERR_BUSY", BUSY.into()),
            ("UCS_ERR_LAST", ERR_LAST as i64),
            ("UCP_FEATURE_AM", unsigned(feature::AM)),
            ("UCP_FEATURE_WAKEUP", unsigned(feature::WAKEUP)),
            ("UCP_WORKER_PARAM_FIELD_THREAD_MODE", unsigned(WORKER_FIELD_THREAD_MODE)),
            ("UCS_THREAD_MODE_SINGLE", THREAD_MODE_SINGLE.into()),
            ("UCP_EP_PARAM_FIELD_REMOTE_ADDRESS", unsigned(endpoint_field::REMOTE_ADDRESS)),
            ("UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE", unsigned(endpoint_field::ERR_HANDLING_MODE)),
            ("UCP_EP_PARAM_FIELD_ERR_HANDLER", unsigned(endpoint_field::ERR_HANDLER)),
            ("UCP_ERR_HANDLING_MODE_NONE", ERR_MODE_NONE.into()),
            ("UCP_ERR_HANDLING_MODE_PEER", ERR_MODE_PEER.into()),
            ("UCP_EP_CLOSE_FLAG_FORCE", CLOSE_FORCE.into()),
            (
                "UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | \
                 UCP_AM_HANDLER_PARAM_FIELD_ARG",
                unsigned(AM_HANDLER_FIELDS),
            ),
            ("UCP_AM_RECV_ATTR_FIELD_REPLY_EP", unsigned(am_recv_attr::FIELD_REPLY_EP)),
            ("UCP_AM_RECV_ATTR_FLAG_DATA", unsigned(am_recv_attr::FLAG_DATA)),
            ("UCP_AM_RECV_ATTR_FLAG_RNDV", unsigned(am_recv_attr::FLAG_RNDV)),
            ("UCP_AM_SEND_FLAG_REPLY", AM_SEND_REPLY.into()),
            (
                "UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS",
                OP_FIELDS.into(),
            ),
        ]
    }

    /// The layout by GCC 12 of UCX 1.13.1's headers on x86-64.
    #[test]
    fn structures_are_laid_out_as_c_lays_them_out() {
        let offsets: Vec<usize> = layouts().into_iter().map(|(_, value)| value).collect();
        let of_c = [1, 1, 32, 8, 48, 8, 8, 16, 24, 32, 32, 8, 16, 24, 16, 8, 4, 16, 32];
        assert_eq!(offsets, of_c);
        assert_eq!(params_field::FEATURES | params_field::MT_WORKERS_SHARED, 33);
    }

    #[test]
    fn a_c_compiler_agrees_where_the_headers_are_installed() {
        let folder = std::env::temp_dir().join(format!("copyrpc-ucp-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let source = folder.join("layout.c");
        let mut text = "#include <stddef.h>\n#include <ucp/api/ucp.h>\n".to_owned();
        let layouts =
            layouts().into_iter().map(|(name, value)| (name, i64::try_from(value).unwrap()));
        for (name, value) in layouts.chain(numbers()) {
            text += &format!("_Static_assert(({name}) == ({value}), \"{name} is not {value}\");\n");
        }
        fs::write(&source, text).unwrap();
        let header = folder.join("header.c");
        fs::write(&header, "#include <ucp/api/ucp.h>\n").unwrap();
        let compile = |file| {
            let mut cc = Command::new("cc");
            cc.args(["-std=gnu11", "-fsyntax-only"]).arg(file).stderr(Stdio::piped()).output()
        };
        let has_headers = compile(&header).is_ok_and(|output| output.status.success());
        let compiled = has_headers.then(|| compile(&source).unwrap());
        fs::remove_dir_all(&folder).unwrap();
        match compiled {
            Some(output) => {
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            }
            None => {
                eprintln!("skipped: no C compiler, or no ucp/api/ucp.h, which is in libucx-dev")
            }
        }
    }

    #[test]
    fn pointers_are_nothing_or_a_request_or_a_status() {
        let read = |address| Started::read(ptr::without_provenance_mut(address));
        assert_eq!(read(0), Started::Complete);
        assert_eq!(read(4096), Started::Pending(ptr::without_provenance_mut(4096)));
        assert_eq!(read((-6_isize).cast_unsigned()), Started::Failed(-6));
        assert_eq!(read((-100_isize).cast_unsigned()), Started::Failed(-100));
        assert!(matches!(read((-101_isize).cast_unsigned()), Started::Pending(_)));
    }
}
