"""The boards that a plan can be made for: one TOML file each, beside this one.

A file gives the part, its resources (``lut``, ``ff``, ``bram36`` blocks of 36 Kbit, ``dsp``
slices), the clock that plans assume (``clock_hz``; a wish, not a timing closure) and the source
of the numbers.

Test: ``tests/test_boards.py``.
"""

import dataclasses
import tomllib
from dataclasses import dataclass
from pathlib import Path

from ..model.errors import PlanError

__all__ = ["Board", "load", "names", "read"]

FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Board:
    """One board's part and what it holds."""

    name: str
    part: str
    lut: int
    ff: int
    bram36: int
    dsp: int
    clock_hz: int
    source: str


def names() -> list[str]:
    """Names of all known boards, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load(name: str) -> Board:
    """The board of that name.

    Raises
    ------
    PlanError
        an unknown name; a file that lacks an entry, has one too many, or one of a wrong type
    """
    if name not in names():
        raise PlanError(f"board must be one of {', '.join(names())}, not {name!r}")
    return read(FOLDER / f"{name}.toml")


def read(path: Path) -> Board:
    """The board that a TOML file describes; its name is the file's. Raises as ``load``."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise PlanError(f"{path.name} must be TOML; {error}") from error
    fields = {x.name: x.type for x in dataclasses.fields(Board) if x.name != "name"}
    missing = [key for key in fields if key not in raw]
    unknown = [key for key in raw if key not in fields]
    if missing or unknown:
        raise PlanError(
            f"{path.name} must have exactly the entries {', '.join(fields)}; "
            f"missing: {', '.join(missing) or 'none'}; unknown: {', '.join(unknown) or 'none'}"
        )
    for key, kind in fields.items():
        value = raw[key]
        if kind is str and (not isinstance(value, str) or not value):
            raise PlanError(f"{path.name}: {key} must be text, not {value!r}")
        if kind is int and (type(value) is not int or value < 1):
            raise PlanError(f"{path.name}: {key} must be a positive integer, not {value!r}")
    return Board(name=path.stem, **raw)
