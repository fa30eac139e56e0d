"""Checks of arguments: what the library would cut or misread is refused before anything is sent."""

import math
import operator
import os
from typing import Any, Optional, Union

from ._library import library

#: What has a name or a number: a service, or a method.
Name = Union[int, str]
#: What names a socket.
Path = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]

_U16_MAX = 0xFFFF
_U32_MAX = 0xFFFF_FFFF
_U64_MAX = 0xFFFF_FFFF_FFFF_FFFF
#: A daemon counts deadlines in 32 bits of microseconds.
TIMEOUT_MAX = _U32_MAX / 1e6


def integer(value: Any, what: str, most: int) -> int:
    """An integer from 0 to ``most``."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} is an int, and no {type(value).__name__}") from None
    if not 0 <= number <= most:
        raise OverflowError(f"{what} is a number from 0 to {most}, and {number} is none")
    return number


def rank(value: Any) -> int:
    """The rank of a node, or ``HERE``."""
    return integer(value, "a rank", _U32_MAX)


def length(value: Any, what: str) -> int:
    """A length, or an offset."""
    return integer(value, what, _U64_MAX)


def trace(value: Any) -> int:
    """The number of a trace; 0: none."""
    return integer(value, "the number of a trace", _U64_MAX)


def count(value: Any, what: str) -> int:
    """A count of things."""
    return integer(value, what, _U32_MAX)


def service(value: Any) -> int:
    """The number of a service, of which this is the name or the number."""
    return _number(value, "a service", library.copyrpc_service_number)


def method(value: Any) -> int:
    """The number of a method, of which this is the name or the number."""
    return _number(value, "a method", library.copyrpc_method_number)


def _number(value: Any, what: str, number_of: Any) -> int:
    if isinstance(value, str):
        return number_of(text(value, f"the name of {what}"))
    if not hasattr(type(value), "__index__"):
        raise TypeError(f"{what} has a name (str) or a number (int), and {type(value).__name__} is neither")
    return integer(value, what, _U16_MAX)


def text(value: str, what: str) -> bytes:
    """A text for the library, which reads it up to a zero byte."""
    if not value:
        raise ValueError(f"{what} is empty")
    if "\0" in value:
        raise ValueError(f"{what} holds a NUL: {value!r}")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} is no UTF-8: {value!r}") from None


def path(value: Optional[Path]) -> Optional[bytes]:
    """The path of a socket; ``None``: the environment names it."""
    return None if value is None else text(os.fsdecode(value), "the path of a socket")


def body(value: Any) -> bytes:
    """The bytes of whatever has the buffer protocol."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        raise TypeError("a body has bytes: encode the str")
    try:
        view = memoryview(value)
    except TypeError:
        raise TypeError(f"a body is bytes, or has the buffer protocol; {type(value).__name__} does not") from None
    return bytes(view)


def seconds(value: Any) -> Optional[float]:
    """A timeout; ``None``: the default."""
    if value is None:
        return None
    if not (hasattr(type(value), "__float__") or hasattr(type(value), "__index__")):
        raise TypeError(f"a timeout is a number of seconds, and no {type(value).__name__}")
    number = float(value)
    if math.isnan(number) or number < 0:
        raise ValueError(f"a timeout of {number} seconds does not exist")
    if number > TIMEOUT_MAX:
        raise OverflowError(f"a timeout has at most {int(TIMEOUT_MAX)} seconds, and {number} are more")
    return number


def microseconds(value: Optional[float]) -> int:
    """A timeout as the library has it: 0 is the default, so no time at all is the shortest that there is."""
    return 0 if value is None else max(1, int(value * 1e6))
