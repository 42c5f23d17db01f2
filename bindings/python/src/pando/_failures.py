"""What a transaction fails with."""


class PandoError(Exception):
    """A transaction could not begin, or end as it was to.

    ``object`` names what it is about: a path, a descriptor, a flag; it is empty where that is nothing in particular.
    """

    def __init__(self, reason: str, object: str = "") -> None:
        super().__init__(reason)
        self.object = object


class Conflict(PandoError):
    """Others have changed what the transaction has read or changed. Nothing of it is done."""
