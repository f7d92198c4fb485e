"""Fixed-point inputs: the client's slot and the server's row, and sealing an input under one-time keys.

An input x has m slots of dim + 1 words. The client's own slot holds round(2^f * update / ||update||), rounded
stochastically, and one half as count; all other slots are zero, and are not touched: their words of the upload are
the pads themselves.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ebscfl.errors import UsageError, VerificationError
from ebscfl.field import Signed, Words
from ebscfl.field.fixed import round_randomly, square_sum
from ebscfl.rng import USAGE_SEALED_ROUNDING, SecretStream
from ebscfl.sealed.masks import ClientKeys, pads
from ebscfl.sealed.parameters import SealedParameters

Floats = npt.NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class EncodedInput:
    """A client's x: which slot, and the integers in it (update, then count). Everything else is zero."""

    cluster: int
    slot: Signed  # (dim + 1,)

    def __repr__(self) -> str:
        return "EncodedInput(<redacted>)"

    def dense(self, params: SealedParameters) -> Signed:
        """All m slots: what the proofs call x."""
        x = np.zeros((params.num_clusters, params.slot_size), dtype=np.int64)
        x[self.cluster] = self.slot
        return x.reshape(-1)


@dataclass(frozen=True, eq=False)
class Upload:
    """What a client sends: c = x + r and t = kappa x + b, and the second tag of the counts."""

    words: Words  # (2, width): c, t
    guard: Words  # (m,)


def unit(vector: Floats, *, name: str) -> npt.NDArray[np.float64]:
    """``vector`` in float64 with norm one; refuses NaN, infinity and zero."""
    return vector.astype(np.float64) / _norm(vector, name=name)


def _norm(vector: Floats, *, name: str) -> float:
    norm = math.sqrt(square_sum(vector))
    if not math.isfinite(norm) or norm == 0.0:
        raise UsageError(f"{name} has norm {norm}: it must be finite and not zero")
    return norm


def encode(
    params: SealedParameters, update: Floats, cluster: int, rounding_root: bytes, round_id: int, client: int
) -> EncodedInput:
    """The client's update as integers. Rounding is unbiased: floor(v + u) with u uniform on 32 bits."""
    if update.shape != (params.dim,) or update.dtype not in (np.float32, np.float64):
        raise UsageError(f"an update is {params.dim} floats, not {update.shape} of {update.dtype}")
    if not 0 <= cluster < params.num_clusters:
        raise UsageError(f"cluster {cluster} does not exist: there are {params.num_clusters}")
    norm = _norm(update, name=f"the update of client {client}")
    draws = SecretStream(rounding_root, USAGE_SEALED_ROUNDING, round_id, client).uint32(params.dim)
    slot = np.empty(params.slot_size, dtype=np.int64)
    round_randomly(update, 2.0**params.update_bits / norm, draws, slot[:-1])
    slot[-1] = params.one_half
    return EncodedInput(cluster, slot)


def seal(params: SealedParameters, encoded: EncodedInput, keys: ClientKeys, out: Words | None = None) -> Upload:
    """c, t and the guard tags. The pads are made in the upload's own buffer and only one slot is added to."""
    words = pads(params, keys, out)
    low = encoded.cluster * params.slot_size
    high = low + params.slot_size
    half = params.field.modulus // 2
    if max(int(encoded.slot.max()), -int(encoded.slot.min())) > half:
        raise UsageError(f"an input beyond +-{half} does not fit the field {params.field_name}")
    params.field.kernels.add_slot(encoded.slot, np.uint64(keys.kappa), words[0, low:high], words[1, low:high])
    counts = params.field.zeros(params.num_clusters)
    counts[encoded.cluster] = int(encoded.slot[-1]) % params.field.modulus
    return Upload(words, guard_tags(params, counts, keys))


def guard_tags(params: SealedParameters, counts: Words, keys: ClientKeys) -> Words:
    """kappa' * count + b' for each slot."""
    return params.field.add(params.field.multiply(counts, keys.guard_kappa), keys.guard_pad)


def quantize_server_updates(params: SealedParameters, server_updates: Floats) -> npt.NDArray[np.int32]:
    """G: the m server updates with unit norm in fixed point, count coordinates zero, over all slots: (width,)."""
    if server_updates.shape != (params.num_clusters, params.dim):
        raise UsageError(f"server updates are {(params.num_clusters, params.dim)}, not {server_updates.shape}")
    row = np.zeros((params.num_clusters, params.slot_size), dtype=np.int32)
    for k in range(params.num_clusters):
        row[k, :-1] = np.rint(unit(server_updates[k], name=f"server update {k}") * 2.0**params.server_bits)
    return row.reshape(-1)


def check_server_row(params: SealedParameters, server_row: npt.NDArray[np.int32]) -> None:
    """The key center's check of G: layout, zero counts, and unit norm of every slot up to its rounding.

    Rounding moves a coordinate by at most one half, so a norm by at most sqrt(dim) / 2 units.
    """
    if server_row.shape != (params.width,) or server_row.dtype != np.int32:
        raise VerificationError(f"the server's row must be {params.width} int32, not {server_row.shape}")
    slots = server_row.reshape(params.num_clusters, params.slot_size).astype(np.float64)
    if np.any(slots[:, -1] != 0):
        raise VerificationError("the server's row is not zero at a count coordinate")
    one = 2.0**params.server_bits
    norms = np.sqrt((slots[:, :-1] ** 2).sum(axis=1))
    slack = np.sqrt(params.dim) / 2
    if np.any(norms > one + slack) or np.any(norms < one - slack):
        raise VerificationError("a server update in the server's row does not have unit norm")


def commitment(params: SealedParameters, run_id: str, server_row: npt.NDArray[np.int32]) -> bytes:
    """Hash that binds the server to G before the first upload of a round."""
    header = f"ebscfl-sealed-row/1\0{run_id}\0{params!r}\0".encode()
    return hashlib.blake2b(header + np.ascontiguousarray(server_row, dtype="<i4").tobytes(), digest_size=32).digest()
