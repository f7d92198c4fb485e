"""The comparators' roles: SecAgg, SecAgg+, CCESA, FastSecAgg and LightSecAgg, semi-honest, as their papers have them.

They add fixed-point updates up exactly and hide everything else; they know no trust, so they are no rival in
robustness, only in cost. `run.SecureSumSession` plays a round; read it first.
"""

from __future__ import annotations

from collections.abc import Sequence

from ebscfl import rng
from ebscfl.protocol.roles import Setup
from ebscfl.protocol.secagg.coded_client import InputCodeClient, MaskCodeClient
from ebscfl.protocol.secagg.coded_server import InputCodeServer, MaskCodeServer
from ebscfl.protocol.secagg.masked_client import MaskedClient
from ebscfl.protocol.secagg.masked_server import MaskedServer
from ebscfl.protocol.secagg.parameters import SumParameters, parameters
from ebscfl.protocol.secagg.roles import SumClient, SumServer

__all__ = ["SumClient", "SumParameters", "SumServer", "make_sum_roles", "parameters"]


def make_sum_roles(setup: Setup, root: bytes) -> tuple[SumServer, Sequence[SumClient]]:
    """Server and clients; each gets its own root, so nobody can derive another's secrets."""
    params = parameters(setup)
    server_root = rng.derive(root, rng.USAGE_SECAGG, "server")
    roots = [rng.derive(root, rng.USAGE_SECAGG, "client", i) for i in range(setup.num_clients)]
    code = params.code
    if code is None:
        return MaskedServer(setup, params, server_root), [
            MaskedClient(setup, params, i, own) for i, own in enumerate(roots)
        ]
    if setup.protocol == "lightsecagg":
        return MaskCodeServer(setup, params, server_root, code), [
            MaskCodeClient(setup, params, i, own, code) for i, own in enumerate(roots)
        ]
    return InputCodeServer(setup, params, server_root, code), [
        InputCodeClient(setup, params, i, own, code) for i, own in enumerate(roots)
    ]
