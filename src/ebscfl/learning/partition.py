"""Who holds which sample: i.i.d., skewed and clustered federations of a data set, as a function of a seed root."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from ebscfl.errors import ConfigError

Kind = Literal["iid", "group", "dirichlet", "dirichlet-client", "rotation", "permutation", "writer"]
RootParts = Literal["clients", "domains", "balanced"]
KINDS: tuple[str, ...] = get_args(Kind)
ROOT_PARTS: tuple[str, ...] = get_args(RootParts)


@dataclass(frozen=True, eq=False)
class Domain:
    """What a holder's world does to a raw sample."""

    quarter_turns: int  # torch.rot90 by this many
    label_map: npt.NDArray[np.int64]  # (classes,): y becomes label_map[y]


@dataclass(frozen=True, eq=False)
class Part:
    """The rows of the train set that one holder has, and the domain it sees them through."""

    indices: npt.NDArray[np.int64]
    domain: int


@dataclass(frozen=True, eq=False)
class Partition:
    """Clients and the server's clean root set; no train row has two holders."""

    clients: tuple[Part, ...]
    root: tuple[Part, ...]
    domains: tuple[Domain, ...]


@dataclass(frozen=True)
class PartitionSettings:
    """How to share a train set out; checked on construction."""

    kind: str = "iid"  # one of KINDS
    clients: int = 20
    alpha: float = 0.5  # concentration of the Dirichlet kinds
    skew: float = 0.5  # q of FLTrust ("group"); 1 / classes is i.i.d.
    groups: int = 4  # rotations or label permutations
    min_size: int = 10  # fewest samples a client may hold
    root_size: int = 100  # samples the server holds in all
    root_parts: str = "clients"  # one of ROOT_PARTS
    root_bias: float = 0.1  # p of FLTrust ("balanced"): share of class 1 in the root set
    samples: int | None = None  # use only this many train samples

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"partition kind must be one of {', '.join(KINDS)}, not {self.kind!r}")
        if self.root_parts not in ROOT_PARTS:
            raise ConfigError(f"root_parts must be one of {', '.join(ROOT_PARTS)}, not {self.root_parts!r}")
        for name in ("clients", "groups", "min_size", "root_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.samples is not None and self.samples < 1:
            raise ConfigError(f"samples must be at least 1, not {self.samples}")
        if not (np.isfinite(self.alpha) and self.alpha > 0):
            raise ConfigError(f"alpha must be a positive number, not {self.alpha}")
        for name in ("skew", "root_bias"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} must lie in 0..1, not {getattr(self, name)}")
