"""A metadata service on every node of a job, and programs that ask it.

    python3 metadata.py serve    on each node: ends with Ctrl-C
    python3 metadata.py ask      asks every rank, one call at a time, and then all at once
    python3 metadata.py watch    asks its own node until the daemon was gone once, and is back
"""

import asyncio
import os
import sys
import time

import copyrpc

STAT, WAIT = copyrpc.method_number("stat"), copyrpc.method_number("wait")


async def answer(request: copyrpc.Request) -> bytes:
    """A handler that awaits delays no other."""
    if request.method == WAIT:
        await asyncio.sleep(float(request.body))
        return b"waited"
    if request.method != STAT:
        raise copyrpc.ServiceError(copyrpc.Status.UNIMPLEMENTED)
    try:
        return b"%d" % os.stat(request.body).st_size
    except OSError as error:
        raise copyrpc.ServiceError(copyrpc.Status.NOT_FOUND, str(error).encode()) from error


def serve() -> None:
    # The service is offered again to each daemon that follows the one of this node.
    with copyrpc.Provider("metadata", shared=True) as provider:
        print("serving", flush=True)
        try:
            provider.serve(answer)
        except KeyboardInterrupt:
            print("ended", flush=True)


def ask() -> None:
    with copyrpc.Client(timeout=30) as client:
        own, size = client.who()
        for rank in range(size):
            print(f"rank {rank} of {size}, seen from {own}:", client.call(rank, "metadata", "stat", b"/"), "bytes")
        try:
            client.call(own, "metadata", "stat", b"/nowhere")
        except copyrpc.Error as error:
            print(f"{error.origin} says {error.status_name}: {error.detail.decode()}")
    asyncio.run(ask_at_once(size))


async def ask_at_once(size: int) -> None:
    async with copyrpc.AsyncClient(timeout=30) as client:
        begin = time.monotonic()
        slow = asyncio.ensure_future(client.call(0, "metadata", "wait", b"1"))
        fast = await asyncio.gather(*(client.call(turn % size, "metadata", "stat", b"/") for turn in range(200)))
        took = time.monotonic() - begin
        print(f"{len(fast)} fast calls in {took:.3f} s beside a slow one, which has", await slow)
        try:
            await client.call(0, "metadata", "wait", b"60", timeout=0.1)
        except copyrpc.Error as error:
            print("a call of 0.1 s:", error.status_name)


def watch() -> None:
    client, was_gone = copyrpc.Client(timeout=30), False
    while True:
        try:
            client.call(copyrpc.HERE, "metadata", "stat", b"/")
            print("answered again" if was_gone else "answered", flush=True)
            if was_gone:
                return
        except copyrpc.Error as error:
            # Where the daemon is gone, or its successor has no service yet, the call can be made again.
            print(error, flush=True)
            was_gone |= error.origin == "daemon gone"
            if error.origin == "daemon gone":
                connect_again(client)
        time.sleep(0.1)


def connect_again(client: copyrpc.Client) -> None:
    while True:
        try:
            return client.reconnect()
        except copyrpc.Error:
            time.sleep(0.1)


if __name__ == "__main__":
    {"serve": serve, "ask": ask, "watch": watch}[sys.argv[1]]()
