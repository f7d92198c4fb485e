"""Both ends agree, nothing else opens a share, and no key prints."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ebscfl import rng
from ebscfl.errors import VerificationError
from ebscfl.secagg.channel import TAG_SIZE, Context, KeyPair, seal, unseal

CONTEXT = Context(b"run-tag!", 3)
ONE, TWO = (KeyPair(rng.derive(rng.root_from_seed(1), "test", i)) for i in range(2))


def test_both_ends_agree_and_purpose_round_and_run_separate() -> None:
    key = ONE.agree(TWO.public, CONTEXT, "mask")
    assert key == TWO.agree(ONE.public, CONTEXT, "mask")
    others = [
        ONE.agree(TWO.public, CONTEXT, "share"),
        ONE.agree(TWO.public, Context(b"run-tag!", 4), "mask"),
        ONE.agree(TWO.public, Context(b"run-tag?", 3), "mask"),
    ]
    assert len({key, *others}) == 4


def test_the_key_is_hkdf_of_the_shared_secret() -> None:
    shared = ONE._key.exchange(TWO._key.public_key())
    want = HKDF(hashes.SHA256(), 32, None, CONTEXT.label("mask")).derive(shared)
    assert ONE.agree(TWO.public, CONTEXT, "mask") == want


def test_shares_open_only_unchanged_and_in_their_place() -> None:
    key = ONE.agree(TWO.public, CONTEXT, "share")
    sealed = seal(key, 1, 2, CONTEXT, b"two secrets")
    assert len(sealed) == len(b"two secrets") + TAG_SIZE
    assert unseal(key, 1, 2, CONTEXT, sealed) == b"two secrets"
    changed = bytes([sealed[0] ^ 1]) + sealed[1:]
    for sender, receiver, context, data in (
        (1, 2, CONTEXT, changed),
        (2, 1, CONTEXT, sealed),
        (1, 2, Context(CONTEXT.run_id, 4), sealed),
        (1, 2, CONTEXT, sealed[:-1]),
    ):
        with pytest.raises(VerificationError, match="authentication") as caught:
            unseal(key, sender, receiver, context, data)
        assert caught.value.culprits == (sender,)


def test_small_order_keys_are_refused() -> None:
    with pytest.raises(VerificationError, match="small order"):
        ONE.agree(bytes(32), CONTEXT, "mask")


def test_nothing_prints() -> None:
    assert repr(ONE) == "KeyPair(<redacted>)"
