"""The ServerApp: a coordinator on the server's directory, driven through Flower's grid.

Run configuration (``flwr run --run-config``): ``directory`` (the server's directory), ``steps``, ``first-s``,
``last-s``, ``quorum``, ``gather-s``, ``patience-s`` and ``workers`` (processes that share the heavy sums).
A killed run is continued by the same ``flwr run``: the state is in the directory.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from ebscfl.errors import ConfigError
from ebscfl.federation.coordinator import Coordinator
from ebscfl.federation.rounds import Deadlines
from ebscfl.federation.scaleout import open_pool
from ebscfl.federation.training import Training, load_config
from ebscfl.flower.strategy import ProtocolStrategy
from ebscfl.kdc_service.deployment import RunFile, open_stub, write_durably
from ebscfl.kdc_service.stub import Patience

DIRECTORY_VARIABLE = "EBSCFL_SERVER_DIR"


def directory_of(settings: Any) -> Path:
    """The server's directory: run configuration, else the environment of the SuperLink."""
    name = settings.get("directory") or os.environ.get(DIRECTORY_VARIABLE, "")
    if not name:
        raise ConfigError(f"set directory in the run configuration, or {DIRECTORY_VARIABLE} for the SuperLink")
    return Path(str(name))


def main(grid: Grid, context: Context) -> None:
    """Train to the end and leave results.json in the server's directory."""
    settings = context.run_config
    directory = directory_of(settings)
    extra = json.loads((directory / "training.json").read_text()) if (directory / "training.json").exists() else {}
    training = Training(load_config(directory), attack=str(extra.get("attack", "none")))
    clients = RunFile.load(directory).setup.num_clients
    deadlines = Deadlines(
        first_s=float(settings.get("first-s", 120.0)),
        last_s=float(settings.get("last-s", 120.0)),
        quorum=int(settings.get("quorum", 0)) or clients // 2 + 1,
        pause_s=0.1,
    )
    stub = open_stub(directory, patience=Patience(in_all_s=float(settings.get("patience-s", 120.0))))
    with open_pool(int(settings.get("workers", 0))) as pool:
        train(grid, settings, Coordinator(directory, training, stub, deadlines, pool))


def train(grid: Grid, settings: Any, coordinator: Coordinator) -> None:
    """All steps; leaves results.json, and the coordinator closed."""
    try:
        strategy = ProtocolStrategy(coordinator, gather_s=float(settings.get("gather-s", 120.0)))
        steps = int(settings.get("steps", 0)) or coordinator.training.config.rounds
        strategy.start(grid, num_rounds=steps)
        document = {
            "steps": coordinator.checkpoint.step,
            "results": coordinator.results(),
            "dropped": strategy.exchange.dropped if strategy.exchange else {},
        }
        write_durably(coordinator.directory / "results.json", json.dumps(document, indent=2).encode())
    finally:
        coordinator.close()


app = ServerApp()
app.main()(main)
