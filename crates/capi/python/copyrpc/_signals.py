"""Ctrl-C while a provider serves: it ends what serves, after what was taken is answered."""

import signal
import socket
import threading
from typing import Any, Callable, Optional


class Interrupts:
    """Turns the first SIGINT into a call of ``stop``, and a second one into ``KeyboardInterrupt`` at once.

    The main thread may be inside the library then, where Python runs no handler, so a thread reads the numbers of
    signals from a socket. Nothing changes in other threads, nor in programs that have a SIGINT handler of their own.
    """

    def __init__(self, stop: Callable[[], None]):
        self._stop = stop
        self._count = 0
        self._is_on = False
        self._previous_descriptor = -1
        self._writer: Optional[socket.socket] = None
        self._watcher: Optional[threading.Thread] = None

    def __enter__(self) -> "Interrupts":
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            return self
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        self._writer = writer
        self._watcher = threading.Thread(target=self._watch, args=(reader,), name="copyrpc-signals", daemon=True)
        self._watcher.start()
        self._previous_descriptor = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        self._is_on = True
        signal.signal(signal.SIGINT, self._interrupted)
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if not self._is_on:
            return
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.set_wakeup_fd(self._previous_descriptor)
        assert self._writer is not None and self._watcher is not None
        self._writer.close()
        self._watcher.join()
        if self._count > 0 and kind is None:
            raise KeyboardInterrupt

    def _interrupted(self, _number: int, _frame: Any) -> None:
        self._count += 1
        self._stop()
        if self._count > 1:
            raise KeyboardInterrupt

    def _watch(self, reader: socket.socket) -> None:
        with reader:
            while numbers := reader.recv(64):
                if signal.SIGINT in numbers:
                    self._stop()
                if self._previous_descriptor >= 0:
                    _forward(self._previous_descriptor, numbers)


def _forward(descriptor: int, numbers: bytes) -> None:
    """Hands numbers of signals to whatever waited for them before."""
    try:
        other = socket.socket(fileno=descriptor)
    except OSError:
        return
    try:
        other.send(numbers, socket.MSG_DONTWAIT)
    except OSError:
        pass
    finally:
        other.detach()
