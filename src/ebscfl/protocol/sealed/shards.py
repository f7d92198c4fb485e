"""Server and key centre as partial sums over some of the clients, for work that is split over processes or machines.

Both roles hold a sum over the answered clients and nothing else that grows with them. A shard folds its own clients;
`ebscfl.sealed.merge` adds shards in any order and grouping, and gives the very bits of one process. Which client is
answered is still decided in one place, the key centre's store: a shard gets answers, it does not make them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ebscfl.field import Words
from ebscfl.pool import Pool, spans
from ebscfl.protocol.messages import SealedUpload
from ebscfl.protocol.sealed.pad_work import Claim, PadWork, Rows
from ebscfl.protocol.sealed.words import from_wire
from ebscfl.sealed import (
    Answer,
    ClientKeys,
    RunningSum,
    SealedParameters,
    Sketch,
    Verdict,
    client_keys,
    fold,
    merge,
    new_sum,
    products,
)


def upload_sum(params: SealedParameters, uploads: Sequence[tuple[SealedUpload, Answer]]) -> RunningSum:
    """The server's y over these uploads and their answers."""
    total = new_sum(params)
    for upload, answer in uploads:
        pair: Words = from_wire(params.field, upload.words, (2, params.width), name="an upload")
        guard = from_wire(params.field, upload.guard, (params.num_clusters,), name="a guard")
        fold(params, total, [answer], [pair], [guard])
    return total


def pad_sum(
    params: SealedParameters, run: str, round_id: int, masters: Mapping[int, bytes], answers: Mapping[int, Answer]
) -> RunningSum:
    """The key centre's P over these clients: what a restart adds up again, too."""
    total = new_sum(params)
    clients = sorted(answers)
    keys = [client_keys(params, masters[client], run, round_id, client) for client in clients]
    PadWork(params).add(total, keys, [answers[client] for client in clients])
    return total


# --- the key centre's P over a pool -----------------------------------------------------------------------------------


class SharedPadWork:
    """`PadWork` over the workers of a pool: each makes its clients' pads and sends back verdicts and their sum."""

    def __init__(self, params: SealedParameters, pool: Pool) -> None:
        self._params = params
        self._pool = pool

    def __repr__(self) -> str:
        return "SharedPadWork(<redacted>)"

    @property
    def buffers(self) -> Sequence[Words]:
        """Pads are with the workers; none are here."""
        return ()

    def judge(self, total: RunningSum | None, rows: Rows, claims: Sequence[Claim]) -> list[Verdict]:
        """As `PadWork.judge`."""
        common = (self._params, rows, total is not None)
        done = self._pool.map(judge_share, common, [(claims[span],) for span in spans(len(claims), self._pool.workers)])
        if total is not None:
            _add(self._params, total, [part for _, part in done if part is not None])
        return [verdict for verdicts, _ in done for verdict in verdicts]

    def add(self, total: RunningSum, keys: Sequence[ClientKeys], answers: Sequence[Answer]) -> None:
        """As `PadWork.add`."""
        shares = [(keys[span], answers[span]) for span in spans(len(keys), self._pool.workers)]
        _add(self._params, total, self._pool.map(pad_share, self._params, shares))


def judge_share(
    common: tuple[SealedParameters, Rows, bool], claims: Sequence[Claim]
) -> tuple[list[Verdict], RunningSum | None]:
    """Verdicts on these uploads and, if asked, the sum of alpha r + b over those that are accepted."""
    params, rows, summed = common
    total = new_sum(params) if summed else None
    return _work(params).judge(total, rows, claims), total


def pad_share(params: SealedParameters, keys: Sequence[ClientKeys], answers: Sequence[Answer]) -> RunningSum:
    """The sum of alpha r + b over these clients."""
    total = new_sum(params)
    _work(params).add(total, keys, answers)
    return total


@lru_cache(maxsize=1)
def _work(params: SealedParameters) -> PadWork:
    """A worker's buffers, used again from share to share."""
    return PadWork(params, threads=1)


def _add(params: SealedParameters, total: RunningSum, parts: Sequence[RunningSum]) -> None:
    """``total`` += the parts, in place."""
    merged = merge(params, [total, *parts])
    total.words[:], total.guard[:] = merged.words, merged.guard


# --- the server's y over a pool ---------------------------------------------------------------------------------------


class SharedUploads:
    """One batch of uploads (pair and guard of each), cut into shares that travel to the workers once."""

    def __init__(self, params: SealedParameters, pool: Pool, uploads: Sequence[tuple[Words, Words]]) -> None:
        self._params = params
        self._pool = pool
        self._spans = spans(len(uploads), pool.workers)
        self._shares = [pool.hold(list(uploads[span])) for span in self._spans]

    def products(self, server_row: npt.NDArray[np.int32], sketch: Sketch) -> Words:
        """(uploads, 2, 258), as `ebscfl.sealed.products_many` gives them."""
        common = (self._params, server_row, sketch)
        return np.concatenate(self._pool.map(products_share, common, [(share,) for share in self._shares]))

    def fold(self, total: RunningSum, answers: Sequence[Answer | None]) -> None:
        """``total`` += alpha c + t for every upload with an answer."""
        shares = [(share, list(answers[span])) for share, span in zip(self._shares, self._spans, strict=True)]
        _add(self._params, total, self._pool.map(fold_share, self._params, shares))


def products_share(
    common: tuple[SealedParameters, npt.NDArray[np.int32], Sketch], uploads: Sequence[tuple[Words, Words]]
) -> Words:
    """The products of these uploads."""
    params, server_row, sketch = common
    return np.stack([products(params, pair, server_row, sketch) for pair, _ in uploads])


def fold_share(
    params: SealedParameters, uploads: Sequence[tuple[Words, Words]], answers: Sequence[Answer | None]
) -> RunningSum:
    """The sum of alpha c + t over those of these uploads that have an answer."""
    total = new_sum(params)
    taken = [(answer, *upload) for upload, answer in zip(uploads, answers, strict=True) if answer is not None]
    fold(params, total, [a for a, _, _ in taken], [pair for _, pair, _ in taken], [guard for _, _, guard in taken])
    return total
