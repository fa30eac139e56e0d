"""Ctrl-C while a provider serves: interrupts.py SOCKET. With another argument it is that provider."""

import asyncio
import signal
import subprocess
import sys
import threading
import time

import copyrpc

SOCKET = sys.argv[1]
PATIENCE = 60.0


SECONDS = {b"slow": 1, b"hang": 3600}


def seconds(body: bytes) -> float:
    """How long a handler takes, which says that it has begun if that is long."""
    if body in SECONDS:
        print("handling", flush=True)
    return SECONDS.get(body, 0)


def slow(request: copyrpc.Request) -> bytes:
    time.sleep(seconds(request.body))
    return request.body


async def slow_async(request: copyrpc.Request) -> bytes:
    await asyncio.sleep(seconds(request.body))
    return request.body


def answer(work: copyrpc.Work) -> bytes:
    time.sleep(seconds(work.body))
    return work.body


def provide(kind: str) -> None:
    # Background jobs of a shell ignore Ctrl-C, and so do their children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    provider = copyrpc.BulkProvider("ctrlc", SOCKET) if kind == "bulk" else copyrpc.Provider("ctrlc", SOCKET)
    with provider:
        print("serving", flush=True)
        try:
            if kind == "bulk":
                provider.serve(answer)
            else:
                provider.serve(slow_async if kind == "async" else slow, *([4] if kind == "threads" else []))
        except KeyboardInterrupt:
            print("interrupted", flush=True)


def start(kind: str) -> "subprocess.Popen[str]":
    command = [sys.executable, __file__, SOCKET, kind]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "serving\n"
    return child


def ends(child: "subprocess.Popen[str]") -> None:
    told, _ = child.communicate(timeout=PATIENCE)
    assert (told, child.returncode) == ("interrupted\n", 0), (told, child.returncode)


def call(kind: str, body: bytes) -> bytes:
    with copyrpc.BulkClient(SOCKET, timeout=PATIENCE) as client:
        if kind == "bulk":
            return client.call_bulk(0, "ctrlc", 1, [], body)
        return client.call(0, "ctrlc", 1, body)


def interrupted(kind: str) -> None:
    # While it waits.
    child = start(kind)
    assert call(kind, b"before") == b"before"
    child.send_signal(signal.SIGINT)
    ends(child)
    # While it answers: the caller gets the answer.
    child, told = start(kind), []
    thread = threading.Thread(target=lambda: told.append(call(kind, b"slow")))
    thread.start()
    assert child.stdout.readline() == "handling\n"
    child.send_signal(signal.SIGINT)
    ends(child)
    thread.join(PATIENCE)
    assert told == [b"slow"], (kind, told)


def interrupted_twice() -> None:
    child, told = start("sync"), []

    def hangs() -> None:
        try:
            call("sync", b"hang")
        except copyrpc.Error as error:
            told.append(error.status)

    thread = threading.Thread(target=hangs)
    thread.start()
    assert child.stdout.readline() == "handling\n"
    child.send_signal(signal.SIGINT)
    time.sleep(0.5)
    child.send_signal(signal.SIGINT)
    ends(child)
    thread.join(PATIENCE)
    assert told == [14], told


if len(sys.argv) > 2:
    provide(sys.argv[2])
else:
    for each in ("sync", "threads", "async", "bulk"):
        interrupted(each)
    interrupted_twice()
