"""A client, or a provider, that does as it is told: by lines on standard input, and says on standard output what came of it.

The scenarios are those of scenarios.rs and providers.rs; foreign.rs has the lines.

    driver.py client | driver.py async | driver.py lending
    driver.py serve|threads|async|lending SOCKET SERVICE
"""

import asyncio
import contextlib
import os
import sys
import threading
import time
from typing import Any, Dict, Iterator, Optional, Union

import copyrpc

THREADS, EACH, REGION_BYTES = 4, 50, 4096
ORIGINS = [
    "none", "service", "no method", "no service", "no rank", "daemon", "daemon gone", "library", "denied",
]


def say(*words: Any) -> None:
    print(*words, flush=True)


def told(error: BaseException) -> str:
    """Status, origin, whether it was certainly not executed, words, and what the service adds."""
    if isinstance(error, copyrpc.Error):
        origin, detail = ORIGINS.index(error.origin), error.detail
        return f"{int(error.status)} {origin} {int(error.not_executed)} x{str(error).encode().hex()} x{detail.hex()}"
    if isinstance(error, (TypeError, ValueError, OverflowError, RuntimeError)):
        words = f"{type(error).__name__}: {error}".encode().hex()
        number = copyrpc.Status.INVALID_ARGUMENT
        return f"{int(number)} {ORIGINS.index('library')} 1 x{words} x"
    raise error


def body_of(spec: str) -> bytes:
    """``t`` and a text, or ``z`` and a number of zeros."""
    return bytes(int(spec[1:])) if spec[0] == "z" else spec[1:].encode()


def seconds(text: str) -> float:
    return int(text) / 1e6


def fork(call: Any) -> None:
    """A child of fork(2) is told at once that the client is its parent's, and that nothing was sent."""
    child = os.fork()
    if child == 0:
        begin = time.monotonic()
        try:
            call()
            os._exit(1)
        except RuntimeError:
            # The loop of an ``AsyncClient`` is not that of the child.
            os._exit(0)
        except copyrpc.Error as error:
            is_right = error.not_executed and error.status == copyrpc.Status.UNAVAILABLE
            os._exit(0 if is_right and time.monotonic() - begin < 2 else 2)
    _, status = os.waitpid(child, 0)
    say("forked", int(status == 0))


def count_in_threads(call: Any) -> None:
    """Each call is made, and answered, or is refused."""
    fine, refused, other = [], [], []

    def often() -> None:
        for _ in range(EACH):
            try:
                (fine if call() == b"body" else other).append(1)
            except RuntimeError:
                refused.append(1)
            except copyrpc.Error:
                other.append(1)

    threads = [threading.Thread(target=often) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    say("threads", len(fine), len(refused), len(other))


class Blocking:
    """A ``Client``."""

    def __init__(self) -> None:
        self.client: Any = None
        self.trace = 0

    def connect(self, socket: str, timeout: str) -> None:
        try:
            self.client = copyrpc.Client(socket, timeout=seconds(timeout))
            say("connected 0 0 0 x")
        except (copyrpc.Error, OverflowError) as error:
            say("connected", told(error).rsplit(" ", 1)[0])

    def start(self, number: str, method: str, body: str, timeout: str) -> None:
        begin = time.monotonic()
        try:
            answer = self.call_now(method, body_of(body), seconds(timeout))
            end = f"0 0 0 x x{answer.hex()}"
        except Exception as error:  # pylint: disable=broad-except
            end = told(error)
        say("ended", number, int((time.monotonic() - begin) * 1e6), end)

    def call_now(self, method: str, body: bytes, timeout: Optional[float] = None) -> bytes:
        return self.client.call(copyrpc.HERE, "probe", method, body, timeout, trace=self.trace)

    def reconnect(self) -> None:
        self.client.reconnect()

    def echo(self) -> bytes:
        return self.call_now("echo", b"body")

    def obey(self, does: str, *words: str) -> None:
        if does == "trace":
            self.trace = int(words[0])
            say("traced 0")
        elif does == "reconnect":
            try:
                self.reconnect()
                say("reconnected 0 0 0 x")
            except copyrpc.Error as error:
                say("reconnected", told(error).rsplit(" ", 1)[0])
        elif does == "close":
            self.client.close()
            say("closed")
        elif does == "fork":
            fork(self.echo)
        elif does == "threads":
            count_in_threads(self.echo)
        elif does in ("start", "submit"):
            self.start(*words)
        else:
            getattr(self, does)(*words)


class Lending(Blocking):
    """A ``BulkClient``, whose calls lend their body."""

    def connect(self, socket: str, timeout: str) -> None:
        try:
            self.client = copyrpc.BulkClient(socket, timeout=seconds(timeout))
            self.region = self.client.region(REGION_BYTES)
            say("connected 0 0 0 x")
        except (copyrpc.Error, OverflowError) as error:
            say("connected", told(error).rsplit(" ", 1)[0])

    def call_now(self, method: str, body: bytes, timeout: Optional[float] = None) -> bytes:
        lent, rest = (body, b"") if len(body) <= REGION_BYTES else (b"", body)
        # A child of fork(2) may not write; its call says so.
        with contextlib.suppress(copyrpc.Error):
            self.region.write(0, lent)
        slices = [self.region.slice(0, len(lent))]
        return self.client.call_bulk(copyrpc.HERE, "probe", method, slices, rest, timeout, trace=self.trace)

    def reconnect(self) -> None:
        self.client.reconnect()
        self.client.renew(self.region)


class Async(Blocking):
    """An ``AsyncClient``, in the event loop of the program."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks: "Dict[str, asyncio.Task[None]]" = {}

    def connect(self, socket: str, timeout: str) -> None:
        try:
            self.client = copyrpc.AsyncClient(socket, timeout=seconds(timeout))
            say("connected 0 0 0 x")
        except (copyrpc.Error, OverflowError) as error:
            say("connected", told(error).rsplit(" ", 1)[0])

    def start(self, number: str, method: str, body: str, timeout: str) -> None:
        self.tasks[number] = asyncio.ensure_future(self.call(number, method, body_of(body), seconds(timeout)))

    async def call(self, number: str, method: str, body: bytes, timeout: float) -> None:
        begin = time.monotonic()
        try:
            answer = await self.client.call(copyrpc.HERE, "probe", method, body, timeout, trace=self.trace)
            end = f"0 0 0 x x{answer.hex()}"
        except Exception as error:  # pylint: disable=broad-except
            end = told(error)
        say("ended", number, int((time.monotonic() - begin) * 1e6), end)

    def cancel(self, number: str) -> None:
        task = self.tasks.pop(number)
        task.cancel()
        task.add_done_callback(lambda _: say("cancelled 0"))

    def echo(self) -> bytes:
        """Of another thread, or of a child: no loop of theirs is the client's."""
        return asyncio.run(self.client.call(copyrpc.HERE, "probe", "echo", b"body"))


async def run_async() -> None:
    loop, client, lines = asyncio.get_running_loop(), Async(), asyncio.Queue()

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, "")

    threading.Thread(target=read, daemon=True).start()
    while line := await lines.get():
        client.obey(*line.split())


def run_blocking(client: Blocking) -> None:
    for line in sys.stdin:
        client.obey(*line.split())


ECHO, SLEEP, LENGTH, AWAIT = 1, 2, 3, 5


Asked = Union[copyrpc.Request, copyrpc.Work]


def answer(request: Asked) -> Any:
    if request.method == ECHO:
        return request.body
    if request.method == SLEEP:
        while not request.is_cancelled:
            time.sleep(0.001)
        raise copyrpc.ServiceError(copyrpc.Status.CANCELLED, b"nobody waits")
    if request.method == LENGTH:
        return bytes(int.from_bytes(request.body, "little"))
    if request.method == AWAIT:
        with awaited(request):
            while not request.is_cancelled:
                time.sleep(0.001)
        raise copyrpc.ServiceError(copyrpc.Status.CANCELLED)
    raise copyrpc.ServiceError(copyrpc.Status.UNIMPLEMENTED)


@contextlib.contextmanager
def awaited(request: Asked) -> "Iterator[None]":
    """A file is there while the handler waits for its cancellation alone."""
    with open(request.body, "wb"):
        pass
    try:
        yield
    finally:
        os.remove(request.body)


async def answer_async(request: copyrpc.Request) -> Any:
    if request.method == AWAIT:
        with awaited(request):
            while not request.is_cancelled:
                await asyncio.sleep(0.001)
        raise copyrpc.ServiceError(copyrpc.Status.CANCELLED)
    while request.method == SLEEP and not request.is_cancelled:
        await asyncio.sleep(0.001)
    return answer(request)


def provide(form: str, socket: str, service: int) -> None:
    with copyrpc.Provider(service, socket) as provider:

        def stop_at_end() -> None:
            sys.stdin.read()
            provider.stop()

        threading.Thread(target=stop_at_end, daemon=True).start()
        say("serving")
        provider.serve(answer_async if form == "async" else answer, threads=2 if form == "threads" else 1)


def provide_lending(socket: str, service: int) -> None:
    with copyrpc.BulkProvider(service, socket) as provider:

        def stop_at_end() -> None:
            sys.stdin.read()
            provider.stop()

        threading.Thread(target=stop_at_end, daemon=True).start()
        say("serving")
        provider.serve(answer)


if len(sys.argv) == 4 and sys.argv[1] == "lending":
    provide_lending(sys.argv[2], int(sys.argv[3]))
elif len(sys.argv) == 4:
    provide(sys.argv[1], sys.argv[2], int(sys.argv[3]))
elif sys.argv[1] == "async":
    asyncio.run(run_async())
else:
    run_blocking(Lending() if sys.argv[1] == "lending" else Blocking())
