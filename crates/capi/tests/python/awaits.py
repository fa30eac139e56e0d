"""Deadlines of an AsyncClient, its end, and calls after it: awaits.py SOCKET."""

import asyncio
import gc
import sys
import threading
import time

import copyrpc

SOCKET = sys.argv[1]
#: Seconds by which a busy machine may be late.
LATE = 1.0


async def deadlines(client: copyrpc.AsyncClient) -> None:
    slow = [asyncio.ensure_future(client.call(0, "silent", 1, timeout=4)) for _ in range(300)]
    await asyncio.sleep(0.1)
    begin = time.monotonic()
    try:
        await client.call(0, "silent", 1, timeout=0.1)
        raise AssertionError("it succeeded")
    except copyrpc.Error as error:
        assert (error.status, error.not_executed) == (4, True), error
    took = time.monotonic() - begin
    assert took < 0.1 + LATE, f"a deadline of 0.1 s passed after {took:.2f} s"
    ended = await asyncio.gather(*slow, return_exceptions=True)
    took = time.monotonic() - begin
    assert took < 4 + 2 * LATE, f"calls of 4 s ended after {took:.2f} s"
    assert {error.status for error in ended} == {4}, ended


async def waits_without_work(client: copyrpc.AsyncClient) -> None:
    looks, pump = 0, client._pump

    def counted() -> int:
        nonlocal looks
        looks += 1
        return pump()

    client._pump = counted
    try:
        await client.call(0, "silent", 1, timeout=1)
        raise AssertionError("it succeeded")
    except copyrpc.Error as error:
        assert error.status == 4, error
    finally:
        client._pump = pump
    assert looks < 50, f"{looks} looks while one call waited a second"


async def cancels(client: copyrpc.AsyncClient) -> None:
    for _ in range(3):
        try:
            await asyncio.wait_for(client.call(0, "silent", 1, timeout=0.3), 0.02)
            raise AssertionError("it succeeded")
        except asyncio.TimeoutError:
            pass
    assert await client.call(0, "echo", 1, b"next", timeout=60) == b"next"


async def gives_up(client: copyrpc.AsyncClient) -> None:
    """Calls that were given up, all that there is room for, end where they are executed, and leave room for others."""
    calls = [asyncio.ensure_future(client.call(0, "held", 1, timeout=600)) for _ in range(100)]
    while len(held) < 60:
        await asyncio.sleep(0.01)
    for call in calls:
        call.cancel()
    ended = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(error, asyncio.CancelledError) for error in ended), ended[:3]
    # Long before the deadline of those.
    assert await client.call(0, "echo", 1, b"room", timeout=60) == b"room"
    while not all(request.is_cancelled for request in held):
        await asyncio.sleep(0.01)
    calls = [asyncio.ensure_future(client.call(0, "echo", 1, b"more", timeout=60)) for _ in range(200)]
    assert set(await asyncio.gather(*calls)) == {b"more"}


async def ends() -> None:
    client = copyrpc.AsyncClient(SOCKET)
    calls = [asyncio.ensure_future(client.call(0, "silent", 1, timeout=60)) for _ in range(100)]
    await asyncio.sleep(0.05)
    client.close()
    client.close()
    ended = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 30)
    # The tasks that awaited them go on.
    assert all(isinstance(error, copyrpc.Error) and error.status == 1 for error in ended), ended[:3]
    assert {error.not_executed for error in ended} == {True, False}
    try:
        await asyncio.wait_for(client.call(0, "echo", 1, timeout=0.2), 30)
        raise AssertionError("it succeeded")
    except copyrpc.Error as error:
        assert (error.status, error.not_executed) == (9, True), error


async def strangers(client: copyrpc.AsyncClient) -> None:
    """Another loop, or another thread, does not get in."""
    told = []

    def elsewhere() -> None:
        try:
            asyncio.run(client.call(0, "echo", 1))
        except RuntimeError:
            told.append("call")
        try:
            client.close()
        except RuntimeError:
            told.append("close")

    thread = threading.Thread(target=elsewhere)
    thread.start()
    await asyncio.get_running_loop().run_in_executor(None, thread.join)
    assert told == ["call", "close"], told
    assert await client.call(0, "echo", 1, b"still", timeout=60) == b"still"


async def main() -> None:
    async with copyrpc.AsyncClient(SOCKET) as client:
        assert await client.call(0, "echo", 1, b"first", timeout=60) == b"first"
        await waits_without_work(client)
        await cancels(client)
        await asyncio.wait_for(gives_up(client), 300)
        await strangers(client)
        await deadlines(client)
    await ends()


async def left_open() -> None:
    """More calls than there is room for, of a client that the program does not close."""
    client = copyrpc.AsyncClient(SOCKET, timeout=60)
    bodies = [b"%d" % number for number in range(2000)]
    assert await asyncio.gather(*(client.call(0, "echo", 1, body) for body in bodies)) == bodies


async def never(_request: copyrpc.Request) -> bytes:
    await asyncio.sleep(3600)
    return b""


held = []


async def hold(request: copyrpc.Request) -> bytes:
    """Answers when nobody waits any more."""
    held.append(request)
    while not request.is_cancelled:
        await asyncio.sleep(0.01)
    return b""


services = [("silent", 60), ("echo", 0), ("held", 100)]
providers = [copyrpc.Provider(name, SOCKET, window=window) for name, window in services]
handlers = [never, lambda request: request.body, hold]
for provider, handler in zip(providers, handlers):
    threading.Thread(target=provider.serve, args=(handler,), daemon=True).start()
try:
    asyncio.run(main(), debug=False)
    asyncio.run(left_open(), debug=True)
    gc.collect()
finally:
    for provider in providers:
        provider.stop()
