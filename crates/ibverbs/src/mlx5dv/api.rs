//! libmlx5, opened at run time.

use core::ffi::c_int;
use std::sync::OnceLock;

use os::dylib::DylibError;

use super::abi::{CqInitAttrEx, DvCqInitAttr, DvObj, DvQpInitAttr, QpInitAttrEx};
use crate::{
    abi::{Context, Cq, Device, Qp},
    error::OpenError,
};

os::dylib::functions! {
    /// The library's functions, by their names.
    pub(super) struct Api of "libmlx5.so.1" {
        fn mlx5dv_is_supported(*mut Device) -> bool;
        fn mlx5dv_init_obj(*mut DvObj, u64) -> c_int;
        fn mlx5dv_create_cq(*mut Context, *mut CqInitAttrEx, *mut DvCqInitAttr) -> *mut Cq;
        fn mlx5dv_create_qp(*mut Context, *mut QpInitAttrEx, *mut DvQpInitAttr) -> *mut Qp;
    }
}

impl Api {
    /// The library of this process, opened by the first call: it is the driver that libibverbs uses, too.
    ///
    /// # Errors
    ///
    /// [`OpenError::Library`].
    pub(super) fn load() -> Result<Self, OpenError> {
        static LOADED: OnceLock<Result<Api, DylibError>> = OnceLock::new();
        // SAFETY: its initialisers start no thread and touch nothing of this program.
        LOADED.get_or_init(|| unsafe { Self::open() }).clone().map_err(OpenError::Library)
    }
}
