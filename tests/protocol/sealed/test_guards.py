"""Quorum, minimum slot weight and differential privacy, through the roles."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from sealed_lab import L, M, N, make_lab, play_lab

from ebscfl import rng
from ebscfl.errors import ConfigError, RoundAborted
from ebscfl.ids import client_address
from ebscfl.plain import rfca_round
from ebscfl.protocol import Session, faults
from ebscfl.protocol.states import State
from ebscfl.sealed import spent_epsilon
from ebscfl.sealed.dp import noise_sigma
from ebscfl.sealed.parameters import MAX_SIGMA

DP: dict[str, Any] = {"epsilon": 8.0, "delta": 1e-5, "dp_rounds": 3}


def session(seed: int = 0, n: int = N, wire: Any = None, **options: Any) -> tuple[Session, tuple[Any, ...]]:
    draw = rng.numpy_generator(rng.root_from_seed(seed), rng.USAGE_BENCH, "guards")
    server = draw.standard_normal((M, L))
    clusters = [i % M for i in range(n)]
    updates = draw.standard_normal((n, L)) + server[clusters]
    made = Session(
        "sealed", num_clients=n, num_clusters=M, dim=L, root=rng.root_from_seed(seed), options=options, wire=wire
    )
    return made, (updates, clusters, server)


def silent(*clients: int) -> Any:
    return faults.all_of(*(faults.silence(client_address(i), message="SealedUpload") for i in clients))


@pytest.mark.parametrize(("missing", "released"), [(3, True), (4, False)])
def test_below_the_quorum_nothing_is_released_and_the_next_round_may_begin(missing: int, released: bool) -> None:
    made, round_of = session(quorum=5, wire=silent(*range(missing)))
    if released:
        assert made.round(*round_of).included == tuple(range(missing, N))
        return
    with pytest.raises(RoundAborted, match=r"4 accepted uploads are below the quorum of 5"):
        made.round(*round_of)
    made.bus.wire = None
    assert made.round(*round_of).included == tuple(range(N))


def test_a_light_slot_stays_closed_and_the_other_is_exact() -> None:
    """Clients of cluster 1 stay silent but one: its weight is below 1.2, so its update is not shown alone."""
    lone = silent(1, 3, 5)
    made, round_of = session(wire=lone, min_slot_weight=1.2, quorum=3)
    result = made.round(*round_of)
    assert result.events == ("slot 1 stays closed: too little trust weight",)
    assert not result.aggregates[1].any()
    assert result.cluster_weight is not None
    assert result.cluster_weight[1] == 0
    updates, _, server = round_of
    heard = [0, 2, 4, 6]
    want, _ = rfca_round(updates[heard], [0] * 4, server)
    assert np.linalg.norm(result.aggregates[0] - want[0]) < 5e-3 * np.linalg.norm(want[0])
    open_to_all, _ = session(wire=lone, quorum=3)
    assert open_to_all.round(*round_of).aggregates[1].any()


def test_nobody_trusted_is_no_step() -> None:
    made, (_, clusters, server) = session()
    result = made.round(-server[clusters], clusters, server)
    assert not result.aggregates.any()
    assert result.total_weight == 0
    assert result.events == ("no client is trusted: no step",)


@pytest.mark.parametrize("field", ["m31", "m61"])
def test_noise_has_the_calibrated_variance(field: str) -> None:
    """y - P minus the noiseless sum, over 3 rounds of 2 x 51 coordinates, against sigma^2 by chi-square at 5 sd."""
    noisy, round_of = session(field=field, **DP)
    params = noisy.server._params  # type: ignore[attr-defined]
    sigma = noise_sigma(params)
    assert sigma == math.ceil(params.noise_multiplier * params.sensitivity)
    residues = []
    for _ in range(3):
        result = noisy.round(*round_of)
        want, weight = rfca_round(*round_of)
        assert result.cluster_weight is not None
        weights = result.cluster_weight
        # The aggregates are y - P over the noisy total weight: undo that to see the noise itself.
        scale = 2.0 ** (params.update_bits + params.weight_bits)
        residues.append(((result.aggregates * weights.sum() - want * weight) * scale).reshape(-1))
    spread = np.concatenate(residues) / sigma
    count = spread.size
    assert abs((spread**2).sum() - count) < 5 * math.sqrt(2 * count)
    assert abs(spread.sum()) < 5 * math.sqrt(count)
    assert abs(spread[: count // 3] @ spread[count // 3 : 2 * count // 3]) < 5 * math.sqrt(
        count / 3
    )  # fresh each round


def test_the_planner_leaves_room_for_noise_in_both_fields() -> None:
    for field in ("m31", "m61"):
        made, round_of = session(field=field, **DP)
        assert noise_sigma(made.server._params) <= MAX_SIGMA  # type: ignore[attr-defined]
        assert made.round(*round_of).details["epsilon_spent"] > 0


def test_epsilon_is_composed_and_a_spent_budget_ends_the_releases() -> None:
    made, round_of = session(**DP)
    multiplier = made.server._params.noise_multiplier  # type: ignore[attr-defined]
    spent = [made.round(*round_of).details["epsilon_spent"] for _ in range(3)]
    assert spent == [spent_epsilon(multiplier, k, 1e-5) for k in (1, 2, 3)]
    assert spent[0] < spent[1] < spent[2] <= 8.0 < spent_epsilon(multiplier, 4, 1e-5)
    with pytest.raises(RoundAborted, match="privacy budget is spent"):
        made.round(*round_of)
    assert made.kdc.state is State.SERVING


def test_epsilon_survives_a_restart_of_the_key_centre(tmp_path: Any) -> None:
    lab = make_lab(store=tmp_path / "kdc.sqlite", **DP)
    play_lab(lab, 1 << 16)
    play_lab(lab, 2 << 16)
    assert lab.server.outcome is not None
    two = lab.server.outcome.details["epsilon_spent"]
    lab.kdc._store.close()
    lab.kdc = make_lab(store=tmp_path / "kdc.sqlite", enrol=False, **DP).kdc
    play_lab(lab, 3 << 16)
    assert lab.server.outcome.details["epsilon_spent"] > two


def test_without_privacy_nothing_is_spent() -> None:
    made, round_of = session()
    assert made.round(*round_of).details["epsilon_spent"] == 0.0


@pytest.mark.parametrize("left_out", sorted(DP))
def test_partial_privacy_options_are_refused(left_out: str) -> None:
    options = {name: value for name, value in DP.items() if name != left_out}
    with pytest.raises(ConfigError, match="needs epsilon, delta and dp_rounds"):
        session(**options)


@pytest.mark.parametrize("wrong", [{"epsilon": -1.0}, {"delta": 1.0}, {"dp_rounds": 0}])
def test_impossible_budgets_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        session(**(DP | wrong))


def test_another_runs_store_is_refused(tmp_path: Any) -> None:
    lab = make_lab(store=tmp_path / "kdc.sqlite", quorum=5)
    lab.kdc._store.close()
    with pytest.raises(ConfigError, match="belongs to another run"):
        make_lab(store=tmp_path / "kdc.sqlite", quorum=6)


def test_unknown_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="no option 'quorom'"):
        session(quorom=3)
