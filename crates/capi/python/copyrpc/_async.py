"""A client for asyncio."""

import asyncio
import collections
import ctypes
import threading
from typing import Any, Deque, Dict, Optional

from . import _arguments as arguments
from ._arguments import Name, Path
from ._base import TIMEOUT, Handle, check, error_of, refusal
from ._library import OK, Status, library

_NEVER_US = 0xFFFF_FFFF_FFFF_FFFF
#: Polls in a row before other callbacks of the loop run.
_POLLS_MAX = 64


class _Call:
    """A call until its future has ended."""

    __slots__ = ("to", "body", "deadline", "trace", "future", "timer", "context", "name")

    def __init__(self, to: Any, body: bytes, deadline: float, trace: int, future: "asyncio.Future[bytes]"):
        self.to, self.body, self.deadline, self.trace, self.future = to, body, deadline, trace, future
        self.timer: Optional[asyncio.TimerHandle] = None
        # What the library knows it by; 0: it was not sent.
        self.context, self.name = 0, ctypes.c_uint64()


class AsyncClient(Handle):
    """Many calls at a time, for asyncio. It belongs to the event loop in which it was made.

    Calls beyond what the daemon takes of one client wait here. A deadline counts from the call, so it passes for
    those, too.
    """

    _free = library.copyrpc_pipeline_free

    def __init__(self, socket: Optional[Path] = None, timeout: Optional[float] = None):
        super().__init__()
        timeout = arguments.seconds(timeout)
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._timeout = TIMEOUT if timeout is None else timeout
        timeout_us = arguments.microseconds(timeout)
        check(library.copyrpc_pipeline_connect(arguments.path(socket), timeout_us, ctypes.byref(self._handle)))
        self._calls: "Dict[int, asyncio.Future[bytes]]" = {}
        self._waiting: "Deque[_Call]" = collections.deque()
        self._next, self._traced = 1, 0
        self._timer: Optional[asyncio.TimerHandle] = None
        self._done = library.DONE(self._ended)
        #: What the loop watches; -1: nothing.
        self._descriptor = -1

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes it. Calls that have not ended do so with ``cancelled``; those that were sent may be executed."""
        if self._is_closed:
            return
        if not self._loop.is_closed():
            self._check_thread()
            self._watch_nothing()
        if self._timer is not None:
            self._timer.cancel()
        super().close()
        waiting = [call.future for call in self._waiting]
        sent, self._calls = list(self._calls.values()), {}
        self._waiting.clear()
        if self._loop.is_closed():
            return
        for futures, not_executed in ((sent, False), (waiting, True)):
            for future in futures:
                if not future.done():
                    text = "the client was closed before the call ended"
                    future.set_exception(refusal(Status.CANCELLED, text, not_executed))

    async def call(
        self,
        rank: int,
        service: Name,
        method: Name,
        body: Any = b"",
        timeout: Optional[float] = None,
        trace: int = 0,
    ) -> bytes:
        """Calls. Cancelling it gives the call up: whoever executes it is told, and it may be executed.

        Handlers are told the number of the trace, unless it is 0.
        """
        trace = arguments.trace(trace)
        to = arguments.rank(rank), arguments.service(service), arguments.method(method)
        body, timeout = arguments.body(body), arguments.seconds(timeout)
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("an AsyncClient belongs to the event loop in which it was made")
        if self._is_closed:
            raise refusal(Status.FAILED_PRECONDITION, "this AsyncClient is closed")
        deadline = self._loop.time() + (self._timeout if timeout is None else timeout)
        call = _Call(to, body, deadline, trace, self._loop.create_future())
        self._waiting.append(call)
        self._pump()
        if self._waiting and self._waiting[-1] is call:
            call.timer = self._loop.call_at(deadline, self._late, call)
        try:
            return await call.future
        except asyncio.CancelledError:
            self._give_up(call)
            raise
        finally:
            if call.timer is not None:
                call.timer.cancel()

    def reconnect(self) -> None:
        """Connects again, to the same daemon or its successor. Calls fail from the daemon's end until then."""
        self._check_thread()
        self._watch_nothing()
        with self._using() as handle:
            check(library.copyrpc_pipeline_reconnect(handle, self._done, None))
        self._pump()

    def _check_thread(self) -> None:
        if threading.get_ident() != self._thread:
            raise RuntimeError("an AsyncClient belongs to the thread of its event loop")

    def _late(self, call: _Call) -> None:
        if not call.future.done():
            text = "no response before the deadline: the call waited for room all the time, and was not sent"
            call.future.set_exception(refusal(Status.DEADLINE_EXCEEDED, text))

    def _give_up(self, call: _Call) -> None:
        """Tells the daemon that nobody waits for a call any more. Its place is free when that has answered."""
        if self._calls.pop(call.context, None) is None or self._is_closed:
            return
        # One that has ended meanwhile is reported to nobody.
        library.copyrpc_pipeline_cancel(self._handle, call.name, None)
        self._pump()

    def _ended(self, context: int, status: int, body: Optional[int], length: int, _user: Any) -> None:
        future = self._calls.pop(context, None)
        if future is None or future.done():
            return
        said = ctypes.string_at(body, length) if body and length else b""
        if status == OK:
            future.set_result(said)
        else:
            error = error_of(status)
            error.detail = said
            future.set_exception(error)

    def _submit(self, call: _Call) -> bool:
        """Sends a call, or says why not; ``False``: there is no room for it now."""
        if call.future.done():
            return True
        left = call.deadline - self._loop.time()
        if call.trace != self._traced:
            library.copyrpc_pipeline_set_trace(self._handle, call.trace)
            self._traced = call.trace
        status = library.copyrpc_pipeline_submit_named(
            self._handle, *call.to, call.body, len(call.body), arguments.microseconds(max(0.0, left)), self._next,
            ctypes.byref(call.name),
        )
        if status == Status.RESOURCE_EXHAUSTED and self._is_waiting():
            return False
        if status == OK:
            call.context, self._calls[self._next] = self._next, call.future
            self._next += 1
        else:
            call.future.set_exception(error_of(status))
        return True

    def _pump(self) -> int:
        """Sends what waits, and reports what ended; says how much that was."""
        ended, count = 0, ctypes.c_size_t()
        for _ in range(_POLLS_MAX):
            if self._is_closed:
                return ended
            status = library.copyrpc_pipeline_poll(self._handle, self._done, None, ctypes.byref(count))
            if status != OK:
                self._fail(status)
                break
            ended += count.value
            # Behind the poll: answers to calls that were given up make room, and are not counted.
            has_sent = False
            while self._waiting and self._submit(self._waiting[0]):
                self._waiting.popleft()
                has_sent = True
            if count.value == 0 and not has_sent and (not self._is_waiting() or library.copyrpc_pipeline_arm(self._handle) == 1):
                break
        else:
            self._loop.call_soon(self._pump)
        self._look_later()
        return ended

    def _fail(self, status: int) -> None:
        error = error_of(status)
        failed, self._calls = self._calls, {}
        for future in failed.values():
            if not future.done():
                future.set_exception(error)

    def _look_later(self) -> None:
        """Has the loop look again when the daemon says something, or a deadline passes."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._is_waiting():
            return
        if self._descriptor < 0:
            self._descriptor = library.copyrpc_pipeline_fd(self._handle)
            self._loop.add_reader(self._descriptor, self._readable)
        left_us = library.copyrpc_pipeline_time_left_us(self._handle)
        if left_us != _NEVER_US:
            self._timer = self._loop.call_later(left_us / 1e6, self._pump)

    def _readable(self) -> None:
        # The descriptor of a daemon that is gone is readable for ever.
        if self._pump() == 0 and not self._is_waiting():
            self._watch_nothing()

    def _is_waiting(self) -> bool:
        """Whether the daemon is to say something: of calls, or of those that were given up and hold their places."""
        return bool(self._calls) or library.copyrpc_pipeline_in_flight(self._handle) > 0

    def _watch_nothing(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            self._loop.remove_reader(descriptor)
