"""What a client refuses: thresholds below a majority, both masks of a peer, and lists that do not fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ebscfl import rng
from ebscfl.errors import ConfigError, RoundAborted
from ebscfl.ids import SERVER
from ebscfl.protocol import codec, faults
from ebscfl.protocol.messages import Message
from ebscfl.protocol.secagg.run import SecureSumSession
from ebscfl.protocol.states import State

N, L = 6, 8
UPDATES = np.linspace(-1, 1, N * L).reshape(N, L)


def session(protocol: str, message: str, change: Callable[[Message], Message]) -> SecureSumSession:
    return SecureSumSession(
        protocol,
        num_clients=N,
        dim=L,
        root=rng.root_from_seed(0),
        wire=faults.rewrite(SERVER, message, change),
    )


def fields(**values: Any) -> Callable[[Message], Message]:
    return lambda message: dataclasses.replace(message, **values)


def twice_the_first_peer(message: Any) -> Message:
    peers = message.peers.copy()
    peers[1] = peers[0]
    changed: Message = dataclasses.replace(message, peers=peers)
    return changed


LIES = [
    ("secagg", "PeerKeys", fields(threshold=2), "threshold"),
    ("secagg", "PeerKeys", fields(threshold=99), "threshold"),
    ("secagg", "PeerKeys", twice_the_first_peer, "names someone twice"),
    ("secagg", "PeerKeys", fields(keys=np.zeros((1, 2, 32), dtype=np.uint8)), "not fit their keys"),
    ("secagg", "PeerKeys", faults.set_fields(keys=np.zeros_like), "small order"),
    ("secagg", "RelayedShares", twice_the_first_peer, "names someone twice"),
    ("secagg", "UnmaskRequest", lambda m: dataclasses.replace(m, dropped=m.survivors), "both masks"),
    ("secagg", "UnmaskRequest", lambda m: dataclasses.replace(m, survivors=(), dropped=m.survivors), "may not open"),
    ("secagg", "UnmaskRequest", lambda m: dataclasses.replace(m, survivors=m.survivors[:2]), "fewer than"),
    ("secagg", "UnmaskRequest", fields(survivors=(0, 1, 2, 3, 77)), "may not open"),
    ("secagg", "PeerKeys", fields(round_id=0), "round 0 in round 1"),
    ("lightsecagg", "ShareSumRequest", fields(survivors=(1,)), "fewer than"),
    ("lightsecagg", "ShareSumRequest", fields(survivors=(1, 1, 2, 3)), "no peers"),
    ("lightsecagg", "ShareSumRequest", fields(survivors=(0, 1, 2, 3, 9)), "no peers"),
    ("fastsecagg", "RelayedShares", lambda m: dataclasses.replace(
        m, peers=m.peers[:1], ciphertexts=m.ciphertexts[:1]), "fewer than"),
]  # fmt: skip


@pytest.mark.parametrize(("protocol", "message", "change", "reason"), LIES)
def test_a_lying_server_gets_no_sum_and_is_named(
    protocol: str, message: str, change: Callable[[Message], Message], reason: str
) -> None:
    run = session(protocol, message, change)
    with pytest.raises(RoundAborted):
        run.round(UPDATES)
    assert any(reason in client.culprits.get(SERVER, "") for client in run.clients)


@pytest.mark.parametrize("protocol", ["secagg", "lightsecagg", "fastsecagg"])
def test_clients_take_nothing_from_other_clients(protocol: str) -> None:
    run = SecureSumSession(protocol, num_clients=N, dim=L, root=rng.root_from_seed(0))
    run.round(UPDATES)
    received = run.bus.transcript[run.clients[1].address]
    sender, message = next(r for r in received if type(r.message).__name__ == "PeerKeys")
    assert sender == SERVER
    run.clients[1].state = State.AWAITING_KEYS
    run.clients[1].receive(run.clients[0].address, codec.encode(message, run.setup.run_id))
    assert "not the server" in run.clients[1].culprits[run.clients[0].address]


def test_roles_print_no_secret_and_roots_differ() -> None:
    run = SecureSumSession("secagg", num_clients=N, dim=L, root=rng.root_from_seed(0))
    assert len({client._root for client in run.clients} | {run.server._root}) == N + 1
    assert repr(run.clients[0]) == "<MaskedClient client 0, idle>"


def test_options_are_checked() -> None:
    def make(protocol: str, **options: Any) -> SecureSumSession:
        return SecureSumSession(protocol, num_clients=N, dim=L, root=rng.root_from_seed(0), options=options)

    with pytest.raises(ConfigError, match="threshold_share"):
        make("secagg", threshold_share=0.3)
    with pytest.raises(ConfigError, match="code must be"):
        make("lightsecagg", code="fountain")
    with pytest.raises(ConfigError, match="unknown secure sum"):
        make("sealed")
    assert make("lightsecagg", code="lagrange").round(UPDATES).included == tuple(range(N))
