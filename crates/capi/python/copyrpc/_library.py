"""The functions of copyrpc.h."""

import ctypes
import os
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_int32, c_size_t, c_uint16, c_uint32, c_uint64, c_void_p

ABI = 1
HERE = 0xFFFF_FFFF
OK = 0

#: By number.
STATUSES = (
    "ok", "cancelled", "unknown", "invalid argument", "deadline exceeded", "not found", "already exists",
    "permission denied", "resource exhausted", "failed precondition", "aborted", "out of range", "unimplemented",
    "internal", "unavailable", "data loss", "unauthenticated",
)


class RawSlice(ctypes.Structure):
    """``copyrpc_slice``."""

    _fields_ = [("region", c_void_p), ("offset", c_uint64), ("length", c_uint64), ("writable", c_int)]


class RawMove(ctypes.Structure):
    """``copyrpc_move``."""

    _fields_ = [
        ("slice", c_uint32), ("push", c_int), ("offset", c_uint64), ("own_offset", c_uint64), ("length", c_uint64),
    ]


library = ctypes.CDLL(os.environ.get("COPYRPC_LIBRARY", "libcopyrpc_c.so"))
library.DONE = CFUNCTYPE(None, c_void_p, c_int32, c_void_p, c_size_t, c_void_p)
library.SERVE = CFUNCTYPE(None, c_void_p, c_void_p)

_CALL = [c_uint32, c_uint16, c_uint16, c_char_p, c_size_t, c_uint64]
_FUNCTIONS = {
    "last_error": (c_char_p, []),
    "last_origin": (c_int32, []),
    "last_not_executed": (c_int, []),
    "last_detail": (c_void_p, [POINTER(c_size_t)]),
    "abi": (c_uint32, []),
    "service_number": (c_uint16, [c_char_p]),
    "method_number": (c_uint16, [c_char_p]),
    "client_connect": (c_int32, [c_char_p, c_uint64, POINTER(c_void_p)]),
    "client_free": (None, [c_void_p]),
    "client_reconnect": (c_int32, [c_void_p]),
    "client_call": (c_int32, [c_void_p, *_CALL, POINTER(c_void_p), POINTER(c_size_t)]),
    "client_who": (c_int32, [c_void_p, POINTER(c_uint32), POINTER(c_uint32)]),
    "pipeline_connect": (c_int32, [c_char_p, c_uint64, POINTER(c_void_p)]),
    "pipeline_free": (None, [c_void_p]),
    "pipeline_submit": (c_int32, [c_void_p, *_CALL, c_void_p]),
    "pipeline_poll": (c_int32, [c_void_p, library.DONE, c_void_p, POINTER(c_size_t)]),
    "pipeline_fd": (c_int, [c_void_p]),
    "pipeline_arm": (c_int, [c_void_p]),
    "provider_offer": (c_int32, [c_char_p, c_uint16, c_char_p, c_int, c_size_t, POINTER(c_void_p)]),
    "provider_free": (None, [c_void_p]),
    "provider_serve": (c_int32, [c_void_p, library.SERVE, c_void_p]),
    "provider_stop": (None, [c_void_p]),
    "client_region": (c_int32, [c_void_p, c_uint64, POINTER(c_void_p)]),
    "client_forget": (c_int32, [c_void_p, c_void_p]),
    "client_call_bulk": (
        c_int32,
        [
            c_void_p, c_uint32, c_uint16, c_uint16, c_char_p, c_size_t, POINTER(RawSlice), c_size_t, c_uint64,
            POINTER(c_void_p), POINTER(c_size_t),
        ],
    ),
    "client_lent": (c_int32, [c_void_p, c_void_p, POINTER(c_uint64), POINTER(c_uint64)]),
    "client_reclaim": (c_int32, [c_void_p, c_void_p, c_uint64]),
    "region_free": (None, [c_void_p]),
    "region_length": (c_uint64, [c_void_p]),
    "region_write": (c_int32, [c_void_p, c_uint64, c_char_p, c_size_t]),
    "region_read": (c_int32, [c_void_p, c_uint64, c_void_p, c_size_t]),
    "bulk_provider_offer": (c_int32, [c_char_p, c_uint16, c_uint64, POINTER(c_void_p)]),
    "bulk_provider_free": (None, [c_void_p]),
    "bulk_provider_region": (c_int32, [c_void_p, c_uint64, POINTER(c_void_p)]),
    "bulk_provider_next": (c_int32, [c_void_p, c_uint64, POINTER(c_void_p)]),
    "bulk_provider_begin": (
        c_int32, [c_void_p, c_void_p, c_void_p, POINTER(RawMove), c_size_t, c_uint64, POINTER(c_uint64)],
    ),
    "bulk_provider_wait": (c_int32, [c_void_p, c_uint64, POINTER(c_uint64)]),
    "bulk_provider_answer": (c_int32, [c_void_p, c_void_p, c_int32, c_char_p, c_size_t]),
    "work_method": (c_uint16, [c_void_p]),
    "work_rank": (c_uint32, [c_void_p]),
    "work_body": (c_void_p, [c_void_p, POINTER(c_size_t)]),
    "work_slices": (c_size_t, [c_void_p]),
    "work_slice": (c_int32, [c_void_p, c_size_t, POINTER(c_uint64), POINTER(c_int)]),
    "request_method": (c_uint16, [c_void_p]),
    "request_rank": (c_uint32, [c_void_p]),
    "request_body": (c_void_p, [c_void_p, POINTER(c_size_t)]),
    "request_time_left_us": (c_uint64, [c_void_p]),
    "request_caller": (c_int, [c_void_p, POINTER(c_uint32), POINTER(c_uint32)]),
    "request_reply": (c_int32, [c_void_p, c_int32, c_char_p, c_size_t]),
}
for _name, (_result, _arguments) in _FUNCTIONS.items():
    _function = getattr(library, f"copyrpc_{_name}")
    _function.restype, _function.argtypes = _result, _arguments
