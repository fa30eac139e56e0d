"""A daemon ends and comes back, by what this says on standard output: gone.py."""

import asyncio
import threading
import time

import copyrpc

PATIENCE = 60.0


def daemon(does: str) -> None:
    print(f"daemon: {does}", flush=True)
    assert input() == "done"


async def idle() -> None:
    """A daemon that ends while nothing is under way costs no processor time, and its successor is found."""
    async with copyrpc.AsyncClient(timeout=PATIENCE) as client:
        assert await client.call(0, "survives", 1, b"first") == b"first"
        daemon("stop")
        await asyncio.sleep(0.2)
        begin = time.process_time()
        await asyncio.sleep(2)
        spent = time.process_time() - begin
        # The provider, which looks for the daemon, has its share.
        assert spent < 0.5, f"{spent:.2f} s of processor time in 2 s"
        try:
            await client.call(0, "survives", 1)
            raise AssertionError("it succeeded")
        except copyrpc.Error as error:
            assert error.origin == "daemon gone", error
        daemon("start")
        client.reconnect()
        assert await again(client) == b"again"


async def again(client: copyrpc.AsyncClient) -> bytes:
    """The service comes back by itself."""
    begin = time.monotonic()
    while True:
        try:
            return await client.call(copyrpc.HERE, "survives", 1, b"again")
        except copyrpc.Error as error:
            assert error.not_executed and time.monotonic() - begin < PATIENCE, error
        await asyncio.sleep(0.05)


async def busy() -> None:
    """A daemon that ends ends the calls under way; the loop does not spin afterwards."""
    client = copyrpc.AsyncClient(timeout=PATIENCE)
    calls = [asyncio.ensure_future(client.call(0, "survives", 1, b"wait")) for _ in range(200)]
    await asyncio.sleep(0.2)
    daemon("stop")
    ended = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), PATIENCE)
    # A daemon that is stopped lets its calls end; those that wait in this process find it gone.
    errors = [error for error in ended if error != b"wait"]
    assert errors and all(isinstance(error, copyrpc.Error) for error in errors), ended[:3]
    wakes, pump = 0, client._pump

    def counted() -> int:
        nonlocal wakes
        wakes += 1
        return pump()

    client._pump = counted
    await asyncio.sleep(1)
    assert wakes < 20, f"{wakes} wake-ups in a second"
    client._pump = pump
    daemon("start")
    client.reconnect()
    assert await again(client) == b"again"
    client.close()


async def serve(request: copyrpc.Request) -> bytes:
    if request.body == b"wait":
        await asyncio.sleep(2)
    return request.body


def ends_with_the_daemon() -> None:
    told = []

    def run() -> None:
        with copyrpc.Provider("ends", reconnect=False) as provider:
            try:
                provider.serve(lambda request: request.body)
            except copyrpc.Error as error:
                told.append(error.origin)

    thread = threading.Thread(target=run)
    thread.start()
    with copyrpc.Client(timeout=PATIENCE) as client:
        asyncio.run(waits_for(client, "ends"))
        daemon("stop")
        thread.join(PATIENCE)
        assert told == ["daemon gone"], told
        daemon("start")
        client.reconnect()
        assert client.who() == (0, 1)


async def waits_for(client: copyrpc.Client, service: str) -> None:
    begin = time.monotonic()
    while True:
        try:
            client.call(0, service, 1)
            return
        except copyrpc.Error as error:
            assert error.not_executed and time.monotonic() - begin < PATIENCE, error
        await asyncio.sleep(0.01)


def lends_memory() -> None:
    """A service of calls that lend memory comes back with its region, and so does that of its caller."""
    provider = copyrpc.BulkProvider("lent")
    own = provider.region(1 << 16)
    own.write(1 << 15, b"kept")

    def answer(work: copyrpc.Work) -> bytes:
        moved = work.pull(own)
        assert own.read(1 << 15, 4) == b"kept"
        return own.read(0, moved)

    thread = threading.Thread(target=provider.serve, args=(answer,))
    thread.start()
    try:
        with copyrpc.BulkClient(timeout=PATIENCE) as client:
            region = client.region(4096)
            region.write(0, b"lent")
            call = lambda: client.call_bulk(copyrpc.HERE, "lent", 1, [region.slice(0, 4)])
            assert call() == b"lent"
            assert not client.renew(region)
            daemon("stop")
            daemon("start")
            client.reconnect()
            try:
                call()
                raise AssertionError("it succeeded")
            except copyrpc.Error as error:
                assert (error.status, error.not_executed) == (5, True), error
            assert client.renew(region) and not client.renew(region)
            begin = time.monotonic()
            while True:
                try:
                    assert call() == b"lent"
                    break
                except copyrpc.Error as error:
                    assert error.not_executed and time.monotonic() - begin < PATIENCE, error
                time.sleep(0.01)
    finally:
        provider.stop()
        thread.join()
        provider.close()


def lends_memory_until_the_daemon_ends() -> None:
    with copyrpc.BulkProvider("lent", reconnect=False) as provider:
        daemon("stop")
        try:
            provider.next(PATIENCE)
            raise AssertionError("it succeeded")
        except copyrpc.Error as error:
            assert error.origin == "daemon gone", error
        daemon("start")


provider = copyrpc.Provider("survives")
serving = threading.Thread(target=provider.serve, args=(serve,))
serving.start()
try:
    asyncio.run(idle())
    asyncio.run(busy())
    ends_with_the_daemon()
    lends_memory()
    lends_memory_until_the_daemon_ends()
finally:
    provider.close()
    serving.join()
