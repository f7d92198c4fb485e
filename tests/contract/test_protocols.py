"""One suite for every protocol: the sums are RFCA's, faults are named, and no honest client's data is lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ebscfl import rng
from ebscfl.errors import ConfigError, RoundAborted, UsageError
from ebscfl.ids import KDC, SERVER, client_address
from ebscfl.plain import rfca_round
from ebscfl.protocol import Session, faults, play_round
from ebscfl.protocol.messages import MESSAGE_BY_CODE, Message
from ebscfl.protocol.registry import PROTOCOLS, protocol_info

N, M, L = 8, 3, 60
SMALL = {"paper-naive": (4, 2, 5)}  # its keys grow like (l m n)^3
TOLERANCE = {  # relative error of an aggregate, and where it comes from
    "plain": 1e-6,  # float32 uploads: 2^-24 per coordinate, averaged down by the sum
    "paper": 1e-9,  # float64 through the condition number of R' and two square roots
    "paper-naive": 1e-9,
    "sealed": 5e-3,  # fixed point with stochastic rounding
}
UPLOADS = {"plain": "PlainUpload", "paper": "EncodedUpdate", "paper-naive": "EncodedUpdate", "sealed": "SealedUpload"}
ALL = sorted(PROTOCOLS)


def example(protocol: str, seed: int = 0) -> tuple[np.ndarray, list[int], np.ndarray]:
    n, m, dim = SMALL.get(protocol, (N, M, L))
    draw = rng.numpy_generator(rng.root_from_seed(seed), rng.USAGE_BENCH)
    server = draw.standard_normal((m, dim))
    clusters = [i % m for i in range(n)]
    updates = draw.standard_normal((n, dim)) + 0.7 * server[clusters]
    updates[1] *= -1.0  # somebody the cosine rejects
    return updates, clusters, server


def open_session(protocol: str, seed: int, **options: Any) -> Session:
    n, m, dim = SMALL.get(protocol, (N, M, L))
    return Session(protocol, num_clients=n, num_clusters=m, dim=dim, root=rng.root_from_seed(seed), **options)


def error(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


@pytest.mark.parametrize("protocol", ALL)
@pytest.mark.parametrize("seed", [0, 1])
def test_aggregates_are_plain_rfca(protocol: str, seed: int) -> None:
    updates, clusters, server = example(protocol, seed)
    for normalize in protocol_info(protocol).normalizations:
        result = play_round(updates, clusters, server, protocol=protocol, seed=seed, normalize=normalize)
        want, weight = rfca_round(updates, clusters, server, normalize=normalize)
        assert error(result.aggregates, want) < TOLERANCE[protocol]
        assert abs(result.total_weight - weight) < TOLERANCE[protocol] * weight
        assert result.included == tuple(range(len(updates)))
        assert result.culprits == {}


@pytest.mark.parametrize("protocol", ALL)
def test_same_seed_same_bytes_other_seed_other_bytes(protocol: str) -> None:
    def sent(seed: int) -> list[tuple[str, str, str]]:
        result = play_round(*example(protocol), protocol=protocol, seed=seed)
        return [
            (
                str(to),
                type(r.message).__name__,
                str([v.tobytes() for v in vars(r.message).values() if hasattr(v, "tobytes")]),
            )
            for to, entries in result.transcript.items()
            for r in entries
        ]

    assert sent(1) == sent(1)
    if protocol != "plain":
        assert sent(1) != sent(2)


@pytest.mark.parametrize("protocol", ALL)
def test_transcripts_hold_every_message_once_and_only_for_its_receiver(protocol: str) -> None:
    result = play_round(*example(protocol), protocol=protocol)
    n = len(example(protocol)[0])
    kinds = set(MESSAGE_BY_CODE.values())
    assert all(type(r.message) in kinds for entries in result.transcript.values() for r in entries)
    uploads = [r for r in result.transcript[SERVER] if type(r.message).__name__ == UPLOADS[protocol]]
    assert [r.sender for r in uploads] == [client_address(i) for i in range(n)]
    assert not [r for i in range(n) for r in result.transcript[client_address(i)] if r.sender.role_name == "client"]
    from_clients = [r for r in result.transcript[KDC] if r.sender.role_name == "client"]
    assert {type(r.message).__name__ for r in from_clients} <= {"EnrolRequest"}  # clients only enrol there


@pytest.mark.parametrize("protocol", ALL)
def test_several_rounds_with_changing_and_fixed_server_updates(protocol: str) -> None:
    session = open_session(protocol, 4)
    fixed = example(protocol)[2]
    for seed, server in ((1, fixed), (2, fixed), (3, example(protocol, 3)[2])):
        updates, clusters, _ = example(protocol, seed)
        want, _ = rfca_round(updates, clusters, server)
        assert error(session.round(updates, clusters, server).aggregates, want) < TOLERANCE[protocol]


FAULTS = {
    "cut": lambda who, kind: faults.cut(who, keep=40, message=kind),
    "nonsense": lambda who, kind: faults.replace_bytes(who, b"\xff" * 999, message=kind),
    "silent": lambda who, kind: faults.silence(who, message=kind),
}


@pytest.mark.parametrize("protocol", ALL)
@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_a_client_that_fails_twice_is_named_and_the_others_are_summed(protocol: str, fault: str) -> None:
    updates, clusters, server = example(protocol)
    wire = FAULTS[fault](client_address(2), UPLOADS[protocol])
    result = play_round(updates, clusters, server, protocol=protocol, wire=wire)
    rest = [i for i in range(len(updates)) if i != 2]
    want, _ = rfca_round(updates[rest], [clusters[i] for i in rest], server)
    assert error(result.aggregates, want) < TOLERANCE[protocol]
    assert list(result.culprits) == ["client 2"]
    assert result.included == tuple(rest)


@pytest.mark.parametrize("protocol", ALL)
def test_a_lost_upload_is_asked_for_once_and_nobody_is_lost(protocol: str) -> None:
    updates, clusters, server = example(protocol)
    wire = faults.silence(client_address(1), message=UPLOADS[protocol], times=1)
    result = play_round(updates, clusters, server, protocol=protocol, wire=wire)
    assert result.included == tuple(range(len(updates)))
    assert result.restarts == 0
    assert error(result.aggregates, rfca_round(updates, clusters, server)[0]) < TOLERANCE[protocol]


@pytest.mark.parametrize("protocol", ALL)
def test_two_uploads_count_once_and_are_named(protocol: str) -> None:
    updates, clusters, server = example(protocol)
    wire = faults.repeat(client_address(3), message=UPLOADS[protocol])
    result = play_round(updates, clusters, server, protocol=protocol, wire=wire)
    assert error(result.aggregates, rfca_round(updates, clusters, server)[0]) < TOLERANCE[protocol]
    assert "second upload" in result.culprits["client 3"]


@pytest.mark.parametrize("protocol", ALL)
def test_a_replayed_upload_of_an_earlier_round_is_refused(protocol: str) -> None:
    session = open_session(protocol, 4, wire=faults.replay(client_address(0), message=UPLOADS[protocol]))
    updates, clusters, server = example(protocol)
    assert session.round(updates, clusters, server).culprits == {}
    second = session.round(updates, clusters, server)
    assert list(second.culprits) == ["client 0"]
    assert second.included == tuple(range(1, len(updates)))


@pytest.mark.parametrize("protocol", ALL)
def test_everybody_silent_aborts_and_names_them(protocol: str) -> None:
    wire = faults.all_of(
        *(faults.silence(client_address(i), message=UPLOADS[protocol]) for i in range(len(example(protocol)[0])))
    )
    with pytest.raises(RoundAborted):
        play_round(*example(protocol), protocol=protocol, wire=wire)


@pytest.mark.parametrize("protocol", ALL)
def test_callers_mistakes_are_usage_errors(protocol: str) -> None:
    updates, clusters, server = example(protocol)
    session = open_session(protocol, 0)
    with pytest.raises(UsageError):
        session.round(updates[:, :-1], clusters, server)
    with pytest.raises(UsageError):
        session.round(updates, [*clusters[:-1], len(server)], server)
    with pytest.raises(UsageError):
        session.round(updates, clusters, server[:-1])


def test_unknown_protocol_and_normalization() -> None:
    with pytest.raises(ConfigError, match="there are"):
        play_round(*example("plain"), protocol="cloud")
    with pytest.raises(ConfigError, match="normalize"):
        play_round(*example("plain"), protocol="plain", normalize="none")


@pytest.mark.parametrize("protocol", ALL)
def test_confidential_messages_go_only_from_the_key_centre(protocol: str) -> None:
    result = play_round(*example(protocol), protocol=protocol)
    for entries in result.transcript.values():
        for sender, message in entries:
            assert isinstance(message, Message)
            if message.confidential:
                assert sender == KDC
