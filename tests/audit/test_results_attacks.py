"""Attacks on results, collusion and differencing: right where arithmetic says so, and a mean's cosine elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from ebscfl import rng
from ebscfl.audit.collusion import collusion
from ebscfl.audit.differencing import differencing
from ebscfl.audit.plain import read
from ebscfl.audit.record import cosines, example_truth, judge, play, server_view
from ebscfl.audit.run import UPLOADS
from ebscfl.errors import UsageError
from ebscfl.ids import client_address
from ebscfl.protocol import faults

N, M, L = 6, 2, 400


def truth(index: int = 0):  # type: ignore[no-untyped-def]
    return example_truth(N, M, L, rng.root_from_seed(4), index)


def test_plain_is_read() -> None:
    record = play("plain", [truth()], seed=4)
    finding = judge("read", record, read(server_view(record)))
    assert (finding.updates_recovered, finding.clusters_recovered) == (N, N)


def without_last(protocol: str, *indices: int):  # type: ignore[no-untyped-def]
    """Two rounds; the last client is absent from the first."""
    wire = faults.silence(client_address(N - 1), message=UPLOADS[protocol], times=2)
    return play(protocol, [truth(i) for i in indices], seed=4, wire=wire)


@pytest.mark.parametrize("protocol", sorted(UPLOADS))
def test_repeated_inputs_and_one_absent_client_isolate_it(protocol: str) -> None:
    record = without_last(protocol, 0, 0)
    assert record.results[0].included == tuple(range(N - 1))
    estimate = differencing(server_view(record))
    assert estimate.targets == (N - 1,)
    assert judge("differencing", record, estimate).updates_recovered == 1


@pytest.mark.parametrize("protocol", sorted(UPLOADS))
def test_updates_that_change_between_rounds_are_not_isolated(protocol: str) -> None:
    record = without_last(protocol, 0, 1)
    assert judge("differencing", record, differencing(server_view(record))).updates_recovered == 0


def test_differential_privacy_hides_the_difference() -> None:
    wire = faults.silence(client_address(N - 1), message=UPLOADS["sealed"], times=2)
    noisy = play("sealed", [truth(), truth()], seed=4, wire=wire, epsilon=4.0, delta=1e-5, dp_rounds=2)
    found = cosines(differencing(server_view(noisy)).updates, truth().updates[-1:])
    assert float(found[0]) < 0.5


def test_differencing_needs_two_rounds() -> None:
    with pytest.raises(UsageError, match="two rounds"):
        differencing(server_view(play("plain", [truth()], seed=4)))


@pytest.mark.parametrize("protocol", ["plain", "sealed"])
@pytest.mark.parametrize("corrupt", [1, 3, N - 1])
def test_a_coalition_learns_the_sum_over_the_others(protocol: str, corrupt: int) -> None:
    record = play(protocol, [truth()], seed=4)
    estimate = collusion(server_view(record, corrupt=range(corrupt)))
    weights = np.maximum(truth().scores(), 0.0)
    rest = [i for i in range(corrupt, N) if truth().clusters[i] == estimate.clusters[0]]
    want = (weights[rest, None] * truth().updates[rest]).sum(axis=0)
    # Fixed point: about 2^-14 a coordinate and client, so 1e-4·sqrt(L) at most in length.
    assert float(cosines(estimate.updates[:1], want[None])[0]) > 1 - 1e-3
    assert judge("collusion", record, estimate).updates_recovered == (1 if corrupt == N - 1 else len(rest) == 1)


def test_a_server_alone_is_a_coalition_of_nobody() -> None:
    record = play("sealed", [truth()], seed=4)
    assert judge("collusion", record, collusion(server_view(record))).updates_recovered == 0


def test_under_paper_the_accomplices_add_nothing() -> None:
    record = play("paper", [truth()], seed=4)
    estimate = collusion(server_view(record, corrupt=(0, 1)))
    assert estimate.targets == tuple(range(2, N))
    assert judge("collusion", record, estimate).updates_recovered == N - 2
