"""What clients can do wrong through the real roles: who is named, who is asked again, and that nobody else loses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ebscfl import rng
from ebscfl.errors import RoundAborted, UsageError
from ebscfl.ids import SERVER, client_address
from ebscfl.paper import PaperParameters, deal, encode, refresh
from ebscfl.plain import rfca_round, unit_rows
from ebscfl.protocol import Session, faults
from ebscfl.protocol.bus import FaultyWire
from ebscfl.protocol.messages import EncodedUpdate, ResendRequest
from ebscfl.protocol.rounds import round_id_of

N, M, DIM = 6, 2, 30
LIAR = 2
UPLOAD = "EncodedUpdate"
PLACE = 1e-10


def example(seed: int = 0) -> tuple[np.ndarray, list[int], np.ndarray]:
    draw = rng.numpy_generator(rng.root_from_seed(seed), rng.USAGE_BENCH, "misbehavior")
    server = unit_rows(draw.normal(size=(M, DIM)))
    clusters = [i % M for i in range(N)]
    return draw.normal(size=(N, DIM)) + 3.0 * server[clusters], clusters, server


def open_session(wire: FaultyWire | None = None, *, n: int = N, **options: Any) -> Session:
    return Session(
        "paper", num_clients=n, num_clusters=M, dim=DIM, root=rng.root_from_seed(0), options=options, wire=wire
    )


def check_sums(result: Any, left: list[int], seed: int = 0) -> None:
    updates, clusters, server = example(seed)
    want, weight = rfca_round(updates[left], [clusters[i] for i in left], server)
    assert result.included == tuple(left)
    assert np.linalg.norm(result.aggregates - want) < PLACE * np.linalg.norm(want)
    assert abs(result.total_weight - weight) < PLACE * weight


def everybody_but(*out: int) -> list[int]:
    return [i for i in range(N) if i not in out]


def resend_requests(session: Session, client: int) -> list[Any]:
    entries = session.bus.transcript[client_address(client)]
    return [entry.message for entry in entries if isinstance(entry.message, ResendRequest)]


def change(function: Callable[[np.ndarray], np.ndarray]) -> FaultyWire:
    return faults.rewrite(client_address(LIAR), UPLOAD, faults.set_fields(delta=function))


def with_entry(value: float) -> Callable[[np.ndarray], np.ndarray]:
    def put(delta: np.ndarray) -> np.ndarray:
        changed = np.array(delta)
        changed[3, 1] = value
        return changed

    return put


def turned(delta: np.ndarray) -> np.ndarray:
    """The same length in another direction: two columns of the first rows swapped."""
    changed = np.array(delta)
    changed[:4, [0, 1]] = delta[:4, [1, 0]]
    return changed


LIES = {
    "scaled": (lambda d: 1.5 * d, "squared length"),
    "scaled a little": (lambda d: (1 + 1e-9) * d, "squared length"),
    "sign turned": (lambda d: -d, "verification equation"),
    "mask changed, length kept": (turned, "verification equation"),
    "not a number": (with_entry(np.nan), "squared length"),
    "infinite": (with_entry(np.inf), "squared length"),
    "a row short": (lambda d: np.array(d[:-1]), "shape"),
    "transposed": (lambda d: np.ascontiguousarray(d.T), "shape"),
}


@pytest.mark.parametrize("lie", sorted(LIES))
def test_a_lying_upload_is_named_asked_again_and_left_out(lie: str) -> None:
    function, reason = LIES[lie]
    session = open_session(change(function))
    result = session.round(*example())
    assert list(result.culprits) == [f"client {LIAR}"]
    assert reason in result.culprits[f"client {LIAR}"]
    assert f"client {LIAR}" in result.culprits[f"client {LIAR}"]
    assert [reason in request.reason for request in resend_requests(session, LIAR)] == [True]  # once
    assert all(not resend_requests(session, i) for i in everybody_but(LIAR))
    assert result.restarts == 1
    check_sums(result, everybody_but(LIAR))


def test_an_update_that_was_not_normalized_is_caught() -> None:
    # The client knows its own keys: it multiplies only g_i A_c ek^0, its masks are right and the vk equation holds.
    session = open_session()
    liar = session.clients[LIAR]
    honest = liar.build_upload

    def scaled(round_id: int, update: np.ndarray, cluster: int) -> EncodedUpdate:
        mask = np.array(liar._round_key.mask)  # type: ignore[attr-defined]
        delta = honest(round_id, update, cluster).delta  # type: ignore[attr-defined]
        return EncodedUpdate(round_id, mask + 10.0 * (delta - mask))

    liar.build_upload = scaled  # type: ignore[method-assign]
    result = session.round(*example())
    assert "squared length 102, not 3" in result.culprits[f"client {LIAR}"]  # 10^2 + 1 + 1
    check_sums(result, everybody_but(LIAR))


def test_another_clients_key_is_caught() -> None:
    # The liar encodes with the keys of its neighbor: right length, wrong masks for its own tag.
    session = open_session()
    liar, other = session.clients[LIAR], session.clients[LIAR + 1]

    def stolen(round_id: int, update: np.ndarray, cluster: int) -> EncodedUpdate:
        params, key, mask = (getattr(other, name) for name in ("_parameters", "_key", "_round_key"))
        return EncodedUpdate(round_id, encode(params, key, mask, update, cluster))

    liar.build_upload = stolen  # type: ignore[method-assign]
    result = session.round(*example())
    assert "verification equation" in result.culprits[f"client {LIAR}"]
    check_sums(result, everybody_but(LIAR))


def test_a_stale_round_is_caught() -> None:
    wire = faults.rewrite(client_address(LIAR), UPLOAD, faults.set_fields(round_id=lambda r: r - 1))
    result = open_session(wire).round(*example())
    assert "upload for round" in result.culprits[f"client {LIAR}"]
    check_sums(result, everybody_but(LIAR))


def test_a_replay_under_the_new_rounds_number_is_caught_by_the_masks() -> None:
    first: list[np.ndarray] = []

    def repeat_first(delta: np.ndarray) -> np.ndarray:
        first.append(np.array(delta))
        return first[0]

    session = open_session(change(repeat_first))
    assert session.round(*example()).culprits == {}
    second = session.round(*example(1))
    assert "verification equation" in second.culprits[f"client {LIAR}"]
    check_sums(second, everybody_but(LIAR), seed=1)


def test_a_bad_upload_that_is_right_the_second_time_costs_nothing() -> None:
    calls: list[int] = []

    def once(delta: np.ndarray) -> np.ndarray:
        calls.append(1)
        return 2.0 * delta if len(calls) == 1 else delta

    session = open_session(change(once))
    result = session.round(*example())
    assert (result.restarts, len(calls), len(resend_requests(session, LIAR))) == (0, 2, 1)
    assert list(result.culprits) == [f"client {LIAR}"]  # what it did first is on record
    check_sums(result, list(range(N)))


def test_two_uploads_the_first_counts_and_the_sender_is_named() -> None:
    result = open_session(faults.repeat(client_address(LIAR), message=UPLOAD)).round(*example())
    assert "second upload" in result.culprits[f"client {LIAR}"]
    assert result.restarts == 0
    check_sums(result, list(range(N)))


def test_two_culprits_at_once_and_consecutive_restarts() -> None:
    both = faults.all_of(change(lambda d: 2.0 * d), faults.silence(client_address(4), message=UPLOAD))
    result = open_session(both).round(*example())
    assert sorted(result.culprits) == ["client 2", "client 4"]
    assert result.restarts == 1
    check_sums(result, everybody_but(2, 4))
    late: list[int] = []

    def from_the_restart_on(delta: np.ndarray) -> np.ndarray:  # good in the first attempt, bad in the second
        late.append(1)
        return delta if len(late) == 1 else 2.0 * delta

    wire = faults.all_of(
        change(lambda d: 2.0 * d),
        faults.rewrite(client_address(4), UPLOAD, faults.set_fields(delta=from_the_restart_on)),
    )
    result = open_session(wire).round(*example())
    assert sorted(result.culprits) == ["client 2", "client 4"]
    assert result.restarts == 2
    check_sums(result, everybody_but(2, 4))


def test_fewer_than_two_left_aborts_and_the_next_round_goes_on() -> None:
    silent = faults.all_of(*(faults.silence(client_address(i), message=UPLOAD, times=2) for i in range(1, N)))
    session = open_session(silent)  # lost: the upload and its repetition, so only in the first round
    with pytest.raises(RoundAborted, match="fewer than two") as caught:
        session.round(*example())
    assert sorted(map(str, caught.value.culprits)) == [f"client {i}" for i in range(1, N)]
    result = session.round(*example(1))
    assert result.culprits == {}
    check_sums(result, list(range(N)), seed=1)


def test_a_restart_the_sizes_do_not_allow_aborts() -> None:
    # One-dimensional masks need an even number of clients (erratum 1), so without one of four nothing can be dealt.
    wire = faults.silence(client_address(1), message=UPLOAD, times=2)
    draw = rng.numpy_generator(rng.root_from_seed(1), rng.USAGE_BENCH)
    updates, server = draw.normal(size=(4, 5)), draw.normal(size=(1, 5))
    session = Session(
        "paper", num_clients=4, num_clusters=1, dim=5, root=rng.root_from_seed(0), options={"segment": 1}, wire=wire
    )
    with pytest.raises(RoundAborted, match="even number of clients"):
        session.round(updates, [0] * 4, server)
    result = session.round(updates, [0] * 4, server)
    want, _ = rfca_round(updates, [0] * 4, server)
    assert np.linalg.norm(result.aggregates - want) < 1e-8 * np.linalg.norm(want)


def test_a_restart_has_fresh_keys_and_masks_and_all_may_come_back() -> None:
    session = open_session(faults.silence(client_address(LIAR), message=UPLOAD, times=2))
    result = session.round(*example())
    assert result.restarts == 1
    check_sums(result, everybody_but(LIAR))
    for client in everybody_but(LIAR):
        messages = [entry.message for entry in session.bus.transcript[client_address(client)]]
        packages = [m for m in messages if type(m).__name__ == "ClientKeyPackage"]
        masks = [m for m in messages if type(m).__name__ == "RoundKey"]
        assert [m.round_id for m in masks] == [round_id_of(1), round_id_of(1, 1)]
        assert np.abs(masks[0].mask - masks[1].mask).max() > 1e-3
        assert np.abs(packages[0].encode_key - packages[1].encode_key).max() > 1e-3
        assert np.abs(packages[0].cluster_basis - packages[1].cluster_basis).max() > 1e-3
    uploads = [e.message for e in session.bus.transcript[SERVER] if type(e.message).__name__ == UPLOAD]
    by_bytes = {m.delta.tobytes() for m in uploads}
    assert len(by_bytes) == len(uploads) == (N - 1) * 2  # the same updates, never the same upload
    keys = [e.message for e in session.bus.transcript[SERVER] if type(e.message).__name__ == "ServerKeyPackage"]
    assert [len(key.verification_key) for key in keys] == [N, N - 1]
    back = session.round(*example(1))
    assert back.culprits == {}
    check_sums(back, list(range(N)), seed=1)


def test_erratum_11_a_turned_third_block_passes_every_check_and_spoils_the_round() -> None:
    # Theorem 1 promises that a client cannot change its masks. From ek^1 alone it computes mu_i M'_{i+2n}: rows of the
    # mask differ by multiples of M'_{i+n}, and what is left of a row is the third block. Nobody is named.
    session = open_session()
    liar = session.clients[LIAR]
    honest = liar.build_upload

    def forge(round_id: int, update: np.ndarray, cluster: int) -> EncodedUpdate:
        mask = np.array(liar._round_key.mask)  # type: ignore[attr-defined]
        *_, frame = np.linalg.svd(mask - mask.mean(axis=0))
        span = frame[: M * 2]
        third = mask[0] - mask[0] @ span.T @ span
        return EncodedUpdate(round_id, honest(round_id, update, cluster).delta - 2.0 * third)  # type: ignore[attr-defined]

    liar.build_upload = forge  # type: ignore[method-assign]
    result = session.round(*example())
    want, _ = rfca_round(*example())
    assert result.culprits == {}
    assert result.restarts == 0
    assert np.linalg.norm(result.aggregates - want) > 0.1 * np.linalg.norm(want)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_honest_client_refuses_to_encode_what_is_no_update(value: float) -> None:
    updates, clusters, server = example()
    updates[LIAR, 0] = value
    with pytest.raises(UsageError, match="not finite"):
        open_session().round(updates, clusters, server)


def test_the_schemes_functions_agree_with_what_the_roles_did() -> None:
    # Slow twin of the roles: deal and encode by hand with the same root gives the same uploads bit for bit.
    session = open_session()
    updates, clusters, server = example()
    session.round(updates, clusters, server)
    secret = rng.derive(rng.root_from_seed(0), rng.USAGE_PAPER_KEYS, *range(N))
    params = PaperParameters(num_clients=N, num_clusters=M, dim=DIM)
    dealt = deal(params, server, secret)
    keys = refresh(params, dealt.secret, round_id_of(1))
    uploads = [e.message for e in session.bus.transcript[SERVER] if type(e.message).__name__ == UPLOAD]
    for i, upload in enumerate(uploads):
        expected = encode(params, dealt.client_keys[i], keys.client[i], updates[i], clusters[i])
        assert np.array_equal(upload.delta, expected)
