"""Round ids grow, and say which training round they belong to."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebscfl.errors import UsageError
from ebscfl.ids import SERVER
from ebscfl.protocol import Session, codec
from ebscfl.protocol.messages import ResendRequest
from ebscfl.protocol.rounds import ATTEMPT_BITS, LARGEST_ROUND_ID, next_round_id, round_id_of, training_round_of
from ebscfl.rng import root_from_seed

ROUNDS = st.integers(0, LARGEST_ROUND_ID >> ATTEMPT_BITS)
ATTEMPTS = st.integers(0, (1 << ATTEMPT_BITS) - 1)


@given(ROUNDS, ATTEMPTS, ROUNDS, ATTEMPTS)
def test_order_of_ids_is_order_of_rounds_and_attempts(a: int, i: int, b: int, j: int) -> None:
    assert (round_id_of(a, i) < round_id_of(b, j)) == ((a, i) < (b, j))
    assert training_round_of(round_id_of(a, i)) == a
    assert 0 <= round_id_of(a, i) <= LARGEST_ROUND_ID


def test_the_next_id_is_fresh() -> None:
    assert next_round_id(3, -1) == next_round_id(3, round_id_of(2, 9)) == round_id_of(3)
    assert next_round_id(3, round_id_of(3)) == round_id_of(3, 1)
    with pytest.raises(UsageError, match="is over"):
        next_round_id(2, round_id_of(3))
    with pytest.raises(UsageError, match="attempt"):
        next_round_id(3, round_id_of(4) - 1)


@pytest.mark.parametrize(("training_round", "attempt"), [(-1, 0), (1 << 47, 0), (0, -1), (0, 1 << 16)])
def test_out_of_range(training_round: int, attempt: int) -> None:
    with pytest.raises(UsageError, match="out of range"):
        round_id_of(training_round, attempt)


def test_a_failed_encoding_leaves_nothing_to_repeat() -> None:
    """A resend request after it is the asker's mistake, not an occasion to send an earlier round's upload."""
    session = Session("plain", num_clients=2, num_clusters=1, dim=3, root=root_from_seed(1))
    client = session.clients[0]
    client.encode(round_id_of(1), np.ones(3), 0)
    with pytest.raises(UsageError):
        client.encode(round_id_of(2), np.ones((3, 3)), 0)
    request = codec.encode(ResendRequest(round_id_of(2), "late"), session.setup.run_id)
    assert client.receive(SERVER, request) == []
    assert SERVER in client.culprits
