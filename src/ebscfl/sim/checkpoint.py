"""Checkpoints of a cell: the server's state after a round, in one file that is either whole or absent.

The file is an npz archive without pickled objects: ``header`` (JSON: schema, config digest, method, attack, round,
checksum) and the state's arrays. Anything else in its place, or a header of another run, is a `CheckpointError`.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from ebscfl.algorithms import ServerState
from ebscfl.errors import CheckpointError
from ebscfl.rules.score_history import History, history_from_json, history_to_json

SCHEMA = 2


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Where a cell stands: everything it needs to go on."""

    method: str
    attack: str
    round_id: int  # rounds completed
    state: ServerState


def checkpoint_path(run_dir: Path, method: str, attack: str) -> Path:
    """checkpoints/<method>--<attack>.npz"""
    return run_dir / "checkpoints" / f"{method}--{attack}.npz"


def write_atomically(path: Path, content: bytes) -> None:
    """Replace ``path`` by ``content`` so that a crash leaves the old file or the new one, never a piece."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def save_checkpoint(run_dir: Path, digest: str, checkpoint: Checkpoint) -> Path:
    """Write the checkpoint of a cell, replacing the one before."""
    arrays = {"models": checkpoint.state.models.cpu().numpy()}
    if checkpoint.state.server_updates is not None:
        arrays["server_updates"] = checkpoint.state.server_updates.cpu().numpy()
    if checkpoint.state.choices is not None:
        arrays["choices"] = checkpoint.state.choices.cpu().numpy()
    for k, history in enumerate(checkpoint.state.histories):
        for name, values in history_to_json(history).items():
            dtype = np.int64 if name in ("clients", "seen") else np.float64
            arrays[f"history-{k}-{name}"] = np.asarray(values, dtype=dtype)
    header = {
        "schema": SCHEMA,
        "config": digest,
        "method": checkpoint.method,
        "attack": checkpoint.attack,
        "round": checkpoint.round_id,
        "checksum": _checksum(arrays),
    }
    text = np.frombuffer(json.dumps(header, sort_keys=True).encode(), dtype=np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, header=text, **arrays)
    path = checkpoint_path(run_dir, checkpoint.method, checkpoint.attack)
    write_atomically(path, buffer.getvalue())
    return path


def load_checkpoint(run_dir: Path, digest: str, method: str, attack: str) -> Checkpoint | None:
    """The checkpoint of a cell, None where it has none yet.

    Raises:
        CheckpointError: the file is damaged, or belongs to another cell or configuration.
    """
    path = checkpoint_path(run_dir, method, attack)
    if not path.exists():
        return None
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        header = json.loads(arrays.pop("header").tobytes())
        schema, config, checksum = header["schema"], header["config"], header["checksum"]
        cell, round_id = (header["method"], header["attack"]), int(header["round"])
        models = torch.from_numpy(arrays["models"])
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise CheckpointError(
            f"{path} is corrupt ({type(error).__name__}): delete it to start this cell anew"
        ) from None
    if schema != SCHEMA:
        raise CheckpointError(f"{path} has schema {schema}, this version reads {SCHEMA}: delete it to start anew")
    if checksum != _checksum(arrays):
        raise CheckpointError(f"{path} is corrupt (checksum differs): delete it to start this cell anew")
    if config != digest or cell != (method, attack):
        raise CheckpointError(
            f"{path} belongs to another run or configuration: resume with the config.toml it came from"
        )
    updates, choices = arrays.get("server_updates"), arrays.get("choices")
    state = ServerState(
        models,
        None if updates is None else torch.from_numpy(updates),
        None if choices is None else torch.from_numpy(choices),
        _histories(arrays),
    )
    return Checkpoint(method, attack, round_id, state)


def _histories(arrays: dict[str, npt.NDArray[np.generic]]) -> tuple[History, ...]:
    """The score histories, in order."""
    found: dict[int, dict[str, list[float]]] = {}
    for name, values in arrays.items():
        if name.startswith("history-"):
            _, number, field = name.split("-")
            found.setdefault(int(number), {})[field] = values.tolist()
    return tuple(history_from_json(found[k]) for k in sorted(found))


def _checksum(arrays: dict[str, npt.NDArray[np.generic]]) -> str:
    digest = hashlib.sha256()
    for name, values in sorted(arrays.items()):
        digest.update(f"{name} {values.dtype} {values.shape}\n".encode())
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()
