"""Shamir's t-of-n secret sharing (CACM 1979) of 32-byte secrets over F_p, p = 2^61 - 1.

A secret is five words of 52 bits. The dealer's cost is O(n t): Horner's rule on all points at once. Clients keep the
same points all round, so the server computes the Lagrange coefficients once per set of answering clients
(`coefficients`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ebscfl.errors import DecodeError, UsageError
from ebscfl.field import M61, FieldStream

Shares = npt.NDArray[np.uint64]

SECRET_SIZE = 32
WORD_BITS = 52
WORDS = 5
"""52 bits a word: five cover 260 >= 256 bits, and every word is far below p."""


def to_words(secret: bytes) -> Shares:
    """A 32-byte secret as field words, (WORDS,)."""
    if len(secret) != SECRET_SIZE:
        raise UsageError(f"a secret has {SECRET_SIZE} bytes, not {len(secret)}")
    number = int.from_bytes(secret, "little")
    return np.array([(number >> (WORD_BITS * i)) & ((1 << WORD_BITS) - 1) for i in range(WORDS)], dtype=np.uint64)


def from_words(words: Shares) -> bytes:
    """The inverse of `to_words`; words no dealer makes are a `DecodeError`."""
    number = sum(int(word) << (WORD_BITS * i) for i, word in enumerate(words))
    if any(int(word) >> WORD_BITS for word in words) or number >> (8 * SECRET_SIZE):
        raise DecodeError("the shares do not belong to one 32-byte secret")
    return number.to_bytes(SECRET_SIZE, "little")


def share(secrets: Sequence[bytes], threshold: int, points: Sequence[int], stream: FieldStream) -> Shares:
    """Shares of all ``secrets`` at ``points``, (points, secrets, WORDS); any ``threshold`` of them give the secrets."""
    if not 1 <= threshold <= len(points):
        raise UsageError(f"{threshold} of {len(points)} shares is not a threshold")
    if len(set(points)) != len(points) or any(not 0 < x < M61.modulus for x in points):
        raise UsageError("points must be distinct and not zero")
    constant = np.concatenate([to_words(secret) for secret in secrets])
    width = len(constant)
    # Row k holds the coefficients of x^k: the secret, then uniform words.
    coefficients = np.concatenate([constant, stream.words((threshold - 1) * width)]).reshape(threshold, width)
    x = np.repeat(np.array(points, dtype=np.uint64), width)
    value = np.tile(coefficients[-1], len(points))
    for row in coefficients[-2::-1]:
        value = M61.add(M61.multiply(value, x), np.tile(row, len(points)))
    return value.reshape(len(points), len(secrets), WORDS)


def coefficients(points: Sequence[int]) -> tuple[int, ...]:
    """Lagrange coefficients at zero: the secret is the sum of coefficient times share."""
    if len(set(points)) != len(points):
        raise UsageError("points must be distinct")
    p = M61.modulus
    weights = []
    for x in points:
        above = below = 1
        for other in points:
            if other != x:
                above = above * other % p
                below = below * (other - x) % p
        weights.append(above * pow(below, -1, p) % p)
    return tuple(weights)


def combine(weights: Sequence[int], shares: Shares) -> bytes:
    """One secret from ``shares`` (len(weights), WORDS) and the coefficients of their points."""
    column = np.repeat(np.array(weights, dtype=np.uint64), WORDS)
    products = M61.multiply(np.ascontiguousarray(shares, dtype=np.uint64).reshape(-1), column).reshape(-1, WORDS)
    total = M61.zeros(WORDS)
    for row in products:
        total = M61.add(total, row)
    return from_words(total)
