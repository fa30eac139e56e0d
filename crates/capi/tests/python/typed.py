"""Services of Rust whose values travel as JSON: typed.py SOCKET."""

import json
import sys

import copyrpc

SOCKET = sys.argv[1]
#: Before the arguments of a call that lends memory: the program does not know the definition.
NO_TYPES = bytes(8)


def body(*arguments: object) -> bytes:
    return json.dumps(arguments or None).encode()


with copyrpc.BulkClient(SOCKET, timeout=60) as client:
    call = lambda method, *arguments: json.loads(client.call(copyrpc.HERE, "files", method, body(*arguments)))
    assert call("length", "/etc/hostname") == 13
    assert call("count") == 250
    names, after = [], None
    while True:
        page = call("list", "file", after)
        names += page["items"]
        after = page["next"]
        if after is None:
            break
    assert names == [f"file {number}" for number in range(250)], names[:3]
    try:
        call("length", 7)
        raise AssertionError("it succeeded")
    except copyrpc.Error as error:
        assert error.status == copyrpc.Status.INVALID_ARGUMENT and b"arguments" in error.detail, error

    region = client.region(4096)
    region.write(0, b"of Python")
    slices = [region.slice(0, 9, writable=True)]
    answer = client.call_bulk(copyrpc.HERE, "kept", "reverse", slices, NO_TYPES + body("page"))
    assert json.loads(answer) == {"page": 9}, answer
    assert region.read(0, 9) == b"nohtyP fo"
