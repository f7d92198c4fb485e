"""Checks a client's second count tags at upload time, without showing the key center which slot holds the count.

At the end of a round the server opens its sums at the m count coordinates, and the second tags prove that it opens them
truly (`ebscfl.sealed.release`). A client that sends false second tags would make an honest server's opening fail, so
they are checked when they come: for a random row h, <g - b', h> = kappa' <count, h>, wrong with probability 1/p when a
tag is false. But <count, h> names the slot. So client and check take one coordinate more, a blinding word s that is
uniform and the client's own, sealed like a count (s + r_s, kappa' s + b'_s): what the key center sees is uniform.
The server learns nothing new either: r_s and b'_s are two more one-time pads.
"""

from __future__ import annotations

import numpy as np

from ebscfl.field import FieldStream, Words
from ebscfl.rng import USAGE_SEALED_PAD, USAGE_SEALED_ROUNDING, USAGE_SEALED_SKETCH
from ebscfl.sealed.masks import ClientKeys
from ebscfl.sealed.parameters import SealedParameters


def blind_pads(params: SealedParameters, keys: ClientKeys) -> Words:
    """(2,): the pads r_s and b'_s of the blinding word."""
    return FieldStream(params.field, keys.pad_root, USAGE_SEALED_PAD, "blind").words(2)


def seal_blind(params: SealedParameters, keys: ClientKeys, client_root: bytes, round_id: int) -> Words:
    """(2,): s + r_s and kappa' s + b'_s. ``client_root`` is the client's alone: the key center must not know s."""
    s = FieldStream(params.field, client_root, USAGE_SEALED_ROUNDING, "blind", round_id).words(1)
    return params.field.add(np.concatenate([s, params.field.multiply(s, keys.guard_kappa)]), blind_pads(params, keys))


def guard_row(params: SealedParameters, seed: bytes) -> Words:
    """(m + 1,): the random row h of a batch; its last word is not zero, or the blinding would fall away."""
    row = FieldStream(params.field, seed, USAGE_SEALED_SKETCH, "guard").words(params.num_clusters + 1)
    row[-1] = max(1, int(row[-1]))
    return row


def guard_products(params: SealedParameters, counts: Words, tags: Words, blind: Words, row: Words) -> Words:
    """(2,): products of h with (counts, blind[0]) and with (tags, blind[1]); of an upload or of its pads."""
    field = params.field
    plain = field.dot(np.concatenate([counts, blind[:1]]), row)
    tagged = field.dot(np.concatenate([tags, blind[1:]]), row)
    return np.array([plain, tagged], dtype=field.dtype)


def guard_holds(params: SealedParameters, sent: Words, own: Words, keys: ClientKeys) -> bool:
    """The key center's check: ``sent`` are the server's products, ``own`` those of the pads."""
    difference = params.field.subtract(sent, own)
    return int(difference[1]) == int(difference[0]) * keys.guard_kappa % params.field.modulus
