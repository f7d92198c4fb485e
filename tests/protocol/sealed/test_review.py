"""Findings of a hostile review: choosing the sketch, updates spread over slots, and what the quorum does not count."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from sealed_lab import ROOT, RUN_TAG, Lab, make_lab

from ebscfl import rng
from ebscfl.errors import SequenceError
from ebscfl.ids import SERVER, client_address
from ebscfl.plain import rfca_round, unit_rows
from ebscfl.protocol.messages import (
    Message,
    OpenRound,
    Refusal,
    Release,
    ReleaseRequest,
    RoundOpened,
    ScoreAnswer,
    ScoreRequest,
    SealedUpload,
)
from ebscfl.protocol.rounds import LARGEST_ROUND_ID, round_id_of
from ebscfl.protocol.sealed.round_store import RoundStore
from ebscfl.protocol.sealed.shards import upload_sum
from ebscfl.protocol.sealed.words import from_wire, to_wire
from ebscfl.protocol.states import State
from ebscfl.sealed import Answer as MaskedWeight
from ebscfl.sealed import Release as ReleasedSum
from ebscfl.sealed import client_keys, master_key, open_counts, pads, unseal
from ebscfl.sealed.encode import guard_tags
from ebscfl.sealed.guard import seal_blind

SPLIT = (-0.43, 1.03)
"""Lengths along G_0 and G_1 of an update spread over both slots: near the most it can take from slot 0."""


def seal_x(lab: Lab, client: int, x: np.ndarray) -> SealedUpload:
    """A properly sealed upload of any integers in all slots."""
    params, field, run = lab.params, lab.params.field, RUN_TAG.hex()
    keys = client_keys(params, master_key(rng.derive(ROOT, rng.USAGE_ROLE, "kdc"), run, client), run, 1, client)
    words = field.embed(x.reshape(-1))
    r, b = pads(params, keys)
    pair = np.stack([field.add(words, r), field.add(field.multiply(words, keys.kappa), b)])
    guard = guard_tags(params, words[params.dim :: params.slot_size].copy(), keys)
    return SealedUpload(1, to_wire(pair), to_wire(guard), to_wire(seal_blind(params, keys, ROOT, 1)))


def ask_in_batches(lab: Lab, clients: range, first: int) -> list[ScoreRequest]:
    """One question a client, with batch numbers from ``first`` on."""
    lab.start(1)
    lab.server._batch_size, lab.server._batch = 1, first
    found = []
    for client in clients:
        upload = lab.clients[client].encode(1, lab.updates[client], lab.clusters[client])[0].message
        (out,) = lab.to_server(upload, client_address(client))
        assert isinstance(out.message, ScoreRequest)
        found.append(out.message)
    return found


@pytest.mark.parametrize("batch", [8, 9, 2**32 - 1])
def test_a_server_cannot_look_for_a_sketch_among_many_batch_numbers(batch: int) -> None:
    """The round's key is public to the server: with 2^32 numbers to try, one refuses any update it has guessed."""
    lab = make_lab()
    (question,) = ask_in_batches(lab, range(1), batch)
    (answer,) = lab.to_kdc(question)
    assert isinstance(answer, Refusal)
    assert "caught" in answer.reason
    assert lab.kdc.state is State.HALTED
    assert SERVER in lab.kdc.culprits


def test_every_number_an_honest_server_needs_is_taken_in_any_order() -> None:
    lab = make_lab()
    for question in reversed(ask_in_batches(lab, range(8), 0)):
        (answer,) = lab.to_kdc(question)
        assert isinstance(answer, ScoreAnswer)
        assert answer.refusals == ("",)
    assert lab.kdc.state is State.SERVING


def spread_lab(liars: int) -> tuple[Lab, np.ndarray]:
    """Eight clients with cosine 0.45; the last ``liars`` spread their update over both slots. Unit server updates."""
    lab = make_lab(dim=2000, quorum=2)
    unit = unit_rows(lab.server_updates)
    lab.start(1)
    for i, client in enumerate(lab.clients):
        cluster = lab.clusters[i]
        away = lab.updates[i] - (lab.updates[i] @ unit[cluster]) * unit[cluster]
        update = 0.45 * unit[cluster] + math.sqrt(1 - 0.45**2) * away / np.linalg.norm(away)
        lab.updates[i] = update
        if i < 8 - liars:
            message = client.encode(1, update, cluster)[0].message
        else:
            x = np.zeros((2, lab.params.slot_size), dtype=np.int64)
            x[:, :-1] = np.rint(np.array(SPLIT)[:, None] * unit * 2**lab.params.update_bits)
            x[:, -1] = lab.params.one_half // 2
            message = seal_x(lab, i, x)
        lab.deliver(lab.to_server(message, client_address(i)))
    lab.close()
    lab.deliver(lab.server.finish_round())
    return lab, unit


def test_spread_updates_move_a_cluster_against_its_server_update_which_the_plain_rule_never_does() -> None:
    """What the norm check alone allows; the security model states the number.

    The rule gives a client a share only if its cosine is positive, so every cluster's mean has a positive product with
    G_k. A spread update pays with slot 1 for what it does to slot 0: (b - a) a at most, with a^2 + b^2 <= R^2, which
    is R^2 (sqrt(2) - 1) / 2. It needs no tag to fail and is not seen.
    """
    lab, unit = spread_lab(liars=4)
    outcome = lab.server.outcome
    assert outcome is not None
    assert outcome.included == tuple(range(8))
    assert not lab.server.culprits
    got = float(outcome.aggregates[0] @ unit[0]) * outcome.total_weight
    a, b = -SPLIT[0], SPLIT[1]
    honest = 2 * 0.45**2
    assert got == pytest.approx(honest - 4 * (b - a) * a, abs=0.02)
    assert got < 0
    assert 4 * (b - a) * a <= 4 * (a * a + b * b) * (math.sqrt(2) - 1) / 2
    plain, _ = rfca_round(lab.updates, list(lab.clusters), lab.server_updates)
    assert float(plain[0] @ unit[0]) > 0


def test_the_quorum_counts_uploads_and_not_weights() -> None:
    """All uploads but one have weight zero: the sum is that one client's update, whatever the quorum is."""
    lab = make_lab(quorum=8)
    lab.updates[:] = -lab.server_updates[list(lab.clusters)]
    lab.updates[2] *= -1.0
    lab.start(1)
    for i, upload in enumerate(lab.uploads(1)):
        lab.deliver(lab.to_server(upload, client_address(i)))
    lab.close()
    lab.deliver(lab.server.finish_round())
    outcome = lab.server.outcome
    assert outcome is not None
    assert outcome.included == tuple(range(8))
    target = lab.updates[2] / np.linalg.norm(lab.updates[2])
    assert np.linalg.norm(outcome.aggregates[0] - target) < 1e-2
    # The guard on slots is what stops it: one client has weight one at most.
    guarded = make_lab(quorum=8, min_slot_weight=1.5)
    guarded.updates[:] = lab.updates
    guarded.start(1)
    for i, upload in enumerate(guarded.uploads(1)):
        guarded.deliver(guarded.to_server(upload, client_address(i)))
    guarded.close()
    guarded.deliver(guarded.server.finish_round())
    assert guarded.server.outcome is not None
    assert not guarded.server.outcome.aggregates.any()


def test_a_server_that_asks_for_an_impossible_round_is_named_and_the_store_goes_on() -> None:
    store = RoundStore()
    with pytest.raises(SequenceError, match="out of range"):
        store.use(LARGEST_ROUND_ID + 1)
    store.use(LARGEST_ROUND_ID)
    assert store.newest() == LARGEST_ROUND_ID


def test_two_answers_never_share_a_sketch_and_a_used_number_is_a_lie() -> None:
    lab = make_lab()
    first, second = ask_in_batches(lab, range(2), 0)
    assert isinstance(lab.to_kdc(first)[0], ScoreAnswer)
    (answer,) = lab.to_kdc(dataclasses.replace(second, batch=first.batch))
    assert isinstance(answer, Refusal)
    assert lab.kdc.state is State.HALTED


def test_every_round_has_its_own_sketches() -> None:
    """With the keys of an older round a client would know the sketch before it uploads, and could hide in it."""
    lab = make_lab()
    keys = []
    for round_id in (round_id_of(1), round_id_of(1, 1), round_id_of(2)):
        (answer,) = lab.to_kdc(OpenRound(round_id, tuple(range(8)))) if keys else lab_opened(lab, round_id)
        assert isinstance(answer, RoundOpened)
        keys.append(answer.sketch_key)
    assert len(set(keys)) == 3


def lab_opened(lab: Lab, round_id: int) -> list[Message]:
    """The first round: root updates are committed before it opens."""
    commitment, opening = lab.server.start_round(round_id, range(8), lab.server_updates)
    assert lab.to_kdc(commitment.message) == []
    return lab.to_kdc(opening.message)


@pytest.mark.parametrize("left_out", [(), (3,), (0, 5, 6)])
def test_a_set_without_some_answered_uploads_is_released_exactly_and_only_once(left_out: tuple[int, ...]) -> None:
    """A server that lost answers adds fewer uploads than were answered; the key centre takes those pads out of P."""
    lab = make_lab()
    lab.start(1)
    uploads = lab.uploads(1)
    for i, upload in enumerate(uploads):
        assert not lab.to_server(upload, client_address(i))
    (question,) = lab.server.flush()
    (answer,) = lab.to_kdc(question.message)
    assert isinstance(answer, ScoreAnswer)
    stay = [i for i in range(8) if i not in left_out]
    masked = [MaskedWeight(int(a), int(b)) for a, b in answer.answers]
    total = upload_sum(lab.params, [(uploads[i], masked[i]) for i in stay])  # type: ignore[misc]
    ask = ReleaseRequest(1, tuple(stay), to_wire(open_counts(lab.params, total)))
    for _ in range(2):  # asked again, the same answer
        (released,) = lab.to_kdc(ask)
        assert isinstance(released, Release)
        words = from_wire(lab.params.field, released.pad_sum, (lab.params.width,), name="release")
        opened = unseal(lab.params, total, ReleasedSum(words, released.slots.astype(bool)))
        sums, counts = lab.integer_sums(stay)
        assert opened.sums.tolist() == sums.tolist()
        assert (2 * opened.counts).tolist() == [int(c) << lab.params.update_bits for c in counts]
    (refusal,) = lab.to_kdc(dataclasses.replace(ask, included=tuple(stay[1:])))
    assert isinstance(refusal, Refusal)
    assert lab.kdc.state is State.HALTED
