"""What all parts of the package use: errors, names, handles."""

import ctypes
from typing import Optional, Union

from ._library import OK, STATUSES, library

Name = Union[int, str]

#: Who says that a call is no success, by number.
ORIGINS = (
    "none", "service", "no method", "no service", "no rank", "daemon", "daemon gone", "library", "denied",
)


class Error(Exception):
    """A call that has no answer, or a service that cannot be offered."""

    def __init__(self, status: int, origin: int, not_executed: bool, detail: bytes, text: str):
        super().__init__(text)
        #: The number of the status, as gRPC has it.
        self.status = status
        #: Who says so: one of ``ORIGINS``.
        self.origin = ORIGINS[origin] if 0 <= origin < len(ORIGINS) else str(origin)
        #: Whether the service certainly did not execute the call.
        self.not_executed = not_executed
        #: What the service adds.
        self.detail = detail

    @property
    def status_name(self) -> str:
        """The status in words."""
        return STATUSES[self.status] if 0 <= self.status < len(STATUSES) else str(self.status)


class ServiceError(Exception):
    """Raised by a handler: its caller gets this status, and these bytes."""

    def __init__(self, status: int, detail: bytes = b""):
        super().__init__(status, detail)
        self.status = status
        self.detail = detail


def _check(status: int) -> None:
    if status != OK:
        raise _error(status)


def _error(status: int) -> Error:
    """The error of the latest function that failed on this thread."""
    length = ctypes.c_size_t()
    detail = library.copyrpc_last_detail(ctypes.byref(length))
    return Error(
        status,
        library.copyrpc_last_origin(),
        bool(library.copyrpc_last_not_executed()),
        ctypes.string_at(detail, length.value) if detail and length.value else b"",
        (library.copyrpc_last_error() or b"").decode("utf-8", "replace"),
    )


def _service(name: Name) -> int:
    return name if isinstance(name, int) else library.copyrpc_service_number(name.encode())


def _method(name: Name) -> int:
    return name if isinstance(name, int) else library.copyrpc_method_number(name.encode())


def _path(socket: Optional[str]) -> Optional[bytes]:
    return None if socket is None else socket.encode()


def _us(seconds: Optional[float]) -> int:
    return 0 if seconds is None else max(1, int(seconds * 1e6))


class _Handle:
    """Something of the library, freed once."""

    _free = None

    def __init__(self) -> None:
        self._handle = ctypes.c_void_p()

    def close(self) -> None:
        """Frees it. What uses it afterwards is refused."""
        handle, self._handle = self._handle, ctypes.c_void_p()
        if handle:
            type(self)._free(handle)

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()
