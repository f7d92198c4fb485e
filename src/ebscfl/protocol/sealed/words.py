"""Field elements to 32-bit wire words and back. An element of 2^61 - 1 is two words, low half first."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ebscfl.errors import DecodeError
from ebscfl.field import Field, Words


def to_wire(elements: Words) -> npt.NDArray[np.uint32]:
    """The same memory as little-endian 32-bit words; only the last axis changes its length."""
    return np.ascontiguousarray(elements).view("<u4")


def from_wire(field: Field, words: npt.NDArray[np.uint32], shape: tuple[int, ...], *, name: str) -> Words:
    """Elements of ``shape``, each checked to lie in [0, p)."""
    if words.shape[-1] * 4 != shape[-1] * field.word_size:
        raise DecodeError(f"{name} must have shape {shape} over {field.name}, not {words.shape} words")
    elements: npt.NDArray[Any] = words.view(field.dtype)
    return field.check(elements, name=name, shape=shape)
