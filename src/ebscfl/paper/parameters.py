"""The sizes of one instance of the paper's scheme, and which client sits in which group slot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ebscfl.errors import CapacityError, ConfigError
from ebscfl.linalg import F64

FloatT = TypeVar("FloatT", bound=np.floating)

SCHEMES = ("compressed", "naive")
ZETAS = ("printed", "traceless")

NAIVE_LIMIT = 1 << 26
"""Most numbers the naive scheme's dense scoring key may have (512 MiB): it grows like (l m n)^3."""


@dataclass(frozen=True)
class PaperParameters:
    """Sizes of the scheme (docs/notation.md). The naive scheme is one segment (t = l) and one group of all clients.

    ``zeta`` says what the decode masks zeta_i sum to: "printed", zero as in the paper, or "traceless", an invertible
    matrix of trace zero (erratum 7). Client i sits in group i // group_size, slot i % group_size; the last group may
    have empty slots.
    """

    num_clients: int  # n
    num_clusters: int  # m
    dim: int  # l
    segment_len: int = 2  # t; why 2: docs/explanation-paper-protocol.md
    group_size: int = 1  # xi_1
    zeta: str = "printed"
    scheme: str = "compressed"

    def __post_init__(self) -> None:
        if self.scheme not in SCHEMES:
            raise ConfigError(f"scheme must be one of {SCHEMES}, not {self.scheme!r}")
        if self.zeta not in ZETAS:
            raise ConfigError(f"zeta must be one of {ZETAS}, not {self.zeta!r}")
        if self.scheme == "naive":
            object.__setattr__(self, "segment_len", self.dim)
            object.__setattr__(self, "group_size", self.num_clients)
        for name in ("num_clusters", "dim", "segment_len", "group_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.num_clients < 2:
            raise ConfigError(
                f"masks that sum to zero need at least 2 clients, not {self.num_clients}: one client cannot be hidden"
            )
        if self.group_size > self.num_clients:
            raise ConfigError(f"group_size {self.group_size} exceeds the {self.num_clients} clients")
        if self.width == 1 and self.num_clients % 2:
            raise ConfigError(
                f"one-dimensional masks (segment_len · num_clusters = 1) need an even number of clients, not "
                f"{self.num_clients}: raise segment_len"
            )
        if self.width == 1 and self.zeta == "traceless":
            raise ConfigError("a 1 x 1 zeta of trace zero is not invertible: raise segment_len")
        dense = self.update_width * self.weight_width**2
        if self.scheme == "naive" and dense > NAIVE_LIMIT:
            raise CapacityError(
                f"the naive scheme needs a scoring key of {dense} numbers for n={self.num_clients}, "
                f"m={self.num_clusters}, l={self.dim}; the limit is {NAIVE_LIMIT}: use scheme='compressed'"
            )

    @property
    def num_segments(self) -> int:
        """s = ceil(l / t); the last segment is padded with zeros."""
        return -(-self.dim // self.segment_len)

    @property
    def width(self) -> int:
        """p = t·m, the length of one segment spread over the clusters."""
        return self.segment_len * self.num_clusters

    @property
    def num_groups(self) -> int:
        """Leaf groups."""
        return -(-self.num_clients // self.group_size)

    @property
    def weight_width(self) -> int:
        """q = 2·p·xi_1, columns of the key space of the weights in one group."""
        return 2 * self.width * self.group_size

    @property
    def update_width(self) -> int:
        """u = 3·p·xi_1, columns of the key space of the updates in one group, so of every upload."""
        return 3 * self.width * self.group_size

    @property
    def upload_shape(self) -> tuple[int, int]:
        """Shape (s, u) of delta_i and of ek^1_i."""
        return self.num_segments, self.update_width

    def group_of(self, client: int) -> int:
        """The leaf group of ``client``."""
        return client // self.group_size

    def slot_of(self, client: int) -> int:
        """Its place in that group."""
        return client % self.group_size

    def members(self, group: int) -> range:
        """The clients of ``group``, in slot order."""
        return range(group * self.group_size, min((group + 1) * self.group_size, self.num_clients))

    def occupied(self) -> F64:
        """(G, xi_1): 1.0 where a slot holds a client, 0.0 where the last group is not full."""
        slots = np.arange(self.num_groups * self.group_size) < self.num_clients
        return slots.astype(np.float64).reshape(self.num_groups, self.group_size)

    def by_slot(self, per_client: npt.NDArray[FloatT]) -> npt.NDArray[FloatT]:
        """(n, ...) -> (G, xi_1, ...), empty slots zero."""
        missing = self.num_groups * self.group_size - self.num_clients
        if missing:
            per_client = np.concatenate([per_client, np.zeros((missing, *per_client.shape[1:]))])
        return per_client.reshape(self.num_groups, self.group_size, *per_client.shape[1:])
