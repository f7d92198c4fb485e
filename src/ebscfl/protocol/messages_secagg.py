"""Messages of the comparators (codes 96-159): plain secure sums, without key centre, trust or clusters.

Clients speak to each other through the server: a `ShareBundle` goes up with one ciphertext a peer, `RelayedShares`
comes down with one ciphertext from each. The lists of peers are arrays, so a message of 500 peers costs no Python loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ebscfl.protocol.messages import Message, register
from ebscfl.protocol.wire import U32, U64, Array, Items, wire

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint32]


@register
@dataclass(frozen=True, eq=False, repr=False)
class SumInvitation(Message):
    """Server to client: a round begins."""

    code: ClassVar[int] = 96
    round_id: int = wire(U64)


@register
@dataclass(frozen=True, eq=False, repr=False)
class PublicKeys(Message):
    """Client to server: fresh X25519 public keys, one for shares and, with pairwise masks, one for masks."""

    code: ClassVar[int] = 97
    round_id: int = wire(U64)
    keys: Bytes = wire(Array("u1", 2))  # (1 or 2, 32)


@register
@dataclass(frozen=True, eq=False, repr=False)
class PeerKeys(Message):
    """Server to client: the public keys of those it shares with, and how many shares must give a secret back."""

    code: ClassVar[int] = 98
    round_id: int = wire(U64)
    threshold: int = wire(U32)
    peers: Words = wire(Array("u4", 1))  # (k,)
    keys: Bytes = wire(Array("u1", 3))  # (k, 1 or 2, 32)


@register
@dataclass(frozen=True, eq=False, repr=False)
class ShareBundle(Message):
    """Client to server: one encrypted share for each peer."""

    code: ClassVar[int] = 99
    round_id: int = wire(U64)
    peers: Words = wire(Array("u4", 1))  # (k,) receivers
    ciphertexts: Bytes = wire(Array("u1", 2))  # (k, size)


@register
@dataclass(frozen=True, eq=False, repr=False)
class RelayedShares(Message):
    """Server to client: the encrypted shares its peers made for it."""

    code: ClassVar[int] = 100
    round_id: int = wire(U64)
    peers: Words = wire(Array("u4", 1))  # (k,) senders
    ciphertexts: Bytes = wire(Array("u1", 2))


@register
@dataclass(frozen=True, eq=False, repr=False)
class MaskedInput(Message):
    """Client to server: the fixed-point update under its masks."""

    code: ClassVar[int] = 101
    round_id: int = wire(U64)
    masked: Words = wire(Array("u4", 1))  # (m l,)


@register
@dataclass(frozen=True, eq=False, repr=False)
class UnmaskRequest(Message):
    """Server to client: which peers' inputs arrived (their self masks open) and which did not (their pair masks do)."""

    code: ClassVar[int] = 102
    round_id: int = wire(U64)
    survivors: tuple[int, ...] = wire(Items(U32))
    dropped: tuple[int, ...] = wire(Items(U32))


@register
@dataclass(frozen=True, eq=False, repr=False)
class UnmaskShares(Message):
    """Client to server: for each peer one share, of its self-mask seed or of its mask key, never of both."""

    code: ClassVar[int] = 103
    round_id: int = wire(U64)
    peers: Words = wire(Array("u4", 1))  # (k,)
    shares: npt.NDArray[np.uint64] = wire(Array("u8", 2))  # (k, 5)
    rejected: tuple[int, ...] = wire(Items(U32))  # peers whose encrypted share failed authentication


@register
@dataclass(frozen=True, eq=False, repr=False)
class ShareSumRequest(Message):
    """Server to client: add up the coded masks of these clients."""

    code: ClassVar[int] = 104
    round_id: int = wire(U64)
    survivors: tuple[int, ...] = wire(Items(U32))


@register
@dataclass(frozen=True, eq=False, repr=False)
class ShareSum(Message):
    """Client to server: the sum of the shares it holds."""

    code: ClassVar[int] = 105
    round_id: int = wire(U64)
    total: Words = wire(Array("u4", 1))  # (m l / pieces,)


@register
@dataclass(frozen=True, eq=False, repr=False)
class ShareComplaint(Message):
    """Client to server: it cannot add up, because these peers' encrypted shares failed authentication."""

    code: ClassVar[int] = 106
    round_id: int = wire(U64)
    rejected: tuple[int, ...] = wire(Items(U32))
