"""ebscfl: secure, Byzantine-robust, clustered federated learning.

The names below are loaded when first used, so that importing one small module does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ebscfl.config import RunConfig, list_presets, load_preset
    from ebscfl.sim.runner import RunResult, resume, run

__version__ = "0.1.0"

__all__ = ["RunConfig", "RunResult", "__version__", "list_presets", "load_preset", "resume", "run"]

_HOMES = {
    "RunConfig": "ebscfl.config",
    "list_presets": "ebscfl.config",
    "load_preset": "ebscfl.config",
    "RunResult": "ebscfl.sim.runner",
    "resume": "ebscfl.sim.runner",
    "run": "ebscfl.sim.runner",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ebscfl' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
