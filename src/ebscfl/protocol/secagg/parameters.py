"""Sizes and thresholds of a secure sum, from the options of its `Setup`.

Options: ``clip`` (largest coordinate, 1.0); masks: ``threshold_share`` (more than this share of a neighborhood must
answer, 0.5), ``degree`` (secagg-plus), ``edge_factor`` (ccesa); codes: ``privacy`` (colluders), ``pieces``, ``code``
("ramp" or "lagrange"). Defaults: FastSecAgg stands 10 % colluders and 10 % drop-outs, the setting of its paper;
LightSecAgg stands 50 % and 30 %, SecAgg, SecAgg+ and CCESA a minority of either among the neighbors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ebscfl import rng
from ebscfl.errors import ConfigError
from ebscfl.protocol.roles import Floats, Setup
from ebscfl.secagg import (
    NTT_PRIME,
    CodeShape,
    FixedPoint,
    Graph,
    LagrangeCode,
    RampCode,
    complete,
    erdos_renyi,
    harary,
)
from ebscfl.secagg.graphs import edge_probability, harary_degree
from ebscfl.secagg.ramp import Code

Words = npt.NDArray[np.uint32]

MASKED = ("secagg", "secagg-plus", "ccesa")
CODED = ("fastsecagg", "lightsecagg")
OPTIONS = {
    "secagg": ("clip", "threshold_share"),
    "secagg-plus": ("clip", "threshold_share", "degree"),
    "ccesa": ("clip", "threshold_share", "edge_factor"),
    "fastsecagg": ("clip", "privacy", "pieces", "code"),
    "lightsecagg": ("clip", "privacy", "pieces", "code"),
}
CODES: dict[str, Callable[[CodeShape], Code]] = {"ramp": RampCode, "lagrange": LagrangeCode}


@dataclass(frozen=True)
class SumParameters:
    """What server and clients agree on."""

    protocol: str
    num_clients: int
    num_clusters: int
    dim: int
    fixed: FixedPoint
    threshold_share: float
    degree: int
    edge_probability: float
    code: Code | None

    @property
    def width(self) -> int:
        """Words in an input: one slot a cluster, so that the slot used stays hidden."""
        return self.num_clusters * self.dim

    def threshold(self, size: int) -> int:
        """Shares that give a secret back in a neighborhood of ``size``, the client itself counted."""
        return min(size, math.floor(self.threshold_share * size) + 1)

    def graph(self, root: bytes, round_id: int) -> Graph:
        """The round's public graph."""
        draw = rng.numpy_generator(root, rng.USAGE_SECAGG, "graph", round_id)
        if self.protocol == "secagg-plus":
            return harary(self.num_clients, self.degree, draw)
        if self.protocol == "ccesa":
            return erdos_renyi(self.num_clients, self.edge_probability, draw)
        return complete(self.num_clients)

    def place(self, update: Floats, cluster: int) -> Words:
        """The input: the fixed-point update in its cluster's slot, zeros elsewhere."""
        words = self.fixed.embed(self.fixed.encode(update))
        if self.num_clusters == 1:
            return words
        out = np.zeros(self.width, dtype=np.uint32)
        out[cluster * self.dim : (cluster + 1) * self.dim] = words
        return out


def parameters(setup: Setup) -> SumParameters:
    """Check the options and settle the sizes."""
    name, n = setup.protocol, setup.num_clients
    if name not in OPTIONS:
        raise ConfigError(f"unknown secure sum {name!r}; there are: {', '.join(OPTIONS)}")
    if n < 2:
        raise ConfigError("a secure sum needs at least two clients")
    unknown = set(setup.options) - set(OPTIONS[name])
    if unknown:
        raise ConfigError(f"protocol {name} has no option {sorted(unknown)[0]!r}; it has: {', '.join(OPTIONS[name])}")
    share = float(setup.option("threshold_share", 0.5))
    if not 0.5 <= share < 1:
        # Below one half a lying server could split the clients and open both masks of one of them.
        raise ConfigError(f"threshold_share must lie in [0.5, 1), not {share}")
    modulus = NTT_PRIME if name in CODED else 1 << 32
    return SumParameters(
        protocol=name,
        num_clients=n,
        num_clusters=setup.num_clusters,
        dim=setup.dim,
        fixed=FixedPoint(modulus, n, float(setup.option("clip", 1.0))),
        threshold_share=share,
        degree=int(setup.option("degree", harary_degree(n))),
        edge_probability=edge_probability(n, float(setup.option("edge_factor", 1.1))),
        code=_code(setup) if name in CODED else None,
    )


def _code(setup: Setup) -> Code:
    n = setup.num_clients
    if setup.protocol == "fastsecagg":
        tenth = max(1, math.ceil(n / 10))
        privacy = int(setup.option("privacy", tenth))
        pieces = int(setup.option("pieces", max(1, n - privacy - tenth)))
    else:
        privacy = int(setup.option("privacy", n // 2))
        pieces = int(setup.option("pieces", max(1, math.floor(0.7 * n) - privacy)))
    kind = str(setup.option("code", "ramp"))
    if kind not in CODES:
        raise ConfigError(f"code must be one of {', '.join(CODES)}, not {kind!r}")
    return CODES[kind](CodeShape(n, pieces, privacy))
