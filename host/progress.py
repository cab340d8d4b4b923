"""A progress bar for runs on a device: samples, samples per second, and the board's cycles.

Test: ``tests/test_trainer.py``.
"""

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

__all__ = ["Bar"]


class Bar:
    """Draws on stderr while it is a terminal, and nothing otherwise; ``shown=False`` never draws.

    Use as a context manager; ``start`` begins a row, ``update`` moves it.
    """

    def __init__(self, shown: bool) -> None:
        self.shown = shown and sys.stderr.isatty()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[text]}"),
            console=Console(stderr=True),
            disable=not self.shown,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> "Bar":
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def start(self, title: str, samples: int) -> None:
        """Begin the row of one epoch."""
        self._task = self._progress.add_task(title, total=samples, rate="", text="")

    def update(self, samples: int) -> None:
        """Show how many samples of the row are done."""
        if self._task is None or not self.shown:
            return
        self._progress.update(self._task, completed=samples)
        speed = self._progress.tasks[self._task].speed
        if speed:
            self._progress.update(self._task, rate=f"{speed:,.0f} samples/s")

    def finish(self, text: str) -> None:
        """End the row with a remark, such as its loss and cycles."""
        if self._task is not None:
            self._progress.update(self._task, text=text)
