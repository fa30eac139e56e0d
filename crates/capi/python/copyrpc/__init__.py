"""Calls through the daemon of a node, and services that a process provides.

    import copyrpc

    with copyrpc.Client() as client:
        answer = client.call(rank=1, service="metadata", method="stat", body=b"/etc/hostname")

    async def many():
        async with copyrpc.AsyncClient() as client:
            return await asyncio.gather(*(client.call(rank, 17, 1, b"hello") for rank in range(8)))

    with copyrpc.Provider("metadata") as provider:
        provider.serve(lambda request: b"hello, " + request.body)

Services and methods have names, or numbers. Calls that wait let other threads of Python run.
"""

import asyncio
import ctypes
import time
from typing import Callable, NamedTuple, Optional, Union

from ._library import ABI, HERE, OK, STATUSES, library

__all__ = ["AsyncClient", "Client", "Error", "HERE", "Provider", "Request", "ServiceError"]

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


if library.copyrpc_abi() != ABI:
    raise ImportError(f"libcopyrpc_c has ABI {library.copyrpc_abi()}, and this package knows {ABI}")
