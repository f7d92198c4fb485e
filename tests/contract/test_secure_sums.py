"""One suite for every secure sum: exact sums, drop-outs up to the threshold at each step, clear failures beyond."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from ebscfl import rng
from ebscfl.errors import ConfigError, ProtocolError, RoundAborted, UsageError
from ebscfl.ids import SERVER, client_address
from ebscfl.protocol import codec, faults
from ebscfl.protocol.bus import Carried
from ebscfl.protocol.messages import MESSAGE_BY_CODE, Message
from ebscfl.protocol.messages_secagg import RelayedShares, ShareBundle
from ebscfl.protocol.registry import PROTOCOLS, SECURE_SUMS
from ebscfl.protocol.secagg.run import DROP_POINTS, SecureSumSession, SumResult

N, L = 10, 40
ALL = sorted(SECURE_SUMS)
MASKED = ("ccesa", "secagg", "secagg-plus")
# With 10 clients: SecAgg and its kin open with a majority of a neighborhood, FastSecAgg with 8 + 1 of 10 (a tenth may
# be gone), LightSecAgg with 5 + 2 of 10 (thirty per cent may be gone).
SURVIVABLE = {"secagg": 4, "secagg-plus": 4, "ccesa": 1, "fastsecagg": 1, "lightsecagg": 3}
OPTIONS: dict[str, dict[str, Any]] = {"ccesa": {"edge_factor": 1.6}}
INPUTS = dict.fromkeys(ALL, "MaskedInput") | {"fastsecagg": "ShareBundle"}
ANSWERS = dict.fromkeys(MASKED, "UnmaskShares") | {"fastsecagg": "ShareSum", "lightsecagg": "ShareSum"}


def open_session(protocol: str, seed: int = 0, **more: Any) -> SecureSumSession:
    settings: dict[str, Any] = {
        "num_clients": N,
        "dim": L,
        "root": rng.root_from_seed(seed),
        "options": OPTIONS.get(protocol, {}),
    }
    return SecureSumSession(protocol, **(settings | more))


def example(seed: int = 0, num: int = N, dim: int = L) -> np.ndarray:
    updates = rng.numpy_generator(rng.root_from_seed(seed), rng.USAGE_BENCH).uniform(-1.2, 1.2, (num, dim))
    updates[0, :3] = [1.0, -1.0, 0.0]  # both ends of the range
    return updates


def want(session: SecureSumSession, updates: np.ndarray, included: Iterable[int]) -> list[int]:
    """The sum on Python integers."""
    return [sum(int(v) for v in column) for column in session.fixed.encode(updates)[list(included)].T]


def check(session: SecureSumSession, result: SumResult, updates: np.ndarray, included: Iterable[int]) -> None:
    kept = tuple(included)
    assert result.included == kept
    assert result.sums[0].tolist() == want(session, updates, kept)
    # Rounding moves a coordinate by half a unit at most; clipping at 1.0 is part of the encoding.
    clipped = np.clip(updates[list(kept)], -1, 1).mean(axis=0)
    assert np.abs(result.mean[0] - clipped).max() <= 0.5 / session.fixed.scale + 1e-15


def test_every_comparator_is_a_name_of_its_own() -> None:
    assert not set(SECURE_SUMS) & set(PROTOCOLS)
    assert set(ALL) == set(INPUTS) == set(SURVIVABLE)


@pytest.mark.parametrize("protocol", ALL)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_sum_is_exact_over_several_rounds(protocol: str, seed: int) -> None:
    session = open_session(protocol, seed)
    for number in range(3):
        updates = example(seed + number)
        result = session.round(updates)
        check(session, result, updates, range(N))
        assert result.culprits == {}


@pytest.mark.parametrize("protocol", ALL)
def test_clusters_are_slots_and_each_slot_sums_its_own(protocol: str) -> None:
    clusters = [i % 3 for i in range(N)]
    session = open_session(protocol, num_clusters=3)
    updates = example()
    result = session.round(updates, clusters)
    for k in range(3):
        assert result.sums[k].tolist() == want(session, updates, [i for i in range(N) if clusters[i] == k])


@pytest.mark.parametrize("protocol", ALL)
@pytest.mark.parametrize("point", DROP_POINTS)
def test_dropouts_up_to_the_threshold_leave_the_sum_of_the_rest(protocol: str, point: str) -> None:
    gone = tuple(range(2, 2 + SURVIVABLE[protocol]))
    session = open_session(protocol)
    updates = example()
    result = session.round(updates, dropouts={point: gone})
    # Whoever leaves before the last step is not in the sum, except that FastSecAgg's input is in once it is shared.
    rest = range(N) if point == "open" else [i for i in range(N) if i not in gone]
    check(session, result, updates, rest)
    updates = example(1)
    check(session, session.round(updates), updates, range(N))  # and everybody is back next round


@pytest.mark.parametrize("protocol", ["secagg", "secagg-plus", "lightsecagg"])
def test_dropouts_at_every_step_of_one_round(protocol: str) -> None:
    session = open_session(protocol, num_clients=20)
    updates = example(num=20)
    result = session.round(updates, dropouts={"advertise": [0], "share": [5], "upload": [9], "open": [13]})
    check(session, result, updates, [i for i in range(20) if i not in (0, 5, 9)])


@pytest.mark.parametrize("protocol", ALL)
@pytest.mark.parametrize("point", DROP_POINTS)
def test_one_more_dropout_aborts_and_names_who_is_missing(protocol: str, point: str) -> None:
    gone = tuple(range(2, 8 if protocol in MASKED else 3 + SURVIVABLE[protocol]))
    session = open_session(protocol)
    with pytest.raises(RoundAborted, match="are needed; missing") as caught:
        session.round(example(), dropouts={point: gone})
    assert set(caught.value.culprits) <= set(gone)
    assert caught.value.culprits
    if protocol not in ("ccesa", "secagg-plus"):
        assert set(caught.value.culprits) == set(gone)
    updates = example(1)
    check(session, session.round(updates), updates, range(N))  # the session survives


def spoil(sender: int, receivers: Iterable[int]) -> faults.FaultyWire:
    """Flip one bit of the encrypted shares of ``sender`` for ``receivers``, in its own upload."""
    wanted = set(receivers)

    def change(message: Message) -> Message:
        assert isinstance(message, ShareBundle)
        ciphertexts = message.ciphertexts.copy()
        for row, peer in enumerate(message.peers):
            if int(peer) in wanted:
                ciphertexts[row, 5] ^= 1
        return dataclasses.replace(message, ciphertexts=ciphertexts)

    return faults.rewrite(client_address(sender), "ShareBundle", change)


@pytest.mark.parametrize("protocol", ALL)
def test_a_tampered_share_is_detected_and_its_maker_named(protocol: str) -> None:
    plan = open_session(protocol).server
    receiver = plan.params.graph(plan._root, 1).neighbors[3][0]  # the graph of round 1
    session = open_session(protocol, wire=spoil(3, [receiver]))
    updates = example()
    result = session.round(updates)
    check(session, result, updates, range(N))
    assert list(result.culprits) == ["client 3"]
    assert f"share for client {receiver} fails authentication" in result.culprits["client 3"]
    assert "authentication" in session.clients[receiver].culprits[client_address(3)]


@pytest.mark.parametrize("protocol", ALL)
def test_shares_tampered_for_everybody_abort_the_round_and_name_the_maker(protocol: str) -> None:
    session = open_session(protocol, wire=spoil(3, range(N)))
    with pytest.raises(RoundAborted, match="are needed"):
        session.round(example())
    assert client_address(3) in session.server.culprits


@pytest.mark.parametrize("protocol", ALL)
def test_a_server_that_swaps_shares_is_detected(protocol: str) -> None:
    """Ciphertexts of two senders exchanged on the way down: sender and receiver are authenticated."""

    def swap(message: Message) -> Message:
        assert isinstance(message, RelayedShares)
        return dataclasses.replace(message, ciphertexts=message.ciphertexts[::-1].copy())

    session = open_session(protocol, wire=faults.rewrite(SERVER, "RelayedShares", swap))
    with pytest.raises(RoundAborted):
        session.round(example())
    assert session.clients[0].culprits


@pytest.mark.parametrize("protocol", ALL)
@pytest.mark.parametrize("kind", ["PublicKeys", "input", "answer"])
def test_a_second_message_counts_once_and_is_named(protocol: str, kind: str) -> None:
    name = {"input": INPUTS[protocol], "answer": ANSWERS[protocol]}.get(kind, kind)
    session = open_session(protocol, wire=faults.repeat(client_address(3), message=name))
    updates = example()
    result = session.round(updates)
    check(session, result, updates, range(N))
    assert "second" in result.culprits["client 3"]


@pytest.mark.parametrize("protocol", ALL)
@pytest.mark.parametrize("kind", ["PublicKeys", "input", "answer"])
def test_a_message_replayed_from_an_earlier_round_is_refused(protocol: str, kind: str) -> None:
    name = {"input": INPUTS[protocol], "answer": ANSWERS[protocol]}.get(kind, kind)
    session = open_session(protocol, wire=faults.replay(client_address(0), message=name))
    updates = example()
    assert session.round(updates).culprits == {}
    result = session.round(updates)
    assert "for round 1 in round 2" in result.culprits["client 0"]
    check(session, result, updates, range(N) if kind == "answer" else range(1, N))


@pytest.mark.parametrize("protocol", ALL)
@pytest.mark.parametrize("kind", ["PublicKeys", "input", "answer"])
@pytest.mark.parametrize("fault", ["cut", "nonsense"])
def test_broken_bytes_are_a_dropout_with_a_name(protocol: str, kind: str, fault: str) -> None:
    name = {"input": INPUTS[protocol], "answer": ANSWERS[protocol]}.get(kind, kind)
    who = client_address(2)
    wire = (
        faults.cut(who, keep=40, message=name)
        if fault == "cut"
        else faults.replace_bytes(who, b"\xff" * 99, message=name)
    )
    session = open_session(protocol, wire=wire)
    updates = example()
    result = session.round(updates)
    assert list(result.culprits) == ["client 2"]
    check(session, result, updates, range(N) if kind == "answer" else [i for i in range(N) if i != 2])


@pytest.mark.parametrize("protocol", ALL)
def test_same_seed_same_bytes_other_seed_other_bytes(protocol: str) -> None:
    def sent(seed: int) -> list[bytes]:
        log: list[bytes] = []

        def tap(carried: Carried) -> Iterable[Carried]:
            log.append(carried.data)
            return (carried,)

        open_session(protocol, seed, wire=tap).round(example(), dropouts={"upload": [2]})
        return log

    assert sent(1) == sent(1)
    assert set(sent(1)).isdisjoint(sent(2))


@pytest.mark.parametrize("protocol", ALL)
def test_bytes_are_codec_sizes_by_direction(protocol: str) -> None:
    sizes = {"client": 0, "server": 0}

    def tap(carried: Carried) -> Iterable[Carried]:
        sizes[carried.sender.role_name] += len(carried.data)
        return (carried,)

    result = open_session(protocol, wire=tap).round(example())
    assert result.bytes == {"client_upload": sizes["client"], "server_to_client": sizes["server"]}
    assert sum(result.bytes_by_message.values()) == sum(sizes.values())


@pytest.mark.parametrize("protocol", ALL)
def test_the_server_sees_only_registered_messages_and_no_input(protocol: str) -> None:
    session = open_session(protocol)
    updates = example()
    result = session.round(updates)
    kinds = set(MESSAGE_BY_CODE.values())
    encoded = session.fixed.embed(session.fixed.encode(updates))
    for sender, message in result.transcript[SERVER]:
        assert type(message) in kinds
        for words in vars(message).values():
            if isinstance(words, np.ndarray) and words.dtype == np.uint32 and words.shape == (L,):
                # A masked word equals the input with chance 2^-30 each.
                assert not np.any(words == encoded[sender.client])


@pytest.mark.parametrize("protocol", ALL)
def test_messages_in_the_wrong_state_are_refused(protocol: str) -> None:
    session = open_session(protocol)
    session.round(example())
    done = session.server.state
    for code in range(96, 107):
        message = MESSAGE_BY_CODE[code]
        with pytest.raises(ProtocolError):
            session.server.handle(client_address(1), message.__new__(message))
    assert session.server.state is done
    assert session.clients[0].receive(SERVER, codec.encode(MESSAGE_BY_CODE[96](1), session.setup.run_id)) == []  # type: ignore[call-arg]
    assert "not new" in session.clients[0].culprits[SERVER]


@pytest.mark.parametrize("protocol", ALL)
def test_callers_mistakes(protocol: str) -> None:
    session = open_session(protocol)
    with pytest.raises(UsageError, match="shape"):
        session.round(example()[:, :-1])
    with pytest.raises(UsageError, match="clusters"):
        session.round(example(), [5] * N)
    with pytest.raises(UsageError, match="leave at"):
        session.round(example(), dropouts={"lunch": [1]})
    with pytest.raises(UsageError, match="numbered"):
        session.round(example(), dropouts={"open": [N]})
    with pytest.raises(UsageError, match="claim one"):
        open_session(protocol, num_clusters=2).round(example())
    with pytest.raises(ConfigError, match="no option"):
        open_session(protocol, options={"magic": 1})
    with pytest.raises(ConfigError, match="two clients"):
        open_session(protocol, num_clients=1)
