"""metrics.jsonl: one JSON object a line, appended as a run goes on, cut back to a checkpoint when it resumes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ebscfl.errors import CheckpointError
from ebscfl.sim.checkpoint import write_atomically

Line = dict[str, Any]


def to_line(entry: Mapping[str, Any]) -> str:
    """One line of strict JSON (no NaN), keys in the order given."""
    return json.dumps(entry, allow_nan=False, separators=(", ", ": ")) + "\n"


def read_lines(path: Path) -> list[Line]:
    """All whole lines; a last line without its end (the machine stopped while writing) is left out.

    Raises:
        CheckpointError: a line is not JSON.
    """
    if not path.exists():
        return []
    try:
        text = path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1].splitlines()
        lines = [json.loads(line) for line in whole]
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is corrupt ({type(error).__name__}): this run cannot be resumed") from None
    if not all(isinstance(line, dict) and {"kind", "method", "attack"} <= line.keys() for line in lines):
        raise CheckpointError(f"{path} is corrupt (a line is no metrics record): this run cannot be resumed")
    return lines


class Journal:
    """The metrics of one run: lines on disk and in memory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = read_lines(path)

    def append(self, entry: Line) -> None:
        """Write one line through to the file."""
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(to_line(entry))
        self._lines.append(entry)

    def keep(self, wanted: Callable[[Line], bool]) -> None:
        """Drop the lines that are not wanted, on disk in one step."""
        self._lines = [line for line in self._lines if wanted(line)]
        write_atomically(self._path, "".join(to_line(line) for line in self._lines).encode())

    def rounds(self, method: str, attack: str) -> list[Line]:
        """The round lines of a cell."""
        return [line for line in self._lines if line["kind"] == "round" and _of(line, method, attack)]

    def cell(self, method: str, attack: str) -> Line | None:
        """The last line of a cell, None while it is not finished."""
        return next((line for line in self._lines if line["kind"] == "cell" and _of(line, method, attack)), None)


def _of(line: Line, method: str, attack: str) -> bool:
    return bool(line["method"] == method and line["attack"] == attack)
