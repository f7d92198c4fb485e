from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from ebscfl.algorithms import ServerState
from ebscfl.errors import CheckpointError
from ebscfl.sim.checkpoint import Checkpoint, checkpoint_path, load_checkpoint, save_checkpoint, write_atomically

STATE = ServerState(torch.arange(6.0).reshape(2, 3), torch.ones(2, 3) / 3)


def save(run_dir: Path, state: ServerState = STATE, digest: str = "d") -> Path:
    return save_checkpoint(run_dir, digest, Checkpoint("rfca", "sine", 7, state))


def test_round_trip_is_exact(tmp_path: Path) -> None:
    save(tmp_path)
    found = load_checkpoint(tmp_path, "d", "rfca", "sine")
    assert found is not None
    assert found.round_id == 7
    assert torch.equal(found.state.models, STATE.models)
    assert found.state.server_updates is not None
    assert STATE.server_updates is not None
    assert torch.equal(found.state.server_updates, STATE.server_updates)


def test_state_without_root_updates(tmp_path: Path) -> None:
    save(tmp_path, ServerState(STATE.models))
    found = load_checkpoint(tmp_path, "d", "rfca", "sine")
    assert found is not None
    assert found.state.server_updates is None


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path, "d", "rfca", "sine") is None


def test_nothing_temporary_stays(tmp_path: Path) -> None:
    path = save(tmp_path)
    save(tmp_path)
    assert [entry.name for entry in path.parent.iterdir()] == ["rfca--sine.npz"]


@pytest.mark.parametrize("content", [b"", b"not an archive", b"PK\x03\x04 broken"])
def test_other_files_in_its_place_are_refused(tmp_path: Path, content: bytes) -> None:
    write_atomically(checkpoint_path(tmp_path, "rfca", "sine"), content)
    with pytest.raises(CheckpointError, match="corrupt"):
        load_checkpoint(tmp_path, "d", "rfca", "sine")


def test_any_flipped_bit_or_cut_is_noticed(tmp_path: Path) -> None:
    path = save(tmp_path)
    whole = path.read_bytes()
    for cut in (len(whole) // 4, len(whole) // 2, len(whole) - 30):
        path.write_bytes(whole[:cut])
        with pytest.raises(CheckpointError):
            load_checkpoint(tmp_path, "d", "rfca", "sine")
    position = whole.index(STATE.models.numpy().tobytes())
    path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
    with pytest.raises(CheckpointError, match="corrupt"):
        load_checkpoint(tmp_path, "d", "rfca", "sine")


def test_checksum_of_the_header_is_checked_beside_the_archives_own(tmp_path: Path) -> None:
    path = save(tmp_path)
    with np.load(path) as archive:
        header = archive["header"]
        arrays = {"models": archive["models"] + 1, "server_updates": archive["server_updates"]}
    np.savez(path, header=header, **arrays)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="checksum differs"):
        load_checkpoint(tmp_path, "d", "rfca", "sine")


def test_checkpoints_of_other_runs_cells_and_versions_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path)
    with pytest.raises(CheckpointError, match="another run"):
        load_checkpoint(tmp_path, "other", "rfca", "sine")
    path.rename(checkpoint_path(tmp_path, "ifca", "sine"))
    with pytest.raises(CheckpointError, match="another run"):
        load_checkpoint(tmp_path, "d", "ifca", "sine")
    path = save(tmp_path)
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files}
    header = {**json.loads(arrays["header"].tobytes()), "schema": 99}
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    np.savez(path, **arrays)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="schema 99"):
        load_checkpoint(tmp_path, "d", "rfca", "sine")


def test_pickled_content_is_never_loaded(tmp_path: Path) -> None:
    path = save(tmp_path)
    np.savez(path, header=np.array([{"a": 1}], dtype=object), models=np.zeros(1))
    with pytest.raises(CheckpointError, match="corrupt"):
        load_checkpoint(tmp_path, "d", "rfca", "sine")
