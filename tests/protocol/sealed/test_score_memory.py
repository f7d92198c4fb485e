"""The key centre's score history: what it makes of weights, and that it survives crashes and split batches."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ebscfl.errors import CheckpointError, ConfigError
from ebscfl.protocol import Session
from ebscfl.protocol.roles import Setup
from ebscfl.protocol.rounds import round_id_of
from ebscfl.protocol.sealed.history import NOTE, ScoreMemory, score_memory
from ebscfl.protocol.sealed.kdc import SealedKdc
from ebscfl.protocol.sealed.store import MemoryStore, SqliteStore
from ebscfl.rng import USAGE_BENCH, numpy_generator, root_from_seed
from ebscfl.rules.rfca import rfca, rfca_weighted
from ebscfl.rules.score_history import WEIGHTS, History, HistorySettings, advance, history_to_json

CLIENTS, DIM = 10, 40
HOSTILE = (7, 8, 9)


def scores(t: int) -> list[float]:
    """Honest clients score about 0.6, the last three 0.2."""
    return [0.6 + 0.01 * ((i * 7 + t * 3) % 5) if i not in HOSTILE else 0.2 for i in range(CLIENTS)]


def memory(store: MemoryStore | SqliteStore | None = None, start: History | None = None) -> ScoreMemory:
    return ScoreMemory(store or MemoryStore(), HistorySettings(), start or History())


def everyone() -> list[int]:
    return list(range(CLIENTS))


def test_weights_are_the_rule_s() -> None:
    kept, history = memory(), History()
    for t in range(8):
        weights = kept.weights(t, everyone(), scores(t))
        history, verdict = advance(history, everyone(), np.array(scores(t)), HistorySettings())
        assert weights == verdict.weights.tolist()
    assert weights == pytest.approx([*scores(7)[:7], 0.0, 0.0, 0.0])
    assert history_to_json(kept.history()) == history_to_json(history)


def test_batches_do_not_change_the_history() -> None:
    whole, cut = memory(), memory()
    for t in range(6):
        whole.weights(t, everyone(), scores(t))
        for part in ([3, 1], [0, 2, 9, 4], [5, 6, 7, 8]):
            cut.weights(t, part, [scores(t)[i] for i in part])
        cut.weights(t, [1], [scores(t)[1]])  # asked again
    assert history_to_json(whole.history()) == history_to_json(cut.history())


def test_the_last_batch_is_judged_by_the_whole_round() -> None:
    kept = memory()
    for t in range(7):
        kept.weights(t, everyone(), scores(t))
    kept.weights(7, everyone()[:6], scores(7)[:6])
    assert kept.weights(7, [6, 7, 8, 9], scores(7)[6:]) == pytest.approx([scores(7)[6], 0.0, 0.0, 0.0])


def test_a_spread_upload_counts_no_more_than_one() -> None:
    kept = memory()
    kept.weights(0, [0, 1], [1.7, 0.5])
    assert float(kept.history().average.max()) <= 1.0


def test_it_survives_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "kdc.sqlite"
    store = SqliteStore(path)
    first = memory(store)
    for t in range(5):
        first.weights(t, everyone(), scores(t))
    before = history_to_json(first.history())
    store.close()
    again = SqliteStore(path)
    second = memory(again)
    assert history_to_json(second.history()) == before
    assert second.weights(5, everyone(), scores(5)) == pytest.approx([*scores(5)[:7], 0.0, 0.0, 0.0])
    again.close()


def test_a_damaged_note_is_refused() -> None:
    for payload in (b"", b"{}", json.dumps({"round": 1, "before": {}, "scores": []}).encode()):
        store = MemoryStore()
        store.put_note(NOTE, payload)
        with pytest.raises(CheckpointError):
            memory(store).history()


def test_secrets_do_not_print() -> None:
    assert repr(memory()) == "ScoreMemory(<redacted>)"


def test_the_option_must_be_a_truth_value() -> None:
    setup = Setup("sealed", 4, 1, 8, bytes(8), "cluster", {"history": "yes"})
    with pytest.raises(ConfigError, match="history"):
        score_memory(setup, MemoryStore())
    assert score_memory(Setup("sealed", 4, 1, 8, bytes(8), "cluster", {}), MemoryStore()) is None


def round_updates(t: int) -> tuple[np.ndarray, list[int], np.ndarray]:
    """Updates whose cosines with their cluster's root update are about `scores`."""
    draw = numpy_generator(root_from_seed(5), USAGE_BENCH, "history", t)
    roots = np.linalg.qr(draw.standard_normal((DIM, 2)))[0].T
    clusters = [i % 2 for i in range(CLIENTS)]
    noise = draw.standard_normal((CLIENTS, DIM))
    noise -= noise @ roots.T @ roots
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    cosines = np.array(scores(t))[:, None]
    return cosines * roots[clusters] + np.sqrt(1 - cosines**2) * noise, clusters, roots


@pytest.mark.parametrize("field", ["m31", "m61"])
def test_sealed_with_history_is_the_rule_in_the_clear(field: str) -> None:
    session = Session(
        "sealed",
        num_clients=CLIENTS,
        num_clusters=2,
        dim=DIM,
        root=root_from_seed(1),
        normalize="cluster",
        options={"history": True, "field": field},
    )
    history = History()
    for t in range(1, 8):
        updates, clusters, roots = round_updates(t)
        result = session.round(updates, clusters, roots, training_round=t)
        cosines = np.asarray(rfca(updates, clusters=clusters, server_updates=roots).scores)
        history, verdict = advance(history, everyone(), cosines, HistorySettings())
        expected = rfca_weighted(
            updates, clusters=clusters, weights=verdict.weights, scores=cosines, num_clusters=2, normalize="cluster"
        )
        # Fixed point rounds coordinates and weights to 2^-10 or finer; ten clients share a cluster's weight.
        assert np.abs(result.aggregates - np.asarray(expected.aggregates)).max() < 2e-3
        assert result.total_weight == pytest.approx(float(verdict.weights.sum()), abs=CLIENTS * 2**-10)
    assert not verdict.weights[list(HOSTILE)].any()
    assert isinstance(session.kdc, SealedKdc)
    assert np.allclose(session.kdc.score_history().average, history.average, atol=2e-3)


@pytest.mark.parametrize("weight", WEIGHTS)
def test_every_weight_is_the_rule_s_over_rounds_and_restarts(weight: str, tmp_path: Path) -> None:
    """Client by client what the key centre answered, against the rule in the clear; it starts anew from SQLite twice.

    Client 0 sleeps until round 8; client 5 is away in rounds 3 to 5, client 6 in round 4.
    """
    settings = HistorySettings(weight=weight)
    history, session = History(), None
    for t in range(1, 13):
        if t in (1, 5, 9):
            if session is not None:
                assert isinstance(session.kdc, SealedKdc)
                session.kdc._store.close()
            session = Session(
                "sealed",
                num_clients=CLIENTS,
                num_clusters=2,
                dim=DIM,
                root=root_from_seed(1),
                normalize="cluster",
                options={"history": True, "history_settings": settings, "store": tmp_path / "kdc.sqlite"},
            )
        assert session is not None
        assert isinstance(session.kdc, SealedKdc)
        updates, clusters, roots = round_updates(t)
        if t >= 8:
            updates[0] = -0.2 * roots[0] + np.sqrt(1 - 0.2**2) * updates[0] / np.linalg.norm(updates[0])
        here = [i for i in range(CLIENTS) if not (i == 5 and 3 <= t <= 5) and not (i == 6 and t == 4)]
        result = session.round(updates, clusters, roots, training_round=t, clients=here)
        cosines = np.asarray(rfca(updates, clusters=clusters, server_updates=roots).scores)[here]
        history, verdict = advance(history, here, cosines, settings)
        answers = session.kdc._store.answers(round_id_of(t))
        assert sorted(answers) == here
        got = [answers[i].rho / 2**session.kdc._params.weight_bits for i in here]
        # Scores are exact to 2^-10; a record weight grows three times as fast as level / q, and q is about 0.6.
        np.testing.assert_allclose(got, verdict.weights, rtol=0.0, atol=5 * 2**-10)
        assert result.total_weight == pytest.approx(float(verdict.weights.sum()), abs=CLIENTS * 5 * 2**-10)
    kept = session.kdc.score_history()
    assert kept.clients.tolist() == history.clients.tolist()
    assert kept.seen.tolist() == history.seen.tolist()
    for name in ("average", "standing", "level"):
        np.testing.assert_allclose(getattr(kept, name), getattr(history, name), atol=2e-3)
    assert not verdict.weights[[here.index(i) for i in HOSTILE]].any()
    session.kdc._store.close()


def test_a_restart_with_another_rule_is_refused(tmp_path: Path) -> None:
    """Weights of one run come from one rule: the store belongs to it."""

    def opened(**history: object) -> Session:
        options = {"store": tmp_path / "kdc.sqlite", **history}
        return Session("sealed", num_clients=4, num_clusters=1, dim=8, root=root_from_seed(1), options=options)

    record = {"history": True, "history_settings": HistorySettings(weight="record")}
    for _ in range(2):
        kdc = opened(**record).kdc
        assert isinstance(kdc, SealedKdc)
        kdc._store.close()
    for other in ({}, {"history": True}, {"history": True, "history_settings": HistorySettings(weight="equal")}):
        with pytest.raises(ConfigError, match="another"):
            opened(**other)


def test_an_earlier_history_goes_on() -> None:
    long = Session(
        "sealed",
        num_clients=CLIENTS,
        num_clusters=2,
        dim=DIM,
        root=root_from_seed(1),
        options={"history": True},
    )
    assert isinstance(long.kdc, SealedKdc)
    for t in range(1, 6):
        long.round(*round_updates(t), training_round=t)
    kept = history_to_json(long.kdc.score_history())
    fresh = Session(
        "sealed",
        num_clients=CLIENTS,
        num_clusters=2,
        dim=DIM,
        root=root_from_seed(1),
        options={"history": True, "history_start": kept},
    )
    one = long.round(*round_updates(6), training_round=6)
    two = fresh.round(*round_updates(6), training_round=6)
    assert np.array_equal(one.aggregates, two.aggregates)
