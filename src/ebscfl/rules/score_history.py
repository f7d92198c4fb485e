"""Score history (RFCA-H): trust from all the rounds a client was seen in, not from this round alone. Our own rule.

One round's cosine with the server update is noisy; its average over rounds separates hostile from honest clients far
better. Whoever holds the scores (the server of a plain run, the key center of `sealed`) keeps one `History` and calls
`advance` once a round. Numpy only, no torch, no randomness; a history is a handful of small arrays.

What `advance` does with the scores s_i of the clients that took part:

1. **Excess.** ``e_i = s_i - median(s)`` removes what all scores of a round share (the luck of the root batch, the decay
   of cosines as training converges), so that clients seen in different rounds stay comparable. The median is over the
   whole round, not per cluster: hostile clients tend to gather in a cluster of their own, and would be its norm.
2. **Average.** A plain mean over the first ``1 / (1 - decay)`` rounds a client is seen in, exponential after that:
   ``avg <- avg + max(1 - decay, 1 / seen) (e - avg)``. Rounds without the client change nothing. The history belongs to
   the client: a change of cluster neither launders a bad record nor costs a good one.
3. **Standing.** It falls with the average at once and recovers slowly: ``min(avg, standing + recovery (avg -
   standing))``. An on-off attacker therefore lives with its bad phases for longer than they last. While a client is a
   newcomer (seen fewer than ``warmup`` times) its standing is its average: first impressions are not kept.
4. **Cut.** Among those present that are no newcomers, look for a gap below which a second group stands: the gap must be
   wider than ``gap_ratio`` standard deviations of the group above it (more for small groups, see `SMALL_SAMPLE`) and
   than ``min_gap``, and the group above must hold at least ``min_trusted`` of them. Of several such gaps the relatively
   widest counts, and the cut goes through its middle. If none qualifies there is no second group, and nobody is cut.
5. **Weight.** ``ReLU(s_i)``, this round's score, for clients whose standing is not below the cut, else 0. Newcomers are
   judged by the same cut but do not move it, and count only ``seen / warmup`` of their weight: an attacker that comes
   back under a new name starts over. (While everybody is new, this factor is the same for all and cancels.)
   This round's score bounds what a *sleeper* (honest first, hostile later) gains until its standing has fallen: an
   update that points away from the server update weighs 0 in its first hostile round.

With ``weight="record"`` the weight comes from the record instead: the plain average of a client's scores (step 2
without the median) against that of the well trusted, q: nothing up to a third of q, everything from two thirds on. q
is the upper `TRUSTED_SHARE` quantile of all averages, but at most two medians: the median client always has half of the
full weight, so that fewer than half of the clients, however well they score, at most double their share. One lucky
round gives a bad record nothing, and late in training, when every single cosine is mostly noise, honest clients go on
counting, nearly all alike. This round's score then only refuses outliers: negative scores lower than the median by more
than `OUTLIER` deviations, which are estimated from the upper half alone (hostile clients are in the lower one). With
``weight="equal"`` every positive score weighs 1.

The caller decides who is compared with whom: normally all clients of a round with one history. If honest clients of
different clusters score so differently that they look like two groups, keep one history per cluster.

Limits: at most ``1 - min_trusted`` of the clients can be cut, and a hostile client whose cosine is in truth as high as
the honest ones' is not found by any average. With ``weight="record"`` clients that scored three times as high as the
median keep weight for a dozen rounds after they turn, unless they turn negative (with "score" they lose it at once);
on-off attackers keep more, too; and no client weighs anything in a round in which more than half of those present
average 0 or less.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ebscfl.errors import CheckpointError, ConfigError, ProtocolError, UsageError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


FIELDS = ("clients", "seen", "average", "standing", "level")
TRUSTED_SHARE = 0.8
"""Clients with an average above this quantile are well trusted."""
MEDIANS = 2.0
"""... but only up to so many medians: that is as far as fewer than half of the clients can move it."""
OUTLIER = 2.0
"""Deviations below the median at which a negative score is refused: 2 % of honest ones, were they normal."""
NORMAL_MEDIAN = 1.4826
"""Standard deviation over median absolute deviation, for normal numbers."""
WEIGHTS = ("score", "record", "equal")
SMALL_SAMPLE = 5.0
"""Few clients look tighter than they are and have wider gaps by chance: the gap asked for grows by the factor
``1 + SMALL_SAMPLE / size of the upper group``. Rates measured with 5 head ``tests/rules/test_score_history.py``."""


@dataclass(frozen=True)
class HistorySettings:
    """How long to remember and when to cut; the defaults are measured in ``tests/rules/test_score_history.py``."""

    decay: float = 0.9
    """Weight of the past in the average; 0.9 remembers about ten rounds."""
    recovery: float = 0.1
    """How fast a standing climbs back to the average; 1 forgets bad phases as fast as good ones."""
    warmup: int = 3
    """Rounds a client counts as a newcomer."""
    gap_ratio: float = 1.3
    """Width of a gap that makes two groups, in standard deviations of the upper group."""
    min_gap: float = 0.02
    """Width of a gap that makes two groups, as a cosine."""
    min_trusted: float = 0.5
    """The share of clients that is never cut."""
    min_clients: int = 6
    """With fewer clients to compare there is no cut."""
    weight: str = "score"
    """A trusted client weighs as much as this round's "score", or as its "record" allows, or all whose score is
    positive weigh "equal"."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.decay < 1.0:
            raise ConfigError(f"decay must lie in [0, 1), not {self.decay}")
        if not 0.0 < self.recovery <= 1.0:
            raise ConfigError(f"recovery must lie in (0, 1], not {self.recovery}")
        if not 0.0 < self.min_trusted <= 1.0:
            raise ConfigError(f"min_trusted must lie in (0, 1], not {self.min_trusted}")
        if self.weight not in WEIGHTS:
            raise ConfigError(f"weight must be one of {', '.join(WEIGHTS)}, not {self.weight!r}")
        if self.warmup < 1:
            raise ConfigError(f"warmup must be at least 1 round, not {self.warmup}")
        if self.min_clients < 3:
            raise ConfigError(f"min_clients must be at least 3, not {self.min_clients}")
        for name in ("gap_ratio", "min_gap"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0.0):
                raise ConfigError(f"{name} must be finite and not negative, not {getattr(self, name)}")


@dataclass(frozen=True, eq=False)
class History:
    """What is kept between rounds: one entry per client ever seen, in order of id. Arrays are read-only."""

    clients: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    seen: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    average: Floats = field(default_factory=lambda: np.empty(0))
    standing: Floats = field(default_factory=lambda: np.empty(0))
    level: Floats = field(default_factory=lambda: np.empty(0))
    """The average of the scores themselves, where ``average`` is that of their excess over the median."""

    def __post_init__(self) -> None:
        if len({len(getattr(self, name)) for name in FIELDS}) > 1:
            raise UsageError("the arrays of a history must have the same length")
        for name in FIELDS:
            frozen = getattr(self, name).copy()  # the caller's own array stays writable
            frozen.setflags(write=False)
            object.__setattr__(self, name, frozen)


@dataclass(frozen=True, eq=False)
class Judgment:
    """The verdict of one round, in the order of the clients passed in."""

    weights: Floats
    """(n,) trust weights, not normalized."""
    trusted: Bools
    """(n,) not below the cut."""
    standing: Floats
    """(n,) what was compared with the cut."""
    cut: float | None
    """The lowest trusted standing, or None: no second group was seen."""


def advance(
    history: History, clients: Sequence[int] | Ints, scores: Floats, settings: HistorySettings
) -> tuple[History, Judgment]:
    """One round: ``scores`` (n,) are the cosines of the distinct ``clients`` (n,) that took part."""
    ids, cosine = _checked(clients, scores)
    everyone = np.union1d(history.clients, ids)
    known = np.searchsorted(everyone, history.clients)
    here = np.searchsorted(everyone, ids)
    seen = np.zeros(len(everyone), dtype=np.int64)
    average, standing, level = np.zeros((3, len(everyone)))
    seen[known], average[known], standing[known] = history.seen, history.average, history.standing
    level[known] = history.level

    excess = cosine - np.median(cosine)
    seen[here] += 1
    rate = np.maximum(1.0 - settings.decay, 1.0 / seen[here])
    average[here] += rate * (excess - average[here])
    level[here] += rate * (cosine - level[here])
    climbed = standing[here] + settings.recovery * (average[here] - standing[here])
    newcomer = seen[here] < settings.warmup
    first_verdict = seen[here] <= settings.warmup
    standing[here] = np.where(first_verdict, average[here], np.minimum(average[here], climbed))

    cut = find_cut(standing[here][~newcomer], settings)
    trusted = np.ones(len(ids), dtype=np.bool_) if cut is None else standing[here] >= cut
    probation = np.minimum(1.0, seen[here] / settings.warmup)
    if settings.weight == "record":
        worth = np.where(cosine > outlier_floor(cosine), record_weights(level[here]), 0.0)
    else:
        worth = np.maximum(cosine, 0.0) if settings.weight == "score" else (cosine > 0.0).astype(np.float64)
    weights = np.where(trusted, worth * probation, 0.0)
    return History(everyone, seen, average, standing, level), Judgment(weights, trusted, standing[here], cut)


def record_weights(levels: Floats) -> Floats:
    """(n,) weights 0..1 of clients with these average scores (n,)."""
    positive = np.maximum(levels, 0.0)
    top = min(float(np.quantile(positive, TRUSTED_SHARE)), MEDIANS * float(np.median(positive)))
    return np.clip(3.0 * positive / top - 1.0, 0.0, 1.0) if top > 0.0 else np.zeros(len(levels))


def outlier_floor(scores: Floats) -> float:
    """The score at or below which an update counts as an outlier of this round; never above 0."""
    middle = float(np.median(scores))
    above = scores[scores > middle] - middle
    deviation = NORMAL_MEDIAN * float(np.median(above)) if len(above) else 0.0
    return min(0.0, middle - OUTLIER * deviation)


def find_cut(standings: Floats, settings: HistorySettings) -> float | None:
    """The middle of the gap between two groups of ``standings``, or None where there is only one group."""
    count = len(standings)
    if count < settings.min_clients:
        return None
    ordered = np.sort(standings)[::-1]  # best first
    gaps = ordered[:-1] - ordered[1:]
    best: tuple[float, float] | None = None
    for upper in range(max(2, math.ceil(settings.min_trusted * count)), count):
        gap = float(gaps[upper - 1])
        spread = float(ordered[:upper].std(ddof=1))
        if gap <= settings.min_gap or gap <= settings.gap_ratio * (1.0 + SMALL_SAMPLE / upper) * spread:
            continue
        relative = gap / spread if spread > 0.0 else math.inf
        if best is None or relative > best[0]:
            best = (relative, float(ordered[upper - 1] + ordered[upper]) / 2)
    return None if best is None else best[1]


def history_to_json(history: History) -> dict[str, list[int] | list[float]]:
    """Plain lists; floats survive `json` exactly."""
    return {name: getattr(history, name).tolist() for name in FIELDS}


def history_from_json(document: Mapping[str, Any]) -> History:
    """The inverse of `history_to_json`; a `CheckpointError` unless the document is one of ours."""
    if set(document) != set(FIELDS):
        raise CheckpointError(f"a score history has the fields {', '.join(FIELDS)}")
    try:
        counts: dict[str, Ints] = {name: np.array(document[name], dtype=np.int64) for name in FIELDS[:2]}
        means: dict[str, Floats] = {name: np.array(document[name], dtype=np.float64) for name in FIELDS[2:]}
    except (TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(f"the score history is corrupt: {error}") from error
    clients = counts["clients"]
    if len({array.shape for array in (*counts.values(), *means.values())}) != 1 or clients.ndim != 1:
        raise CheckpointError("the score history is corrupt: its fields differ in length")
    if not all(type(value) is int for name in counts for value in document[name]):
        raise CheckpointError("the score history is corrupt: clients and seen must be whole numbers")
    if (np.diff(clients) <= 0).any() or (counts["seen"] < 1).any():
        raise CheckpointError("the score history is corrupt: clients must ascend and have been seen")
    if not all(np.isfinite(array).all() for array in means.values()):
        raise CheckpointError("the score history is corrupt: it holds NaN or infinity")
    return History(clients, counts["seen"], means["average"], means["standing"], means["level"])


def _checked(clients: Sequence[int] | Ints, scores: Floats) -> tuple[Ints, Floats]:
    """Distinct ids and finite cosines of the same length."""
    ids = np.asarray(clients)
    cosine = np.asarray(scores)
    if ids.ndim != 1 or len(ids) == 0 or not np.issubdtype(ids.dtype, np.integer):
        raise UsageError("clients must be a non-empty list of client ids")
    if cosine.shape != ids.shape or not np.issubdtype(cosine.dtype, np.floating):
        raise UsageError(f"scores must be floats, one per client ({len(ids)}), not {cosine.dtype} {cosine.shape}")
    if len(np.unique(ids)) != len(ids):
        raise UsageError("clients must be distinct")
    # A little above 1 is rounding; more is no cosine.
    bad = [int(i) for i in ids[~(np.abs(cosine) <= 1.0 + 1e-6)]]
    if bad:
        raise ProtocolError(f"scores of clients {bad} are not cosines", culprits=bad)
    return ids.astype(np.int64), cosine.astype(np.float64)
