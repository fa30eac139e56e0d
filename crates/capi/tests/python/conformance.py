"""A program in Python that uses all of the package: conformance.py SOCKET."""

import asyncio
import logging
import os
import sys
import threading
import time

import copyrpc

# Tracebacks of handlers are expected, and looked at elsewhere.
logging.getLogger("copyrpc").setLevel(logging.CRITICAL)

SOCKET = sys.argv[1]
#: Longest wait for what comes at once, on a busy machine.
PATIENCE = 60.0


def serve(request: copyrpc.Request) -> bytes:
    assert request.rank == 0 and request.caller == (os.getuid(), os.getpid())
    if request.body == b"refuse":
        raise copyrpc.ServiceError(5, b"no such file")
    if request.body == b"raise":
        raise KeyError("as the test wants it")
    if request.body == b"wait":
        time.sleep(0.2)
    # One that comes late has none left.
    assert request.deadline < time.monotonic() + 3600
    return request.body[::-1]


def refused(call, **expected) -> None:
    try:
        call()
    except copyrpc.Error as error:
        for name, value in expected.items():
            assert getattr(error, name) == value, (name, getattr(error, name), str(error))
        return
    raise AssertionError("it succeeded")


def one_at_a_time() -> None:
    with copyrpc.Client(SOCKET, timeout=PATIENCE) as client:
        assert client.who() == (0, 1)
        assert client.call(copyrpc.HERE, "python", "reverse", b"abc") == b"cba"
        assert client.call(0, "python", 7, b"") == b""
        refused(
            lambda: client.call(0, "python", 1, b"refuse"),
            status=5, origin="service", detail=b"no such file", status_name="not found",
        )
        refused(lambda: client.call(0, "python", 1, b"raise"), status=13, detail=b"KeyError")
        refused(lambda: client.call(0, "absent", 1), origin="no service", not_executed=True)
        refused(lambda: client.call(9, "python", 1), origin="no rank", not_executed=True)
        refused(lambda: client.call(0, "python", 1, b"wait", timeout=0.001), status=4)
    refused(lambda: client.call(0, "python", 1), status=9, not_executed=True)
    refused(lambda: copyrpc.Client("/nowhere/copyrpc.sock"), origin="library")


async def many_at_a_time() -> None:
    async with copyrpc.AsyncClient(SOCKET, timeout=PATIENCE) as client:
        # More than the daemon takes of one client at a time.
        bodies = [b"%d" % number for number in range(300)]
        answers = await asyncio.gather(*(client.call(0, "python", 1, body) for body in bodies))
        assert answers == [body[::-1] for body in bodies]
        slow = asyncio.ensure_future(client.call(0, "python", 1, b"wait"))
        await asyncio.sleep(0)
        slow.cancel()
        try:
            await client.call(0, "python", 1, b"refuse")
            raise AssertionError("it succeeded")
        except copyrpc.Error as error:
            assert (error.status, error.detail) == (5, b"no such file"), error
        assert await client.call(0, "python", 1, b"again") == b"niaga"


lingered = []


def swap(work: copyrpc.Work, own: copyrpc.Region) -> bytes:
    """Reverses what the first slice holds, in the second one."""
    assert work.caller == (os.getuid(), os.getpid()) and work.deadline < time.monotonic() + 3600
    if work.body == b"refuse":
        raise copyrpc.ServiceError(5, b"no such page")
    if work.body == b"trace":
        return b"%d" % work.trace
    if work.body == b"linger":
        # Rights end with the deadline, and nobody hears of what is said afterwards.
        while not work.is_cancelled:
            time.sleep(0.001)
        refused(lambda: work.pull(own), status=1)
        lingered.append(True)
        raise copyrpc.ServiceError(5, b"late")
    if work.body == b"error":
        raise copyrpc.Error(11, 7, True, b"", "out of range, as the test wants it")
    if work.body == b"no words":
        raise copyrpc.ServiceError(5)
    if work.body == b"too far":
        return b"%d" % work.move(own, [copyrpc.Move(1, offset=work.slices[0][0])])
    if work.body == b"read only":
        return b"%d" % work.push(own, 1)
    moved = work.pull(own)
    own.write(0, own.read(0, moved)[::-1])
    assert work.push(own, moved, slice=1) == moved
    # In two ranges, with one end.
    halves = [copyrpc.Move(2, own_offset=moved), copyrpc.Move(2, offset=2, own_offset=moved + 2)]
    assert work.move(own, halves) == 4
    return own.read(moved, 4)


def serve_bulk(ready: threading.Event, box: list) -> None:
    with copyrpc.BulkProvider("swap", SOCKET) as provider:
        own = provider.region(1 << 16)
        box.append(provider)
        ready.set()
        provider.serve(lambda work: swap(work, own))


def lends_memory() -> None:
    ready, box = threading.Event(), []
    thread = threading.Thread(target=serve_bulk, args=(ready, box))
    thread.start()
    assert ready.wait(PATIENCE)
    try:
        with copyrpc.BulkClient(SOCKET, timeout=PATIENCE) as client:
            region = client.region(1 << 16)
            assert (len(region), region.read(0, 3)) == (1 << 16, bytes(3))
            text = bytes(range(256)) * 64
            region.write(0, text)
            given, wanted = region.slice(0, len(text)), region.slice(1 << 15, writable=True)
            assert client.call_bulk(copyrpc.HERE, "swap", 1, [given, wanted]) == text[:4]
            assert region.read(1 << 15, len(text)) == text[::-1]
            assert region.read(0, len(text)) == text
            call = lambda body: client.call_bulk(copyrpc.HERE, "swap", 1, [given], body)
            refused(lambda: call(b"refuse"), status=5, origin="service", detail=b"no such page")
            traced = lambda trace: client.call_bulk(copyrpc.HERE, "swap", 1, [given], b"trace", trace=trace)
            assert (traced(2**64 - 1), traced(0)) == (b"%d" % (2**64 - 1), b"0")
            late = lambda: client.call_bulk(copyrpc.HERE, "swap", 1, [given], b"linger", timeout=0.1)
            # In the words of nobody but daemons.
            refused(late, status=4, detail=b"")
            refused(lambda: call(b"no words"), status=5, origin="service", detail=b"")
            refused(
                lambda: client.call_bulk(copyrpc.HERE, "absent", 1, [given]), origin="no service", not_executed=True
            )
            refused(lambda: call(b"too far"), status=13)
            refused(lambda: call(b"read only"), status=13)
            refused(lambda: region.write(1 << 16, b"x"), status=11)
            refused(lambda: region.read(1, 1 << 16), status=11)
            client.reclaim(region, PATIENCE)
            assert lingered == [True]
            assert client.lent(region) == (0, 0)
            assert client.call(copyrpc.HERE, "python", 1, b"also") == b"osla"
            refused(lambda: call(b"error"), status=13, detail=b"Error: out of range, as the test wants it")
            client.forget(region)
            refused(lambda: client.call_bulk(copyrpc.HERE, "swap", 1, [given]), status=9)
    finally:
        box[0].stop()
        thread.join()


provider = copyrpc.Provider("python", SOCKET)
refused(lambda: copyrpc.Provider("python", SOCKET), status=6)
serving = threading.Thread(target=provider.serve, args=(serve,))
serving.start()
try:
    one_at_a_time()
    asyncio.run(many_at_a_time())
    lends_memory()
finally:
    provider.stop()
    serving.join()
    provider.close()
print("ok")
