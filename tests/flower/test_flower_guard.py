"""Only allowed bundles run on a client: checked in the runner's own process, before anything is unpacked."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from ebscfl.errors import ConfigError, VerificationError
from ebscfl.flower import guard
from ebscfl.flower.app_files import write_app
from ebscfl.flower.guard import OTHER_RUNNERS, RUNNER, VARIABLE, app_hash, check_bundle, install, read_allowed

GOOD, EVIL = b"the app the owner has read", b"the app the server would like"


def test_lists_hold_hashes_and_comments(tmp_path: Path):
    path = tmp_path / "allowed"
    path.write_text(f"# ours\n\n{app_hash(GOOD).upper()}  # 1.0.0\n")
    assert read_allowed(path) == {app_hash(GOOD)}
    check_bundle(GOOD, read_allowed(path))
    with pytest.raises(VerificationError, match=app_hash(EVIL)):
        check_bundle(EVIL, read_allowed(path))
    for wrong in ("abc", "g" * 64, "ü"):
        path.write_text(wrong)
        with pytest.raises(ConfigError):
            read_allowed(path)
    with pytest.raises(ConfigError):
        read_allowed(tmp_path / "missing")


def test_every_runner_a_server_can_ask_for_is_ours_or_refuses(tmp_path: Path):
    allowed = tmp_path / "allowed"
    allowed.write_text("")
    environment = install(tmp_path / "runners", allowed, {"PATH": os.environ["PATH"]})
    assert environment[VARIABLE] == str(allowed)
    for name in OTHER_RUNNERS:
        done = subprocess.run([name], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 77
        assert "refused" in done.stderr
    assert "ebscfl.flower.guard" in (tmp_path / "runners" / RUNNER).read_text()
    bare = {key: value for key, value in environment.items() if key != VARIABLE}
    bare["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run([RUNNER, "--token", "x"], env=bare, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "client serve" in done.stderr


def test_all_of_flowers_task_runners_are_covered():
    constant = pytest.importorskip("flwr.supercore.constant", reason="needs the extra 'federation' (Flower)")
    assert set(constant.TASK_TYPE_TO_COMMAND.values()) == {RUNNER, *OTHER_RUNNERS}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Our app as Flower bundles it (in a process of its own: the bundler warns about its own dependencies)."""
    pytest.importorskip("flwr", reason="needs the extra 'federation' (Flower)")
    home = tmp_path_factory.mktemp("bundle")
    script = (
        "import sys, pathlib\nfrom flwr.cli.build import build_fab_from_disk\n"
        "pathlib.Path(sys.argv[2]).write_bytes(build_fab_from_disk(pathlib.Path(sys.argv[1])))"
    )
    out = home / "app.fab"
    subprocess.run([sys.executable, "-c", script, str(write_app(home / "app")), str(out)], check=True)
    return out.read_bytes()


@pytest.mark.parametrize("lie", ["none", "bundle", "hash", "name", "version"])
def test_the_runner_refuses_other_apps(lie: str, bundle: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Flower's own runner behind our check: what it would unpack and import is what was allowed, or nothing."""
    command = importlib.import_module("flwr.supernode.cli.flwr_clientapp")
    runner = importlib.import_module("flwr.supernode.runtime.run_clientapp")
    (tmp_path / "allowed").write_text(app_hash(bundle))
    sent = EVIL if lie == "bundle" else bundle
    fab = types.SimpleNamespace(content=sent, hash_str="0" * 64 if lie == "hash" else app_hash(sent))
    run = types.SimpleNamespace(
        fab_id="ebscfl/other" if lie == "name" else "ebscfl/ebscfl-app",
        fab_version="../../x" if lie == "version" else "1.0.0",
    )
    reached: list[object] = []
    monkeypatch.setenv(VARIABLE, str(tmp_path / "allowed"))
    monkeypatch.setattr(runner, "pull_task_input", lambda client: ("message", "context", run, fab))
    monkeypatch.setattr(command, "flwr_clientapp", lambda: reached.append(runner.pull_task_input(None)))
    if lie == "none":
        guard.main()
        assert reached == [("message", "context", run, fab)]
    else:
        with pytest.raises(VerificationError):
            guard.main()
        assert reached == []


def test_the_example_is_the_app_of_the_package(tmp_path: Path):
    example = Path(__file__).parents[2] / "examples" / "flower-app"
    made = write_app(tmp_path / "app")
    for name in ("pyproject.toml", "LICENSE"):
        assert (example / name).read_text() == (made / name).read_text()
