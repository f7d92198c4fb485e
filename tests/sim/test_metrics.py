from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebscfl.sim import metrics


def line(round_id: int, own: float | None, accepted: int = 0, share: float = 0.0) -> dict[str, Any]:
    return {
        "round": round_id,
        "accuracy_own": own,
        "accuracy_global": None if own is None else own / 2,
        "attackers_accepted": accepted,
        "attacker_weight_share": share,
    }


ROUNDS = [line(0, 99.0), line(1, 10.0, 2, 0.5), line(2, None, 1, 0.25), line(3, 40.0, 0, 0.0)]


def test_accuracies_leave_out_round_0_and_rounds_without_evaluation() -> None:
    assert metrics.accuracies(ROUNDS, "own") == [10.0, 40.0]
    assert metrics.accuracies(ROUNDS, "global") == [5.0, 20.0]


def test_asr_counts_attacker_round_events() -> None:
    # 3 rounds x 2 attackers = 6 events, 2 + 1 + 0 of them accepted.
    assert metrics.attack_success_rate(ROUNDS, (4, 5)) == 100 * 3 / 6
    assert metrics.attack_success_rate(ROUNDS, ()) is None
    assert metrics.attack_success_rate(ROUNDS[:1], (4,)) is None


def test_mean_share_is_over_played_rounds() -> None:
    assert metrics.mean_share(ROUNDS) == (0.5 + 0.25 + 0.0) / 3
    assert metrics.mean_share([]) == 0.0


def test_accepted_and_share_of_one_round() -> None:
    weights = (0.5, 0.0, 0.25, 0.25)
    assert metrics.accepted(weights, (1, 2, 3)) == 2
    assert metrics.attacker_share(weights, (1, 2, 3)) == 0.5
    assert metrics.attacker_share((0.0, 0.0), (1,)) == 0.0


def test_air_in_both_forms() -> None:
    assert metrics.air_printed(50.0, 40.0, 45.0) == pytest.approx(100 * (2 * 50 - 40 - 45) / (2 * 50))
    assert metrics.air_points(50.0, 40.0, 45.0) == 50 - (40 + 45) / 2
    assert metrics.air_printed(0.0, 0.0, 0.0) is None


@given(na=st.floats(1, 100), fa=st.floats(0, 100), ma=st.floats(0, 100))
def test_the_two_forms_of_air_differ_by_the_factor_na(na: float, fa: float, ma: float) -> None:
    printed = metrics.air_printed(na, fa, ma)
    assert printed is not None
    assert printed * na / 100 == pytest.approx(metrics.air_points(na, fa, ma), abs=1e-9)


def test_purity_is_the_share_of_the_majority_domain() -> None:
    assert metrics.purity([0, 0, 1, 1], [3, 3, 2, 2]) == 1.0
    assert metrics.purity([0, 0, 0, 0], [3, 3, 2, 2]) == 0.5
    assert metrics.purity([0, 0, 0, 1], [1, 1, 2, 2]) == 3 / 4
    assert metrics.purity([], []) == 1.0


def test_rows_take_na_from_the_run_without_attack_of_the_same_method() -> None:
    def cell(method: str, attack: str, fa: float, asr: float | None) -> dict[str, Any]:
        return {
            "method": method, "attack": attack, "fa": fa, "ma": fa + 1, "asr": asr, "attacker_weight_share": 0.1,
        }  # fmt: skip

    rows = metrics.result_rows(
        [cell("a", "none", 80.0, None), cell("a", "x", 60.0, 50.0), cell("b", "none", 70.0, None)]
    )
    assert [row["na"] for row in rows] == [80.0, 80.0, 70.0]
    assert rows[0]["air_printed"] is None
    assert rows[1]["air_points"] == 80 - (60 + 61) / 2
    assert rows[1]["asr"] == 50.0
    assert list(rows[1]) == [
        "method", "attack", "fa", "ma", "na", "asr", "air_printed", "air_points", "attacker_weight_share",
    ]  # fmt: skip
