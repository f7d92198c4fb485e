"""The scripts in examples/ run as they are, use the public API and stay short."""

from __future__ import annotations

import ast
import runpy
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


def test_there_are_examples() -> None:
    assert "break_the_paper_protocol.py" in [path.name for path in EXAMPLES]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_it_is_short_and_uses_no_private_name(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 80
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            assert node.module is not None
            assert not any(alias.name.startswith("_") for alias in node.names)
        if isinstance(node, ast.Attribute):
            assert not node.attr.startswith("_")


def test_break_the_paper_protocol(capsys: pytest.CaptureFixture[str]) -> None:
    path = next(path for path in EXAMPLES if path.name == "break_the_paper_protocol.py")
    assert runpy.run_path(str(path))["main"]() == 0
    printed = capsys.readouterr().out
    assert "20 of 20 updates" in printed
    assert "sealed  0 of 20 updates" in printed
