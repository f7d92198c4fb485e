"""A module imports only from its own layer or the ones above it (docs/explanation-architecture.md)."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import ebscfl

SOURCE = Path(ebscfl.__file__).parent
LAYERS = [
    {"errors", "ids", "rng", "pool", "arrays", "field", "linalg", "vectors", "plain", "settings_table"},
    {"paper", "sealed", "secagg"},
    {"learning", "rules", "attacks"},
    {"protocol"},
    {"algorithms"},
    {"config", "sim", "audit", "report", "reproduce", "flower", "kdc_service", "federation", "presets"},
    {"cli", "__init__", "__main__"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
MODULES = sorted(path for path in SOURCE.rglob("*.py"))
FORBIDDEN = {  # package -> layers' packages that may not import it anywhere, lazily or not
    "torch": {"paper", "sealed", "protocol", "linalg", "field", "rng_secret"},
    "flwr": {"paper", "sealed", "protocol", "learning", "rules", "attacks", "algorithms"},
    "ray": set(LEVEL) - {"federation"},
    "pickle": set(LEVEL),
}


def top(path: Path) -> str:
    name = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    return name.split("_")[0] if name.startswith("cli") else name


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module)
            if node.module == "ebscfl":
                found |= {f"ebscfl.{alias.name}" for alias in node.names}
        assert not (isinstance(node, ast.ImportFrom) and node.level), f"{path}: relative import"
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_upwards(path: Path) -> None:
    mine = top(path)
    assert mine in LEVEL, f"{mine} has no layer"
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "ebscfl" and len(parts) > 1 and parts[1] in LEVEL:
            assert LEVEL[parts[1]] <= LEVEL[mine], f"{mine} may not import {name}"
        assert mine not in FORBIDDEN.get(parts[0], set()), f"{mine} may not import {name}"


def test_every_module_imports_alone() -> None:
    names = [".".join(("ebscfl", *p.relative_to(SOURCE).with_suffix("").parts)) for p in MODULES]
    names = [name.removesuffix(".__init__") for name in names if not name.endswith("__main__")]
    if importlib.util.find_spec("flwr") is None:  # an extra: its adapters cannot be imported without it
        names = [name for name in names if not name.startswith("ebscfl.flower.")]
    script = "\n".join(
        f"import sys, importlib\nbefore = set(sys.modules)\nimportlib.import_module({name!r})\n"
        "for extra in [m for m in sys.modules if m.startswith('ebscfl')]: del sys.modules[extra]"
        for name in names
    )
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True)


def test_public_names_exist() -> None:
    for name in ebscfl.__all__:
        assert hasattr(ebscfl, name)


def test_no_module_is_too_long() -> None:
    for path in MODULES:
        assert len(path.read_text().splitlines()) <= 600, path


def test_test_files_have_different_names() -> None:
    """pytest imports a test file by its base name; two of one name stop the whole suite."""
    names = [path.name for path in Path(__file__).parent.rglob("*.py") if path.name != "conftest.py"]
    assert sorted(names) == sorted(set(names))
