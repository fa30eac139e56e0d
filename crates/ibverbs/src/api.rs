//! libibverbs, opened at run time.

use core::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use os::dylib::DylibError;

use crate::{
    abi::{
        Ah, AhAttr, AsyncEvent, CompChannel, Context, Cq, Device, DeviceAttr, Mr, Pd, PortAttr, Qp,
        QpAttr, QpInitAttr, RawGid, Srq, SrqInitAttr,
    },
    error::OpenError,
};

os::dylib::functions! {
    /// The library's functions, by their names.
    pub(crate) struct Api of "libibverbs.so.1" {
        fn ibv_get_device_list(*mut c_int) -> *mut *mut Device;
        fn ibv_free_device_list(*mut *mut Device) -> ();
        fn ibv_get_device_name(*mut Device) -> *const c_char;
        fn ibv_open_device(*mut Device) -> *mut Context;
        fn ibv_close_device(*mut Context) -> c_int;
        fn ibv_query_device(*mut Context, *mut DeviceAttr) -> c_int;
        fn ibv_query_port(*mut Context, u8, *mut PortAttr) -> c_int;
        fn ibv_query_gid(*mut Context, u8, c_int, *mut RawGid) -> c_int;
        fn ibv_query_pkey(*mut Context, u8, c_int, *mut u16) -> c_int;
        fn ibv_alloc_pd(*mut Context) -> *mut Pd;
        fn ibv_dealloc_pd(*mut Pd) -> c_int;
        fn ibv_reg_mr_iova2(*mut Pd, *mut c_void, usize, u64, c_uint) -> *mut Mr;
        fn ibv_dereg_mr(*mut Mr) -> c_int;
        fn ibv_create_comp_channel(*mut Context) -> *mut CompChannel;
        fn ibv_destroy_comp_channel(*mut CompChannel) -> c_int;
        fn ibv_create_cq(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
        fn ibv_destroy_cq(*mut Cq) -> c_int;
        fn ibv_get_cq_event(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
        fn ibv_ack_cq_events(*mut Cq, c_uint) -> ();
        fn ibv_create_srq(*mut Pd, *mut SrqInitAttr) -> *mut Srq;
        fn ibv_destroy_srq(*mut Srq) -> c_int;
        fn ibv_create_qp(*mut Pd, *mut QpInitAttr) -> *mut Qp;
        fn ibv_modify_qp(*mut Qp, *mut QpAttr, c_int) -> c_int;
        fn ibv_query_qp(*mut Qp, *mut QpAttr, c_int, *mut QpInitAttr) -> c_int;
        fn ibv_destroy_qp(*mut Qp) -> c_int;
        fn ibv_create_ah(*mut Pd, *mut AhAttr) -> *mut Ah;
        fn ibv_destroy_ah(*mut Ah) -> c_int;
        fn ibv_get_async_event(*mut Context, *mut AsyncEvent) -> c_int;
        fn ibv_ack_async_event(*mut AsyncEvent) -> ();
        optional fn ibv_is_fork_initialized() -> c_int;
        optional fn ibv_fork_init() -> c_int;
    }
}

impl Api {
    /// The library of this process, opened by the first call.
    ///
    /// # Errors
    ///
    /// [`OpenError::Library`].
    pub(crate) fn load() -> Result<Self, OpenError> {
        static LOADED: OnceLock<Result<Api, DylibError>> = OnceLock::new();
        // SAFETY: its initialisers start no thread and touch nothing of this program.
        LOADED.get_or_init(|| unsafe { Self::open() }).clone().map_err(OpenError::Library)
    }
}
