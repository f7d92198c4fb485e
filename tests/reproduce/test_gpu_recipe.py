"""The GPU recipe is a script that can be read by bash and gives up in time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_reproduce.sh"


def test_without_time_nothing_starts(tmp_path: Path) -> None:
    done = subprocess.run(["bash", str(SCRIPT), str(tmp_path / "out"), "10"], capture_output=True, text=True)
    assert done.returncode == 130
    assert "no time left" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_missing_pack_is_one_line(tmp_path: Path) -> None:

    environment = {
        **os.environ,
        "PYTHON": sys.executable,
        "EBSCFL_DATA": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path),
    }
    command = ["bash", str(SCRIPT), str(tmp_path / "out"), "60"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode not in (0, 130)
    assert done.stderr.startswith("ebs-cfl: cifar10-packed")
    assert "pack_cifar.py" in done.stderr
