"""Flat vectors: named parameters laid end to end, and a vector cut into equal, zero-padded segments.

A model travels as one flat vector; the masking schemes work on ``t`` segments of it. Everything here takes
leading batch axes, so an ``(n, dim)`` matrix of clients is handled in one call, and returns views where the memory
allows it. Torch is needed only by callers that pass tensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ebscfl.errors import UsageError

if TYPE_CHECKING:
    import torch

    from ebscfl.arrays import ArrayT


@dataclass(frozen=True)
class Layout:
    """Where each named parameter lies in the flat vector: in the given order, without gaps."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if len(self.names) != len(self.shapes) or len(set(self.names)) != len(self.names) or not self.names:
            raise UsageError("a layout needs one shape for each of at least one distinct name")

    @classmethod
    def of(cls, named: Iterable[tuple[str, torch.Tensor]]) -> Layout:
        """The layout of ``module.named_parameters()`` or of a dict's items."""
        items = [(name, tuple(value.shape)) for name, value in named]
        return cls(tuple(name for name, _ in items), tuple(shape for _, shape in items))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Entries of each parameter."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @property
    def dim(self) -> int:
        """Length of the flat vector."""
        return sum(self.sizes)

    def slices(self) -> tuple[slice, ...]:
        """The range of each parameter in the flat vector."""
        ends = np.cumsum(self.sizes).tolist()
        return tuple(slice(end - size, end) for end, size in zip(ends, self.sizes, strict=True))

    def views(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """``(..., dim)`` as named tensors ``(..., *shape)`` that share its memory."""
        if flat.shape[-1] != self.dim:
            raise UsageError(f"the layout holds {self.dim} entries, the vector {flat.shape[-1]}")
        # One split, not one slice a parameter: its backward is a single concatenation.
        parts = flat.split_with_sizes(self.sizes, dim=-1)
        lead = flat.shape[:-1]
        return {
            name: part.view(*lead, *shape) for name, shape, part in zip(self.names, self.shapes, parts, strict=True)
        }

    def flatten(self, named: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Named tensors ``(..., *shape)`` as one new ``(..., dim)`` vector: the inverse of `views`."""
        import torch

        if set(named) != set(self.names):
            raise UsageError(f"expected parameters {sorted(self.names)}, got {sorted(named)}")
        parts = []
        for name, shape in zip(self.names, self.shapes, strict=True):
            value = named[name]
            lead = value.shape[: value.ndim - len(shape)]
            if tuple(value.shape[len(lead) :]) != shape:
                raise UsageError(f"{name} must end in shape {shape}, not {tuple(value.shape)}")
            parts.append(value.reshape(*lead, math.prod(shape)))
        return torch.cat(parts, dim=-1)


def segment_length(dim: int, segments: int) -> int:
    """Entries of each of ``segments`` equal segments that together hold ``dim`` entries: ceil(dim / segments)."""
    if dim < 1 or not 1 <= segments <= dim:
        raise UsageError(f"cannot cut {dim} entries into {segments} segments: need 1 <= segments <= entries")
    return -(-dim // segments)


def split_segments(v: ArrayT, t: int) -> ArrayT:
    """``(..., dim)`` as ``(..., t, ceil(dim / t))``, the tail filled with zeros; a view if nothing is to fill."""
    if v.ndim == 0:
        raise UsageError("split_segments needs a vector, not a scalar")
    dim = int(v.shape[-1])
    length = segment_length(dim, t)
    lead: tuple[int, ...] = tuple(v.shape[:-1])
    if t * length == dim:
        return v.reshape(*lead, t, length)
    if isinstance(v, np.ndarray):
        padded = np.zeros((*lead, t * length), dtype=v.dtype)
        padded[..., :dim] = v
        return padded.reshape(*lead, t, length)
    filled = v.new_zeros((*lead, t * length))
    filled[..., :dim] = v
    return filled.reshape(*lead, t, length)


def join_segments(segments: ArrayT, dim: int) -> ArrayT:
    """The inverse of `split_segments`: ``(..., t, length)`` back to ``(..., dim)``, the zero tail cut off."""
    if segments.ndim < 2:
        raise UsageError(f"join_segments needs at least 2 axes, not shape {tuple(segments.shape)}")
    t, length = int(segments.shape[-2]), int(segments.shape[-1])
    if segment_length(dim, t) != length:
        raise UsageError(f"{t} segments of {length} entries do not come from a vector of {dim}")
    return segments.reshape(*segments.shape[:-2], t * length)[..., :dim]
