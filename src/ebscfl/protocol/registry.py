"""Which protocols exist and how their roles are made; heavy imports happen only when one is chosen."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ebscfl.errors import ConfigError, DependencyError
from ebscfl.protocol.roles import ClientRole, KdcRole, ServerRole, Setup

RoleFactory = Callable[[Setup, bytes], tuple[KdcRole, ServerRole, Sequence[ClientRole]]]


@dataclass(frozen=True)
class ProtocolInfo:
    """One line of the list users choose from."""

    name: str
    module: str  # holds make_roles(setup, root)
    summary: str
    hides_updates: bool
    normalizations: tuple[str, ...]


_ALL = (
    ProtocolInfo("plain", "ebscfl.protocol.plain", "nothing is hidden", False, ("cluster", "global")),
    ProtocolInfo(
        "paper", "ebscfl.protocol.paper", "EBS-CFL, compressed; a curious server undoes it", False, ("global",)
    ),
    ProtocolInfo(
        "paper-naive", "ebscfl.protocol.paper", "EBS-CFL, naive; a curious server undoes it", False, ("global",)
    ),
    ProtocolInfo(
        "sealed", "ebscfl.protocol.sealed", "private: the server learns the sums only", True, ("cluster", "global")
    ),
)
PROTOCOLS: dict[str, ProtocolInfo] = {info.name: info for info in _ALL}

_SUMS = (
    ("secagg", "SecAgg: pairwise and self masks, everybody with everybody"),
    ("secagg-plus", "SecAgg+: the same on a k-regular graph, k = O(log n)"),
    ("ccesa", "CCESA: the same on a random graph"),
    ("fastsecagg", "FastSecAgg: the update itself is shared by a ramp code"),
    ("lightsecagg", "LightSecAgg: one mask a client, shared by a ramp code"),
)
SECURE_SUMS: dict[str, ProtocolInfo] = {
    name: ProtocolInfo(name, "ebscfl.protocol.secagg", summary, True, ()) for name, summary in _SUMS
}
"""Comparators: they add updates up exactly, know no trust, and are driven by `protocol.secagg.SecureSumSession`."""


def protocol_info(name: str) -> ProtocolInfo:
    """The entry of ``name``, or a `ConfigError` that lists what there is."""
    if name not in PROTOCOLS:
        raise ConfigError(f"unknown protocol {name!r}; there are: {', '.join(sorted(PROTOCOLS))}")
    return PROTOCOLS[name]


def make_roles(setup: Setup, root: bytes) -> tuple[KdcRole, ServerRole, Sequence[ClientRole]]:
    """Key centre, server and one client role per client for the protocol ``setup`` names."""
    info = protocol_info(setup.protocol)
    if setup.normalize not in info.normalizations:
        raise ConfigError(
            f"protocol {info.name} gives normalize = {' or '.join(map(repr, info.normalizations))}, "
            f"not {setup.normalize!r}"
        )
    try:
        factory: RoleFactory = importlib.import_module(info.module).make_roles
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("ebscfl"):
            raise
        raise DependencyError(f"protocol {info.name} needs the package {error.name!r}: pip install ebscfl") from error
    return factory(setup, root)
