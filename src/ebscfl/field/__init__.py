"""The prime fields F_p with p = 2^31 - 1 ("m31") and p = 2^61 - 1 ("m61"), and uniform sampling from a key stream.

Words are canonical residues in [0, p): `Field.check` refuses anything else where data enters. Negative numbers sit
above p/2: `Field.embed` and `Field.lift` go there and back. Importing this package imports numba, so only the
secure protocols do. The kernels are in ``m31`` and ``m61``; their slow twins, on Python integers, in the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from ebscfl.errors import ConfigError, DecodeError, UsageError
from ebscfl.field import m31, m61
from ebscfl.rng import Context, SecretStream

Words = npt.NDArray[np.unsignedinteger[Any]]
"""Residues in the field's storage type."""
Signed = npt.NDArray[np.int64]

FILL_BYTES = 1 << 20
"""Key stream that is made, then masked: small enough to stay in a cache, large enough that calls cost nothing."""


@dataclass(frozen=True)
class Field:
    """One prime field with its storage type and kernels."""

    name: str
    bits: int
    kernels: ModuleType

    @property
    def modulus(self) -> int:
        """p = 2^bits - 1."""
        return (1 << self.bits) - 1

    @property
    def dtype(self) -> np.dtype[Any]:
        """How a word is stored, little endian on the wire."""
        return np.dtype(np.uint32 if self.bits <= 32 else np.uint64)

    @property
    def word_size(self) -> int:
        """Bytes a word takes."""
        return int(self.dtype.itemsize)

    def zeros(self, shape: int | tuple[int, ...]) -> Words:
        """An array of zero words."""
        return np.zeros(shape, dtype=self.dtype)

    def check(self, words: Words, *, name: str, shape: tuple[int, ...]) -> Words:
        """``words`` if they have this shape and type and all lie in [0, p), else `DecodeError`."""
        if words.dtype != self.dtype or words.shape != shape:
            raise DecodeError(f"{name} must be {shape} words of {self.dtype}, not {words.shape} of {words.dtype}")
        if words.size and int(words.max()) >= self.modulus:
            raise DecodeError(f"{name} holds a word outside the field {self.name}")
        return words

    def embed(self, values: Signed) -> Words:
        """Signed integers as words: v mod p. Sizes above p/2 cannot be told apart later and are refused."""
        half = self.modulus // 2
        if values.size and (int(values.max()) > half or int(values.min()) < -half):
            raise UsageError(f"an integer beyond +-{half} does not fit the field {self.name}")
        return np.where(values < 0, values + self.modulus, values).astype(self.dtype)

    def lift(self, words: Words) -> Signed:
        """The integers in [-p/2, p/2] that the words stand for."""
        values = words.astype(np.int64)
        return np.where(values > self.modulus // 2, values - self.modulus, values)

    def add(self, a: Words, b: Words) -> Words:
        """a + b, element by element; both hold residues and have one shape."""
        return self._pairwise(self.kernels.add, a, b)

    def subtract(self, a: Words, b: Words) -> Words:
        """a - b, likewise."""
        return self._pairwise(self.kernels.subtract, a, b)

    def _pairwise(self, kernel: Callable[[Words, Words, Words], None], a: Words, b: Words) -> Words:
        if a.shape != b.shape or a.dtype != self.dtype or b.dtype != self.dtype:
            raise UsageError(f"{a.shape} words of {a.dtype} and {b.shape} of {b.dtype} do not pair over {self.name}")
        out = np.empty(a.shape, dtype=self.dtype)
        kernel(np.ascontiguousarray(a).reshape(-1), np.ascontiguousarray(b).reshape(-1), out.reshape(-1))
        return out

    def multiply(self, a: Words, b: Words | int) -> Words:
        """a * b, element by element; b may be one scalar."""
        other = np.full(a.shape, b % self.modulus, dtype=self.dtype) if isinstance(b, int) else b
        out = np.empty_like(a)
        self.kernels.multiply(a.reshape(-1), other.reshape(-1), out.reshape(-1))
        return out

    def dot(self, a: Words, b: Words) -> int:
        """<a, b>."""
        return int(self.kernels.dot(a, b))

    def fold(self, y: Words, alphas: Sequence[int], pairs: Sequence[Words]) -> None:
        """y += sum of alpha_k * pairs[k][0] + pairs[k][1], in place; four pairs share one pass over y."""
        for k in range(0, len(pairs) - 3, 4):
            group = [row for pair in pairs[k : k + 4] for row in (pair[0], pair[1])]
            self.kernels.fold4(y, np.array(alphas[k : k + 4], dtype=np.uint64), *group)
        for k in range(len(pairs) // 4 * 4, len(pairs)):
            self.kernels.fold1(y, np.uint64(alphas[k]), pairs[k][0], pairs[k][1])


M31 = Field("m31", 31, m31)
M61 = Field("m61", 61, m61)
FIELDS = {field.name: field for field in (M31, M61)}


def field_by_name(name: str) -> Field:
    """The field called ``name``."""
    if name not in FIELDS:
        raise ConfigError(f"unknown field {name!r}: choose one of {', '.join(FIELDS)}")
    return FIELDS[name]


class FieldStream:
    """Uniform words bound to (root, usage, context), by rejection: p itself is drawn again, never reduced.

    Words come from one key stream, replacements of rejected words from a second, in order; so what a position gets
    does not depend on how the caller cuts its reads into blocks.
    """

    def __init__(self, field: Field, root: bytes, usage: str, *context: Context) -> None:
        self._field = field
        self._stream = SecretStream(root, usage, *context, "words")
        self._make_spare = partial(SecretStream, root, usage, *context, "spare")
        self._spare: SecretStream | None = None

    def __repr__(self) -> str:
        return "FieldStream(<redacted>)"

    def fill(self, out: Words) -> None:
        """Overwrite a contiguous array with the next ``out.size`` uniform words."""
        step = FILL_BYTES // out.itemsize
        for start in range(0, out.size, step):
            part = out[start : start + step]
            self._stream.fill(part)
            if self._field.kernels.mask_words(part):
                self.replace_rejected(part)

    def replace_rejected(self, words: Words) -> None:
        """Draw each word that equals p again until it does not."""
        if self._spare is None:
            self._spare = self._make_spare()
        one = np.empty(1, dtype=words.dtype)
        for position in np.flatnonzero(words == self._field.modulus):
            one[0] = self._field.modulus
            while int(one[0]) == self._field.modulus:
                self._spare.fill(one)
                self._field.kernels.mask_words(one)
            words[position] = one[0]

    def words(self, size: int) -> Words:
        """The next ``size`` uniform words."""
        out = np.empty(size, dtype=self._field.dtype)
        self.fill(out)
        return out

    def scalar(self) -> int:
        """The next uniform word as an integer."""
        return int(self.words(1)[0])
