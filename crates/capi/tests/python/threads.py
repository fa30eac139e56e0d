"""One client in several threads: threads.py SOCKET."""

import collections
import copy
import faulthandler
import os
import sys
import threading
import time

import copyrpc

faulthandler.enable()
SOCKET = sys.argv[1]
PATIENCE = 60.0


def serve(request: copyrpc.Request) -> bytes:
    if request.body.startswith(b"sleep "):
        time.sleep(float(request.body[6:]))
    return b"echo:" + request.body


def shared_by_eight() -> None:
    client, told = copyrpc.Client(SOCKET, timeout=PATIENCE), collections.Counter()

    def calls(number: int) -> None:
        for turn in range(100):
            body = b"%d-%d" % (number, turn) * (1 + turn % 50)
            told["right" if client.call(0, "threads", 1, body) == b"echo:" + body else "wrong"] += 1

    threads = [threading.Thread(target=calls, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client.close()
    assert told == {"right": 800}, told


def waiting_for_a_turn_counts() -> None:
    with copyrpc.Client(SOCKET, timeout=PATIENCE) as client:
        slow = threading.Thread(target=lambda: client.call(0, "threads", 1, b"sleep 3"))
        slow.start()
        while client._inside is None:
            time.sleep(0.001)
        begin = time.monotonic()
        try:
            client.call(0, "threads", 1, b"fast", timeout=0.1)
            raise AssertionError("it succeeded")
        except copyrpc.Error as error:
            assert (error.status, error.not_executed, error.origin) == (4, True, "library"), error
        assert time.monotonic() - begin < 2.5
        slow.join()


def closed_below_a_call() -> None:
    for _ in range(30):
        client, told = copyrpc.Client(SOCKET, timeout=PATIENCE), []
        thread = threading.Thread(target=lambda: told.append(client.call(0, "threads", 1, b"sleep 0.02")))
        thread.start()
        while client._inside is None and not told:
            time.sleep(0.0005)
        client.close()
        assert client.closed
        thread.join()
        # The call under way ends as if it were open; the next is refused.
        assert told == [b"echo:sleep 0.02"], told
        try:
            client.call(0, "threads", 1)
            raise AssertionError("it succeeded")
        except copyrpc.Error as error:
            assert (error.status, error.not_executed) == (9, True), error
        client.close()


def regions_are_not_freed_below_a_read() -> None:
    with copyrpc.BulkClient(SOCKET, timeout=PATIENCE) as client:
        for _ in range(20):
            region = client.region(1 << 20)
            threads = [threading.Thread(target=lambda: reads(region)) for _ in range(2)]
            for thread in threads:
                thread.start()
            region.close()
            for thread in threads:
                thread.join()


def reads(region: copyrpc.Region) -> None:
    try:
        while True:
            region.read()
    except copyrpc.Error as error:
        assert error.status == 9, error


def a_signal_handler_cannot_enter() -> None:
    with copyrpc.Client(SOCKET, timeout=PATIENCE) as client, client._turn():
        try:
            client.who()
            raise AssertionError("it succeeded")
        except RuntimeError:
            pass
    try:
        copy.copy(client)
        raise AssertionError("it succeeded")
    except TypeError:
        pass


def a_forked_child_is_refused() -> None:
    with copyrpc.Client(SOCKET, timeout=PATIENCE) as client:
        child = os.fork()
        if child == 0:
            try:
                client.call(copyrpc.HERE, 0, 0)
                os._exit(1)
            except copyrpc.Error as error:
                os._exit(0 if error.not_executed else 2)
        _, status = os.waitpid(child, 0)
        assert status == 0, status
        assert client.call(copyrpc.HERE, 0, 0, b"parent") == b"parent"


# Before there are threads.
a_forked_child_is_refused()
provider = copyrpc.Provider("threads", SOCKET)
serving = threading.Thread(target=provider.serve, args=(serve,))
serving.start()
try:
    shared_by_eight()
    waiting_for_a_turn_counts()
    closed_below_a_call()
    regions_are_not_freed_below_a_read()
    a_signal_handler_cannot_enter()
finally:
    # `close` ends what serves.
    provider.close()
    serving.join()
