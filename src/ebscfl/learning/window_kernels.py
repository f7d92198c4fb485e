"""The copies around a batched product of windows, as Triton kernels: the CUDA side of `ebscfl.learning.windows`.

Each kernel reads and writes every value once and does nothing else; the products between them are torch's. Import this
module only where there is a CUDA device (torch brings Triton along) or Triton's interpreter (tests).

Where an activation is NaN a maximum is NaN too, as torch has it: a client that diverged must not look healthy.

One program handles ``BLOCK`` neighboring values of one image. All sizes are compile-time constants, so that positions
come from multiplications instead of divisions.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _windows(
    images, out, image_step, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, STEP_C: tl.constexpr,
    STEP_H: tl.constexpr, STEP_W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr, S: tl.constexpr,
    PAD: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    column = place % COLUMNS
    pixel = place // COLUMNS
    channel = column % C
    tap = column // C
    row = pixel // WO + tap // S - PAD
    col = pixel % WO + tap % S - PAD
    wanted = place < HO * WO * COLUMNS
    inside = wanted & (tap < S * S) & (row >= 0) & (row < H) & (col >= 0) & (col < W)
    at = images + image * image_step + row * STEP_H + col * STEP_W + channel * STEP_C
    value = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    value = tl.where(column == S * S * C, 1.0, value)
    tl.store(out + image * (HO * WO * COLUMNS) + place, value, mask=wanted)


@triton.jit
def _pool(z, out, codes, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    image = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    wanted = place < (H // 2) * (W // 2) * C
    channel = place % C
    pixel = place // C
    at = z + image * (H * W * C) + (pixel // (W // 2)) * (2 * W * C) + (pixel % (W // 2)) * (2 * C) + channel
    best = tl.load(at, mask=wanted, other=0.0).to(tl.float32)
    code = tl.zeros([BLOCK], dtype=tl.int32)
    other = tl.load(at + C, mask=wanted, other=0.0).to(tl.float32)
    code = tl.where(other > best, 1, code)
    best = tl.maximum(best, other, propagate_nan=tl.PropagateNan.ALL)
    other = tl.load(at + W * C, mask=wanted, other=0.0).to(tl.float32)
    code = tl.where(other > best, 2, code)
    best = tl.maximum(best, other, propagate_nan=tl.PropagateNan.ALL)
    other = tl.load(at + W * C + C, mask=wanted, other=0.0).to(tl.float32)
    code = tl.where(other > best, 3, code)
    best = tl.maximum(best, other, propagate_nan=tl.PropagateNan.ALL)
    code = tl.where(best > 0.0, code, 4)
    to = image * ((H // 2) * (W // 2) * C) + place
    tl.store(out + to, tl.maximum(best, 0.0, propagate_nan=tl.PropagateNan.ALL), mask=wanted)
    tl.store(codes + to, code.to(tl.uint8), mask=wanted)


@triton.jit
def _unpool(signal, codes, out, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    image = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    wanted = place < H * W * C
    channel = place % C
    row = (place // C) // W
    col = (place // C) % W
    inside = wanted & (row < (H // 2) * 2) & (col < (W // 2) * 2)
    at = image * ((H // 2) * (W // 2) * C) + ((row // 2) * (W // 2) + col // 2) * C + channel
    value = tl.load(signal + at, mask=inside, other=0.0).to(tl.float32)
    code = tl.load(codes + at, mask=inside, other=4).to(tl.int32)
    value = tl.where(code == (row % 2) * 2 + col % 2, value, 0.0)
    tl.store(out + image * (H * W * C) + place, value, mask=wanted)


@triton.jit
def _fold(
    columns, out, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr,
    S: tl.constexpr, PAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    wanted = place < H * W * C
    channel = place % C
    row = (place // C) // W
    col = (place // C) % W
    base = columns + image * (HO * WO * S * S * C)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for tap in tl.static_range(S * S):
        y = row + PAD - tap // S
        x = col + PAD - tap % S
        inside = wanted & (y >= 0) & (y < HO) & (x >= 0) & (x < WO)
        total += tl.load(base + (y * WO + x) * (S * S * C) + tap * C + channel, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + image * (H * W * C) + place, total, mask=wanted)


def windows(images: Tensor, size: int, padding: int, columns: int) -> Tensor:
    """`ebscfl.learning.windows.windows`."""
    count, channels, height, width = images.shape
    side_h, side_w = height + 2 * padding - size + 1, width + 2 * padding - size + 1
    out = images.new_empty((count, side_h * side_w, columns))
    step_n, step_c, step_h, step_w = images.stride()
    _windows[_grid(count, side_h * side_w * columns)](
        images, out, step_n, channels, height, width, step_c, step_h, step_w, side_h, side_w, size, padding, columns,
        BLOCK,
    )  # fmt: skip
    return out


def pool(z: Tensor) -> tuple[Tensor, Tensor]:
    """`ebscfl.learning.windows.pool`."""
    count, height, width, channels = z.shape
    out = z.new_empty((count, height // 2, width // 2, channels))
    codes = torch.empty_like(out, dtype=torch.uint8)
    _pool[_grid(count, out[0].numel())](z.contiguous(), out, codes, height, width, channels, BLOCK)
    return out, codes


def unpool(signal: Tensor, codes: Tensor, height: int, width: int) -> Tensor:
    """`ebscfl.learning.windows.unpool`."""
    count, channels = signal.shape[0], signal.shape[3]
    out = signal.new_empty((count, height, width, channels))
    _unpool[_grid(count, out[0].numel())](signal.contiguous(), codes, out, height, width, channels, BLOCK)
    return out


def fold(columns: Tensor, height: int, width: int, size: int, padding: int) -> Tensor:
    """`ebscfl.learning.windows.fold`."""
    count, channels = columns.shape[0], columns.shape[2] // size**2
    side_h, side_w = height + 2 * padding - size + 1, width + 2 * padding - size + 1
    out = columns.new_empty((count, height, width, channels))
    _fold[_grid(count, out[0].numel())](
        columns.contiguous(), out, height, width, channels, side_h, side_w, size, padding, BLOCK
    )
    return out


def _grid(count: int, values: int) -> tuple[int, int]:
    return count, -(-values // BLOCK)
