"""`sealed`: the roles of the private protocol. The mathematics and its proof: `ebscfl.sealed`, docs/security-model.md.

Options:
``field``            "m31" or "m61"; by default the planner takes the smaller one that is exact enough
``quorum``           uploads without which nothing is released; by default more than half of the clients
``tolerated``        clients whose tags may fail before the server itself is taken for the liar; default quorum - 1
``min_slot_weight``  trust weight under which a cluster's slot stays closed
``epsilon, delta, dp_rounds``  differential privacy: the budget of the whole run and its number of releases
``store``            where the key centre keeps its state (a `KdcStore`; in memory by default)
"""

from __future__ import annotations

from collections.abc import Sequence

from ebscfl import rng
from ebscfl.errors import ConfigError
from ebscfl.protocol.roles import ClientRole, KdcRole, ServerRole, Setup
from ebscfl.protocol.sealed.client import SealedClient
from ebscfl.protocol.sealed.kdc import SealedKdc
from ebscfl.protocol.sealed.server import SealedServer
from ebscfl.protocol.sealed.store import MemoryStore
from ebscfl.sealed import NoiseSettings, SealedParameters, calibrate, plan

OPTIONS = ("field", "quorum", "tolerated", "min_slot_weight", "epsilon", "delta", "dp_rounds", "store")


def noise_settings(setup: Setup) -> NoiseSettings | None:
    """The privacy budget of the run, if one is set: all three values or none."""
    given = [name for name in ("epsilon", "delta", "dp_rounds") if setup.option(name, None) is not None]
    if not given:
        return None
    if len(given) < 3:
        raise ConfigError(f"differential privacy needs epsilon, delta and dp_rounds; only {', '.join(given)} given")
    return NoiseSettings(
        epsilon=float(setup.options["epsilon"]),
        delta=float(setup.options["delta"]),
        rounds=int(setup.options["dp_rounds"]),
    )


def parameters(setup: Setup) -> SealedParameters:
    """What all roles agree on: field, fixed-point bits, quorum, guards, noise."""
    unknown = sorted(set(setup.options) - set(OPTIONS))
    if unknown:
        raise ConfigError(f"protocol sealed has no option {unknown[0]!r}; it has: {', '.join(OPTIONS)}")
    noise = noise_settings(setup)
    return plan(
        setup.num_clients,
        setup.dim,
        setup.num_clusters,
        setup.option("field", None),
        quorum=setup.option("quorum", None),
        min_slot_weight=float(setup.option("min_slot_weight", 0.0)),
        noise_multiplier=0.0 if noise is None else calibrate(noise),
    )


def make_roles(setup: Setup, root: bytes) -> tuple[KdcRole, ServerRole, Sequence[ClientRole]]:
    """Key centre, server and clients; each secret is derived from its holder's own root."""
    params = parameters(setup)
    kdc = SealedKdc(
        setup,
        params,
        root=rng.derive(root, rng.USAGE_ROLE, "kdc"),
        store=setup.option("store", None) or MemoryStore(),
        noise=noise_settings(setup),
    )
    clients = [
        SealedClient(setup, params, i, root=rng.derive(root, rng.USAGE_ROLE, "client", i))
        for i in range(setup.num_clients)
    ]
    return kdc, SealedServer(setup, params), clients
