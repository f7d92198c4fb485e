from __future__ import annotations

import numpy as np
import pytest
from sealed_round import ROOT, RUN, generator, make_updates, play

from ebscfl.errors import UsageError, VerificationError
from ebscfl.sealed import (
    check_server_row,
    client_keys,
    commitment,
    encode,
    guard_scalar,
    master_key,
    pads,
    plan,
    quantize_server_updates,
    seal,
)

PARAMS = plan(6, 50, 3, "m31", quorum=1)
both = pytest.mark.parametrize("field", ["m31", "m61"])


def test_an_input_is_the_rounded_unit_update_and_one_half_in_its_slot() -> None:
    update = generator(1).standard_normal(50).astype(np.float32)
    encoded = encode(PARAMS, update, 1, ROOT, 1, 0)
    exact = update.astype(np.float64) / np.linalg.norm(update.astype(np.float64)) * 2**PARAMS.update_bits
    assert np.all(np.abs(encoded.slot[:-1] - exact) < 1)
    assert encoded.slot[-1] * 2 == 2**PARAMS.update_bits
    dense = encoded.dense(PARAMS).reshape(3, 51)
    assert np.array_equal(dense[1], encoded.slot)
    assert not dense[[0, 2]].any()


def test_rounding_is_unbiased() -> None:
    """Mean of 400 roundings: each has sd at most 1/2, the mean at most 1/40; 50 coordinates, six sd."""
    update = generator(2).standard_normal(50)
    exact = update / np.linalg.norm(update) * 2**PARAMS.update_bits
    slots = [encode(PARAMS, update, 0, ROOT, round_id, 0).slot[:-1] for round_id in range(400)]
    assert np.all(np.abs(np.mean(slots, axis=0) - exact) < 6 / 40)


@pytest.mark.parametrize("bad", [np.zeros(50), np.full(50, np.nan), np.full(50, np.inf)])
def test_an_update_without_a_norm_is_refused(bad: np.ndarray) -> None:
    with pytest.raises(UsageError, match="client 4"):
        encode(PARAMS, bad, 0, ROOT, 1, 4)


def test_wrong_shapes_types_and_clusters_are_refused() -> None:
    with pytest.raises(UsageError, match="50 floats"):
        encode(PARAMS, np.ones(49), 0, ROOT, 1, 0)
    with pytest.raises(UsageError, match="50 floats"):
        encode(PARAMS, np.ones(50, dtype=np.int64), 0, ROOT, 1, 0)
    with pytest.raises(UsageError, match="cluster 3"):
        encode(PARAMS, np.ones(50), 3, ROOT, 1, 0)
    with pytest.raises(UsageError, match="server updates"):
        quantize_server_updates(PARAMS, np.ones((2, 50)))


@both
def test_an_upload_is_x_plus_r_and_kappa_x_plus_b(field: str) -> None:
    """The slow twin of sealing, on Python integers."""
    played = play(field, n=2, dim=40, m=2)
    params, p = played.params, played.params.field.modulus
    for encoded, keys, upload, own in zip(played.inputs, played.keys, played.uploads, played.pads, strict=True):
        x = [int(v) for v in encoded.dense(params)]
        assert [int(v) for v in upload.words[0]] == [(a + int(r)) % p for a, r in zip(x, own[0], strict=True)]
        assert [int(v) for v in upload.words[1]] == [
            (keys.kappa * a + int(b)) % p for a, b in zip(x, own[1], strict=True)
        ]
        counts = x[params.dim :: params.slot_size]
        assert [int(v) for v in upload.guard] == [
            (keys.guard_kappa * a + int(b)) % p for a, b in zip(counts, keys.guard_pad, strict=True)
        ]


def test_an_input_too_large_for_the_field_is_refused() -> None:
    encoded = encode(PARAMS, np.ones(50), 0, ROOT, 1, 0)
    encoded.slot[3] = 2**31
    with pytest.raises(UsageError, match="does not fit"):
        seal(PARAMS, encoded, client_keys(PARAMS, ROOT, RUN, 1, 0))


def test_every_part_of_the_context_changes_every_key() -> None:
    base = (PARAMS, master_key(ROOT, RUN, 0), RUN, 1, 0)
    others = [
        (PARAMS, master_key(ROOT, RUN, 1), RUN, 1, 0),
        (PARAMS, master_key(ROOT, RUN, 0), "other", 1, 0),
        (PARAMS, master_key(ROOT, RUN, 0), RUN, 2, 0),
        (PARAMS, master_key(ROOT, RUN, 0), RUN, 1, 1),
    ]
    keys, same = client_keys(*base), client_keys(*base)
    assert keys.kappa == same.kappa
    assert np.array_equal(pads(PARAMS, keys), pads(PARAMS, same))
    for other in others:
        changed = client_keys(*other)
        assert changed.kappa != keys.kappa
        assert changed.guard_kappa != keys.guard_kappa
        # 153 words agree by chance in one place with probability 2e-7.
        assert not np.any(pads(PARAMS, changed) == pads(PARAMS, keys))
    assert guard_scalar(PARAMS, ROOT, RUN, 1) != guard_scalar(PARAMS, ROOT, RUN, 2)


def test_secrets_never_print_and_sizes_are_checked() -> None:
    keys = client_keys(PARAMS, ROOT, RUN, 1, 0)
    assert repr(keys) == "ClientKeys(<redacted>)"
    assert "redacted" in repr(encode(PARAMS, np.ones(50), 0, ROOT, 1, 0))
    with pytest.raises(UsageError, match="32 bytes"):
        client_keys(PARAMS, b"short", RUN, 1, 0)
    with pytest.raises(UsageError, match="buffer"):
        pads(PARAMS, keys, PARAMS.field.zeros((2, 7)))


def test_the_key_center_checks_the_servers_row() -> None:
    _, server, _ = make_updates(2, 50, 3, 0)
    row = quantize_server_updates(PARAMS, server)
    check_server_row(PARAMS, row)
    longer, counted = row * 2, row.copy()
    counted[50] = 1
    for bad in (longer, counted, row[:-1], row.astype(np.int64), np.zeros_like(row)):
        with pytest.raises(VerificationError):
            check_server_row(PARAMS, bad)
    assert commitment(PARAMS, RUN, row) == commitment(PARAMS, RUN, row.copy())
    assert commitment(PARAMS, RUN, row) != commitment(PARAMS, RUN, counted)
    assert commitment(PARAMS, RUN, row) != commitment(PARAMS, "other", row)
