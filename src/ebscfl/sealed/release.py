"""Sums of a round: folding answers in, opening the counts, releasing P, and reading the aggregate from y - P.

Server and key center keep the same kind of sum and fold the same answers into it, the server with uploads (c, t),
the key center with pads (r, b); the difference of the two is the sum of rho * x. Sums merge by addition, so the
work of a round splits over processes in any way.

Who checks that a slot holds enough weight? The counts are in y - P, of which the key center holds only P. So the
server first opens y at the m count coordinates, and the key center subtracts P there. A second tag makes a false
opening fail: the same counts come once plain and once times lambda, the key center's secret of the round, and the
opening must agree in that factor. Without lambda, moving weight from one slot to another (which keeps the total)
would pass. A client that colludes with the server can compute lambda from its own answer, but that pair can also
fill a slot with clients of its own; the guard therefore counts on no collusion, or on a minimum above the number of
corrupt clients with differential privacy behind it. The key center learns the weight of each slot; with few clients,
whose weights it knows, this alone says who is in it, and the sketch of the norm check names clusters for any number
(docs/security-model.md).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ebscfl.errors import ConfigError, RoundAborted, UsageError, VerificationError
from ebscfl.field import Signed, Words
from ebscfl.sealed.parameters import SealedParameters
from ebscfl.sealed.score import Answer
from ebscfl.sealed.workers import Workers


@dataclass(frozen=True, eq=False)
class RunningSum:
    """A sum over the answered clients; `fold` adds in place, everything else makes new ones."""

    words: Words  # (width,) y at the server, P at the key center
    guard: Words  # (m,) the same for the counts under the second answer

    def __repr__(self) -> str:
        return "RunningSum(<redacted>)"


@dataclass(frozen=True, eq=False)
class SlotDecision:
    """Which slots are released, and the weight of each as the release will show it."""

    released: npt.NDArray[np.bool_]  # (m,)
    weights: npt.NDArray[np.float64]  # (m,)


@dataclass(frozen=True, eq=False)
class Release:
    """What the key center sends at the end of a round: P, zero on slots that stay closed."""

    words: Words  # (width,)
    released: npt.NDArray[np.bool_]  # (m,)


@dataclass(frozen=True, eq=False)
class OpenedSums:
    """What the server learns: per cluster the weighted sum of updates and the weighted count, as integers."""

    sums: Signed  # (m, dim) sum of rho * 2^update_bits * unit update
    counts: Signed  # (m,) sum of rho * 2^(update_bits - 1)
    released: npt.NDArray[np.bool_]  # (m,)


def new_sum(params: SealedParameters) -> RunningSum:
    """The empty sum."""
    return RunningSum(params.field.zeros(params.width), params.field.zeros(params.num_clusters))


def fold(
    params: SealedParameters,
    total: RunningSum,
    answers: Sequence[Answer],
    pairs: Sequence[Words],
    guards: Sequence[Words],
    *,
    workers: Workers | None = None,
) -> None:
    """total += alpha * pair[0] + pair[1] for each answered client, and the second answer on its counts.

    pairs: (2, width) each, uploads at the server and pads at the key center; guards: (m,) each, likewise.
    ``workers`` split the coordinates.
    """
    if not len(answers) == len(pairs) == len(guards):
        raise UsageError(f"{len(answers)} answers, {len(pairs)} pairs and {len(guards)} guards do not match")
    field = params.field
    alphas = [answer.alpha for answer in answers]
    for answer, pair, guard in zip(answers, pairs, guards, strict=True):
        counts = np.ascontiguousarray(pair[0, params.dim :: params.slot_size])
        field.fold(total.guard, [answer.guard_alpha], [np.stack([counts, guard])])
    workers = workers or Workers(1)
    edges = [params.width * i // workers.threads for i in range(workers.threads + 1)]

    def part(span: slice) -> None:
        field.fold(total.words[span], alphas, [pair[:, span] for pair in pairs])

    workers.map(part, [slice(low, high) for low, high in itertools.pairwise(edges)])


def merge(params: SealedParameters, sums: Sequence[RunningSum]) -> RunningSum:
    """The sum of partial sums, in any order and grouping."""
    words, guard = params.field.zeros(params.width), params.field.zeros(params.num_clusters)
    for one in sums:
        words = params.field.add(words, one.words)
        guard = params.field.add(guard, one.guard)
    return RunningSum(words, guard)


def open_counts(params: SealedParameters, total: RunningSum) -> Words:
    """(2, m): the server's y and its guard at the count coordinates, which it sends to ask for the release."""
    return np.stack([total.words[params.dim :: params.slot_size], total.guard])


def check_quorum(params: SealedParameters, members: int) -> None:
    """Refuse to release a round with too few uploads."""
    if members < params.quorum:
        raise RoundAborted(f"{members} accepted uploads are below the quorum of {params.quorum}: nothing is released")


def decide_slots(
    params: SealedParameters,
    opening: Words,
    pads_sum: RunningSum,
    lam: int,
    total_weight: int,
    noise: Signed | None = None,
) -> SlotDecision:
    """The key center's check of an opening, and which slots hold at least the minimum weight.

    total_weight: sum of rho over the answered clients. With ``noise`` (the vector that `release` will use) the
    decision is taken on the noisy weights, so that it reveals nothing the noisy release does not.
    """
    field = params.field
    field.check(opening, name="count opening", shape=(2, params.num_clusters))
    plain = field.subtract(opening[0], pads_sum.words[params.dim :: params.slot_size])
    tagged = field.subtract(opening[1], pads_sum.guard)
    if not np.array_equal(tagged, field.multiply(plain, lam)):
        raise VerificationError("the server's count opening fails its tag", culprits=("server",))
    counts = field.lift(plain)
    if sum(int(c) for c in counts) != params.one_half * total_weight:
        raise VerificationError("the opened counts do not add up to the answered weights", culprits=("server",))
    if noise is not None:
        counts = counts + noise.reshape(params.num_clusters, params.slot_size)[:, -1]
    weights = counts.astype(np.float64) / (params.one_half * 2.0**params.weight_bits)
    return SlotDecision(weights >= params.min_slot_weight, weights)


def release(
    params: SealedParameters, pads_sum: RunningSum, decision: SlotDecision, noise: Signed | None = None
) -> Release:
    """P on the released slots, minus the noise, so that y - P is the noisy sum."""
    if (noise is None) != (params.noise_multiplier == 0):
        raise ConfigError("noise must be given if and only if noise_multiplier is set")
    words = pads_sum.words
    if noise is not None:
        words = params.field.subtract(words, params.field.embed(noise))
    slots = words.reshape(params.num_clusters, params.slot_size)
    shown = np.where(decision.released[:, None], slots, 0).astype(params.field.dtype)
    return Release(shown.reshape(-1), decision.released)


def unseal(params: SealedParameters, total: RunningSum, released: Release) -> OpenedSums:
    """y - P on the released slots, as signed integers; zeros elsewhere."""
    field = params.field
    field.check(released.words, name="release", shape=(params.width,))
    values = field.lift(field.subtract(total.words, released.words))
    slots = values.reshape(params.num_clusters, params.slot_size) * released.released[:, None]
    return OpenedSums(slots[:, :-1].copy(), slots[:, -1].copy(), released.released)


def aggregates(params: SealedParameters, opened: OpenedSums, normalize: str = "cluster") -> npt.NDArray[np.float64]:
    """(m, dim) weighted means of the unit updates: by the cluster's own weight, or by that of all clusters.

    The count coordinate is one half, so a weight is twice its count; a slot without weight gives zeros. A client can
    split its count over slots and so take weight from a slot it is not in; a mean over the cluster's own weight
    would then grow without bound. A true mean of unit updates is no longer than one, so a longer one is scaled down.
    """
    if normalize not in ("cluster", "global"):
        raise ConfigError(f"normalize must be 'cluster' or 'global', not {normalize!r}")
    counts = opened.counts.astype(np.float64)
    weights = 2.0 * (counts if normalize == "cluster" else np.full_like(counts, counts.sum()))
    if normalize == "cluster":
        longest = 1.0 + np.sqrt(params.dim) * 2.0**-params.update_bits  # rounding moves a coordinate by one unit
        lengths = np.linalg.norm(opened.sums.astype(np.float64), axis=1)
        weights = np.where(weights > 0, np.maximum(weights, lengths / longest), weights)
    scale = np.where((weights > 0) & opened.released, 1.0 / np.where(weights > 0, weights, 1.0), 0.0)
    return opened.sums.astype(np.float64) * scale[:, None]


def slot_weights(params: SealedParameters, opened: OpenedSums) -> npt.NDArray[np.float64]:
    """(m,) the sum of trust weights in each slot."""
    return opened.counts.astype(np.float64) / (params.one_half * 2.0**params.weight_bits)
