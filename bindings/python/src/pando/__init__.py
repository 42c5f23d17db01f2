"""System transactions inside a program.

What a program does to files inside a transaction is done as a whole, or not at all, and nobody else sees any of it
before::

    import pando

    with pando.transaction(durable=True):
        ...                                   # an exception aborts, the end of the block commits

    @pando.transaction(retry=3)
    def change() -> None: ...                 # runs again where others were in the way

    for attempt in pando.transaction(retry=3):
        with attempt:
            ...                               # the same for a block
"""

from ._failures import Conflict, PandoError
from ._library import Status, status
from ._transaction import Attempt, transaction

__all__ = ["Attempt", "Conflict", "PandoError", "Status", "status", "transaction"]
