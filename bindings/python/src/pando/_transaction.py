"""Transactions as blocks, as decorators and as loops."""

import functools
import sys
import time
from types import TracebackType
from typing import Any, Callable, Iterator, Optional, Type, TypeVar, cast

from . import _library
from ._failures import Conflict
from ._library import Flag

_Function = TypeVar("_Function", bound=Callable[..., Any])

#: Seconds to rest before another try, for each try before, and at most.
_REST = 0.0005
_LONGEST_REST = 0.02


def _flush() -> None:
    """What was printed before belongs to what was before, and what is printed inside to the transaction."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


class transaction:
    """A transaction, to be entered, put before a function, or tried in a loop.

    ``durable``: its commit survives a loss of power. ``retry``: how often a function, or the block in a loop, runs
    again where others were in the way. A ``with`` block that stands alone cannot run again: it raises ``Conflict``.
    ``warn``: what cannot be covered is passed over. ``thread``: the transaction is this thread's alone; files that are
    open already are not covered.

    Files that are opened inside should be closed inside: an abort closes what they are numbered by.
    """

    def __init__(self, *, durable: bool = False, retry: int = 0, warn: bool = False, thread: bool = False) -> None:
        if retry < 0:
            raise ValueError("retry is how often it runs again: 0 or more")
        self._flags = Flag(0)
        for wanted, flag in ((durable, Flag.DURABLE), (warn, Flag.WARN), (thread, Flag.THREAD)):
            if wanted:
                self._flags |= flag
        self._retry = retry

    def __enter__(self) -> "transaction":
        _flush()
        _library.begin(self._flags)
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> bool:
        _flush()
        if kind is None:
            _library.end()
        elif _library.status() == _library.Status.ACTIVE:
            _library.abort()
        return False

    def __iter__(self) -> Iterator["Attempt"]:
        for number in range(self._retry + 1):
            attempt = Attempt(self, number, is_last=number == self._retry)
            yield attempt
            if attempt.committed:
                return
            time.sleep(min(_REST * number, _LONGEST_REST))

    def __call__(self, function: _Function) -> _Function:
        @functools.wraps(function)
        def whole(*arguments: Any, **named: Any) -> Any:
            result = None
            for attempt in self:
                with attempt:
                    result = function(*arguments, **named)
            return result

        return cast(_Function, whole)


class Attempt:
    """One try of a transaction. A conflict is raised by the last alone."""

    def __init__(self, whole: transaction, number: int, is_last: bool) -> None:
        self._whole = whole
        self._is_last = is_last
        #: How often it was tried before.
        self.number = number
        #: Whether it is over.
        self.committed = False

    def __enter__(self) -> "Attempt":
        self._whole.__enter__()
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> bool:
        try:
            self._whole.__exit__(kind, error, trace)
        except Conflict:
            if self._is_last:
                raise
            return False
        self.committed = kind is None
        return False
