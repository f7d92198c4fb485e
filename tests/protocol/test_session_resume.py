"""A session that starts at round k gives what the session that played every round gives, bit for bit; lost messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ebscfl import rng
from ebscfl.errors import RoundAborted, UsageError
from ebscfl.ids import KDC, SERVER
from ebscfl.protocol import Session, faults
from ebscfl.protocol.rounds import round_id_of

N, M, L = 5, 2, 8
ROOT = rng.root_from_seed(3)


def example(index: int) -> tuple[np.ndarray, list[int], np.ndarray]:
    draw = rng.numpy_generator(ROOT, rng.USAGE_BENCH, "resume", index)
    server = rng.numpy_generator(ROOT, rng.USAGE_BENCH, "server").standard_normal((M, L))
    clusters = [i % M for i in range(N)]
    return draw.standard_normal((N, L)) + server[clusters], clusters, server


def session(protocol: str, wire: Any = None, **options: Any) -> Session:
    return Session(protocol, num_clients=N, num_clusters=M, dim=L, root=ROOT, options=options, wire=wire)


@pytest.mark.parametrize("protocol", ["plain", "sealed"])
def test_a_resumed_session_goes_on_bit_for_bit(protocol: str) -> None:
    whole = session(protocol)
    results = [whole.round(*example(k)) for k in (1, 2, 3)]
    resumed = session(protocol)
    third = resumed.round(*example(3), training_round=3)
    assert np.array_equal(third.aggregates, results[2].aggregates)
    assert resumed.server.round_id == whole.server.round_id == round_id_of(3)
    fourth, again = whole.round(*example(4)), resumed.round(*example(4))
    assert np.array_equal(fourth.aggregates, again.aggregates)


def test_paper_resumes_up_to_rounding() -> None:
    """Its keys are dealt in the first round that is played, and its masks are floats: 1e-9 as in the contract suite."""
    whole, resumed = session("paper"), session("paper")
    results = [whole.round(*example(k)) for k in (1, 2)]
    second = resumed.round(*example(2), training_round=2)
    assert np.linalg.norm(second.aggregates - results[1].aggregates) < 1e-9 * np.linalg.norm(second.aggregates)


def test_going_back_is_refused_and_a_repeated_round_has_a_fresh_id() -> None:
    made = session("plain")
    made.round(*example(2), training_round=2)
    made.round(*example(2), training_round=2)
    assert made.server.round_id == round_id_of(2, 1)
    with pytest.raises(UsageError, match="is over"):
        made.round(*example(1), training_round=1)


def test_sealed_goes_on_from_its_stores_and_never_releases_a_training_round_twice(tmp_path: Path) -> None:
    options = {"store": tmp_path / "kdc.sqlite", "server_store": tmp_path / "server.sqlite", "client_store": tmp_path}
    first = session("sealed", **options)
    first.round(*example(1))
    first.kdc._store.close()  # type: ignore[attr-defined]
    first.server._store.close()  # type: ignore[attr-defined]
    for client in first.clients:
        client._rounds.close()  # type: ignore[attr-defined]
    second = session("sealed", **options)
    assert second.server.round_id == round_id_of(1)
    with pytest.raises(RoundAborted, match="released already"):
        second.round(*example(1), training_round=1)
    want = session("sealed").round(*example(2), training_round=2)
    got = second.round(*example(2), training_round=2)
    assert np.array_equal(got.aggregates, want.aggregates)


@pytest.mark.parametrize(
    ("sender", "kind"),
    [
        (SERVER, "Commitment"),
        (SERVER, "OpenRound"),
        (KDC, "RoundOpened"),
        (SERVER, "ScoreRequest"),
        (KDC, "ScoreAnswer"),
        (SERVER, "ReleaseRequest"),
        (KDC, "Release"),
    ],
)
def test_what_is_lost_between_server_and_key_centre_is_asked_again(sender: Any, kind: str) -> None:
    want = session("sealed").round(*example(1))
    got = session("sealed", wire=faults.silence(sender, message=kind, times=1)).round(*example(1))
    assert np.array_equal(got.aggregates, want.aggregates)
    assert got.included == tuple(range(N))
    assert got.culprits == {}


@pytest.mark.parametrize("kind", ["RoundOpened", "ScoreAnswer", "Release"])
def test_a_silent_key_centre_aborts_the_round_and_the_next_may_begin(kind: str) -> None:
    made = session("sealed", wire=faults.silence(KDC, message=kind))
    with pytest.raises(RoundAborted):
        made.round(*example(1))
    made.bus.wire = None
    assert made.round(*example(2)).included == tuple(range(N))


def test_a_caught_server_is_named_by_the_session() -> None:
    change = faults.set_fields(products=lambda words: words ^ np.uint32(1))
    made = session("sealed", wire=faults.rewrite(SERVER, "ScoreRequest", change), tolerated=0)
    with pytest.raises(RoundAborted, match="this server was caught"):
        made.round(*example(1))
    made.bus.wire = None
    with pytest.raises(RoundAborted, match="this server was caught") as caught:
        made.round(*example(2))
    assert "server" in caught.value.culprits
