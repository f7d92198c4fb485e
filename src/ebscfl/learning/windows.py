"""What lies between the batched products of lowered convolutions: windows as rows, pooling, and the ways back.

Images are ``(n, h, w, c)``, pixel by pixel. Here each function is a few torch operations: the slow twin, and what the
CPU runs. On CUDA `ebscfl.learning.window_kernels` does the same in one pass each.
"""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor
from torch.nn import functional


def on(device: torch.device) -> ModuleType:
    """The module to use on ``device``: this one, or the kernels."""
    if device.type != "cuda":
        import ebscfl.learning.windows as plain

        return plain
    from ebscfl.learning import window_kernels

    return window_kernels


def windows(images: Tensor, size: int, padding: int, columns: int) -> Tensor:
    """Every ``size x size`` window of ``(n, c, h, w)`` images (any strides) as a row ``(n, h' * w', columns)``.

    A row is ordered (window row, window column, channel), then a 1 (the product's bias), then zeros.
    """
    padded = functional.pad(images.permute(0, 2, 3, 1), (0, 0, padding, padding, padding, padding))
    view = padded.unfold(1, size, 1).unfold(2, size, 1)  # (n, h', w', c, size, size)
    rows = view.permute(0, 1, 2, 4, 5, 3).flatten(3).flatten(1, 2)
    ones = functional.pad(rows.new_ones((1, 1, 1)), (0, columns - rows.shape[2] - 1))
    return torch.cat([rows, ones.expand(*rows.shape[:2], -1)], dim=2)


def pool(z: Tensor) -> tuple[Tensor, Tensor]:
    """ReLU of the maximum of each 2 x 2 block (a last odd row or column is dropped), and which one it was.

    Codes: 0 to 3 for the first maximum in reading order, 4 if the ReLU cut it.
    """
    height, width = z.shape[1] // 2 * 2, z.shape[2] // 2 * 2
    corners = [z[:, i:height:2, j:width:2] for i in (0, 1) for j in (0, 1)]
    best, code = corners[0], torch.zeros_like(corners[0], dtype=torch.uint8)
    for number, corner in enumerate(corners[1:], start=1):
        code = torch.where(corner > best, number, code)
        best = torch.maximum(corner, best)
    return best.clamp(min=0), torch.where(best > 0, code, 4)


def unpool(signal: Tensor, codes: Tensor, height: int, width: int) -> Tensor:
    """The signal below `pool`: at each block's maximum, zero elsewhere: ``(n, height, width, c)``."""
    out = signal.new_zeros((signal.shape[0], height, width, signal.shape[3]))
    for number in range(4):
        out[:, number // 2 : height // 2 * 2 : 2, number % 2 : width // 2 * 2 : 2] = signal * (codes == number)
    return out


def fold(columns: Tensor, height: int, width: int, size: int, padding: int) -> Tensor:
    """The transpose of `windows` without its last columns: what all windows of a pixel add to it: ``(n, h, w, c)``."""
    count, channels = columns.shape[0], columns.shape[2] // size**2
    side_h, side_w = height + 2 * padding - size + 1, width + 2 * padding - size + 1
    taps = columns.view(count, side_h, side_w, size, size, channels)
    padded = columns.new_zeros((count, height + 2 * padding, width + 2 * padding, channels))
    for i in range(size):
        for j in range(size):
            padded[:, i : i + side_h, j : j + side_w] += taps[:, :, :, i, j]
    return padded[:, padding : padding + height, padding : padding + width]
