"""What all parts of the package use: errors, and handles."""

import ctypes
import threading
import time
from typing import Any, Optional, Tuple

from ._arguments import body as _body
from ._arguments import integer, microseconds
from ._library import OK, Status, library

#: Deadline in seconds of calls that have none.
TIMEOUT = 5.0

#: Who says that a call is no success, by number.
ORIGINS = (
    "none", "service", "no method", "no service", "no rank", "daemon", "daemon gone", "library", "denied",
)
_LIBRARY = ORIGINS.index("library")


class Error(Exception):
    """A call that has no answer, or a service that cannot be offered."""

    def __init__(self, status: int, origin: int, not_executed: bool, detail: bytes, text: str):
        super().__init__(text)
        #: The number of the status, as gRPC has it; ``Status`` has their names.
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
        try:
            return Status(self.status).name.lower().replace("_", " ")
        except ValueError:
            return str(self.status)


class ServiceError(Exception):
    """A handler raises it: the caller gets this status, and these bytes."""

    def __init__(self, status: int, detail: Any = b""):
        number = integer(status, "a status", max(Status))
        if number == OK:
            raise ValueError("a handler that succeeds returns its answer")
        super().__init__(number, detail)
        self.status = number
        self.detail = _body(detail)


def check(status: int) -> None:
    """Raises what the library says of a status that is no success."""
    if status != OK:
        raise error_of(status)


def error_of(status: int) -> Error:
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


def refusal(status: Status, text: str, not_executed: bool = True) -> Error:
    """An error that this package itself tells."""
    return Error(status, _LIBRARY, not_executed, b"", text)


def bytes_at(address: Any, length: "ctypes.c_size_t") -> bytes:
    """A copy of what the library hands out."""
    return ctypes.string_at(address, length.value) if length.value else b""


class Handle:
    """Something of the library, freed once, when no thread is inside a function with it."""

    _free: Any = None

    def __init__(self) -> None:
        self._handle = ctypes.c_void_p()
        # Reentrant: a signal handler may run between any two steps of its owner.
        self._state = threading.RLock()
        self._uses = 0
        self._is_closed = False

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._is_closed

    def close(self) -> None:
        """Closes it: every later use raises. What another thread is doing with it ends as if it were open."""
        with self._state:
            self._is_closed = True
            self._release()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _release(self) -> None:
        if self._is_closed and self._uses == 0 and self._handle:
            handle, self._handle = self._handle, ctypes.c_void_p()
            type(self)._free(handle)

    def _enter(self) -> "ctypes.c_void_p":
        with self._state:
            # Counted before the look, so that no signal handler frees it in between.
            self._uses += 1
            if self._is_closed:
                self._leave()
                raise refusal(Status.FAILED_PRECONDITION, f"this {type(self).__name__} is closed")
            return self._handle

    def _leave(self) -> None:
        with self._state:
            self._uses -= 1
            self._release()

    def _using(self) -> "Using":
        return Using(self)

    def __reduce_ex__(self, _protocol: Any) -> Any:
        raise TypeError(f"a {type(self).__name__} belongs to its process: it is neither copied nor pickled")

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            Handle.close(self)


class Using:
    """Keeps a handle from being freed."""

    def __init__(self, handle: Handle):
        self._of = handle

    def __enter__(self) -> "ctypes.c_void_p":
        return self._of._enter()

    def __exit__(self, *_: object) -> None:
        self._of._leave()


class OneAtATime(Handle):
    """A handle that threads use one after the other. Waiting for another thread counts as part of a call."""

    def __init__(self, timeout: Optional[float]) -> None:
        super().__init__()
        self._timeout = TIMEOUT if timeout is None else timeout
        self._turn_lock = threading.Lock()
        self._inside: Optional[int] = None

    def _turn(self, timeout: Optional[float] = None) -> "Turn":
        return Turn(self, timeout)


class Turn:
    """The handle and the time that is left for its call, in microseconds; 0: the default."""

    def __init__(self, handle: OneAtATime, timeout: Optional[float]):
        self._of, self._timeout = handle, timeout

    def __enter__(self) -> "Tuple[ctypes.c_void_p, int]":
        held, left = self._of, self._timeout
        if held._inside == threading.get_ident():
            raise RuntimeError(f"this {type(held).__name__} is in use further up on the stack of this thread")
        if not held._turn_lock.acquire(blocking=False):
            begin = time.monotonic()
            patience = held._timeout if left is None else left
            if not held._turn_lock.acquire(timeout=patience):
                text = "no response before the deadline: other threads used the client all the time"
                raise refusal(Status.DEADLINE_EXCEEDED, text)
            left = max(0.0, patience - (time.monotonic() - begin))
        try:
            held._inside = threading.get_ident()
            return held._enter(), microseconds(left)
        except BaseException:
            self._give_up_turn()
            raise

    def __exit__(self, *_: object) -> None:
        self._give_up_turn()
        self._of._leave()

    def _give_up_turn(self) -> None:
        self._of._inside = None
        self._of._turn_lock.release()
