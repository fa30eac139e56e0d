"""Daemons of an older and of a newer version, by the bytes that they say: versions.py FOLDER [PROGRAM].

The program is a client in C that connects to the socket that is its argument.
"""

import os
import socket
import struct
import subprocess
import sys
import threading

import copyrpc
import copyrpc.bulk

# The version between a daemon and its clients. Whoever raises it records the bytes of the new one.
OURS = 3
HELLO, REFUSED = 1, 3
REASON_VERSION = 3
PATIENCE = 60.0


def listens(listener: socket.socket, theirs: int) -> None:
    """Refuses each client, until the listener is shut down."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            said = connection.recv(64)
            assert said == b"crpc-ipc" + struct.pack("<II", OURS, HELLO), said
            connection.send(b"crpc-ipc" + struct.pack("<IIB", theirs, REFUSED, REASON_VERSION))


def names_both(text: str, theirs: int) -> None:
    for version in (theirs, OURS):
        assert f"version {version}" in text, text


def refused(make, theirs: int) -> None:
    try:
        make()
    except copyrpc.Error as error:
        names_both(str(error), theirs)
    else:
        raise AssertionError("it connected")


def meets(folder: str, program: "list[str]", theirs: int) -> None:
    path = os.path.join(folder, f"version-{theirs}.sock")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen(16)
    thread = threading.Thread(target=listens, args=(listener, theirs))
    thread.start()
    try:
        refused(lambda: copyrpc.Client(path, timeout=PATIENCE), theirs)
        refused(lambda: copyrpc.AsyncClient(path, timeout=PATIENCE), theirs)
        refused(lambda: copyrpc.Provider(7, path), theirs)
        refused(lambda: copyrpc.bulk.BulkClient(path, timeout=PATIENCE), theirs)
        refused(lambda: copyrpc.bulk.BulkProvider(7, path), theirs)
        for client in program:
            told = subprocess.run([client, path], stderr=subprocess.PIPE, text=True)
            assert told.returncode == 1, told
            names_both(told.stderr, theirs)
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE)
        listener.close()


if __name__ == "__main__":
    for version in (OURS - 1, OURS + 1):
        meets(sys.argv[1], sys.argv[2:], version)
