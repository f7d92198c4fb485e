"""The encrypted path between two clients through the server: X25519, HKDF-SHA256, AES-128-GCM.

Keys are fresh every round, so a nonce made of sender and receiver is never used twice; run, round, sender and receiver
are authenticated with every share.
"""

from __future__ import annotations

from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ebscfl.errors import VerificationError

KEY_SIZE = 32
TAG_SIZE = 16


@dataclass(frozen=True)
class Context:
    """What an agreed key is bound to."""

    run_id: bytes
    round_id: int

    def label(self, purpose: str) -> bytes:
        """The HKDF info."""
        return b"ebscfl-secure-sum/1" + self.run_id + self.round_id.to_bytes(8, "little") + purpose.encode()


class KeyPair:
    """One X25519 key pair; the private half never prints."""

    def __init__(self, private: bytes) -> None:
        self.private = private
        self._key = X25519PrivateKey.from_private_bytes(private)
        self.public = self._key.public_key().public_bytes_raw()

    def __repr__(self) -> str:
        return "KeyPair(<redacted>)"

    def agree(self, peer_public: bytes, context: Context, purpose: str) -> bytes:
        """32 bytes both ends derive; a public key of small order is refused."""
        try:
            shared = self._key.exchange(X25519PublicKey.from_public_bytes(peer_public))
        except ValueError as error:
            raise VerificationError("a public key has small order") from error
        return HKDF(hashes.SHA256(), KEY_SIZE, None, context.label(purpose)).derive(shared)


def seal(key: bytes, sender: int, receiver: int, context: Context, plaintext: bytes) -> bytes:
    """Encrypt one share for ``receiver``."""
    return AESGCM(key[:16]).encrypt(_nonce(sender, receiver), plaintext, _bound(sender, receiver, context))


def unseal(key: bytes, sender: int, receiver: int, context: Context, ciphertext: bytes) -> bytes:
    """Decrypt what ``sender`` sealed; anything changed on the way is a `VerificationError` that names it."""
    try:
        return AESGCM(key[:16]).decrypt(_nonce(sender, receiver), ciphertext, _bound(sender, receiver, context))
    except InvalidTag as error:
        raise VerificationError(f"the share of client {sender} fails authentication", culprits=(sender,)) from error


def _nonce(sender: int, receiver: int) -> bytes:
    return sender.to_bytes(4, "little") + receiver.to_bytes(4, "little") + bytes(4)


def _bound(sender: int, receiver: int, context: Context) -> bytes:
    return context.label("share") + _nonce(sender, receiver)
