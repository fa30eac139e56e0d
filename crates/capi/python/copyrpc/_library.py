"""The functions of copyrpc.h."""

import ctypes
import enum
import os
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_int32, c_size_t, c_uint16, c_uint32, c_uint64, c_void_p

ABI = 1
HERE = 0xFFFF_FFFF
OK = 0


class Status(enum.IntEnum):
    """How a call ended: the numbers of gRPC."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class RawSlice(ctypes.Structure):
    """``copyrpc_slice``."""

    _fields_ = [("region", c_void_p), ("offset", c_uint64), ("length", c_uint64), ("writable", c_int)]


class RawMove(ctypes.Structure):
    """``copyrpc_move``."""

    _fields_ = [
        ("slice", c_uint32), ("push", c_int), ("offset", c_uint64), ("own_offset", c_uint64), ("length", c_uint64),
    ]


#: The library that is loaded, unless COPYRPC_LIBRARY names another one. The name carries the ABI.
NAME = f"libcopyrpc_c.so.{ABI}"


def _load() -> ctypes.CDLL:
    name = os.environ.get("COPYRPC_LIBRARY") or NAME
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        raise ImportError(
            f"{error}; install libcopyrpc_c where the dynamic linker looks, or set COPYRPC_LIBRARY to its path"
        ) from error


library = _load()
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
    "client_set_trace": (c_int32, [c_void_p, c_uint64]),
    "client_who": (c_int32, [c_void_p, POINTER(c_uint32), POINTER(c_uint32)]),
    "pipeline_connect": (c_int32, [c_char_p, c_uint64, POINTER(c_void_p)]),
    "pipeline_free": (None, [c_void_p]),
    "pipeline_set_trace": (c_int32, [c_void_p, c_uint64]),
    "pipeline_submit_named": (c_int32, [c_void_p, *_CALL, c_void_p, POINTER(c_uint64)]),
    "pipeline_cancel": (c_int32, [c_void_p, c_uint64, POINTER(c_void_p)]),
    "pipeline_in_flight": (c_size_t, [c_void_p]),
    "pipeline_poll": (c_int32, [c_void_p, library.DONE, c_void_p, POINTER(c_size_t)]),
    "pipeline_fd": (c_int, [c_void_p]),
    "pipeline_arm": (c_int, [c_void_p]),
    "pipeline_time_left_us": (c_uint64, [c_void_p]),
    "pipeline_reconnect": (c_int32, [c_void_p, library.DONE, c_void_p]),
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
    "client_renew": (c_int32, [c_void_p, c_void_p, POINTER(c_int)]),
    "bulk_provider_offer_with": (c_int32, [c_char_p, c_uint16, c_int, c_uint64, POINTER(c_void_p)]),
    "bulk_provider_renew": (c_int32, [c_void_p, c_void_p, POINTER(c_int)]),
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
    "work_time_left_us": (c_uint64, [c_void_p]),
    "work_trace": (c_uint64, [c_void_p]),
    "work_caller": (c_int, [c_void_p, POINTER(c_uint32), POINTER(c_uint32)]),
    "bulk_provider_is_cancelled": (c_int, [c_void_p, c_void_p]),
    "work_slices": (c_size_t, [c_void_p]),
    "work_slice": (c_int32, [c_void_p, c_size_t, POINTER(c_uint64), POINTER(c_int)]),
    "request_method": (c_uint16, [c_void_p]),
    "request_rank": (c_uint32, [c_void_p]),
    "request_body": (c_void_p, [c_void_p, POINTER(c_size_t)]),
    "request_time_left_us": (c_uint64, [c_void_p]),
    "request_is_cancelled": (c_int, [c_void_p]),
    "request_trace": (c_uint64, [c_void_p]),
    "request_caller": (c_int, [c_void_p, POINTER(c_uint32), POINTER(c_uint32)]),
    "request_reply": (c_int32, [c_void_p, c_int32, c_char_p, c_size_t]),
}
library.copyrpc_abi.restype = c_uint32
if library.copyrpc_abi() != ABI:
    raise ImportError(f"libcopyrpc_c has ABI {library.copyrpc_abi()}, and this package knows {ABI}")
for _name, (_result, _arguments) in _FUNCTIONS.items():
    try:
        _function = getattr(library, f"copyrpc_{_name}")
    except AttributeError as _error:
        raise ImportError(f"{_error}; libcopyrpc_c is older than this package") from _error
    _function.restype, _function.argtypes = _result, _arguments
