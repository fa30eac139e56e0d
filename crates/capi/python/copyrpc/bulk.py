"""Calls that lend memory: the service pulls from it and pushes to it by one-sided access.

    # the caller
    with copyrpc.BulkClient() as client:
        region = client.region(1 << 20)
        region.write(0, page)
        client.call_bulk(1, "store", "put", [region.slice(0, len(page))], b"page 7")

    # the service
    with copyrpc.BulkProvider("store") as provider:
        own = provider.region(1 << 20)

        def answer(work):
            moved = work.pull(own)
            keep(work.body, own.read(0, moved))
            return b"kept"

        provider.serve(answer)

The rules are in docs/bulk.md.
"""

import contextlib
import ctypes
import threading
import time
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

from . import _arguments as arguments
from ._arguments import Name, Path
from ._base import Error, Handle, OneAtATime, bytes_at, check
from ._client import Client
from ._library import OK, RawMove, RawSlice, Status, library
from ._provider import ENDS_WITH_DAEMON, is_async, log_failure, outcome_of
from ._signals import Interrupts


class Slice(NamedTuple):
    """A part of a region, which a call lends."""

    region: "Region"
    offset: int
    length: int
    #: The service may also push to it.
    writable: bool


class Region(Handle):
    """Memory that this process shares with its daemon: of a client, or of a provider.

    Several threads may read and write it, as far as they agree on ranges. What is lent to a call that may write
    it is not to be touched.
    """

    _free = library.copyrpc_region_free

    def __init__(self, handle: ctypes.c_void_p):
        super().__init__()
        self._handle = handle

    def __len__(self) -> int:
        with self._using() as handle:
            return library.copyrpc_region_length(handle)

    def write(self, offset: int, data: Any) -> None:
        """Copies bytes into it."""
        offset, data = arguments.length(offset, "an offset"), arguments.body(data)
        with self._using() as handle:
            check(library.copyrpc_region_write(handle, offset, data, len(data)))

    def read(self, offset: int = 0, length: Optional[int] = None) -> bytes:
        """Copies bytes out of it, up to its end by default."""
        offset, length = self._range(offset, length)
        # Memory is made only for what there is.
        data = ctypes.create_string_buffer(min(length, len(self)))
        with self._using() as handle:
            check(library.copyrpc_region_read(handle, offset, data, length))
        return data.raw

    def slice(self, offset: int = 0, length: Optional[int] = None, writable: bool = False) -> Slice:
        """A part of it, up to its end by default."""
        return Slice(self, *self._range(offset, length), bool(writable))

    def _range(self, offset: int, length: Optional[int]) -> "Tuple[int, int]":
        offset = arguments.length(offset, "an offset")
        length = max(0, len(self) - offset) if length is None else length
        return offset, arguments.length(length, "a length")


def _renew(function: Any, handle: ctypes.c_void_p, region: Region) -> bool:
    """Has the daemon of now have a region; whether that of before had it."""
    renewed = ctypes.c_int()
    with region._state, region._using() as memory:
        if region._uses > 1:
            raise RuntimeError("other threads use the region")
        check(function(handle, memory, ctypes.byref(renewed)))
    return bool(renewed.value)


class BulkClient(Client):
    """A client whose calls can lend memory."""

    def region(self, length: int) -> Region:
        """Zeroed memory, all of it allocated. The daemon keeps it until it is forgotten, or the client closed.

        A refusal says by its status which kind it is: UNIMPLEMENTED, the NIC of the daemon lends no memory;
        RESOURCE_EXHAUSTED, not now; OUT_OF_RANGE or INVALID_ARGUMENT, no region has this length.
        """
        length, made = arguments.length(length, "a length"), ctypes.c_void_p()
        with self._turn() as (handle, _):
            check(library.copyrpc_client_region(handle, length, ctypes.byref(made)))
        return Region(made)

    def renew(self, region: Region) -> bool:
        """After ``reconnect``: the daemon of now gets a region that was made before, with the same bytes.

        Whether it was made before. Calls that lend one which was not renewed raise ``not found``. Refused while threads
        use it.
        """
        with self._turn() as (handle, _):
            return _renew(library.copyrpc_client_renew, handle, region)

    def forget(self, region: Region) -> None:
        """Frees a region, and has the daemon forget it. Refused while slices of it are lent, or threads use it."""
        with self._turn() as (handle, _), region._state:
            with region._using() as memory:
                if region._uses > 1:
                    raise RuntimeError("other threads use the region")
                check(library.copyrpc_client_forget(handle, memory))
                region._handle = ctypes.c_void_p()
            region._is_closed = True

    def call_bulk(
        self,
        rank: int,
        service: Name,
        method: Name,
        slices: Sequence[Slice],
        body: Any = b"",
        timeout: Optional[float] = None,
        trace: int = 0,
    ) -> bytes:
        """Calls, lends the slices meanwhile, and waits for the answer.

        After ``deadline exceeded`` or ``unavailable`` the call may have been executed, and writable slices may
        still be written until ``reclaim`` returns.
        """
        rank, service, method = arguments.rank(rank), arguments.service(service), arguments.method(method)
        body, timeout, trace = arguments.body(body), arguments.seconds(timeout), arguments.trace(trace)
        answer, length = ctypes.c_void_p(), ctypes.c_size_t()
        with contextlib.ExitStack() as used:
            raw = (RawSlice * len(slices))(*(_raw_slice(part, used) for part in slices))
            handle, left_us = used.enter_context(self._turn(timeout))
            self._trace(handle, trace)
            status = library.copyrpc_client_call_bulk(
                handle, rank, service, method, body, len(body), raw, len(slices), left_us,
                ctypes.byref(answer), ctypes.byref(length),
            )
            check(status)
            return bytes_at(answer, length)

    def lent(self, region: Region) -> "Tuple[int, int]":
        """How many slices of a region are lent to calls, and how many of these may still be written."""
        slices, writable = ctypes.c_uint64(), ctypes.c_uint64()
        with region._using() as memory, self._turn() as (handle, _):
            check(library.copyrpc_client_lent(handle, memory, ctypes.byref(slices), ctypes.byref(writable)))
        return slices.value, writable.value

    def reclaim(self, region: Region, timeout: float) -> None:
        """Waits until no slice of a region may be written any more."""
        with region._using() as memory, self._turn(arguments.seconds(timeout)) as (handle, left_us):
            check(library.copyrpc_client_reclaim(handle, memory, left_us))


def _raw_slice(part: Slice, used: contextlib.ExitStack) -> "Tuple[Any, int, int, bool]":
    if not isinstance(part, Slice):
        raise TypeError(f"a call lends slices of regions, and no {type(part).__name__}")
    memory = used.enter_context(part.region._using())
    offset, length = arguments.length(part.offset, "an offset"), arguments.length(part.length, "a length")
    return memory, offset, length, bool(part.writable)


class Move(NamedTuple):
    """A range of a slice that is pulled to own memory, or pushed from it."""

    length: int
    slice: int = 0
    #: In the slice.
    offset: int = 0
    own_offset: int = 0
    push: bool = False


def _raw_move(move: Move) -> "Tuple[int, bool, int, int, int]":
    return (
        arguments.count(move.slice, "the number of a slice"),
        bool(move.push),
        arguments.length(move.offset, "an offset"),
        arguments.length(move.own_offset, "an offset"),
        arguments.length(move.length, "a length"),
    )


class Work:
    """A call, as its handler sees it. It is answered once."""

    def __init__(self, provider: "BulkProvider", handle: ctypes.c_void_p):
        length, uid, pid = ctypes.c_size_t(), ctypes.c_uint32(), ctypes.c_uint32()
        body = library.copyrpc_work_body(handle, ctypes.byref(length))
        is_known = library.copyrpc_work_caller(handle, ctypes.byref(uid), ctypes.byref(pid))
        left_us = library.copyrpc_work_time_left_us(handle)
        self._provider, self._handle = provider, handle
        #: Rank of the caller's node.
        self.rank: int = library.copyrpc_work_rank(handle)
        self.method: int = library.copyrpc_work_method(handle)
        self.body: bytes = bytes_at(body, length)
        #: When the caller gives up, by ``time.monotonic()``.
        self.deadline: float = time.monotonic() + left_us / 1e6
        #: User and process of the caller, where known.
        self.caller: Optional[Tuple[int, int]] = (uid.value, pid.value) if is_known else None
        #: Number of the caller's trace; 0: it has none.
        self.trace: int = library.copyrpc_work_trace(handle)
        #: Length of each slice, and whether it may be pushed to.
        self.slices: "List[Tuple[int, bool]]" = [
            self._slice(number) for number in range(library.copyrpc_work_slices(handle))
        ]

    @property
    def is_cancelled(self) -> bool:
        """Whether nobody waits for the answer any more, or ``serve`` was stopped and does not. The daemon is asked each time."""
        if self._provider._is_over():
            return True
        with self._provider._turn() as (provider, _):
            return not self._handle or bool(library.copyrpc_bulk_provider_is_cancelled(provider, self._handle))

    def _slice(self, number: int) -> "Tuple[int, bool]":
        length, writable = ctypes.c_uint64(), ctypes.c_int()
        check(library.copyrpc_work_slice(self._handle, number, ctypes.byref(length), ctypes.byref(writable)))
        return length.value, bool(writable.value)

    def move(self, own: Region, moves: Sequence[Move], timeout: Optional[float] = None) -> int:
        """Moves ranges between slices and own memory, all or none, and returns how many bytes."""
        raw = (RawMove * len(moves))(*(_raw_move(move) for move in moves))
        transfer, moved = ctypes.c_uint64(), ctypes.c_uint64()
        with self._provider._turn(arguments.seconds(timeout)) as (provider, left_us):

            def begin() -> int:
                with own._using() as memory:
                    return library.copyrpc_bulk_provider_begin(
                        provider, self._handle, memory, raw, len(moves), left_us, ctypes.byref(transfer)
                    )

            status = begin()
            if status == Status.NOT_FOUND:
                # It was made with the daemon before this one.
                _renew(library.copyrpc_bulk_provider_renew, provider, own)
                status = begin()
            check(status)
            with own._using():
                check(library.copyrpc_bulk_provider_wait(provider, transfer, ctypes.byref(moved)))
        return moved.value

    def pull(self, own: Region, slice: int = 0) -> int:  # pylint: disable=redefined-builtin
        """Pulls a whole slice to the beginning of own memory."""
        return self.move(own, [Move(self.slices[slice][0], slice)])

    def push(self, own: Region, length: int, slice: int = 0) -> int:  # pylint: disable=redefined-builtin
        """Pushes the first bytes of own memory to the beginning of a slice."""
        return self.move(own, [Move(length, slice, push=True)])

    def answer(self, body: Any = b"", status: int = OK) -> None:
        """Answers; rights to the slices end."""
        body, status = arguments.body(body), arguments.integer(status, "a status", max(Status))
        with self._provider._turn() as (provider, _):
            handle, self._handle = self._handle, ctypes.c_void_p()
            check(library.copyrpc_bulk_provider_answer(provider, handle, status, body, len(body)))


class BulkProvider(OneAtATime):
    """Offers a service of calls that lend memory. Threads use it one after the other.

    When the daemon is gone, ``next`` and ``serve`` look for its successor, and the service is offered there again, unless
    ``reconnect`` is false: then they raise. Calls of the old daemon have ended. Regions go on: the first move from or to one
    hands it to the daemon of now.
    """

    _free = library.copyrpc_bulk_provider_free

    #: Seconds between two looks whether ``serve`` is to end.
    LOOK = 0.1
    #: Seconds after ``stop`` until the call that a handler has is cancelled.
    STOP_MAX = 5.0

    def __init__(
        self,
        service: Name,
        socket: Optional[Path] = None,
        timeout: Optional[float] = None,
        reconnect: bool = True,
    ):
        """``timeout`` is the deadline of transfers that have none: five seconds by default."""
        timeout = arguments.seconds(timeout)
        super().__init__(timeout)
        self._service = service
        self._is_stopped = threading.Event()
        self._stop_by = float("inf")
        status = library.copyrpc_bulk_provider_offer_with(
            arguments.path(socket), arguments.service(service), 0 if reconnect else ENDS_WITH_DAEMON,
            arguments.microseconds(timeout), ctypes.byref(self._handle),
        )
        check(status)

    def close(self) -> None:
        """Withdraws the service. What serves on another thread ends; calls that were not answered end."""
        self.stop()
        super().close()

    def region(self, length: int) -> Region:
        """Memory of this process, that transfers move to and from."""
        length, made = arguments.length(length, "a length"), ctypes.c_void_p()
        with self._turn() as (handle, _):
            check(library.copyrpc_bulk_provider_region(handle, length, ctypes.byref(made)))
        return Region(made)

    def next(self, timeout: float) -> Optional[Work]:
        """Waits for the next call; ``None``: there was none."""
        seconds, work = arguments.seconds(timeout), ctypes.c_void_p()
        if seconds is None:
            raise TypeError("a timeout is a number of seconds: how long to wait has no default")
        with self._turn(seconds) as (handle, left_us):
            check(library.copyrpc_bulk_provider_next(handle, left_us, ctypes.byref(work)))
        return Work(self, work) if work else None

    def serve(self, handler: Callable[[Work], Any]) -> None:
        """Answers calls on this thread, one after the other, until ``stop`` is called.

        What the handler returns is the answer; ``ServiceError`` answers with its status. Any other exception answers
        with ``internal``, and is logged with its traceback. Ctrl-C ends this, after what was taken is answered, by
        ``KeyboardInterrupt``; a second one interrupts the handler.
        """
        if not callable(handler) or is_async(handler):
            raise TypeError("what serves calls that lend memory is a function, and not async def")
        with Interrupts(self.stop), self._using():
            while not self._is_stopped.is_set():
                try:
                    work = self.next(self.LOOK)
                except Error:
                    # Another thread closed it since the look.
                    if self._is_stopped.is_set():
                        return
                    raise
                if work is not None:
                    self._answer(handler, work)

    def _answer(self, handler: Callable[[Work], Any], work: Work) -> None:
        try:
            status, answer = OK, arguments.body(handler(work))
        except BaseException as error:  # pylint: disable=broad-except
            log_failure(error, self._service, work.method)
            work.answer(*reversed(outcome_of(error)))
            if not isinstance(error, Exception):
                raise
            return
        work.answer(answer, status)

    def stop(self) -> None:
        """Ends ``serve`` soon; any thread may call it, at any time."""
        self._stop_by = min(self._stop_by, time.monotonic() + self.STOP_MAX)
        self._is_stopped.set()

    def _is_over(self) -> bool:
        return time.monotonic() >= self._stop_by
