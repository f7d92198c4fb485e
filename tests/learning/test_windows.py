"""Windows, pooling and their ways back: torch's own functions are the twins, and the CUDA kernels do the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from ebscfl import rng
from ebscfl.learning import windows
from ebscfl.learning.windows import fold, on, pool, unpool

ROOT = rng.root_from_seed(5)
SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(3, 9), st.integers(3, 9))


def draw(*shape: int, name: str = "images") -> Tensor:
    return torch.randn(shape, generator=rng.torch_generator(ROOT, "test-windows/1", name), dtype=torch.float64)


@given(SHAPES, st.integers(1, 3), st.booleans())
@settings(max_examples=30, deadline=None)
def test_windows_are_torchs_unfold_then_one_then_zeros(
    shape: tuple[int, int, int, int], size: int, padded: bool
) -> None:
    images, padding = draw(*shape), (size - 1) // 2 if padded else 0
    channels = shape[1]
    rows = windows.windows(images, size, padding, size * size * channels + 3)
    expected = functional.unfold(images, size, padding=padding)  # (n, c * s * s, h' * w'), channel first
    expected = expected.unflatten(1, (channels, size * size)).permute(0, 3, 2, 1).flatten(2)
    torch.testing.assert_close(rows[..., :-3], expected, rtol=0.0, atol=0.0)
    assert bool((rows[..., -3] == 1).all())
    assert bool((rows[..., -2:] == 0).all())


@given(SHAPES, st.integers(1, 3), st.booleans())
@settings(max_examples=30, deadline=None)
def test_fold_is_the_transpose_of_windows(shape: tuple[int, int, int, int], size: int, padded: bool) -> None:
    images, padding = draw(*shape), (size - 1) // 2 if padded else 0
    inner = size * size * shape[1]
    rows = windows.windows(images, size, padding, inner + 1)[..., :inner]
    other = draw(*rows.shape, name="rows")
    back = fold(other, shape[2], shape[3], size, padding)
    # <W x, y> = <x, W^T y>
    assert float((rows * other).sum()) == pytest.approx(float((images.permute(0, 2, 3, 1) * back).sum()), abs=1e-9)


@given(SHAPES)
@settings(max_examples=30, deadline=None)
def test_pool_and_back_are_torchs_gradient(shape: tuple[int, int, int, int]) -> None:
    count, channels, height, width = shape
    z = draw(count, height, width, channels).requires_grad_()
    top, codes = pool(z.detach())
    expected = functional.relu(functional.max_pool2d(z.permute(0, 3, 1, 2), 2)).permute(0, 2, 3, 1)
    torch.testing.assert_close(top, expected.detach(), rtol=0.0, atol=0.0)
    signal = draw(*top.shape, name="signal")
    (gradient,) = torch.autograd.grad(expected, z, signal)
    torch.testing.assert_close(unpool(signal, codes, height, width), gradient, rtol=0.0, atol=0.0)


def test_the_first_of_equal_maxima_counts_and_what_is_cut_sends_nothing_back() -> None:
    z = torch.tensor([[2.0, 2.0], [1.0, 2.0]]).view(1, 2, 2, 1)
    top, codes = pool(z)
    assert (float(top), int(codes)) == (2.0, 0)
    top, codes = pool(-z)
    assert (float(top), int(codes)) == (0.0, 4)
    assert bool((unpool(torch.ones(1, 1, 1, 1), codes, 2, 2) == 0).all())


def test_a_maximum_with_nan_is_nan_as_torch_has_it() -> None:
    for corner in range(4):
        z = torch.tensor([1.0, 2.0, 3.0, 4.0])
        z[corner] = torch.nan
        top, codes = pool(z.view(1, 2, 2, 1))
        assert bool(functional.max_pool2d(z.view(1, 1, 2, 2), 2).isnan())
        assert bool(top.isnan())
        assert int(codes) == 4  # nothing to send a signal to


def test_the_cpu_uses_the_plain_functions() -> None:
    assert on(torch.device("cpu")) is windows


KERNELS = """
import torch
from ebscfl import rng
from ebscfl.learning import window_kernels as fast, windows as plain
root = rng.root_from_seed(6)
draw = lambda *shape, dtype: torch.randn(shape, generator=rng.torch_generator(root, "test-windows/2", *shape)).to(dtype)
for dtype in (torch.float32, torch.bfloat16):
    for count, channels, height, width, size, padding, columns in (
        (3, 3, 8, 8, 3, 1, 32), (2, 4, 7, 9, 3, 0, 40), (2, 5, 33, 34, 2, 1, 24), (1, 1, 3, 3, 1, 0, 2),
    ):
        images = draw(count, channels, height, width, dtype=dtype)
        expected = plain.windows(images, size, padding, columns)
        assert torch.equal(fast.windows(images, size, padding, columns), expected)
        turned = images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)  # the same images, other strides
        assert torch.equal(fast.windows(turned, size, padding, columns), expected)
        z = draw(count, height, width, channels, dtype=dtype).round()  # rounded: equal maxima
        top, codes = plain.pool(z)
        for mine, wanted in zip(fast.pool(z), (top, codes), strict=True):
            assert torch.equal(mine, wanted)
        signal = draw(*top.shape, dtype=dtype)
        assert torch.equal(fast.unpool(signal, codes, height, width), plain.unpool(signal, codes, height, width))
        rows = draw(count, expected.shape[1], size * size * channels, dtype=dtype)
        mine, wanted = (x.fold(rows, height, width, size, padding).double() for x in (fast, plain))
        # Sums of up to 9 terms; the kernel adds in float32 and rounds once, torch after each.
        torch.testing.assert_close(mine, wanted, rtol=0.0, atol=9 * 8 * torch.finfo(dtype).eps)
    # What is not finite stays so, in every corner of a block.
    for bad in (torch.nan, torch.inf, -torch.inf):
        z = draw(1, 4, 4, 5, dtype=dtype)
        for corner, (row, col) in enumerate(((0, 0), (0, 1), (1, 0), (1, 1))):
            z[0, row, col, corner] = bad
            z[0, 2 + row, 2 + col, 4] = bad
        for mine, wanted in zip(fast.pool(z), plain.pool(z), strict=True):
            torch.testing.assert_close(mine, wanted, rtol=0.0, atol=0.0, equal_nan=True)
        images = draw(1, 2, 4, 4, dtype=dtype)
        images[0, 1, 1, 2] = bad
        mine, wanted = (x.windows(images, 3, 1, 24) for x in (fast, plain))
        torch.testing.assert_close(mine, wanted, rtol=0.0, atol=0.0, equal_nan=True)
print("same")
"""


@pytest.mark.slow
def test_the_kernels_do_the_same_in_tritons_interpreter() -> None:
    pytest.importorskip("triton", reason="Triton comes with torch for CUDA, and with the extra 'dev' on Linux")
    source = str(Path(windows.__file__).parents[2])
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": source}
    done = subprocess.run([sys.executable, "-c", KERNELS], env=environment, capture_output=True, text=True)
    assert done.stdout == "same\n", done.stderr


COMPILED = """
import re
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from ebscfl.learning import window_kernels as kernels

def compiled(kernel, pointers, **sizes):
    numbers = {name: "i32" for name in kernel.arg_names if name not in (*pointers, *sizes)}
    source = ASTSource(
        kernel,
        signature={**pointers, **numbers, **dict.fromkeys(sizes, "constexpr")},
        constexprs={(kernel.arg_names.index(name),): value for name, value in sizes.items()},
    )
    return triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]

for kind in ("*fp32", "*bf16"):
    size = dict(H=9, W=8, C=5, BLOCK=kernels.BLOCK)
    taps = dict(HO=9, WO=8, S=3, PAD=1)
    compiled(
        kernels._windows, dict(images=kind, out=kind), **size, **taps, STEP_C=72, STEP_H=8, STEP_W=1, COLUMNS=48
    )
    compiled(kernels._unpool, dict(signal=kind, codes="*u8", out=kind), **size)
    compiled(kernels._fold, dict(columns=kind, out=kind), **size, **taps)
    pool = compiled(kernels._pool, dict(z=kind, out=kind, codes="*u8"), **size)
    maxima = re.findall(r"max[.]\\S+", pool)
    assert maxima and all("NaN" in maximum for maximum in maxima), maxima
print("compiled")
"""


@pytest.mark.slow
def test_the_kernels_compile_for_cuda_and_their_maxima_keep_nan(tmp_path: Path) -> None:
    """No device is needed to compile. The interpreter cannot tell a maximum that drops NaN from one that keeps it."""
    pytest.importorskip("triton", reason="Triton comes with torch for CUDA, and with the extra 'dev' on Linux")
    source = str(Path(windows.__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": source, "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    # From a file: Triton reads the source of what it compiles.
    (tmp_path / "compiled.py").write_text(COMPILED)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "compiled.py")], env=environment, capture_output=True, text=True
    )
    assert done.stdout == "compiled\n", done.stderr
