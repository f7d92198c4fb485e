"""Who holds which key in the paper's scheme: frozen dataclasses that never print and can be wiped."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ebscfl.linalg import F64


def own(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """``array`` itself if its memory can be overwritten later, else a copy that can.

    A transport that hands over a buffer of its own saves the copy and has its received bytes wiped with the key; one
    that hands over immutable bytes keeps those until Python frees them.
    """
    try:
        array.setflags(write=True)
    except ValueError:
        return np.array(array)
    array.setflags(write=False)
    return array


class SecretArrays:
    """Base of key dataclasses: arrays are made read-only, ``repr`` shows no content, `wipe` zeroes the buffers.

    A class takes over the arrays it is given: nobody else may go on writing to them.
    """

    def __post_init__(self) -> None:
        for array in self._arrays():
            array.setflags(write=False)

    def _members(self) -> Iterator[Any]:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            yield from value if isinstance(value, tuple) else (value,)

    def _arrays(self) -> Iterator[npt.NDArray[Any]]:
        return (value for value in self._members() if isinstance(value, np.ndarray))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(<redacted>)"

    def arrays(self) -> Iterator[npt.NDArray[Any]]:
        """Every array, also of nested keys."""
        yield from self._arrays()
        for value in self._members():
            if isinstance(value, SecretArrays):
                yield from value.arrays()

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, nested ones included: what sending this object costs before framing."""
        return sum(array.nbytes for array in self.arrays())

    def wipe(self) -> None:
        """Overwrite every array with zeros. The object is useless afterwards; wiping twice is harmless."""
        for array in self.arrays():
            array.setflags(write=True)
            array.fill(0)
            array.setflags(write=False)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ClientKey(SecretArrays):
    """For one client, for the whole run: ek^0 and the public cluster blocks."""

    encode_key: F64  # (p, u) ek^0 = M'_i
    cluster_basis: F64  # (m, t, p) A


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ClientRoundKey(SecretArrays):
    """For one client, for one round: ek^1, the mask it adds to its upload."""

    round_id: int
    mask: F64  # (s, u)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ServerRoundKey(SecretArrays):
    """For the server, for one round: the scalars V_i · sum_j R''_ij^T every upload is checked against."""

    round_id: int
    tags: F64  # (n,)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class RoundKeys(SecretArrays):
    """What one refresh deals."""

    client: tuple[ClientRoundKey, ...]
    server: ServerRoundKey


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class DenseScoringKey(SecretArrays):
    """alpha' as printed: one (u, q·q) matrix a group and segment."""

    dense: F64  # (G, s, u, q·q)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class FactoredScoringKey(SecretArrays):
    """alpha' as rank factors: per group, [value_factor_k | mask_factor] · maps is the (u, q·q) matrix of segment k."""

    value_factor: F64  # (G, xi_1, s, u)
    mask_factor: F64  # (G, xi_1, u), the same for all segments
    maps: F64  # (2, G, 2·xi_1, q·q), a pair that sums to the maps (linalg.split)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TransformKeys(SecretArrays):
    """The two-level transformation of the compressed scheme into the key spaces with a slot for every client."""

    weight_key: F64  # (G, q, 2pn) tk of the weights
    update_key: F64  # (G, u, 3pn) tk of the updates


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ServerKey(SecretArrays):
    """For the server, for the whole run; only ``scoring_key`` depends on the server updates."""

    cluster_basis: F64  # (m, t, p) A
    scoring_key: DenseScoringKey | FactoredScoringKey  # alpha'
    sum_basis: F64  # (2, G, p, q) beta; this and the next three are pairs (linalg.split)
    relu_key_1: F64  # (2, G, q, q) tau_1
    relu_key_2: F64  # (2, G, q, q) tau_2
    relu_key_3: F64  # (2, G, q, q) tau_3
    decode_key: F64  # (2pn, 3pn) dk
    verification_key: F64  # (G, s, u) the sum over the group of V_i sum_j A_j M'_{i+n}
    transform: TransformKeys | None  # None in the naive scheme: there is one key space only

    def with_scoring_key(self, scoring_key: DenseScoringKey | FactoredScoringKey) -> ServerKey:
        """The same key after `re_deal_alpha`."""
        return dataclasses.replace(self, scoring_key=scoring_key)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class DealerSecret(SecretArrays):
    """What the key center keeps between rounds; everything else it dealt can be forgotten."""

    root: npt.NDArray[np.uint8]  # 32 bytes
    cluster_basis: F64  # (m, t, p) A
    update_basis: F64  # (G, 3·xi_1, p, u) all M'
    masks: F64  # (n, p) mu_i, of squared length 1/s
    weight_maps: F64  # (2, G, 2·xi_1, q·q) pair: M_i^T R'_i M_i, then M_{i+n}^T R'_i M_{i+n}
    verifiers: F64  # (n, s, t) V_i


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Dealt(SecretArrays):
    """What `deal` hands out: a key to every client, one to the server, and what the dealer keeps."""

    client_keys: tuple[ClientKey, ...]
    server_key: ServerKey
    secret: DealerSecret
