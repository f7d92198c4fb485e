"""One process a directory: two that play the same run would mix their metrics and overwrite their checkpoints."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ebscfl.errors import UsageError

try:
    import fcntl
except ModuleNotFoundError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]

NAME = ".lock"


@contextmanager
def only_process(directory: Path) -> Iterator[None]:
    """Hold ``directory`` (made if need be); the lock goes with the process, however it ends.

    Raises:
        UsageError: another process holds it.
    """
    if fcntl is None:
        yield
        return
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / NAME
    while True:
        with open(path, "w", encoding="ascii") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(f"another process works in {directory}: wait for it, or stop it first") from None
            except OSError:
                pass  # a file system without locks
            if not _is(path, file.fileno()):
                continue  # who held it before has just removed it: take the one that is there now
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def _is(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
