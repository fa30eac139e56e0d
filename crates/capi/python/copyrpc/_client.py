"""A client that makes one call at a time."""

import ctypes
from typing import Any, Optional, Tuple

from . import _arguments as arguments
from ._arguments import Name, Path
from ._base import OneAtATime, bytes_at, check
from ._library import library


class Client(OneAtATime):
    """One call at a time. Threads may share it: a call waits for those of other threads, within its deadline."""

    _free = library.copyrpc_client_free

    def __init__(self, socket: Optional[Path] = None, timeout: Optional[float] = None):
        timeout = arguments.seconds(timeout)
        super().__init__(timeout)
        self._traced = 0
        timeout_us = arguments.microseconds(timeout)
        check(library.copyrpc_client_connect(arguments.path(socket), timeout_us, ctypes.byref(self._handle)))

    def call(
        self,
        rank: int,
        service: Name,
        method: Name,
        body: Any = b"",
        timeout: Optional[float] = None,
        trace: int = 0,
    ) -> bytes:
        """Calls, and waits for the answer; ``HERE`` is the rank of this node.

        Handlers are told the number of the trace, unless it is 0.
        """
        trace = arguments.trace(trace)
        rank, service, method = arguments.rank(rank), arguments.service(service), arguments.method(method)
        body, timeout = arguments.body(body), arguments.seconds(timeout)
        answer, length = ctypes.c_void_p(), ctypes.c_size_t()
        with self._turn(timeout) as (handle, left_us):
            self._trace(handle, trace)
            status = library.copyrpc_client_call(
                handle, rank, service, method, body, len(body), left_us, ctypes.byref(answer), ctypes.byref(length),
            )
            check(status)
            return bytes_at(answer, length)

    def _trace(self, handle: ctypes.c_void_p, trace: int) -> None:
        """The next call of the handle belongs to this trace."""
        if trace != self._traced:
            check(library.copyrpc_client_set_trace(handle, trace))
            self._traced = trace

    def who(self) -> "Tuple[int, int]":
        """Rank of this node, and how many there are."""
        rank, size = ctypes.c_uint32(), ctypes.c_uint32()
        with self._turn() as (handle, _):
            check(library.copyrpc_client_who(handle, ctypes.byref(rank), ctypes.byref(size)))
        return rank.value, size.value

    def reconnect(self) -> None:
        """Connects again, to the same daemon or its successor. Calls fail from the daemon's end until then."""
        with self._turn() as (handle, _):
            check(library.copyrpc_client_reconnect(handle))
