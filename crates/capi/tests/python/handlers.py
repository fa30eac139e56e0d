"""Handlers that are async def, and handlers on several threads: handlers.py SOCKET."""

import asyncio
import logging
import sys
import threading
import time

import copyrpc

SOCKET = sys.argv[1]
PATIENCE = 60.0
records = []
handler = logging.Handler()
handler.emit = records.append
logging.getLogger("copyrpc").addHandler(handler)
logging.getLogger("copyrpc").propagate = False
#: What became of requests whose callers gave up.
cancelled = threading.Event()
#: A slow handler has begun, and may end.
begun, may_end = threading.Event(), threading.Event()


async def awaits(request: copyrpc.Request) -> bytes:
    if request.body == b"slow":
        begun.set()
        while not may_end.is_set():
            await asyncio.sleep(0.01)
    if request.body == b"raise":
        raise KeyError("as the test wants it")
    if request.body == b"refuse":
        raise copyrpc.ServiceError(copyrpc.Status.NOT_FOUND, b"no such file")
    if request.body == b"long":
        raise copyrpc.ServiceError(copyrpc.Status.NOT_FOUND, b"d" * 5000)
    return request.body


def waits(request: copyrpc.Request) -> bytes:
    if request.body == b"slow":
        begun.set()
        assert may_end.wait(PATIENCE)
    if request.body == b"abandoned":
        while not request.is_cancelled:
            time.sleep(0.01)
        cancelled.set()
    return request.body


def fast_beside_slow(service: str) -> None:
    def slowly() -> None:
        with copyrpc.Client(SOCKET, timeout=PATIENCE) as client:
            told.append(client.call(0, service, 1, b"slow"))

    told = []
    begun.clear()
    may_end.clear()
    thread = threading.Thread(target=slowly)
    thread.start()
    assert begun.wait(PATIENCE)
    with copyrpc.Client(SOCKET, timeout=PATIENCE) as client:
        for _ in range(20):
            assert client.call(0, service, 1, b"fast") == b"fast"
    # All of that while the slow one waited.
    assert told == []
    may_end.set()
    thread.join(PATIENCE)
    assert told == [b"slow"], told


def failures() -> None:
    with copyrpc.Client(SOCKET, timeout=PATIENCE) as client:
        expected = ((b"raise", 13, b"KeyError"), (b"refuse", 5, b"no such file"), (b"long", 5, b"d" * 1024))
        for body, status, detail in expected:
            try:
                client.call(0, "awaits", 1, body)
                raise AssertionError("it succeeded")
            except copyrpc.Error as error:
                assert (error.status, error.detail, error.status_name) == (
                    status, detail, copyrpc.Status(status).name.lower().replace("_", " ")
                ), error
    assert len(records) == 1 and records[0].exc_info[0] is KeyError, records


def exits() -> None:
    """A handler that ends the program ends what serves, and its caller is not left waiting."""
    for count in (1, 2):
        provider, raised = copyrpc.Provider("exits", SOCKET), []

        def serve() -> None:
            try:
                provider.serve(lambda _: sys.exit(3), count)
            except SystemExit as error:
                raised.append(error.code)

        thread = threading.Thread(target=serve)
        thread.start()
        with copyrpc.Client(SOCKET, timeout=PATIENCE) as client:
            try:
                client.call(0, "exits", 1)
                raise AssertionError("it succeeded")
            except copyrpc.Error as error:
                assert (error.status, error.detail) == (14, b"SystemExit"), error
        thread.join(PATIENCE)
        assert raised == [3], raised
        provider.close()


def abandoned() -> None:
    with copyrpc.Client(SOCKET, timeout=PATIENCE) as client:
        try:
            client.call(0, "waits", 1, b"abandoned", timeout=0.1)
            raise AssertionError("it succeeded")
        except copyrpc.Error as error:
            assert error.status == 4, error
    assert cancelled.wait(PATIENCE)


async def inside_a_loop() -> None:
    """A program that has a loop serves in it, beside calls, until it cancels that."""
    provider = copyrpc.Provider("inside", SOCKET)
    serving = asyncio.ensure_future(provider.serve_async(awaits))
    async with copyrpc.AsyncClient(SOCKET, timeout=PATIENCE) as client:
        assert await client.call(0, "inside", 1, b"here") == b"here"
        slow = asyncio.ensure_future(client.call(0, "inside", 1, b"slow"))
        await asyncio.sleep(0.5)
        serving.cancel()
        # What was taken is answered.
        assert await slow == b"slow"
        try:
            await serving
            raise AssertionError("it was not cancelled")
        except asyncio.CancelledError:
            pass
    provider.close()


providers = [copyrpc.Provider("awaits", SOCKET), copyrpc.Provider("waits", SOCKET)]
threads = [
    threading.Thread(target=providers[0].serve, args=(awaits,)),
    threading.Thread(target=providers[1].serve, args=(waits, 4)),
]
for thread in threads:
    thread.start()
try:
    fast_beside_slow("awaits")
    fast_beside_slow("waits")
    failures()
    exits()
    abandoned()
    asyncio.run(inside_a_loop())
finally:
    for provider in providers:
        provider.stop()
    for thread in threads:
        thread.join()
