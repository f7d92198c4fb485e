"""Runs a Flower ClientApp only if its bundle is on the owner's allow-list; it stands where Flower looks for its runner.

A SuperNode receives the client's code from the server and has the command ``flwr-clientapp`` execute it. `install` puts
a directory in front of ``PATH`` in which that command is this module, and every other runner a server might ask for is
refused. The list holds one SHA-256 of a bundle (``.fab``) a line; the bundle is compared before it is unpacked or
imported. What remains is written in docs/explanation-federation-security.md.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ebscfl.errors import ConfigError, VerificationError

VARIABLE = "EBSCFL_ALLOWED_APPS"
RUNNER = "flwr-clientapp"
OTHER_RUNNERS = ("flwr-agentapp", "flwr-connector", "flwr-model", "flwr-serverapp", "flwr-simulation")


def app_hash(bundle: bytes) -> str:
    """What the allow-list holds: SHA-256 of the bundle's bytes."""
    return hashlib.sha256(bundle).hexdigest()


def read_allowed(path: Path) -> frozenset[str]:
    """The allow-list; empty lines and text after ``#`` are comments."""
    try:
        lines = [line.split("#")[0].strip() for line in path.read_text(encoding="ascii").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the list of allowed apps {path}: {error}") from error
    found = frozenset(line.lower() for line in lines if line)
    for entry in found:
        if len(entry) != 64 or not set(entry) <= set("0123456789abcdef"):
            raise ConfigError(f"{path}: {entry[:80]!r} is not a SHA-256; `ebs-cfl client allow` writes the list")
    return found


def check_bundle(bundle: bytes, allowed: frozenset[str]) -> None:
    """Raise unless the bundle is on the list."""
    found = app_hash(bundle)
    if found not in allowed:
        raise VerificationError(f"the server sent an app that is not allowed here: sha256 {found}")


def install(directory: Path, allowed: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a guarded SuperNode; writes the runners into ``directory``."""
    read_allowed(allowed)
    directory.mkdir(parents=True, exist_ok=True)
    python = shlex.quote(sys.executable)
    _script(directory / RUNNER, f'#!/bin/sh\nexec {python} -m ebscfl.flower.guard "$@"\n')
    for name in OTHER_RUNNERS:
        _script(directory / name, f"#!/bin/sh\necho 'refused: {name} may not run on this client' >&2\nexit 77\n")
    path = os.pathsep.join((str(directory.resolve()), environment.get("PATH", os.defpath)))
    return {**environment, "PATH": path, VARIABLE: str(allowed.resolve())}


def _script(path: Path, text: str) -> None:
    path.write_text(text, encoding="ascii")
    path.chmod(0o755)


def main() -> None:
    """Flower's runner with the check in front of the one place where it unpacks a bundle."""
    name = os.environ.get(VARIABLE, "")
    if not name:
        raise SystemExit(f"{VARIABLE} is not set: start the SuperNode with `ebs-cfl client serve`")
    allowed = read_allowed(Path(name))
    from flwr.cli.config_utils import get_fab_metadata
    from flwr.supernode.cli.flwr_clientapp import flwr_clientapp
    from flwr.supernode.runtime import run_clientapp as runner

    pull: Any = runner.pull_task_input

    def checked(client: Any) -> Any:
        message, context, run, fab = pull(client)
        check_bundle(fab.content, allowed)
        # These choose the folder the app is imported from: they must be the bundle's own, not the server's word.
        name, version = get_fab_metadata(fab.content)
        if (run.fab_id, run.fab_version, fab.hash_str) != (name, version, app_hash(fab.content)):
            raise VerificationError("the server names another app than the one it sent")
        return message, context, run, fab

    runner.pull_task_input = checked
    flwr_clientapp()


if __name__ == "__main__":
    main()
