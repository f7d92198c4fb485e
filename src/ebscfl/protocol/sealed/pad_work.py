"""The heavy part of the key centre: pads, their products and their weighted sum, in a few buffers that are used again.

No state of the protocol is here. Clients are worked on in groups: the key streams and products of a group run on all
threads (AES and the kernels release the GIL), then the group is folded into a sum in one pass.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import numpy.typing as npt

from ebscfl.field import Words
from ebscfl.sealed import Answer, ClientKeys, RunningSum, SealedParameters, Sketch, fold, pads, products
from ebscfl.sealed.guard import blind_pads, guard_products

GROUP_BYTES = 16 << 20
"""Pads that are held at the same time, in all."""
GROUP_CLIENTS = 4
THREADED_WIDTH = 1 << 14
"""Below so many words a thread costs more than it gives."""
THREADS = max(1, min(8, os.cpu_count() or 1))


class PadWork:
    """Buffers and threads of one key centre."""

    def __init__(self, params: SealedParameters) -> None:
        self._params = params
        self._threads = THREADS if params.width >= THREADED_WIDTH else 1
        group = max(1, min(GROUP_CLIENTS, GROUP_BYTES // params.upload_bytes))
        self._buffers = [params.field.zeros((2, params.width)) for _ in range(group)]
        self._pool: ThreadPoolExecutor | None = None

    def __repr__(self) -> str:
        return "PadWork(<redacted>)"

    @property
    def buffers(self) -> Sequence[Words]:
        """The pads of the last group: secret."""
        return self._buffers

    def groups(self, size: int) -> Iterator[slice]:
        """Slices of at most one group over ``size`` clients."""
        step = len(self._buffers)
        return (slice(low, min(size, low + step)) for low in range(0, size, step))

    def guards(self, keys: Sequence[ClientKeys], row: Words) -> list[Words]:
        """Products of the pads of the counts and of their second tags, for the group whose pads were made last."""
        params = self._params
        counts = (buffer[0, params.dim :: params.slot_size] for buffer in self._buffers)
        return [
            guard_products(params, count, one.guard_pad, blind_pads(params, one), row)
            for count, one in zip(counts, keys, strict=False)
        ]

    def products(self, keys: Sequence[ClientKeys], row: npt.NDArray[np.int32], sketch: Sketch) -> list[Words]:
        """Products of the pads of one group; the pads stay in the buffers for `add_group`."""

        def one(i: int) -> Words:
            return products(self._params, pads(self._params, keys[i], self._buffers[i]), row, sketch)

        return self._map(one, len(keys))

    def add_group(self, total: RunningSum, keys: Sequence[ClientKeys], answers: Sequence[Answer | None]) -> None:
        """total += alpha r + b over the group whose pads were made last, without those that got no answer."""
        taken = [(i, answer) for i, answer in enumerate(answers) if answer is not None]
        fold(
            self._params,
            total,
            [answer for _, answer in taken],
            [self._buffers[i] for i, _ in taken],
            [keys[i].guard_pad for i, _ in taken],
            threads=self._threads,
        )

    def add(self, total: RunningSum, keys: Sequence[ClientKeys], answers: Sequence[Answer]) -> None:
        """total += alpha r + b over any number of clients, pads made anew: what a restart does."""
        for part in self.groups(len(keys)):
            group = keys[part]
            self._map(partial(self._fill, group), len(group))
            self.add_group(total, group, answers[part])

    def _fill(self, keys: Sequence[ClientKeys], i: int) -> Words:
        return pads(self._params, keys[i], self._buffers[i])

    def _map(self, call: Callable[[int], Words], count: int) -> list[Words]:
        if self._threads == 1 or count == 1:
            return [call(i) for i in range(count)]
        self._pool = self._pool or ThreadPoolExecutor(self._threads)
        return list(self._pool.map(call, range(count)))
