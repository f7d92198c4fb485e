"""The Flower app as files: a `pyproject.toml` that names our components, written where ``flwr run`` can take it."""

from __future__ import annotations

from pathlib import Path

LICENSE = "Apache License 2.0, as the ebscfl package itself.\n"
PYPROJECT = """\
# A Flower app: `flwr run examples/flower-app`. The components live in the ebscfl package, which every machine installs.
[project]
name = "ebscfl-app"
version = "1.0.0"
description = "Clustered, Byzantine-robust training under a secure protocol"
license = { file = "LICENSE" }
dependencies = ["ebscfl[federation]", "flwr>=1.41.0,<1.42"]

[tool.flwr.app]
publisher = "ebscfl"
fab-format-version = 1
flwr-version-target = "1.41.0"

[tool.flwr.app.components]
serverapp = "ebscfl.flower.server_app:app"
clientapp = "ebscfl.flower.client_app:app"

[tool.flwr.app.config]
directory = ""     # the server's directory; empty: $EBSCFL_SERVER_DIR of the SuperLink
steps = 0          # training steps; 0: `rounds` of the server's config.toml
quorum = 0         # uploads a round needs; 0: more than half
first-s = 120.0    # after this the missing are asked once more
last-s = 120.0     # and after this they are left out
gather-s = 120.0   # wait this long for all clients at the start
patience-s = 120.0 # wait this long for a key centre that is away
workers = 0        # processes that share the server's heavy sums; 0: none
"""


def write_app(directory: Path) -> Path:
    """The app's directory, made or made anew."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "pyproject.toml").write_text(PYPROJECT, encoding="utf-8")
    (directory / "LICENSE").write_text(LICENSE, encoding="utf-8")
    return directory
