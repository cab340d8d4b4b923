"""Folders that are made once per content, and found again by their key.

An entry appears whole or not at all: it is made in a folder beside its place and renamed, under a
lock that a killed process releases. Test: ``tests/test_build.py``.
"""

import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["cache_root", "cached", "key_of"]

LIMIT_BYTES = 4 << 30
SETTLED_SECONDS = 3600  # a younger entry may be about to be loaded by another process
ABANDONED_SECONDS = 86_400  # a folder in the making that old belongs to a killed process


def cache_root() -> Path:
    """The cache's folder: ``$GRADWEAVE_CACHE``, else ``gradweave`` in the user's cache folder."""
    chosen = os.environ.get("GRADWEAVE_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gradweave"


def key_of(*parts: str | bytes) -> str:
    """Return 32 hex digits that differ wherever any part does."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(f"{len(data)}:".encode())
        digest.update(data)
    return digest.hexdigest()[:32]


def cached(
    kind: str,
    key: str,
    make: Callable[[Path], None],
    *,
    root: Path | None = None,
    limit_bytes: int | None = None,
) -> Path:
    """Return the folder of entry ``key``, which ``make`` has filled, now or earlier.

    Concurrent callers wait for the first. When ``make`` raises, nothing remains. After a new entry,
    the longest unused ones of the whole cache are dropped until it is below ``limit_bytes``
    (``$GRADWEAVE_CACHE_BYTES``, else 4 GiB); those used within the last hour stay.
    """
    root = (root or cache_root()).resolve()
    entry = root / kind / key
    if _touch(entry):
        return entry
    (root / kind).mkdir(parents=True, exist_ok=True)
    with _lock(root / "locks" / key_of(kind, key)[:2]):
        if _touch(entry):
            return entry
        made = Path(tempfile.mkdtemp(prefix=".making-", dir=root / kind))
        try:
            make(made)
            made.chmod(0o755)
            os.replace(made, entry)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    if limit_bytes is None:
        limit_bytes = int(os.environ.get("GRADWEAVE_CACHE_BYTES", LIMIT_BYTES))
    _prune(root, limit_bytes, keep=entry)
    return entry


def _touch(entry: Path) -> bool:
    try:
        os.utime(entry)
    except FileNotFoundError:
        return False
    return True


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _prune(root: Path, limit_bytes: int, keep: Path) -> None:
    now = time.time()
    entries = []
    for folder in root.glob("*/*/"):
        try:
            age = now - folder.stat().st_mtime
            if folder.name.startswith(".making-"):
                if age > ABANDONED_SECONDS:
                    shutil.rmtree(folder, ignore_errors=True)
                continue
            size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        except FileNotFoundError:  # another process pruned it
            continue
        entries.append((age, size, folder))
    total = sum(size for _, size, _ in entries)
    for age, size, folder in sorted(entries, reverse=True):
        if total <= limit_bytes or age < SETTLED_SECONDS:
            return
        if folder != keep:
            shutil.rmtree(folder, ignore_errors=True)
            total -= size
