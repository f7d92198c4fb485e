"""Tables of results: the paper's numbers, verdicts only where measured, every committed table is its JSON's."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ebscfl.reproduce import tables
from ebscfl.reproduce.experiments import EXPERIMENTS

ROOT = Path(__file__).parents[2]
COMMITTED = [path for path in sorted((ROOT / "results").glob("*/*/results.json")) if path.parts[-3] in EXPERIMENTS]


def document(scale: str, fa: dict[str, float]) -> dict[str, Any]:
    """A main table with one column: label flipping at alpha 0.5."""
    rows = []
    for method, value in fa.items():
        for attack in ("none", "label-flip"):
            both = {"fa": value, "ma": value + 1}
            rows.append(
                {
                    "alpha": 0.5,
                    "variant": "working",
                    "seed": 1,
                    "method": method,
                    "attack": attack,
                    "own": both,
                    "global": both,
                    "asr": None if attack == "none" else 100.0,
                    "share": 40.0,
                    "share_settled": None,
                    "backdoor": None,
                    "clusters_used": 1,
                    "largest_cluster": 5,
                }
            )
    head = {
        "runs": [1, 1],
        "complete": True,
        "seeds": [1],
        "datasets": ["cifar10"],
        "device": "cpu",
        "torch": "2",
        "seconds": 1.0,
    }
    return {**head, "command": "ebs-cfl", "commit": None, "scale": scale, "rows": rows}


def verdicts(text: str) -> dict[str, str]:
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| label flip")]
    return {line[2]: line[-1] for line in cells}


PAPER_05 = {"fedavg": 45.36, "fltrust": 55.07, "ifca": 37.57, "rfca": 65.29}


def test_verdicts_at_full_scale() -> None:
    same = tables.render_noniid(document("full", PAPER_05))
    assert verdicts(same) == dict.fromkeys(("FedAvg", "FLTrust", "IFCA", "RFCA"), "reproduced")
    shifted = {method: value + 10.0 for method, value in PAPER_05.items()}
    assert set(verdicts(tables.render_noniid(document("full", shifted))).values()) == {"same ordering"}
    swapped = {**shifted, "rfca": shifted["ifca"], "ifca": shifted["rfca"]}
    found = verdicts(tables.render_noniid(document("full", swapped)))
    assert found["RFCA"] == found["IFCA"] == "not reproduced"
    assert found["FLTrust"] == "same ordering"


def test_no_verdict_without_measurement() -> None:
    assert set(verdicts(tables.render_noniid(document("small", PAPER_05))).values()) == {"other data"}
    assert "65.29" not in tables.render_noniid(document("small", PAPER_05 | {"rfca": 1.0}))
    partial = {"rfca": 65.0, "fltrust": 50.0}
    assert set(verdicts(tables.render_noniid(document("full", partial))).values()) == {"not all methods measured"}
    ours = tables.render_noniid(document("full", {**PAPER_05, "rfca-h": 70.0}))
    assert verdicts(ours)["RFCA-H"] == "ours"


def test_the_literal_reading_is_compared_with_the_same_baselines() -> None:
    found = document("full", PAPER_05)
    literal = [
        {**r, "variant": "literal", "own": {"fa": 10.0, "ma": 11.0}} for r in found["rows"] if r["method"] == "rfca"
    ]
    text = tables.render_noniid({**found, "rows": found["rows"] + literal})
    assert verdicts(text)["RFCA (as printed)"] == "not reproduced"
    assert verdicts(text)["RFCA"] == "reproduced"


def test_paper_numbers_are_consistent_with_its_own_text() -> None:
    """Rules that filter nobody show ASR 100; MA is never below FA; ASR comes in steps of 0.5 %."""
    for (method, _), cells in tables.PAPER_NONIID.items():
        for fa, ma, asr, _ in cells.values():
            assert ma >= fa
            assert (2 * asr) == int(2 * asr)
            assert asr == 100.0 or method not in ("fedavg", "ifca")
    assert len(tables.PAPER_NONIID) == 8
    assert {len(cells) for cells in tables.PAPER_NONIID.values()} == {3}
    assert tables.paper_iid("cifar10", "rfca", "trim-attack") == 72.84
    assert tables.paper_iid("cifar10", "rfca", "sine") is None
    assert tables.paper_iid("mnist-mini", "rfca", "trim-attack") is None


def test_ranks_and_numbers() -> None:
    values = {"a": 3.0, "b": 5.0, "c": 5.0}
    assert [tables.rank(name, values) for name in "abc"] == [3, 1, 1]
    assert tables.shown((-0.04, 0.26)) == "-0.0 ± 0.3"
    assert tables.shown(None) == tables.plain(None) == "-"


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: "/".join(path.parts[-3:-1]))
def test_committed_markdown_is_rendered_from_its_json(path: Path) -> None:
    found = json.loads(path.read_text(encoding="utf-8"))
    assert (found["name"], found["scale"]) == path.parts[-3:-1]
    assert (path.parent / "results.md").read_text(encoding="utf-8") == EXPERIMENTS[found["name"]].render(found)


def test_docs_tables_are_the_committed_results() -> None:
    text = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    shown = re.findall(r"<!-- (results/[\w/-]+) -->\n(.*?)\n<!-- end -->", text, re.DOTALL)
    assert shown
    for folder, table in shown:
        lines = (ROOT / folder / "results.md").read_text(encoding="utf-8").strip()
        assert table.strip() == lines, f"docs/reproduction.md differs from {folder}: run scripts/render_reproduction.py"
