"""FA, MA, NA, ASR, AIR and shares of weight: what a cell's rounds come to. All accuracies are percentages 0..100."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

RoundLine = Mapping[str, Any]
"""One "round" line of metrics.jsonl."""


def accuracies(rounds: Sequence[RoundLine], evaluation: str) -> list[float]:
    """The evaluated accuracies of rounds 1, 2, ... (round 0, before training, is not part of training)."""
    key = f"accuracy_{evaluation}"
    return [line[key] for line in rounds if line["round"] > 0 and line[key] is not None]


def attack_success_rate(rounds: Sequence[RoundLine], attackers: Collection[int]) -> float | None:
    """ASR: percent of (attacker, round) events in which the attacker's update got non-zero weight."""
    played = [line for line in rounds if line["round"] > 0]
    events = len(played) * len(attackers)
    if events == 0:
        return None
    accepted_events = sum(int(line["attackers_accepted"]) for line in played)
    return 100.0 * accepted_events / events


def accepted(weights: Sequence[float], attackers: Collection[int]) -> int:
    """How many attackers got non-zero weight."""
    return sum(weights[i] > 0 for i in attackers)


def attacker_share(weights: Sequence[float], attackers: Collection[int]) -> float:
    """The attackers' part of all weight, 0..1 (0 when nobody got any)."""
    total = sum(weights)
    return sum(weights[i] for i in attackers) / total if total > 0 else 0.0


def mean_share(rounds: Sequence[RoundLine]) -> float:
    """Mean over the rounds of the attackers' share of weight."""
    played = [line["attacker_weight_share"] for line in rounds if line["round"] > 0]
    return sum(played) / len(played) if played else 0.0


def air_printed(na: float, fa: float, ma: float) -> float | None:
    """Accuracy impact rate as the paper prints it, (2 NA - FA - MA) / (2 NA), in percent."""
    return 100.0 * (2 * na - fa - ma) / (2 * na) if na > 0 else None


def air_points(na: float, fa: float, ma: float) -> float:
    """Accuracy lost in percentage points, NA - (FA + MA) / 2: the reading that fits the paper's own table."""
    return na - (fa + ma) / 2


def purity(clusters: Sequence[int], domains: Sequence[int]) -> float:
    """Share of clients whose domain is the most frequent one in their cluster: 1 when no cluster mixes domains."""
    total = 0
    for cluster in set(clusters):
        members = [domain for domain, own in zip(domains, clusters, strict=True) if own == cluster]
        total += max(members.count(domain) for domain in set(members))
    return total / len(clusters) if clusters else 1.0


def result_rows(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The ``results`` of results.json: one row per cell line, NA taken from the same method's run without attack."""
    no_attack = {cell["method"]: cell["fa"] for cell in cells if cell["attack"] == "none"}
    rows = []
    for cell in cells:
        fa, ma, na = cell["fa"], cell["ma"], no_attack[cell["method"]]
        attacked = cell["attack"] != "none"
        rows.append(
            {
                "method": cell["method"],
                "attack": cell["attack"],
                "fa": fa,
                "ma": ma,
                "na": na,
                "asr": cell["asr"],
                "air_printed": air_printed(na, fa, ma) if attacked else None,
                "air_points": air_points(na, fa, ma) if attacked else None,
                "attacker_weight_share": 100.0 * cell["attacker_weight_share"],
            }
        )
    return rows
