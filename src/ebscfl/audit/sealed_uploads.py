"""Attacks on `sealed` from the server's view: every linear reading of an upload that would show a missing ingredient.

Each `Reading` turns the uploads of one round into a guess of every client's input x, as if one ingredient of the
protocol were absent. If all are there, the words it reads are uniform and independent of the input, so its cosine with
the true update has mean 0 and standard deviation exactly 1/sqrt(l), and its cluster guess is right once in m times.

    masked     c_i itself                                  red if the pads r are missing
    repeated   c_i minus c_i of the round before           red if keys are used twice
    counted    t_i over its own count coordinate           red if the pads b are missing (the count is known: one half)
    answered   alpha_i c_i + t_i - P, for each release P   red if P is ever sent for one client
    weighed    alpha_i                                     red if kappa is missing or used twice
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ebscfl.audit.views import Estimate, Floats, View, stacked
from ebscfl.field import Field, Words
from ebscfl.protocol.messages import Release, ScoreAnswer, SealedUpload
from ebscfl.protocol.sealed import parameters
from ebscfl.protocol.sealed.words import from_wire
from ebscfl.sealed import SealedParameters

Words64 = npt.NDArray[np.uint64]


@dataclass(frozen=True, eq=False, repr=False)
class SeenRound:
    """What the server received in one round, as field elements. Rows belong to `clients`."""

    params: SealedParameters
    round_id: int
    clients: tuple[int, ...]
    pairs: Words  # (n, 2, width): c, t
    alphas: Words64  # (n,), zero where refused
    refused: npt.NDArray[np.bool_]  # (n,)
    releases: tuple[Words, ...]  # (width,) each

    @property
    def field(self) -> Field:
        """The field of the run."""
        return self.params.field


def seen_rounds(view: View) -> Iterator[SeenRound]:
    """Round by round, from the messages in the view."""
    params = parameters(view.public)
    answers = {
        (message.round_id, client): (int(row[0]), bool(reason))
        for _, message in view.of(ScoreAnswer)
        for client, row, reason in zip(message.clients, message.answers, message.refusals, strict=True)
    }
    releases: dict[int, list[Words]] = {}
    for _, release in view.of(Release):
        words = from_wire(params.field, np.asarray(release.pad_sum), (params.width,), name="release")
        releases.setdefault(release.round_id, []).append(words)
    uploads: dict[int, dict[int, Words]] = {}
    for sender, upload in view.of(SealedUpload):
        pair = from_wire(params.field, np.asarray(upload.words), (2, params.width), name="upload")
        uploads.setdefault(upload.round_id, {})[sender.client] = pair
    for own in view.rounds:
        mine = uploads.get(own.round_id, {})
        clients = tuple(sorted(mine))
        given = [answers.get((own.round_id, i), (0, True)) for i in clients]
        yield SeenRound(
            params, own.round_id, clients, np.stack([mine[i] for i in clients]),
            np.array([alpha for alpha, _ in given], dtype=np.uint64), np.array([no for _, no in given]),
            tuple(releases.get(own.round_id, ())),
        )  # fmt: skip


Reading = Callable[[SeenRound, SeenRound | None], "Words | None"]
"""This round and the one before -> a guess of x for every client, (n, width) words, or None if it does not apply."""


def masked(now: SeenRound, before: SeenRound | None) -> Words | None:
    """c_i as if it were x_i."""
    return now.pairs[:, 0]


def repeated(now: SeenRound, before: SeenRound | None) -> Words | None:
    """c_i minus the same client's c_i of the round before, as if both had the same pads."""
    if before is None or before.clients != now.clients:
        return None
    return now.field.subtract(now.pairs[:, 0], before.pairs[:, 0])


def counted(now: SeenRound, before: SeenRound | None) -> Words | None:
    """t_i / kappa_i, as if t_i were kappa_i x_i: the count coordinate of the own slot is kappa_i times one half."""
    params, field = now.params, now.field
    slots = now.pairs[:, 1].reshape(-1, params.num_clusters, params.slot_size)
    # 1 / kappa = (one half) / t_count, modulo p.
    factors = [
        [params.one_half * pow(int(count), -1, field.modulus) % field.modulus if count else 0 for count in row]
        for row in slots[:, :, -1]
    ]
    scaled = [
        np.stack([field.multiply(np.ascontiguousarray(slot), f) for slot, f in zip(row, mine, strict=True)])
        for row, mine in zip(slots, factors, strict=True)
    ]
    return np.stack(scaled).reshape(len(slots), params.width)


def answered(now: SeenRound, before: SeenRound | None) -> Words | None:
    """alpha_i c_i + t_i - P = rho_i x_i, as if a release P had been sent for client i alone.

    With several releases the one that leaves the smallest numbers is taken.
    """
    if not now.releases:
        return None
    guesses = []
    for pair, alpha in zip(now.pairs, now.alphas, strict=True):
        own = now.field.add(now.field.multiply(np.ascontiguousarray(pair[0]), int(alpha)), pair[1])
        rests = [now.field.subtract(own, release) for release in now.releases]
        guesses.append(min(rests, key=lambda rest: float(np.abs(now.field.lift(rest)).mean())))
    return np.stack(guesses)


READINGS: dict[str, Reading] = {
    "masked": masked,
    "repeated": repeated,
    "counted": counted,
    "answered": answered,
}


def guess(seen: SeenRound, words: Words) -> tuple[Floats, npt.NDArray[np.int64]]:
    """(n, l) directions and (n,) clusters from a guess of x: the own slot is the one that differs from the others.

    Slots of an unmasked input are zero but for one; slots of an input times an unknown factor hold small numbers in
    one. So: the slot whose share of words that are neither zero nor large is greatest; among equals the most energy.
    """
    params = seen.params
    lifted = seen.field.lift(words).reshape(len(words), params.num_clusters, params.slot_size)[:, :, :-1]
    sizes = np.abs(lifted)
    small = ((sizes > 0) & (sizes < seen.field.modulus // 64)).mean(axis=2)
    energy = (lifted.astype(np.float64) ** 2).mean(axis=2) / float(seen.field.modulus) ** 2
    clusters = (small + 1e-3 * energy).argmax(axis=1).astype(np.int64)
    return lifted[np.arange(len(words)), clusters].astype(np.float64), clusters


def read_uploads(view: View, reading: str) -> Iterator[tuple[int, Estimate]]:
    """(position of the round, estimate) for every round in which a reading applies."""
    before: SeenRound | None = None
    for position, now in enumerate(seen_rounds(view)):
        words = READINGS[reading](now, before)
        before = now
        if words is None:
            continue
        updates, clusters = guess(now, words)
        yield position, stacked(view, zip(now.clients, updates, (int(k) for k in clusters), strict=True))


def weigh(view: View) -> dict[str, npt.NDArray[np.float64]]:
    """Readings of the trust weights, each (rounds, n) or (pairs of rounds, n).

    ``answers``: alpha_i as a signed number, as if kappa_i were missing. ``differences``: alpha_i of rounds 2k+1 minus
    2k, as if kappa_i were used twice (pairs of rounds do not overlap, so they are independent). ``refusals``: 1 where
    the key center gave no answer, as if trust decided who gets one.
    """
    rounds = list(seen_rounds(view))
    field = rounds[0].field
    alphas = [seen.alphas.astype(field.dtype) for seen in rounds]
    pairs = list(zip(alphas[::2], alphas[1::2], strict=False))
    return {
        "answers": np.array([field.lift(alpha) for alpha in alphas], dtype=np.float64),
        "differences": np.array([field.lift(field.subtract(b, a)) for a, b in pairs], dtype=np.float64),
        "refusals": np.array([seen.refused | (seen.alphas == 0) for seen in rounds], dtype=np.float64),
    }
