"""README does what it says: its Python runs, its links lead somewhere, its commands exist."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from ebscfl.cli import main
from ebscfl.config import load_preset
from ebscfl.report.markdown import results_table

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def test_quickstart_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks("python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})
    out = capsys.readouterr().out.splitlines()
    assert 0 <= float(out[0]) <= 100
    assert out[1].startswith("(2, 1000)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http:", "https:", "mailto:")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_commands_exist(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("ebs-cfl ")]
    assert len(lines) >= 5
    for line in lines:
        words = shlex.split(line.partition("#")[0].replace("|", " "))[1:]
        command = ["data", "list"] if words[0] == "data" else words[:1]
        assert main([*command, "--help"]) == 0, line
    assert "Usage" in capsys.readouterr().out


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "index.md" or page.name in index, page.name


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"make (\w+)", TEXT)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_tables_are_the_committed_results() -> None:
    shown = re.findall(r"<!-- (results/[\w/-]+) -->\n(.*?)\n<!-- end -->", TEXT, re.DOTALL)
    assert shown
    for folder, table in shown:
        document = json.loads((ROOT / folder / "results.json").read_text(encoding="utf-8"))
        assert table == results_table(document["results"]), f"README differs from {folder}"
        assert load_preset(str(ROOT / folder / "config.toml")).digest() == document["config_sha256"]


def test_the_default_table_is_of_the_default_preset() -> None:
    document = json.loads((ROOT / "results" / "default" / "results.json").read_text(encoding="utf-8"))
    assert load_preset("default").digest() == document["config_sha256"], "run `ebs-cfl run` and commit its results"
