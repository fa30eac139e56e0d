"""Wrong arguments raise before anything is sent; what has the buffer protocol is a body: arguments.py SOCKET."""

import array
import asyncio
import logging
import math
import pathlib
import sys
import threading

import copyrpc

SOCKET = pathlib.Path(sys.argv[1])
SERVICE, METHOD = 5000, 7
SEEN = []
#: By method.
ANSWERS = {1: 5, 2: "text", 3: None, 4: [1, 2, 300], 5: bytearray(b"ba"), 6: memoryview(b"memory")}

#: What is no rank, service, method, body or timeout, and how that is said.
WRONG = [
    ({"rank": -1}, OverflowError),
    ({"rank": 2**32}, OverflowError),
    ({"rank": 2**40}, OverflowError),
    ({"rank": 1.0}, TypeError),
    ({"trace": -1}, OverflowError),
    ({"trace": 2**64}, OverflowError),
    ({"trace": "7"}, TypeError),
    ({"rank": "0"}, TypeError),
    ({"rank": None}, TypeError),
    ({"service": SERVICE + 65536}, OverflowError),
    ({"service": -1}, OverflowError),
    ({"service": None}, TypeError),
    ({"service": b"echo"}, TypeError),
    ({"service": ""}, ValueError),
    ({"service": "ec\0ho"}, ValueError),
    ({"service": "\udc80"}, ValueError),
    ({"method": METHOD + 65536}, OverflowError),
    ({"method": 1.5}, TypeError),
    ({"method": "a\0"}, ValueError),
    ({"body": "text"}, TypeError),
    ({"body": None}, TypeError),
    ({"body": 5}, TypeError),
    ({"body": [1, 2]}, TypeError),
    ({"timeout": -1}, ValueError),
    ({"timeout": math.nan}, ValueError),
    ({"timeout": math.inf}, OverflowError),
    ({"timeout": 1e300}, OverflowError),
    ({"timeout": "1"}, TypeError),
]
GOOD = {"rank": 0, "service": SERVICE, "method": METHOD, "body": b"good", "timeout": 60}
BODIES = [
    bytearray(b"bytes"), memoryview(b"bytes"), memoryview(b"b-y-t-e-s")[::2], array.array("B", b"bytes"),
]


def serve(request: copyrpc.Request) -> object:
    SEEN.append((request.method, request.body))
    if request.method == 8:
        raise copyrpc.ServiceError(0, b"no error")
    if request.method == 9:
        raise copyrpc.ServiceError(99)
    return ANSWERS.get(request.method, request.body)


def raises(kinds, call) -> BaseException:
    try:
        made = call()
    except kinds as error:
        return error
    raise AssertionError(f"it succeeded: {made!r}")


def calls() -> None:
    with copyrpc.Client(SOCKET) as client:
        for wrong, kind in WRONG:
            raises(kind, lambda: client.call(**{**GOOD, **wrong}))
        assert not SEEN, SEEN
        for body in BODIES:
            assert client.call(**{**GOOD, "body": body}) == b"bytes"
        # An index, as numpy has them.
        index = type("Index", (), {"__index__": lambda _: METHOD})()
        assert client.call(**{**GOOD, "method": index}) == b"good"
        # No time at all is no default: the call ends at once, by its answer or by its deadline.
        try:
            client.call(**{**GOOD, "timeout": 0})
        except copyrpc.Error as error:
            assert error.status == 4, error
        del SEEN[:]


async def awaits() -> None:
    async with copyrpc.AsyncClient(str(SOCKET)) as client:
        for wrong, kind in WRONG:
            try:
                await client.call(**{**GOOD, **wrong})
            except kind:
                continue
            raise AssertionError(f"it succeeded: {wrong}")
        assert not SEEN, SEEN
        # None of them is in the way of good ones.
        assert await asyncio.gather(*(client.call(**{**GOOD, "body": body}) for body in BODIES)) == [b"bytes"] * 4


def answers() -> None:
    with copyrpc.Client(SOCKET, timeout=60) as client:
        for method in (1, 2, 3, 4):
            error = raises(copyrpc.Error, lambda: client.call(0, SERVICE, method))
            assert (error.status, error.detail, error.origin) == (13, b"TypeError", "service"), error
        assert client.call(0, SERVICE, 5) == b"ba"
        assert client.call(0, SERVICE, 6) == b"memory"
        assert raises(copyrpc.Error, lambda: client.call(0, SERVICE, 8)).detail == b"ValueError"
        assert raises(copyrpc.Error, lambda: client.call(0, SERVICE, 9)).detail == b"OverflowError"


def other_arguments() -> None:
    for path in ("nul\0byte", ""):
        raises(ValueError, lambda: copyrpc.Client(path))
    raises(TypeError, lambda: copyrpc.Client(7))
    raises(ValueError, lambda: copyrpc.Client(SOCKET, timeout=-1))
    raises(TypeError, lambda: copyrpc.Provider(None, SOCKET))
    raises(OverflowError, lambda: copyrpc.Provider(70000, SOCKET))
    raises(OverflowError, lambda: copyrpc.Provider(70, SOCKET, window=-1))
    raises(ValueError, lambda: copyrpc.BulkProvider("a\0b", SOCKET))
    with copyrpc.BulkClient(SOCKET) as client, client.region(4096) as region:
        raises(OverflowError, lambda: client.region(-1))
        raises(OverflowError, lambda: region.read(-1))
        raises(OverflowError, lambda: region.read(0, -1))
        raises(copyrpc.Error, lambda: region.read(0, 2**62))
        raises(OverflowError, lambda: region.write(2**64, b""))
        raises(TypeError, lambda: region.write(0, "text"))
        raises(TypeError, lambda: client.call_bulk(0, SERVICE, 1, [region]))
        raises(OverflowError, lambda: client.call_bulk(2**32, SERVICE, 1, [region.slice()]))
        region.write(0, bytearray(b"buffer"))
        assert region.read(0, 6) == b"buffer"
    raises(TypeError, lambda: client.__reduce_ex__(2))


records = []
handler = logging.Handler()
handler.emit = records.append
logging.getLogger("copyrpc").addHandler(handler)
logging.getLogger("copyrpc").propagate = False
provider = copyrpc.Provider(SERVICE, SOCKET)
serving = threading.Thread(target=provider.serve, args=(serve,))
serving.start()
try:
    calls()
    asyncio.run(awaits())
    answers()
    other_arguments()
finally:
    provider.stop()
    serving.join()
    provider.close()
# What a handler raises is logged, with where it was raised.
assert len(records) == 6, records
assert all(record.exc_info and record.exc_info[2] for record in records)
assert "service 5000, method 8" in records[4].getMessage(), records[4].getMessage()
