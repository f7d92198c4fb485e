"""Where the shares of a heavy sum are computed: here, one after the other, or by worker processes.

A role cuts a sum into shares and adds up what comes back; it does not know who computes. This class computes in place;
`ebscfl.federation.scaleout.RayPool` hands the same calls to processes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any


class Pool:
    """Computes shares in this process."""

    workers = 0
    """Processes that help; 0 means none, and that a role need not cut anything."""

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def hold(self, value: Any) -> Any:
        """A handle of ``value`` that several calls of `map` may take: it travels to the workers once."""
        return value

    def map(
        self, call: Callable[..., Any], common: Any, shares: Sequence[tuple[Any, ...]], *, spare: bool = False
    ) -> list[Any]:
        """``call(common, *share)`` of every share, in order; what `hold` gave may stand for a part of a share.

        ``call`` is a function of a module and depends on its arguments only: a share may be computed twice. ``spare``:
        shares are large, so no more of them are sent at once than there are workers.
        """
        return [call(common, *share) for share in shares]

    def close(self) -> None:
        """Stop the workers."""


IN_PLACE = Pool()
"""No processes: what every role starts with."""


def spans(size: int, parts: int, *, step: int = 1) -> list[slice]:
    """``size`` items in at most ``parts`` slices of nearly the same length, cut at multiples of ``step`` only."""
    whole = -(-size // step)
    parts = max(1, min(parts, whole))
    edges = [min(size, step * (whole * i // parts)) for i in range(parts + 1)]
    return [slice(low, high) for low, high in itertools.pairwise(edges) if high > low]
