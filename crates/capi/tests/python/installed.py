"""The installed wheel, used: installed.py SOCKET."""

import importlib.resources
import sys

import copyrpc

assert "site-packages" in copyrpc.__file__, copyrpc.__file__
files = {file.name for file in importlib.resources.files("copyrpc").iterdir()}
assert {"py.typed", "__init__.pyi"} <= files, files
with copyrpc.Client(sys.argv[1], timeout=60) as client:
    assert client.call(copyrpc.HERE, 0, 0, b"hello") == b"hello"
