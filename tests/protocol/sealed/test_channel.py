"""A sealed master key opens for its client only, and not after any change."""

from __future__ import annotations

import pytest

from ebscfl.errors import VerificationError
from ebscfl.protocol.sealed.channel import open_sealed, public_key, seal_to

CLIENT, OTHER, EPHEMERAL, SECRET = (bytes([k]) * 32 for k in (1, 2, 3, 4))


def test_round_trip() -> None:
    ephemeral, box = seal_to(public_key(CLIENT), SECRET, context=b"run client 1", ephemeral_private=EPHEMERAL)
    assert ephemeral == public_key(EPHEMERAL)
    assert len(box) == 32 + 16  # secret and tag
    assert open_sealed(CLIENT, ephemeral, box, context=b"run client 1") == SECRET


def test_wrong_key_context_or_byte_does_not_open() -> None:
    ephemeral, box = seal_to(public_key(CLIENT), SECRET, context=b"run client 1", ephemeral_private=EPHEMERAL)
    flipped = bytes([box[0] ^ 1]) + box[1:]
    for private, public, data, context in (
        (OTHER, ephemeral, box, b"run client 1"),
        (CLIENT, public_key(OTHER), box, b"run client 1"),
        (CLIENT, ephemeral, flipped, b"run client 1"),
        (CLIENT, ephemeral, box, b"run client 2"),
        (CLIENT, bytes(32), box, b"run client 1"),
    ):
        with pytest.raises(VerificationError):
            open_sealed(private, public, data, context=context)


def test_small_order_points_are_refused() -> None:
    with pytest.raises(VerificationError, match="X25519"):
        seal_to(bytes(32), SECRET, context=b"", ephemeral_private=EPHEMERAL)
