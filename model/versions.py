"""Which weights a pass reads: the version table, and a store that keeps the versions that are still
to be read.

Version v is the weights after v updates. Mini-batch k of a layer reads version ``max(0, k -
delay)``.

RTL: ``rtl/pipeline/versions.py``. Test: ``tests/test_versions.py``.
"""

from typing import Generic, TypeVar

from .errors import PlanError

__all__ = ["VersionStore", "version"]

Value = TypeVar("Value")


def version(batch: int, delay: int) -> int:
    """Return the version that mini-batch number ``batch`` reads with ``delay``."""
    return max(0, batch - delay)


class VersionStore(Generic[Value]):
    """The ``delay + 1`` newest versions of one layer's weights, for passes that read ``delay``
    versions late.

    Parameters
    ----------
    delay : int, mini-batches, 0 or more

    Raises
    ------
    PlanError
        A negative delay; versions that come out of order; a version that is gone or not there yet.
    """

    def __init__(self, delay: int) -> None:
        if delay < 0:
            raise PlanError(f"delay must be 0 or more mini-batches, not {delay}")
        self.delay = delay
        self._kept: dict[int, Value] = {}
        self._newest = -1

    def start(self, value: Value) -> None:
        """Forget everything; ``value`` is version 0."""
        self._kept = {0: value}
        self._newest = 0

    def add(self, value: Value) -> int:
        """Keep ``value`` as the next version, drop the one that no later mini-batch reads, return
        its number.
        """
        if self._newest < 0:
            raise PlanError("version 0 must be started before the next one is added")
        self._newest += 1
        self._kept[self._newest] = value
        self._kept.pop(self._newest - self.delay - 1, None)
        return self._newest

    def read(self, batch: int) -> Value:
        """Return what mini-batch number ``batch`` reads."""
        wanted = version(batch, self.delay)
        if wanted not in self._kept:
            raise PlanError(
                f"version {wanted} must be one of {sorted(self._kept)} for mini-batch {batch}"
            )
        return self._kept[wanted]
