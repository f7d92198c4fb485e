"""Who may send what, how large and how often."""

from __future__ import annotations

import numpy as np
import pytest

from ebscfl.errors import ConfigError, DecodeError, SequenceError
from ebscfl.ids import SERVER, client_address
from ebscfl.kdc_service.limits import ConnectionLimiter, Limits, RateLimiter, check_kind, message_limit
from ebscfl.protocol import codec
from ebscfl.protocol.messages import Commitment, EnrolRequest, OpenRound, ServerUpdates
from ebscfl.protocol.roles import Setup

SETUP = Setup("sealed", 5, 3, 100)


def test_a_bucket_refills_with_time():
    now = [0.0]
    rate = RateLimiter(Limits(requests_per_s=2, burst=3), clock=lambda: now[0])
    assert [rate.allow(SERVER) for _ in range(4)] == [True, True, True, False]
    assert rate.allow(client_address(0))  # a bucket a peer
    now[0] = 0.5  # one token at two a second
    assert [rate.allow(SERVER) for _ in range(2)] == [True, False]
    now[0] = 1000.0  # never more than the burst
    assert [rate.allow(SERVER) for _ in range(4)] == [True, True, True, False]


def test_connections_are_counted_in_all_and_per_peer():
    count = ConnectionLimiter(Limits(connections=2, connections_per_peer=1))
    assert [count.enter() for _ in range(3)] == [True, True, False]
    assert count.open == 2
    assert [count.enter_as(SERVER), count.enter_as(SERVER), count.enter_as(client_address(1))] == [True, False, True]
    count.leave_as(SERVER)
    count.leave()
    assert count.enter_as(SERVER)
    assert count.enter()


@pytest.mark.parametrize("name", ["requests_per_s", "burst", "connections", "idle_s"])
def test_limits_are_positive(name):
    with pytest.raises(ConfigError, match=name):
        Limits(**{name: 0})


def test_honest_messages_fit_and_clients_get_little_room():
    width = 3 * (100 + 1)
    messages = [
        Commitment(1, np.zeros(width, dtype="<i4")),
        ServerUpdates(1, np.ones((3, 100))),
        OpenRound(1, tuple(range(5))),
    ]
    for message in messages:
        assert len(codec.encode(message, SETUP.run_id)) <= message_limit(SETUP, SERVER)
    enrol = codec.encode(EnrolRequest(bytes(32)), SETUP.run_id)
    assert len(enrol) <= message_limit(SETUP, client_address(0)) < 10_000


def test_clients_only_enrol_and_the_server_never_does():
    enrol, opened = (codec.encode(m, SETUP.run_id) for m in (EnrolRequest(bytes(32)), OpenRound(1, (0,))))
    assert check_kind(client_address(0), enrol) == "EnrolRequest"
    assert check_kind(SERVER, opened) == "OpenRound"
    for sender, message in ((SERVER, enrol), (client_address(0), opened)):
        with pytest.raises(SequenceError):
            check_kind(sender, message)
    unknown = bytearray(enrol)
    unknown[5] = 255
    with pytest.raises(DecodeError):
        check_kind(client_address(0), bytes(unknown))
