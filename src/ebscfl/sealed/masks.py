"""One-time keys of a client and a round: pads r and b, tag scalar kappa, and the short second tag of the counts.

Client and key center derive the same keys from the master key they share. The derivation is bound to protocol
version, field, run, round and client, so a key can neither meet another round nor another scheme; that the key
center *uses* it once is the role's duty.
"""

from __future__ import annotations

from dataclasses import dataclass

from ebscfl.errors import UsageError
from ebscfl.field import FieldStream, Words
from ebscfl.rng import ROOT_SIZE, USAGE_SEALED_MASTER, USAGE_SEALED_PAD, derive
from ebscfl.sealed.parameters import SealedParameters

VERSION = 1
"""Protocol version: part of every derivation and of every message header."""


@dataclass(frozen=True, eq=False)
class ClientKeys:
    """Everything secret that client and key center share for one round."""

    kappa: int
    guard_kappa: int
    guard_pad: Words  # (m,)
    pad_root: bytes

    def __repr__(self) -> str:
        return "ClientKeys(<redacted>)"


def master_key(kdc_root: bytes, run_id: str, client: int) -> bytes:
    """The 32 bytes the key center deals client ``client`` once a run, over a channel only the two can read."""
    return derive(kdc_root, USAGE_SEALED_MASTER, VERSION, run_id, client)


def client_keys(params: SealedParameters, master: bytes, run_id: str, round_id: int, client: int) -> ClientKeys:
    """The keys of (run, round, client)."""
    if len(master) != ROOT_SIZE:
        raise UsageError(f"a master key has {ROOT_SIZE} bytes, not {len(master)}")
    root = derive(master, USAGE_SEALED_PAD, VERSION, params.field_name, run_id, round_id, client)
    scalars = FieldStream(params.field, root, USAGE_SEALED_PAD, "scalars")
    return ClientKeys(scalars.scalar(), scalars.scalar(), scalars.words(params.num_clusters), root)


def pads(params: SealedParameters, keys: ClientKeys, out: Words | None = None) -> Words:
    """(2, width): r and b. ``out`` is overwritten if given, so that a role needs one buffer for all clients."""
    words = params.field.zeros((2, params.width)) if out is None else out
    if words.shape != (2, params.width) or words.dtype != params.field.dtype:
        raise UsageError(f"pads need a (2, {params.width}) buffer of {params.field.dtype}")
    for row, label in enumerate(("r", "b")):
        FieldStream(params.field, keys.pad_root, USAGE_SEALED_PAD, label).fill(words[row])
    return words


def guard_scalar(params: SealedParameters, kdc_root: bytes, run_id: str, round_id: int) -> int:
    """The key center's own secret of a round, lambda: what a false count opening would have to know."""
    return FieldStream(params.field, kdc_root, USAGE_SEALED_PAD, "guard", VERSION, run_id, round_id).scalar()
