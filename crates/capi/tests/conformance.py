"""A program in Python that uses all of the package: conformance.py SOCKET."""

import asyncio
import os
import sys
import threading
import time

import copyrpc

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
    refused(lambda: client.call(0, "python", 1), status=3)
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


provider = copyrpc.Provider("python", SOCKET)
refused(lambda: copyrpc.Provider("python", SOCKET), status=6)
serving = threading.Thread(target=provider.serve, args=(serve,))
serving.start()
try:
    one_at_a_time()
    asyncio.run(many_at_a_time())
finally:
    provider.stop()
    serving.join()
    provider.close()
print("ok")
