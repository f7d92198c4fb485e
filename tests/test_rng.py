"""Streams are a function of (root, usage, context) and of nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ebscfl import rng
from ebscfl.errors import UsageError

ROOT = rng.root_from_seed(7)
CONTEXT = st.lists(st.one_of(st.integers(), st.text(), st.binary()), max_size=4)


@given(CONTEXT, CONTEXT)
def test_derive_is_injective_on_context(one: list[rng.Context], two: list[rng.Context]) -> None:
    same = [(type(a), a) for a in one] == [(type(b), b) for b in two]
    assert (rng.derive(ROOT, "u", *one) == rng.derive(ROOT, "u", *two)) is same


def test_usage_labels_are_unique_and_versioned() -> None:
    labels = [value for name, value in vars(rng).items() if name.startswith("USAGE_")]
    assert len(set(labels)) == len(labels)
    assert all(label.rpartition("/")[2].isdigit() for label in labels)


@pytest.mark.parametrize("bad", [True, 1.5, None])
def test_derive_refuses_other_context_types(bad: object) -> None:
    with pytest.raises(UsageError):
        rng.derive(ROOT, "u", bad)  # type: ignore[arg-type]


def test_roots_have_one_size_and_seeds_a_range() -> None:
    with pytest.raises(UsageError):
        rng.derive(b"short", "u")
    with pytest.raises(UsageError):
        rng.root_from_seed(-1)
    assert rng.root_from_seed(0) != rng.root_from_seed(1)


def test_generators_repeat_and_differ_by_context() -> None:
    draw = [rng.numpy_generator(ROOT, "u", 0, i).standard_normal(4) for i in (0, 0, 1)]
    assert np.array_equal(draw[0], draw[1])
    assert not np.array_equal(draw[0], draw[2])
    torch_draw = [torch.rand(4, generator=rng.torch_generator(ROOT, "u", i)) for i in (0, 0, 1)]
    assert torch.equal(torch_draw[0], torch_draw[1])
    assert not torch.equal(torch_draw[0], torch_draw[2])


def test_secret_stream_is_one_stream_however_it_is_read() -> None:
    whole = rng.SecretStream(ROOT, "u", 1).bytes(200_000)
    stream = rng.SecretStream(ROOT, "u", 1)
    assert stream.bytes(7) + stream.bytes(70_000) + stream.bytes(129_993) == whole
    assert rng.SecretStream(ROOT, "u", 2).bytes(16) != whole[:16]
    assert "redacted" in repr(stream)


def test_secret_stream_is_aes_ctr() -> None:
    """The slow twin: encrypt counters one block at a time."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    material = rng.derive(ROOT, "u", "x")
    start = int.from_bytes(material[16:], "big")
    ecb = Cipher(algorithms.AES(material[:16]), modes.ECB()).encryptor()  # test oracle only
    blocks = b"".join(ecb.update(((start + i) % 2**128).to_bytes(16, "big")) for i in range(5))
    assert rng.SecretStream(ROOT, "u", "x").bytes(80) == blocks


def test_normals_have_unit_moments() -> None:
    z = rng.SecretStream(ROOT, "normal").normal(200_000)
    # standard errors: mean 1/sqrt(N) = 0.0022, variance sqrt(2/N) = 0.0032, fourth moment sqrt(96/N) = 0.022
    assert abs(z.mean()) < 5 * 0.0023
    assert abs(z.var() - 1) < 5 * 0.0032
    assert abs((z**4).mean() - 3) < 5 * 0.022


def test_fill_needs_contiguous_memory() -> None:
    with pytest.raises(UsageError):
        rng.SecretStream(ROOT, "u").fill(np.zeros((4, 4))[:, ::2])
