"""Threads of one role, opened once and kept: the kernels and AES release the GIL, so they share the cores."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

MOST_THREADS = 8
"""More do not help: beyond this the memory is the limit."""
THREADED_WIDTH = 1 << 14
"""Below so many words a thread costs more than it gives."""


class Workers:
    """A pool that starts with its first use and ends with its owner. One thread means none: calls run in place."""

    def __init__(self, threads: int) -> None:
        self.threads = max(1, threads)
        self._pool: ThreadPoolExecutor | None = None

    def map(self, call: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """``call`` of every item, in the order of the items; the first error is raised."""
        if self.threads <= 1 or len(items) <= 1:
            return [call(item) for item in items]
        self._pool = self._pool or ThreadPoolExecutor(self.threads)
        return list(self._pool.map(call, items))


def workers_for(width: int, most: int = MOST_THREADS) -> Workers:
    """One thread a core for inputs of ``width`` words, ``most`` at most; none for short inputs."""
    return Workers(min(most, MOST_THREADS, os.cpu_count() or 1) if width >= THREADED_WIDTH else 1)
