"""The committed page is what the tables say today."""

from __future__ import annotations

from pathlib import Path

from ebscfl.protocol.diagrams import page
from ebscfl.protocol.states import TRANSITIONS

PAGE = Path(__file__).parents[2] / "docs" / "ref-protocol-states.md"


def test_page_is_current() -> None:
    assert PAGE.read_text() == page(), "run: python -m ebscfl.protocol.diagrams > docs/ref-protocol-states.md"


def test_every_transition_has_a_row() -> None:
    rows = [line for line in page().splitlines() if line.startswith("| ") and not line.startswith("| state")]
    assert len(rows) == sum(len(table) for table in TRANSITIONS.values())
