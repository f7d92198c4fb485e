"""The heavy part of the key centre: pads, their products, the verdict and the weighted sum P, in buffers used again.

No state of the protocol is here. Every thread takes a few clients at a time through all steps, from key stream to
verdict, while their pads stay near the core, and then adds them to P in one pass; threads meet only there. P is an
exact sum, so the order in which they come does not show.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Lock
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ebscfl.field import Words
from ebscfl.sealed import (
    Answer,
    ClientKeys,
    RunningSum,
    SealedParameters,
    Sketch,
    Verdict,
    Workers,
    blind_pads,
    fold,
    guard_holds,
    guard_products,
    kdc_check,
    pads,
    products,
    workers_for,
)
from ebscfl.sealed.score import REASON_TAG
from ebscfl.sealed.sketch import ROWS

PAD_BYTES = 48 << 20
"""Pads that are held at the same time, in all; one client's are always held, however large."""
GROUP_CLIENTS = 4
"""Clients a thread adds to P in one pass: what the kernels can sum before they reduce."""

FALSE_GUARD = Verdict(REASON_TAG, None, float("nan"), 0, np.full(ROWS, np.nan))


class Rows(NamedTuple):
    """What all uploads of a batch are multiplied with, and the round's secret lambda."""

    server_row: npt.NDArray[np.int32]
    sketch: Sketch
    guard_row: Words
    lam: int

    def __repr__(self) -> str:
        return "Rows(<redacted>)"


class Claim(NamedTuple):
    """What the server says about one upload, and the keys that it must fit."""

    keys: ClientKeys
    products: Words  # (2, 258)
    guard: Words  # (2,)


class PadWork:
    """Buffers and threads of one key centre."""

    def __init__(self, params: SealedParameters, threads: int | None = None) -> None:
        most = PAD_BYTES // params.upload_bytes
        self._params = params
        self._workers = workers_for(params.width, most) if threads is None else Workers(threads)
        self._group = max(1, min(GROUP_CLIENTS, PAD_BYTES // (self._workers.threads * params.upload_bytes)))
        # One group of buffers a thread, made with its first use: a run with few clients needs few.
        self._buffers: list[Words] = []
        self._free: SimpleQueue[list[Words]] = SimpleQueue()
        for _ in range(self._workers.threads):
            self._free.put([])
        self._adding = Lock()

    def __repr__(self) -> str:
        return "PadWork(<redacted>)"

    @property
    def buffers(self) -> Sequence[Words]:
        """The pads of the last clients: secret."""
        return tuple(self._buffers)

    def judge(self, total: RunningSum | None, rows: Rows, claims: Sequence[Claim]) -> list[Verdict]:
        """Verdicts in the order of the claims; ``total`` (if any) += alpha r + b over those that are accepted."""

        def part(span: slice) -> list[Verdict]:
            with self._borrowed(span) as buffers:
                verdicts = [self._verdict(rows, *pair) for pair in zip(claims[span], buffers, strict=True)]
                if total is not None:
                    self._add(total, [claim.keys for claim in claims[span]], [v.answer for v in verdicts], buffers)
            return verdicts

        return [verdict for group in self._workers.map(part, self._spans(len(claims))) for verdict in group]

    def add(self, total: RunningSum, keys: Sequence[ClientKeys], answers: Sequence[Answer]) -> None:
        """``total`` += alpha r + b for clients that were answered before: what a restart does."""

        def part(span: slice) -> None:
            with self._borrowed(span) as buffers:
                for one, buffer in zip(keys[span], buffers, strict=True):
                    pads(self._params, one, buffer)
                self._add(total, keys[span], answers[span], buffers)

        self._workers.map(part, self._spans(len(keys)))

    def _spans(self, size: int) -> list[slice]:
        """Slices over ``size`` clients: at most a group each, and fewer when threads would stand idle otherwise."""
        step = max(1, min(self._group, -(-size // self._workers.threads)))
        return [slice(low, min(size, low + step)) for low in range(0, size, step)]

    @contextmanager
    def _borrowed(self, span: slice) -> Iterator[list[Words]]:
        """Buffers for the clients of ``span``, which no other thread uses meanwhile."""
        own = self._free.get()
        try:
            while len(own) < span.stop - span.start:
                own.append(self._params.field.zeros((2, self._params.width)))
                self._buffers.append(own[-1])
            yield own[: span.stop - span.start]
        finally:
            self._free.put(own)

    def _verdict(self, rows: Rows, claim: Claim, buffer: Words) -> Verdict:
        params, keys = self._params, claim.keys
        own = products(params, pads(params, keys, buffer), rows.server_row, rows.sketch)
        counts = buffer[0, params.dim :: params.slot_size]
        guard = guard_products(params, counts, keys.guard_pad, blind_pads(params, keys), rows.guard_row)
        if not guard_holds(params, claim.guard, guard, keys):
            return FALSE_GUARD
        return kdc_check(params, claim.products, own, keys, rows.lam)

    def _add(
        self, total: RunningSum, keys: Sequence[ClientKeys], answers: Sequence[Answer | None], buffers: Sequence[Words]
    ) -> None:
        taken = [(answer, buffers[i], keys[i].guard_pad) for i, answer in enumerate(answers) if answer is not None]
        with self._adding:
            fold(
                self._params,
                total,
                [answer for answer, _, _ in taken],
                [buffer for _, buffer, _ in taken],
                [guard for _, _, guard in taken],
            )
