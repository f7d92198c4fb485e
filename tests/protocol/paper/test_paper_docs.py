"""The errata table names tests that exist, and the pages say plainly that updates are not hidden."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
PAGE = (REPOSITORY / "docs" / "explanation-paper-protocol.md").read_text(encoding="utf-8")


def test_every_erratum_names_tests_that_exist() -> None:
    rows = re.findall(r"^\| (\d+) \|.*\|$", PAGE, flags=re.MULTILINE)
    assert rows[:11] == [str(k) for k in range(1, 12)]
    written = "\n".join(path.read_text(encoding="utf-8") for path in (REPOSITORY / "tests").rglob("test_*.py"))
    existing = set(re.findall(r"^def (test_\w+)", written, flags=re.MULTILINE))
    for row in re.findall(r"^\| \d+ \|.*\|.*\|(.*)\|$", PAGE, flags=re.MULTILINE)[:11]:
        named = re.findall(r"`(test_\w+)`", row)
        assert named
        assert set(named) <= existing
    assert set(re.findall(r"`(test_\w+)`", PAGE)) <= existing


def test_the_pages_say_that_nothing_is_hidden_and_point_to_sealed() -> None:
    notation = (REPOSITORY / "docs" / "notation.md").read_text(encoding="utf-8")
    for text in (PAGE, notation):
        flat = " ".join(text.replace(">", " ").split())
        assert "does not hide updates from a curious server" in flat
        assert "`sealed`" in flat
