"""Every message of every protocol, as frozen dataclasses that check themselves.

Codes are grouped: 1-15 shared, 16-31 plain, 32-63 paper, 64-95 sealed, 96-159 comparators. A message marked
``confidential`` carries key material: it prints redacted and may travel only over an encrypted channel.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from ebscfl.errors import UsageError
from ebscfl.protocol.wire import REAL, U32, U64, Array, Blob, Items, Text, wire

Float64s = npt.NDArray[np.float64]
Float32s = npt.NDArray[np.float32]
Words32 = npt.NDArray[np.uint32]


@dataclass(frozen=True, eq=False, repr=False)
class Message:
    """Base of all messages; not sent itself."""

    code: ClassVar[int] = 0
    confidential: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if reason := field.metadata["wire"].check(value):
                raise UsageError(f"{type(self).__name__}.{field.name} {reason}")
            if isinstance(value, np.ndarray) and value.flags.writeable and value.base is None:
                value.flags.writeable = False  # a sent message no longer changes

    def __repr__(self) -> str:
        if self.confidential:
            return f"{type(self).__name__}(<redacted>)"
        shown = (f"{f.name}={f.metadata['wire'].describe(getattr(self, f.name))}" for f in dataclasses.fields(self))
        return f"{type(self).__name__}({', '.join(shown)})"

    def same_as(self, other: object) -> bool:
        """Equality of type and every field, arrays included."""
        if type(other) is not type(self):
            return False
        pairs = ((getattr(self, f.name), getattr(other, f.name)) for f in dataclasses.fields(self))
        return all(_same(one, two) for one, two in pairs)


def _same(one: object, two: object) -> bool:
    if isinstance(one, np.ndarray) and isinstance(two, np.ndarray):
        return one.dtype == two.dtype and np.array_equal(one, two)
    if isinstance(one, tuple) and isinstance(two, tuple):
        return len(one) == len(two) and all(_same(a, b) for a, b in zip(one, two, strict=True))
    return one == two


MessageT = TypeVar("MessageT", bound=type[Message])
MESSAGE_BY_CODE: dict[int, type[Message]] = {}


def register(kind: MessageT) -> MessageT:
    """Class decorator: give the codec this message; two messages may not share a code."""
    if kind.code in MESSAGE_BY_CODE or not 0 < kind.code < 256:
        raise UsageError(f"message code {kind.code} of {kind.__name__} is taken or out of range")
    MESSAGE_BY_CODE[kind.code] = kind
    return kind


# --- shared ---------------------------------------------------------------------------------------------------------


@register
@dataclass(frozen=True, eq=False, repr=False)
class ResendRequest(Message):
    """Server to client: your upload of this round is missing or failed a check; send it once more."""

    code: ClassVar[int] = 1
    round_id: int = wire(U64)
    reason: str = wire(Text(512))


@register
@dataclass(frozen=True, eq=False, repr=False)
class Refusal(Message):
    """Key centre to server or client: the request is refused, and why; without ``clients`` it may be asked again."""

    code: ClassVar[int] = 2
    round_id: int = wire(U64)
    reason: str = wire(Text(512))
    clients: tuple[int, ...] = wire(Items(U32), default=())


@register
@dataclass(frozen=True, eq=False, repr=False)
class ServerUpdates(Message):
    """Server to key centre: the m root updates g0^k, before any upload of the round."""

    code: ClassVar[int] = 3
    round_id: int = wire(U64)
    updates: Float64s = wire(Array("f8", 2))  # (m, l)


@register
@dataclass(frozen=True, eq=False, repr=False)
class OpenRound(Message):
    """Server to key centre: a round begins with these clients."""

    code: ClassVar[int] = 4
    round_id: int = wire(U64)
    clients: tuple[int, ...] = wire(Items(U32))


# --- plain ----------------------------------------------------------------------------------------------------------


@register
@dataclass(frozen=True, eq=False, repr=False)
class PlainUpload(Message):
    """Client to server: cluster and update in the clear (the baseline that hides nothing)."""

    code: ClassVar[int] = 16
    round_id: int = wire(U64)
    cluster: int = wire(U32)
    update: Float32s = wire(Array("f4", 1))  # (l,)


# --- paper ----------------------------------------------------------------------------------------------------------


@register
@dataclass(frozen=True, eq=False, repr=False)
class ClientKeyPackage(Message):
    """Key centre to client, when keys are dealt: ek^0 and the cluster blocks A."""

    code: ClassVar[int] = 32
    confidential: ClassVar[bool] = True
    encode_key: Float64s = wire(Array("f8", 2))  # (p, u)
    cluster_basis: Float64s = wire(Array("f8", 3))  # (m, t, p)


@register
@dataclass(frozen=True, eq=False, repr=False)
class RoundKey(Message):
    """Key centre to client, every round: ek^1, the mask of its upload."""

    code: ClassVar[int] = 33
    confidential: ClassVar[bool] = True
    round_id: int = wire(U64)
    mask: Float64s = wire(Array("f8", 2))  # (s, u)


@register
@dataclass(frozen=True, eq=False, repr=False)
class ServerKeyPackage(Message):
    """Key centre to server, when keys are dealt: all but alpha', which is `ScoringKey`."""

    code: ClassVar[int] = 34
    confidential: ClassVar[bool] = True
    cluster_basis: Float64s = wire(Array("f8", 3))  # (m, t, p)
    sum_basis: Float64s = wire(Array("f8", 4))  # (2, G, p, q) beta, as a pair of arrays that sum to it
    relu_key_1: Float64s = wire(Array("f8", 4))  # (2, G, q, q) tau_1
    relu_key_2: Float64s = wire(Array("f8", 4))
    relu_key_3: Float64s = wire(Array("f8", 4))
    decode_key: Float64s = wire(Array("f8", 2))  # (2pn, 3pn) dk
    verification_key: Float64s = wire(Array("f8", 3))  # (G, s, u)
    transform: tuple[Float64s, ...] = wire(Items(Array("f8", 3), limit=2))  # weight and update tk; none if naive


@register
@dataclass(frozen=True, eq=False, repr=False)
class ScoringKey(Message):
    """Key centre to server, when the server updates change: alpha' as rank factors."""

    code: ClassVar[int] = 35
    confidential: ClassVar[bool] = True
    value_factor: Float64s = wire(Array("f8", 4))  # (G, xi_1, s, u)
    mask_factor: Float64s = wire(Array("f8", 3))  # (G, xi_1, u)
    maps: Float64s = wire(Array("f8", 4))  # (2, G, 2 xi_1, q q), a pair


@register
@dataclass(frozen=True, eq=False, repr=False)
class DenseScoringKey(Message):
    """The same for the naive scheme: alpha' as the paper prints it."""

    code: ClassVar[int] = 36
    confidential: ClassVar[bool] = True
    dense: Float64s = wire(Array("f8", 4))  # (G, s, u, q q)


@register
@dataclass(frozen=True, eq=False, repr=False)
class RoundVerification(Message):
    """Key centre to server, every round: the scalars every upload is verified against."""

    code: ClassVar[int] = 37
    confidential: ClassVar[bool] = True
    round_id: int = wire(U64)
    tags: Float64s = wire(Array("f8", 1))  # (n,)


@register
@dataclass(frozen=True, eq=False, repr=False)
class EncodedUpdate(Message):
    """Client to server: delta_i."""

    code: ClassVar[int] = 38
    round_id: int = wire(U64)
    delta: Float64s = wire(Array("f8", 2))  # (s, u)


# --- sealed ---------------------------------------------------------------------------------------------------------


@register
@dataclass(frozen=True, eq=False, repr=False)
class EnrolRequest(Message):
    """Client to key centre, once: its X25519 public key."""

    code: ClassVar[int] = 64
    public_key: bytes = wire(Blob(exact=32))


@register
@dataclass(frozen=True, eq=False, repr=False)
class Enrolment(Message):
    """Key centre to client, once: the 32-byte master key, sealed to the client's public key."""

    code: ClassVar[int] = 65
    confidential: ClassVar[bool] = True
    ephemeral_key: bytes = wire(Blob(exact=32))
    ciphertext: bytes = wire(Blob(exact=48))


@register
@dataclass(frozen=True, eq=False, repr=False)
class Commitment(Message):
    """Server to key centre: the m unit server updates in fixed point, before the round's first upload."""

    code: ClassVar[int] = 66
    round_id: int = wire(U64)
    row: npt.NDArray[np.int32] = wire(Array("i4", 1))  # (m (l + 1),) count coordinates zero


@register
@dataclass(frozen=True, eq=False, repr=False)
class SealedUpload(Message):
    """Client to server: c = x + r, t = kappa x + b, second tags of the counts, and the word that blinds their check.

    A field element is one little-endian 32-bit word, two for 2^61 - 1.
    """

    code: ClassVar[int] = 67
    round_id: int = wire(U64)
    words: Words32 = wire(Array("u4", 2))  # (2, m (l + 1) elements)
    guard: Words32 = wire(Array("u4", 1))  # (m elements)
    blind: Words32 = wire(Array("u4", 1))  # (2 elements)


@register
@dataclass(frozen=True, eq=False, repr=False)
class RoundOpened(Message):
    """Key centre to server: the round is open; the seeds of its norm sketches derive from this key."""

    code: ClassVar[int] = 68
    round_id: int = wire(U64)
    sketch_key: bytes = wire(Blob(exact=32))


@register
@dataclass(frozen=True, eq=False, repr=False)
class ScoreRequest(Message):
    """Server to key centre: products of a batch of uploads with G, the counts and the batch's sketch."""

    code: ClassVar[int] = 69
    round_id: int = wire(U64)
    batch: int = wire(U32)
    clients: tuple[int, ...] = wire(Items(U32))
    products: Words32 = wire(Array("u4", 3))  # (clients, 2, 258 elements)
    guards: Words32 = wire(Array("u4", 2))  # (clients, 2 elements) products of counts and of their second tags


@register
@dataclass(frozen=True, eq=False, repr=False)
class ScoreAnswer(Message):
    """Key centre to server: the masked weights of a batch, or why an upload is refused (empty: it is not)."""

    code: ClassVar[int] = 70
    round_id: int = wire(U64)
    batch: int = wire(U32)
    clients: tuple[int, ...] = wire(Items(U32))
    answers: npt.NDArray[np.uint64] = wire(Array("u8", 2))  # (clients, 2) alpha and its guard; zero where refused
    refusals: tuple[str, ...] = wire(Items(Text(64)))  # one a client


@register
@dataclass(frozen=True, eq=False, repr=False)
class ReleaseRequest(Message):
    """Server to key centre: the set it has added, and its sums at the count coordinates."""

    code: ClassVar[int] = 71
    round_id: int = wire(U64)
    included: tuple[int, ...] = wire(Items(U32))
    opening: Words32 = wire(Array("u4", 2))  # (2, m elements)


@register
@dataclass(frozen=True, eq=False, repr=False)
class Release(Message):
    """Key centre to server, once a round: the sum of masks on every slot that carries enough weight."""

    code: ClassVar[int] = 72
    round_id: int = wire(U64)
    slots: npt.NDArray[np.uint8] = wire(Array("u1", 1))  # (m,) one where the slot is released
    pad_sum: Words32 = wire(Array("u4", 1))  # (m (l + 1) elements), zero on withheld slots
    epsilon_spent: float = wire(REAL)  # over the run so far; 0 without differential privacy
