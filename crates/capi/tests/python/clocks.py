"""A provider whose monotonic clock is another one: clocks.py SOCKET. With another argument it is that provider."""

import subprocess
import sys
import threading
import time

import copyrpc

SOCKET = sys.argv[1]
executed = []
PATIENCE = 60.0


def serve(request: copyrpc.Request) -> bytes:
    executed.append(request.body)
    if request.body == b"late":
        time.sleep(2)
    if request.body == b"executed":
        return b" ".join(executed)
    return b"%.3f" % (request.deadline - time.monotonic())


def told_the_time_left(offset: int) -> bool:
    unshare = ["unshare", "--map-root-user", "--time", "--monotonic", str(offset), "--fork"]
    if subprocess.run([*unshare, "true"], capture_output=True).returncode != 0:
        return False
    command = [*unshare, sys.executable, __file__, SOCKET, "provide"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "serving\n"
        with copyrpc.Client(SOCKET, timeout=PATIENCE) as client:
            left = float(client.call(0, "clocks", 1, b"left", timeout=PATIENCE))
            assert PATIENCE / 2 < left <= PATIENCE + 0.5, (offset, left)
            # What is late is late: a request behind a slow one, whose caller gave up, is not executed.
            for body in (b"late", b"never"):
                try:
                    client.call(0, "clocks", 1, body, timeout=0.5)
                    raise AssertionError("it succeeded")
                except copyrpc.Error as error:
                    assert error.status == 4, error
            told = client.call(0, "clocks", 1, b"executed", timeout=PATIENCE)
            # Unless the machine was too busy for the first of them.
            assert b"late never" not in told and told.startswith(b"left"), told
        # The end of its standard input ends it.
    return True


if len(sys.argv) > 2:
    with copyrpc.Provider("clocks", SOCKET) as provider:
        threading.Thread(target=lambda: (sys.stdin.read(), provider.stop()), daemon=True).start()
        print("serving", flush=True)
        provider.serve(serve)
else:
    # A clock cannot be set to a time before that of the machine's start.
    done = [told_the_time_left(offset) for offset in (86_400, -int(min(2_000, time.monotonic() / 2)))]
    print("passed" if all(done) else "skipped")
