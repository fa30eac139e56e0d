"""Calls through the daemon of a node, and services that a process provides.

    import copyrpc

    with copyrpc.Client() as client:
        answer = client.call(rank=1, service="metadata", method="stat", body=b"/etc/hostname")

    async def many():
        async with copyrpc.AsyncClient() as client:
            return await asyncio.gather(*(client.call(rank, 17, 1, b"hello") for rank in range(8)))

    with copyrpc.Provider("metadata") as provider:
        provider.serve(lambda request: b"hello, " + request.body)

    with copyrpc.BulkClient() as client:
        region = client.region(1 << 20)
        region.write(0, page)
        client.call_bulk(1, "store", "put", [region.slice()], b"page 7")

Services and methods have names, or numbers. Calls that wait let other threads of Python run.
"""

import asyncio
import ctypes
import time
from typing import Callable, NamedTuple, Optional

from ._base import Error, Name, ServiceError, _check, _error, _Handle, _method, _path, _service, _us
from ._library import ABI, HERE, OK, STATUSES, library


class Client(_Handle):
    """One call at a time. Used by one thread at a time."""

    _free = library.copyrpc_client_free

    def __init__(self, socket: Optional[str] = None, timeout: Optional[float] = None):
        super().__init__()
        _check(library.copyrpc_client_connect(_path(socket), _us(timeout), ctypes.byref(self._handle)))

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(
        self, rank: int, service: Name, method: Name, body: bytes = b"", timeout: Optional[float] = None
    ) -> bytes:
        """Calls, and waits for the answer; ``HERE`` is the rank of this node."""
        answer, length = ctypes.c_void_p(), ctypes.c_size_t()
        status = library.copyrpc_client_call(
            self._handle, rank, _service(service), _method(method), body, len(body), _us(timeout),
            ctypes.byref(answer), ctypes.byref(length),
        )
        _check(status)
        return ctypes.string_at(answer, length.value) if length.value else b""

    def who(self) -> "tuple[int, int]":
        """Rank of this node, and how many there are."""
        rank, size = ctypes.c_uint32(), ctypes.c_uint32()
        _check(library.copyrpc_client_who(self._handle, ctypes.byref(rank), ctypes.byref(size)))
        return rank.value, size.value

    def reconnect(self) -> None:
        """Connects again, to the same daemon or its successor."""
        _check(library.copyrpc_client_reconnect(self._handle))


class AsyncClient(_Handle):
    """Many calls at a time, for asyncio. Belongs to the event loop in which it was made.

    More calls than the daemon takes of one client wait here.
    """

    _free = library.copyrpc_pipeline_free

    #: Seconds between two looks for what the descriptor does not tell: deadlines.
    LOOK = 0.005

    def __init__(self, socket: Optional[str] = None, timeout: Optional[float] = None):
        super().__init__()
        self._loop = asyncio.get_running_loop()
        _check(library.copyrpc_pipeline_connect(_path(socket), _us(timeout), ctypes.byref(self._handle)))
        self._calls: "dict[int, asyncio.Future[bytes]]" = {}
        self._waiting: "list[tuple]" = []
        self._next = 1
        self._timer: Optional[asyncio.TimerHandle] = None
        self._done = library.DONE(self._ended)
        self._descriptor = library.copyrpc_pipeline_fd(self._handle)
        self._loop.add_reader(self._descriptor, self._pump)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._handle and not self._loop.is_closed():
            self._loop.remove_reader(self._descriptor)
        if self._timer is not None:
            self._timer.cancel()
        super().close()
        waiting = [call[-1] for call in self._waiting]
        for future in [*self._calls.values(), *waiting]:
            future.cancel()
        self._calls.clear()
        self._waiting.clear()

    async def call(
        self, rank: int, service: Name, method: Name, body: bytes = b"", timeout: Optional[float] = None
    ) -> bytes:
        """Calls. Cancelling it gives the call up; it may be executed."""
        future: "asyncio.Future[bytes]" = self._loop.create_future()
        self._waiting.append((rank, _service(service), _method(method), body, timeout, future))
        self._pump()
        return await future

    def _ended(self, context: int, status: int, body: int, length: int, _user: int) -> None:
        future = self._calls.pop(context, None)
        said = ctypes.string_at(body, length) if length else b""
        if future is None or future.done():
            return
        if status == OK:
            future.set_result(said)
        else:
            error = _error(status)
            error.detail = said
            future.set_exception(error)

    def _submit(self) -> None:
        while self._waiting:
            rank, service, method, body, timeout, future = self._waiting[0]
            if not future.done():
                context = self._next
                status = library.copyrpc_pipeline_submit(
                    self._handle, rank, service, method, body, len(body), _us(timeout), context
                )
                if status == STATUSES.index("resource exhausted") and self._calls:
                    return
                if status == OK:
                    self._next += 1
                    self._calls[context] = future
                else:
                    future.set_exception(_error(status))
            self._waiting.pop(0)

    def _pump(self) -> None:
        """Sends what waits, and reports what ended, until there is nothing to do."""
        while self._handle:
            self._submit()
            count = ctypes.c_size_t()
            status = library.copyrpc_pipeline_poll(self._handle, self._done, None, ctypes.byref(count))
            if status != OK:
                error = _error(status)
                for future in self._calls.values():
                    if not future.done():
                        future.set_exception(error)
                self._calls.clear()
                return
            if count.value == 0 and (not self._calls or library.copyrpc_pipeline_arm(self._handle) == 1):
                break
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._calls:
            self._timer = self._loop.call_later(self.LOOK, self._pump)


class Request(NamedTuple):
    """A request, as its handler sees it."""

    #: Rank of the caller's node.
    rank: int
    method: int
    body: bytes
    #: When the caller gives up, by ``time.monotonic()``.
    deadline: float
    #: User and process of the caller, where known.
    caller: "Optional[tuple[int, int]]"


class Provider(_Handle):
    """Offers a service."""

    _free = library.copyrpc_provider_free

    def __init__(
        self, service: Name, socket: Optional[str] = None, shared: bool = False, window: int = 0
    ):
        super().__init__()
        name = service.encode() if isinstance(service, str) else None
        status = library.copyrpc_provider_offer(
            _path(socket), _service(service), name, int(shared), window, ctypes.byref(self._handle)
        )
        _check(status)

    def __enter__(self) -> "Provider":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def serve(self, handler: Callable[[Request], bytes]) -> None:
        """Answers requests on this thread, one after the other, until ``stop`` is called or the daemon is gone.

        What the handler returns is the answer; ``ServiceError`` answers with its status, any other exception
        with ``internal``.
        """

        def serve(request: int, _user: int) -> None:
            status, answer = OK, b""
            try:
                answer = bytes(handler(_request(request)))
            except ServiceError as error:
                status, answer = error.status, error.detail
            except BaseException as error:  # pylint: disable=broad-except
                status, answer = STATUSES.index("internal"), type(error).__name__.encode()
            library.copyrpc_request_reply(request, status, answer, len(answer))

        _check(library.copyrpc_provider_serve(self._handle, library.SERVE(serve), None))

    def stop(self) -> None:
        """Ends ``serve`` soon; any thread may."""
        library.copyrpc_provider_stop(self._handle)


def _request(request: int) -> Request:
    length, uid, pid = ctypes.c_size_t(), ctypes.c_uint32(), ctypes.c_uint32()
    body = library.copyrpc_request_body(request, ctypes.byref(length))
    is_known = library.copyrpc_request_caller(request, ctypes.byref(uid), ctypes.byref(pid))
    left_us = library.copyrpc_request_time_left_us(request)
    return Request(
        library.copyrpc_request_rank(request),
        library.copyrpc_request_method(request),
        ctypes.string_at(body, length.value) if length.value else b"",
        time.monotonic() + left_us / 1e6,
        (uid.value, pid.value) if is_known else None,
    )


# After what it builds on.
from .bulk import BulkClient, BulkProvider, Move, Region, Slice, Work  # noqa: E402  pylint: disable=wrong-import-position

__all__ = [
    "AsyncClient", "BulkClient", "BulkProvider", "Client", "Error", "HERE", "Move", "Provider", "Region", "Request",
    "ServiceError", "Slice", "Work",
]

if library.copyrpc_abi() != ABI:
    raise ImportError(f"libcopyrpc_c has ABI {library.copyrpc_abi()}, and this package knows {ABI}")
