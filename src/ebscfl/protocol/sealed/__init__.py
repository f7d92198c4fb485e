"""`sealed`: the roles of the private protocol. The mathematics and its proof: `ebscfl.sealed`, docs/security-model.md.

Options:
``field``            "m31" or "m61"; by default the planner takes the smaller one that is exact enough
``quorum``           uploads without which nothing is released; by default more than half of the clients
``tolerated``        clients whose tags may fail before the server itself is taken for the liar; default quorum - 1
``min_slot_weight``  trust weight under which a cluster's slot stays closed
``epsilon, delta, dp_rounds``  differential privacy: the budget of the whole run and its number of releases
``history``          true: weigh clients by their scores over all rounds (RFCA-H), kept in the key centre's store;
                     ``history_settings`` (`HistorySettings`, or its fields), ``history_start`` (an earlier one)
``store``            where the key centre keeps its state: a path (SQLite) or a `KdcStore`; in memory by default
``server_store``     where the server keeps what it must: a path (SQLite); nothing by default
``client_store``     a directory with one such file a client; nothing by default
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ebscfl import rng
from ebscfl.errors import ConfigError, EbscflError
from ebscfl.protocol.roles import ClientRole, KdcRole, ServerRole, Setup
from ebscfl.protocol.sealed.client import SealedClient
from ebscfl.protocol.sealed.history import score_memory
from ebscfl.protocol.sealed.kdc import SealedKdc
from ebscfl.protocol.sealed.round_store import RoundStore
from ebscfl.protocol.sealed.server import SealedServer
from ebscfl.protocol.sealed.store import KdcStore, MemoryStore, SqliteStore
from ebscfl.sealed import NoiseSettings, SealedParameters, calibrate, plan

OPTIONS = (
    *("field", "quorum", "tolerated", "min_slot_weight"),
    *("epsilon", "delta", "dp_rounds"),
    *("history", "history_settings", "history_start"),
    *("store", "server_store", "client_store"),
)


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


def tolerated_failures(setup: Setup, params: SealedParameters) -> int:
    """Clients that may fail their tags. The quorum must exceed the number of corrupt clients, so it bounds this."""
    tolerated = setup.option("tolerated", None)
    if tolerated is None:
        return params.quorum - 1
    if isinstance(tolerated, bool) or not isinstance(tolerated, int) or not 0 <= tolerated < params.quorum:
        raise ConfigError(f"tolerated must lie in 0..{params.quorum - 1} (below the quorum), not {tolerated!r}")
    return tolerated


def kdc_store(setup: Setup) -> KdcStore:
    """The store that the option names."""
    store = setup.option("store", None)
    if store is None or isinstance(store, KdcStore):
        return store or MemoryStore()
    return SqliteStore(Path(store))


def _round_store(path: Path | str | None) -> RoundStore | None:
    return None if path is None else RoundStore(Path(path))


def make_roles(setup: Setup, root: bytes) -> tuple[KdcRole, ServerRole, Sequence[ClientRole]]:
    """Key centre, server and clients; each secret is derived from its holder's own root."""
    params = parameters(setup)
    store = kdc_store(setup)
    try:
        kdc = SealedKdc(
            setup,
            params,
            root=rng.derive(root, rng.USAGE_ROLE, "kdc"),
            store=store,
            noise=noise_settings(setup),
            tolerated=tolerated_failures(setup, params),
            memory=score_memory(setup, store),
        )
    except EbscflError:
        if store is not setup.option("store", None):
            store.close()  # opened here: a refused run must not keep it locked
        raise
    folder = setup.option("client_store", None)
    clients = [
        SealedClient(
            setup,
            params,
            i,
            root=rng.derive(root, rng.USAGE_ROLE, "client", i),
            rounds=_round_store(None if folder is None else Path(folder) / f"client-{i}.sqlite"),
        )
        for i in range(setup.num_clients)
    ]
    return kdc, SealedServer(setup, params, store=_round_store(setup.option("server_store", None))), clients
