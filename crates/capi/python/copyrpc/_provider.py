"""Services that this process offers."""

import asyncio
import concurrent.futures
import ctypes
import inspect
import logging
import threading
import time
from typing import Any, Awaitable, Callable, Dict, Optional, Tuple, Union

from . import _arguments as arguments
from ._arguments import Name, Path
from ._base import Error, Handle, ServiceError, bytes_at, check, error_of
from ._library import OK, Status, library
from ._signals import Interrupts

log = logging.getLogger("copyrpc")

#: Most requests that a process takes at a time, and threads that serve them.
_WINDOW_MAX = 0xFFFF
#: Bits of copyrpc_provider_offer.
_SHARED, ENDS_WITH_DAEMON = 1, 2
#: What callers are told of requests that no handler answered.
_GONE = b"the provider ended before it answered"


class Request:
    """A request, as its handler sees it."""

    def __init__(self, handle: int):
        length, uid, pid = ctypes.c_size_t(), ctypes.c_uint32(), ctypes.c_uint32()
        body = library.copyrpc_request_body(handle, ctypes.byref(length))
        is_known = library.copyrpc_request_caller(handle, ctypes.byref(uid), ctypes.byref(pid))
        #: Rank of the caller's node.
        self.rank: int = library.copyrpc_request_rank(handle)
        self.method: int = library.copyrpc_request_method(handle)
        self.body: bytes = bytes_at(body, length)
        #: When the caller gives up, by ``time.monotonic()``.
        self.deadline: float = time.monotonic() + library.copyrpc_request_time_left_us(handle) / 1e6
        #: User and process of the caller, where known.
        self.caller: Optional[Tuple[int, int]] = (uid.value, pid.value) if is_known else None
        #: Number of the caller's trace; 0: it has none.
        self.trace: int = library.copyrpc_request_trace(handle)
        self._handle: Optional[int] = handle
        self._lock = threading.Lock()

    @property
    def is_cancelled(self) -> bool:
        """Whether nobody waits for the answer any more, or ``serve`` was stopped and does not.

        A handler that keeps the thread which serves knows the deadline, and the end of the session with the daemon or with
        a caller that calls without it. Several threads, and ``async def`` handlers, know of each caller that is gone.
        """
        with self._lock:
            if self._handle is not None:
                return bool(library.copyrpc_request_is_cancelled(self._handle))
        return True

    def _reply(self, status: int, answer: bytes) -> None:
        with self._lock:
            handle, self._handle = self._handle, None
            if handle is not None:
                library.copyrpc_request_reply(handle, status, answer, len(answer))

    def __repr__(self) -> str:
        return f"Request(rank={self.rank}, method={self.method}, body={self.body!r}, caller={self.caller})"


#: What answers: an answer has the buffer protocol.
Handler = Callable[[Request], Union[Any, Awaitable[Any]]]


def outcome_of(error: BaseException) -> "Tuple[int, bytes]":
    """What the caller of a handler that raised is told."""
    if isinstance(error, ServiceError):
        return error.status, error.detail
    if isinstance(error, Error):
        return Status.INTERNAL, f"{type(error).__name__}: {error}".encode()
    if isinstance(error, Exception):
        return Status.INTERNAL, type(error).__name__.encode()
    # A program that ends, or a task that was cancelled.
    return Status.UNAVAILABLE, type(error).__name__.encode()


def log_failure(error: BaseException, service: Name, method: int) -> None:
    """Logs a handler's exception, unless it is one that handlers raise on purpose."""
    if isinstance(error, Exception) and not isinstance(error, ServiceError):
        log.error("a handler of service %r, method %d, raised", service, method, exc_info=error)


def is_async(handler: Any) -> bool:
    """Whether a handler is ``async def``."""
    call = getattr(handler, "__call__", None)
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)


class Provider(Handle):
    """Offers a service.

    When the daemon is gone, its successor is looked for as long as the process lives, and the service is offered there
    again, unless ``reconnect`` is false: then ``serve`` raises.
    """

    _free = library.copyrpc_provider_free

    def __init__(
        self,
        service: Name,
        socket: Optional[Path] = None,
        shared: bool = False,
        window: int = 0,
        reconnect: bool = True,
    ):
        super().__init__()
        self._service = service
        # Requests that were taken and are not answered.
        self._taken: Dict[int, Request] = {}
        self._raised: Optional[BaseException] = None
        name = arguments.text(service, "the name of a service") if isinstance(service, str) else None
        window = arguments.integer(window, "a window", _WINDOW_MAX)
        flags = (_SHARED if shared else 0) | (0 if reconnect else ENDS_WITH_DAEMON)
        status = library.copyrpc_provider_offer(
            arguments.path(socket), arguments.service(service), name, flags, window, ctypes.byref(self._handle)
        )
        check(status)

    def close(self) -> None:
        """Withdraws the service. What serves on another thread ends."""
        self.stop()
        super().close()

    def serve(self, handler: Handler, threads: int = 1) -> None:
        """Answers requests until ``stop`` is called. Once per provider.

        One thread is this one, and answers one request after the other; more are threads of a pool, whose slow
        handlers delay no others. A handler that is ``async def`` runs in an event loop of its own.

        What the handler returns is the answer: bytes, or something with the buffer protocol. ``ServiceError`` answers
        with its status. Any other exception answers with ``internal``, and is logged with its traceback. Ctrl-C ends
        this, after what was taken is answered, by ``KeyboardInterrupt``; a second one interrupts the handler.
        """
        threads = arguments.integer(threads, "a number of threads", _WINDOW_MAX)
        if not callable(handler) or threads == 0:
            raise TypeError("what serves is a handler that can be called, on at least one thread")
        if is_async(handler):
            with Interrupts(self.stop):
                asyncio.run(self.serve_async(handler))
            return
        pool = concurrent.futures.ThreadPoolExecutor(threads, "copyrpc-serve") if threads > 1 else None
        try:
            with Interrupts(self.stop):
                if pool is None:
                    self._run(lambda request: self._answer(handler, request))
                else:
                    self._run(lambda request: pool.submit(self._answer, handler, request))
        finally:
            if pool is not None:
                pool.shutdown(wait=True)

    async def serve_async(self, handler: Handler) -> None:
        """Answers requests in this event loop, each as a task, until ``stop`` is called. Once per provider.

        A task that is cancelled while it awaits this first has what was taken answered.
        """
        loop = asyncio.get_running_loop()
        tasks: "set[asyncio.Task[None]]" = set()

        def start(request: Request) -> None:
            task = loop.create_task(self._answer_async(handler, request))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        def run() -> None:
            self._run(lambda request: loop.call_soon_threadsafe(start, request))

        # A thread of its own: those of a pool keep the program from ending.
        ended: "asyncio.Future[None]" = loop.create_future()
        thread = threading.Thread(target=_report, args=(run, loop, ended), name="copyrpc-serve", daemon=True)
        thread.start()
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError:
            self.stop()
            await ended
            raise
        finally:
            self.stop()
            for task in tasks:
                task.cancel()

    def stop(self) -> None:
        """Ends what serves, after what was taken is answered; any thread may call it, at any time."""
        with self._state:
            if self._handle:
                library.copyrpc_provider_stop(self._handle)

    def _run(self, give: Callable[[Request], Any]) -> None:
        def serve(address: int, _user: Any) -> None:
            request = Request(address)
            self._taken[id(request)] = request
            try:
                give(request)
            except BaseException as error:  # pylint: disable=broad-except
                self._end(request, *outcome_of(error))
                self._raise_later(error)

        with self._using() as handle:
            callback = library.SERVE(serve)
            status = library.copyrpc_provider_serve(handle, callback, None)
            error = None if status == OK else error_of(status)
            # Handlers that take longer than the library waits for them.
            for request in list(self._taken.values()):
                self._end(request, Status.UNAVAILABLE, _GONE)
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised
        if error is not None:
            raise error

    def _raise_later(self, error: BaseException) -> None:
        """Has ``serve`` end, and raise what no handler should: ``SystemExit`` and its like."""
        self._raised = self._raised or error
        self.stop()

    def _answer(self, handler: Handler, request: Request) -> None:
        try:
            status, answer = OK, arguments.body(handler(request))
        except BaseException as error:  # pylint: disable=broad-except
            log_failure(error, self._service, request.method)
            status, answer = outcome_of(error)
            if not isinstance(error, Exception):
                self._raise_later(error)
        self._end(request, status, answer)

    async def _answer_async(self, handler: Handler, request: Request) -> None:
        try:
            made = handler(request)
            status, answer = OK, arguments.body(await made if inspect.isawaitable(made) else made)
        except BaseException as error:  # pylint: disable=broad-except
            log_failure(error, self._service, request.method)
            self._end(request, *outcome_of(error))
            if isinstance(error, Exception):
                return
            raise
        self._end(request, status, answer)

    def _end(self, request: Request, status: int, answer: bytes) -> None:
        self._taken.pop(id(request), None)
        request._reply(status, answer)


def _report(
    run: Callable[[], None], loop: asyncio.AbstractEventLoop, ended: "asyncio.Future[None]"
) -> None:
    """Runs something on this thread, and has a future of a loop say how it went."""

    def say(error: Optional[BaseException]) -> None:
        if ended.done():
            return
        if error is None:
            ended.set_result(None)
        else:
            ended.set_exception(error)

    try:
        run()
        failed: Optional[BaseException] = None
    except BaseException as error:  # pylint: disable=broad-except
        failed = error
    try:
        loop.call_soon_threadsafe(say, failed)
    except RuntimeError:
        # The loop is closed: nobody waits.
        pass
