"""`plain`: the three roles with nothing hidden, the baseline of cost and the control of every audit."""

from __future__ import annotations

from collections.abc import Sequence

from ebscfl.ids import KDC
from ebscfl.protocol.plain.client import PlainClient
from ebscfl.protocol.plain.server import PlainServer
from ebscfl.protocol.roles import ClientRole, KdcRole, ServerRole, Setup


class NoKdc(KdcRole):
    """There is no key to deal."""

    protocol = "plain"

    def handlers(self) -> dict:  # type: ignore[type-arg]
        return {}


def make_roles(setup: Setup, root: bytes) -> tuple[KdcRole, ServerRole, Sequence[ClientRole]]:
    """Key centre, server and clients of one run; ``root`` is not needed, nothing here is random."""
    return NoKdc(setup, KDC), PlainServer(setup), [PlainClient(setup, i) for i in range(setup.num_clients)]
