"""Calls that lend memory: whoever answers pulls from it and pushes to it by one-sided access.

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

import ctypes
import threading
from typing import Callable, NamedTuple, Optional, Sequence

from ._base import Name, ServiceError, _check, _error, _Handle, _method, _path, _service, _us
from ._library import OK, STATUSES, RawMove, RawSlice, library

from . import Client


class Slice(NamedTuple):
    """A part of a region, which a call lends."""

    region: "Region"
    offset: int
    length: int
    #: Whoever answers may also push to it.
    writable: bool


class Region(_Handle):
    """Memory that this process shares with its daemon: of a client, or of a provider.

    Several threads may read and write it, as far as they agree on ranges. What is lent to a call that may write
    it is not to be touched.
    """

    _free = library.copyrpc_region_free

    def __init__(self, handle: ctypes.c_void_p):
        super().__init__()
        self._handle = handle

    def __len__(self) -> int:
        return library.copyrpc_region_length(self._handle)

    def write(self, offset: int, data: bytes) -> None:
        """Copies bytes into it."""
        _check(library.copyrpc_region_write(self._handle, offset, bytes(data), len(data)))

    def read(self, offset: int = 0, length: Optional[int] = None) -> bytes:
        """Copies bytes out of it, up to its end by default."""
        length = len(self) - offset if length is None else length
        if length < 0:
            raise ValueError(f"{length} bytes at {offset}")
        data = ctypes.create_string_buffer(length)
        _check(library.copyrpc_region_read(self._handle, offset, data, length))
        return data.raw

    def slice(self, offset: int = 0, length: Optional[int] = None, writable: bool = False) -> Slice:
        """A part of it, up to its end by default."""
        return Slice(self, offset, len(self) - offset if length is None else length, writable)


class BulkClient(Client):
    """A client whose calls can lend memory."""

    def region(self, length: int) -> Region:
        """Zeroed memory, all of it allocated. The daemon keeps it until it is forgotten, or the client closed.

        A refusal says by its status which kind it is: UNIMPLEMENTED, the NIC of the daemon lends no memory;
        RESOURCE_EXHAUSTED, not now; OUT_OF_RANGE or INVALID_ARGUMENT, no region has this length.
        """
        handle = ctypes.c_void_p()
        _check(library.copyrpc_client_region(self._handle, length, ctypes.byref(handle)))
        return Region(handle)

    def forget(self, region: Region) -> None:
        """Frees a region, and has the daemon forget it. Refused while slices of it are lent."""
        _check(library.copyrpc_client_forget(self._handle, region._handle))
        region._handle = ctypes.c_void_p()

    def call_bulk(
        self,
        rank: int,
        service: Name,
        method: Name,
        slices: Sequence[Slice],
        body: bytes = b"",
        timeout: Optional[float] = None,
    ) -> bytes:
        """Calls, lends the slices meanwhile, and waits for the answer.

        After ``deadline exceeded`` or ``unavailable`` the call may have been executed, and writable slices may
        still be written until ``reclaim`` returns.
        """
        raw = (RawSlice * len(slices))(*((s.region._handle, s.offset, s.length, s.writable) for s in slices))
        answer, length = ctypes.c_void_p(), ctypes.c_size_t()
        status = library.copyrpc_client_call_bulk(
            self._handle, rank, _service(service), _method(method), body, len(body), raw, len(slices), _us(timeout),
            ctypes.byref(answer), ctypes.byref(length),
        )
        _check(status)
        return ctypes.string_at(answer, length.value) if length.value else b""

    def lent(self, region: Region) -> "tuple[int, int]":
        """How many slices of a region are lent to calls, and how many of these may still be written."""
        slices, writable = ctypes.c_uint64(), ctypes.c_uint64()
        status = library.copyrpc_client_lent(
            self._handle, region._handle, ctypes.byref(slices), ctypes.byref(writable)
        )
        _check(status)
        return slices.value, writable.value

    def reclaim(self, region: Region, timeout: float) -> None:
        """Waits until no slice of a region may be written any more."""
        _check(library.copyrpc_client_reclaim(self._handle, region._handle, _us(timeout)))


class Move(NamedTuple):
    """A range of a slice that is pulled to own memory, or pushed from it."""

    length: int
    slice: int = 0
    #: In the slice.
    offset: int = 0
    own_offset: int = 0
    push: bool = False


class Work:
    """A call, as its handler sees it. It is answered once."""

    def __init__(self, provider: "BulkProvider", handle: ctypes.c_void_p):
        length = ctypes.c_size_t()
        body = library.copyrpc_work_body(handle, ctypes.byref(length))
        self._provider, self._handle = provider, handle
        #: Rank of the caller's node.
        self.rank: int = library.copyrpc_work_rank(handle)
        self.method: int = library.copyrpc_work_method(handle)
        self.body: bytes = ctypes.string_at(body, length.value) if length.value else b""
        #: Length of each slice, and whether it may be pushed to.
        self.slices = [self._slice(number) for number in range(library.copyrpc_work_slices(handle))]

    def _slice(self, number: int) -> "tuple[int, bool]":
        length, writable = ctypes.c_uint64(), ctypes.c_int()
        _check(library.copyrpc_work_slice(self._handle, number, ctypes.byref(length), ctypes.byref(writable)))
        return length.value, bool(writable.value)

    def move(self, own: Region, moves: Sequence[Move], timeout: Optional[float] = None) -> int:
        """Moves ranges between slices and own memory, all or none, and returns how many bytes."""
        raw = (RawMove * len(moves))(*((m.slice, m.push, m.offset, m.own_offset, m.length) for m in moves))
        transfer, moved = ctypes.c_uint64(), ctypes.c_uint64()
        provider = self._provider._handle
        status = library.copyrpc_bulk_provider_begin(
            provider, self._handle, own._handle, raw, len(moves), _us(timeout), ctypes.byref(transfer)
        )
        _check(status)
        _check(library.copyrpc_bulk_provider_wait(provider, transfer, ctypes.byref(moved)))
        return moved.value

    def pull(self, own: Region, slice: int = 0) -> int:  # pylint: disable=redefined-builtin
        """Pulls a whole slice to the beginning of own memory."""
        return self.move(own, [Move(self.slices[slice][0], slice)])

    def push(self, own: Region, length: int, slice: int = 0) -> int:  # pylint: disable=redefined-builtin
        """Pushes the first bytes of own memory to the beginning of a slice."""
        return self.move(own, [Move(length, slice, push=True)])

    def answer(self, body: bytes = b"", status: int = OK) -> None:
        """Answers; rights to the slices end."""
        handle, self._handle = self._handle, ctypes.c_void_p()
        refused = library.copyrpc_bulk_provider_answer(self._provider._handle, handle, status, body, len(body))
        if refused != OK:
            raise _error(refused)


class BulkProvider(_Handle):
    """Offers a service of calls that lend memory. Used by one thread at a time."""

    _free = library.copyrpc_bulk_provider_free

    #: Seconds between two looks whether ``serve`` is to end.
    LOOK = 0.1

    def __init__(self, service: Name, socket: Optional[str] = None, timeout: Optional[float] = None):
        """``timeout`` is the deadline of transfers that have none: five seconds by default."""
        super().__init__()
        self._is_stopped = threading.Event()
        status = library.copyrpc_bulk_provider_offer(
            _path(socket), _service(service), _us(timeout), ctypes.byref(self._handle)
        )
        _check(status)

    def __enter__(self) -> "BulkProvider":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def region(self, length: int) -> Region:
        """Memory of this process, that transfers move to and from."""
        handle = ctypes.c_void_p()
        _check(library.copyrpc_bulk_provider_region(self._handle, length, ctypes.byref(handle)))
        return Region(handle)

    def next(self, timeout: float) -> Optional[Work]:
        """Waits for the next call; ``None``: there was none."""
        handle = ctypes.c_void_p()
        _check(library.copyrpc_bulk_provider_next(self._handle, _us(timeout), ctypes.byref(handle)))
        return Work(self, handle) if handle else None

    def serve(self, handler: Callable[[Work], bytes]) -> None:
        """Answers calls on this thread, one after the other, until ``stop`` is called.

        What the handler returns is the answer; ``ServiceError`` answers with its status, any other exception
        with ``internal``.
        """
        while not self._is_stopped.is_set():
            work = self.next(self.LOOK)
            if work is None:
                continue
            try:
                status, body = OK, bytes(handler(work))
            except ServiceError as error:
                status, body = error.status, error.detail
            except Exception as error:  # pylint: disable=broad-except
                status, body = STATUSES.index("internal"), type(error).__name__.encode()
            work.answer(body, status)

    def stop(self) -> None:
        """Ends ``serve`` soon; any thread may."""
        self._is_stopped.set()
