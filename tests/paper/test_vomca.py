"""VOMCA alone: sums decode, one encoding does not, and Theorem 1's verification catches changed masks."""

import numpy as np
import pytest

from ebscfl.errors import VerificationError
from ebscfl.linalg import orthogonal_blocks, zero_sum_blocks
from ebscfl.paper import vomca
from ebscfl.rng import USAGE_BENCH, SecretStream, root_from_seed

N, ROWS, WIDTH = 5, 2, 3


@pytest.fixture(params=range(3), name="setting")
def _setting(request):
    stream = SecretStream(root_from_seed(request.param), USAGE_BENCH)
    blocks = orthogonal_blocks(stream, count=2 * N, rows=WIDTH, cols=2 * N * WIDTH)
    values = stream.normal((N, ROWS, WIDTH))
    masks = zero_sum_blocks(stream, count=N, shape=(ROWS, WIDTH))
    secrets = stream.normal((N, ROWS, WIDTH))
    encoded = [vomca.encode(values[i], masks[i], blocks[i], blocks[N + i]) for i in range(N)]
    return blocks[:N], blocks[N:], values, masks, secrets, encoded


def test_one_encoding_decodes_to_value_plus_mask_and_the_sum_to_the_sum(setting):
    value_bases, mask_bases, values, masks, _, encoded = setting
    key = vomca.decode_key(value_bases, mask_bases)
    for i in range(N):
        assert np.abs(vomca.decode(encoded[i], key) - (values[i] + masks[i])).max() < 1e-13
        assert np.abs(vomca.decode(encoded[i], key) - values[i]).max() > 0.1
    assert np.abs(vomca.decode(sum(encoded), key) - values.sum(axis=0)).max() < 1e-13


def test_verification_accepts_any_value_under_the_right_mask(setting):
    value_bases, mask_bases, _, masks, secrets, encoded = setting
    key = vomca.verification_key(secrets, mask_bases)
    for i in range(N):
        tag = vomca.verification_tag(secrets[i], masks[i])
        vomca.verify(i, encoded[i], key, tag)
        vomca.verify(i, vomca.encode(np.full((ROWS, WIDTH), 9.0), masks[i], value_bases[i], mask_bases[i]), key, tag)


@pytest.mark.parametrize("how", ["scaled mask", "fresh mask", "noise", "other client", "negated", "nan"])
def test_verification_names_the_client_whose_mask_was_changed(setting, how):
    value_bases, mask_bases, values, masks, secrets, encoded = setting
    key = vomca.verification_key(secrets, mask_bases)
    stream = SecretStream(root_from_seed(99), USAGE_BENCH)
    i = 2
    tampered = {
        "scaled mask": vomca.encode(values[i], 1.001 * masks[i], value_bases[i], mask_bases[i]),
        "fresh mask": vomca.encode(values[i], stream.normal((ROWS, WIDTH)), value_bases[i], mask_bases[i]),
        "noise": encoded[i] + 1e-6 * stream.normal(encoded[i].shape),
        "other client": encoded[i + 1],
        "negated": -encoded[i],
        "nan": encoded[i] * np.nan,
    }[how]
    with pytest.raises(VerificationError, match="client 2") as caught:
        vomca.verify(i, tampered, key, vomca.verification_tag(secrets[i], masks[i]))
    assert caught.value.culprits == (2,)


def test_the_residual_is_the_guessed_change_seen_through_the_secret(setting):
    # Theorem 1: with a mask change D the residual is V_i D^T, zero only if the guess is orthogonal to the secret V_i.
    value_bases, mask_bases, values, masks, secrets, _ = setting
    key = vomca.verification_key(secrets, mask_bases)
    change = np.zeros((ROWS, WIDTH))
    change[0, 1] = 0.5
    tampered = vomca.encode(values[0], masks[0] + change, value_bases[0], mask_bases[0])
    tag = vomca.verification_tag(secrets[0], masks[0])
    expected = np.abs(secrets[0] @ change.T).max() / (np.linalg.norm(key) * np.linalg.norm(tampered))
    assert vomca.verification_residual(tampered, key, tag) == pytest.approx(expected, rel=1e-9)
