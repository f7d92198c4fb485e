"""Tables in docs/explanation-efficiency.md are those of the committed results; its links and pictures exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ebscfl.reproduce import complexity, features, peers, secure_sums

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results" / "efficiency"
PAGE = (ROOT / "docs" / "explanation-efficiency.md").read_text()


def stored(name: str) -> dict[str, object]:
    document: dict[str, object] = json.loads((RESULTS / name).read_text())
    return document


def test_cost_tables_are_rendered_from_results() -> None:
    document = stored("secure-aggregation.json")
    assert secure_sums.markdown(document) in PAGE
    assert secure_sums.targets_markdown(document) in PAGE
    assert peers.markdown(document["peers"]) in PAGE  # type: ignore[arg-type]


def test_targets_follow_from_the_rows() -> None:
    document = stored("secure-aggregation.json")
    assert secure_sums.targets(document["rows"]) == document["targets"]  # type: ignore[arg-type]


def test_the_complexity_table_is_rendered_from_results() -> None:
    document = stored("table-complexity.json")
    lines = complexity.exponents(document["rows"])  # type: ignore[arg-type]
    assert [line["protocol"] for line in lines] == [line["protocol"] for line in document["exponents"]]  # type: ignore[attr-defined]
    for one, other in zip(lines, document["exponents"], strict=True):  # type: ignore[call-overload]
        numbers = [key for key in one if key.endswith(("measured", "claimed"))]
        # The fit is a BLAS call: the same to rounding, not to the bit.
        assert [one[key] for key in numbers] == pytest.approx([other[key] for key in numbers], abs=1e-6)
    assert complexity.markdown(lines) in PAGE
    assert complexity.markdown(lines) == (RESULTS / "table-complexity.md").read_text()


def test_the_feature_table_is_the_one_in_the_source() -> None:
    assert features.markdown() in PAGE
    assert features.markdown() == (RESULTS / "table-features.md").read_text()


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", PAGE):
        if not target.startswith("http"):
            assert (ROOT / "docs" / target).exists(), target
