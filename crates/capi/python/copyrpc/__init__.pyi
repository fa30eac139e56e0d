import enum
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Optional, Union

from typing_extensions import Buffer

__version__: str

HERE: int

_Name = Union[int, str]
_Path = Union[str, bytes, os.PathLike[str], os.PathLike[bytes]]

def method_number(value: _Name) -> int: ...
def service_number(value: _Name) -> int: ...

class Status(enum.IntEnum):
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

class Error(Exception):
    status: int
    origin: str
    not_executed: bool
    detail: bytes
    def __init__(self, status: int, origin: int, not_executed: bool, detail: bytes, text: str) -> None: ...
    @property
    def status_name(self) -> str: ...

class ServiceError(Exception):
    status: int
    detail: bytes
    def __init__(self, status: int, detail: Buffer = b"") -> None: ...

class _Handle:
    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...

class Client(_Handle):
    def __init__(self, socket: Optional[_Path] = None, timeout: Optional[float] = None) -> None: ...
    def __enter__(self) -> Client: ...
    def __exit__(self, *_: object) -> None: ...
    def call(
        self,
        rank: int,
        service: _Name,
        method: _Name,
        body: Buffer = b"",
        timeout: Optional[float] = None,
        trace: int = 0,
    ) -> bytes: ...
    def who(self) -> tuple[int, int]: ...
    def reconnect(self) -> None: ...

class AsyncClient(_Handle):
    def __init__(self, socket: Optional[_Path] = None, timeout: Optional[float] = None) -> None: ...
    async def __aenter__(self) -> AsyncClient: ...
    async def __aexit__(self, *_: object) -> None: ...
    async def call(
        self,
        rank: int,
        service: _Name,
        method: _Name,
        body: Buffer = b"",
        timeout: Optional[float] = None,
        trace: int = 0,
    ) -> bytes: ...
    def reconnect(self) -> None: ...

class Request:
    rank: int
    method: int
    body: bytes
    deadline: float
    caller: Optional[tuple[int, int]]
    trace: int
    @property
    def is_cancelled(self) -> bool: ...

_Handler = Callable[[Request], Union[Buffer, Awaitable[Buffer]]]

class Provider(_Handle):
    def __init__(
        self,
        service: _Name,
        socket: Optional[_Path] = None,
        shared: bool = False,
        window: int = 0,
        reconnect: bool = True,
    ) -> None: ...
    def __enter__(self) -> Provider: ...
    def __exit__(self, *_: object) -> None: ...
    def serve(self, handler: _Handler, threads: int = 1) -> None: ...
    async def serve_async(self, handler: _Handler) -> None: ...
    def stop(self) -> None: ...

class Slice(NamedTuple):
    region: Region
    offset: int
    length: int
    writable: bool

class Region(_Handle):
    def __enter__(self) -> Region: ...
    def __exit__(self, *_: object) -> None: ...
    def __len__(self) -> int: ...
    def write(self, offset: int, data: Buffer) -> None: ...
    def read(self, offset: int = 0, length: Optional[int] = None) -> bytes: ...
    def slice(self, offset: int = 0, length: Optional[int] = None, writable: bool = False) -> Slice: ...

class BulkClient(Client):
    def __enter__(self) -> BulkClient: ...
    def region(self, length: int) -> Region: ...
    def renew(self, region: Region) -> bool: ...
    def forget(self, region: Region) -> None: ...
    def call_bulk(
        self,
        rank: int,
        service: _Name,
        method: _Name,
        slices: Sequence[Slice],
        body: Buffer = b"",
        timeout: Optional[float] = None,
        trace: int = 0,
    ) -> bytes: ...
    def lent(self, region: Region) -> tuple[int, int]: ...
    def reclaim(self, region: Region, timeout: float) -> None: ...

class Move(NamedTuple):
    length: int
    slice: int = 0
    offset: int = 0
    own_offset: int = 0
    push: bool = False

class Work:
    rank: int
    method: int
    body: bytes
    slices: list[tuple[int, bool]]
    deadline: float
    caller: Optional[tuple[int, int]]
    trace: int
    @property
    def is_cancelled(self) -> bool: ...
    def move(self, own: Region, moves: Sequence[Move], timeout: Optional[float] = None) -> int: ...
    def pull(self, own: Region, slice: int = 0) -> int: ...
    def push(self, own: Region, length: int, slice: int = 0) -> int: ...
    def answer(self, body: Buffer = b"", status: int = 0) -> None: ...

class BulkProvider(_Handle):
    LOOK: float
    STOP_MAX: float
    def __init__(
        self,
        service: _Name,
        socket: Optional[_Path] = None,
        timeout: Optional[float] = None,
        reconnect: bool = True,
    ) -> None: ...
    def __enter__(self) -> BulkProvider: ...
    def __exit__(self, *_: object) -> None: ...
    def region(self, length: int) -> Region: ...
    def next(self, timeout: float) -> Optional[Work]: ...
    def serve(self, handler: Callable[[Work], Buffer]) -> None: ...
    def stop(self) -> None: ...
