"""libpando's functions."""

import ctypes
import enum
import os
from functools import lru_cache
from typing import Any

from ._failures import Conflict, PandoError

_NAME = "libpando.so.0"

#: Where it is looked for after the places that the dynamic linker knows.
_PLACES = ("/usr/local/lib", "/usr/lib")


class Flag(enum.IntFlag):
    """The wishes of ``enum pando_tx_flag``."""

    DURABLE = 1
    WARN = 8
    THREAD = 16


class Status(enum.IntEnum):
    """Whether there is a transaction."""

    NONE = 0
    ACTIVE = 1
    OTHER_THREAD = 2
    PART = 3


class Ended(enum.IntEnum):
    """What the functions return."""

    ERROR = -1
    COMMITTED = 0
    CONFLICT = 1


@lru_cache(maxsize=1)
def _library() -> Any:
    told = os.environ.get("PANDO_LIBRARY")
    tried = [told] if told else [_NAME, *(os.path.join(place, _NAME) for place in _PLACES)]
    for path in tried:
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        library.pando_tx_begin.argtypes = [ctypes.c_uint]
        library.pando_tx_abort.argtypes = [ctypes.c_int]
        for name in ("reason", "object"):
            getattr(library, f"pando_tx_{name}").restype = ctypes.c_char_p
        return library
    raise PandoError(f"libpando is not installed: none of {', '.join(tried)} can be loaded", _NAME)


def _failure() -> PandoError:
    return PandoError(*_words())


def _words() -> "tuple[str, str]":
    library = _library()
    reason, about = library.pando_tx_reason(), library.pando_tx_object()
    return reason.decode(errors="replace"), about.decode(errors="replace")


def begin(flags: Flag) -> None:
    """Begins a transaction, or raises ``PandoError``."""
    if _library().pando_tx_begin(int(flags)) < 0:
        raise _failure()


def end() -> None:
    """Commits, or raises ``Conflict`` or ``PandoError``."""
    result = _library().pando_tx_end()
    if result == Ended.CONFLICT:
        raise Conflict(*_words())
    if result != Ended.COMMITTED:
        raise _failure()


def abort() -> None:
    """Aborts, or raises ``PandoError`` where not all can be restored."""
    if _library().pando_tx_abort(1) != Ended.COMMITTED:
        raise _failure()


def status() -> Status:
    """Whether there is a transaction in this program."""
    return Status(_library().pando_tx_status())
