"""`paper` and `paper-naive`: the roles of EBS-CFL. Faithful, and not private: see docs/explanation-paper-protocol.md.

Options: ``segment`` (t, gradient segment length), ``group`` (xi_1, clients in a leaf group), ``zeta`` ("printed" or
"traceless"). The naive scheme has one segment and one group.
"""

from __future__ import annotations

from collections.abc import Sequence

from ebscfl.errors import ConfigError
from ebscfl.paper import PaperParameters
from ebscfl.protocol.paper.client import PaperClient
from ebscfl.protocol.paper.kdc import PaperKdc
from ebscfl.protocol.paper.server import PaperServer
from ebscfl.protocol.roles import ClientRole, KdcRole, ServerRole, Setup

OPTIONS = ("segment", "group", "zeta")


def parameters(setup: Setup, num_clients: int | None = None) -> PaperParameters:
    """The sizes of the scheme for this set-up and, after a restart, fewer clients."""
    unknown = set(setup.options) - set(OPTIONS)
    if unknown:
        raise ConfigError(
            f"protocol {setup.protocol} has no option {sorted(unknown)[0]!r}; it has: {', '.join(OPTIONS)}"
        )
    count = setup.num_clients if num_clients is None else num_clients
    defaults = PaperParameters.__dataclass_fields__
    return PaperParameters(
        num_clients=count,
        num_clusters=setup.num_clusters,
        dim=setup.dim,
        segment_len=min(int(setup.option("segment", defaults["segment_len"].default)), setup.dim),
        group_size=min(int(setup.option("group", 1)), count),
        zeta=str(setup.option("zeta", "printed")),
        scheme="naive" if setup.protocol == "paper-naive" else "compressed",
    )


def make_roles(setup: Setup, root: bytes) -> tuple[KdcRole, ServerRole, Sequence[ClientRole]]:
    """Key centre, server and clients; only the key centre gets ``root``."""
    parameters(setup)  # refuse impossible sizes before anything is built
    clients = [PaperClient(setup, i, parameters) for i in range(setup.num_clients)]
    return PaperKdc(setup, root, parameters), PaperServer(setup, parameters), clients
