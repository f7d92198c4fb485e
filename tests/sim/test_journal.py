from __future__ import annotations

from pathlib import Path

import pytest

from ebscfl.errors import CheckpointError
from ebscfl.sim.journal import Journal, read_lines, to_line

ROUND = {"kind": "round", "method": "rfca", "attack": "none", "round": 1, "x": 0.1}
CELL = {"kind": "cell", "method": "rfca", "attack": "none", "fa": 1.0}


def test_lines_are_written_through_and_read_back(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "m.jsonl")
    journal.append(dict(ROUND))
    journal.append(dict(CELL))
    again = Journal(tmp_path / "m.jsonl")
    assert again.rounds("rfca", "none") == [ROUND]
    assert again.cell("rfca", "none") == CELL
    assert again.cell("rfca", "sine") is None
    assert again.rounds("ifca", "none") == []


def test_an_unfinished_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(to_line(ROUND) + '{"kind": "rou', encoding="utf-8")
    assert read_lines(path) == [ROUND]


@pytest.mark.parametrize("text", ["not json\n", "[1]\n", '{"kind": "round"}\n', "\x00\n"])
def test_damaged_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointError, match="corrupt"):
        Journal(path)


def test_keep_cuts_the_file(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "m.jsonl")
    journal.append(dict(ROUND))
    journal.append(dict(CELL))
    journal.keep(lambda line: line["kind"] == "cell")
    assert read_lines(tmp_path / "m.jsonl") == [CELL]


def test_nan_never_gets_in() -> None:
    with pytest.raises(ValueError, match="JSON"):
        to_line({"x": float("nan")})
