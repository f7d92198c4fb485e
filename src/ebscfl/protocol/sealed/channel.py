"""How a client's master key travels: sealed to the client's X25519 public key.

The key centre makes an ephemeral key pair, agrees with the client's key, derives an AES-256-GCM key bound to run and
client, and sends (ephemeral public key, ciphertext). A one-way handshake like this has no forward secrecy against the
client's long-term key; the master key it carries has none either, so nothing is lost by it.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ebscfl.errors import VerificationError
from ebscfl.ids import KDC

PUBLIC_KEY_SIZE = 32
_NONCE = bytes(12)  # every ephemeral key encrypts once


def public_key(private: bytes) -> bytes:
    """The X25519 public key of 32 private bytes."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def _aead(private: bytes, peer_public: bytes, context: bytes) -> AESGCM:
    shared = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(peer_public))
    return AESGCM(HKDF(hashes.SHA256(), 32, None, b"ebscfl sealed enrolment 1" + context).derive(shared))


def seal_to(client_public: bytes, secret: bytes, *, context: bytes, ephemeral_private: bytes) -> tuple[bytes, bytes]:
    """(ephemeral public key, ciphertext) that only the holder of the client's private key can open."""
    try:
        aead = _aead(ephemeral_private, client_public, context + client_public)
    except ValueError as error:  # the all-zero and small-order points
        raise VerificationError("the public key is not a usable X25519 point") from error
    ephemeral_public = public_key(ephemeral_private)
    return ephemeral_public, aead.encrypt(_NONCE, secret, ephemeral_public)


def open_sealed(private: bytes, ephemeral_public: bytes, ciphertext: bytes, *, context: bytes) -> bytes:
    """What `seal_to` sealed, or `VerificationError` when a byte of it or of the context changed."""
    try:
        aead = _aead(private, ephemeral_public, context + public_key(private))
        return aead.decrypt(_NONCE, ciphertext, ephemeral_public)
    except (InvalidTag, ValueError) as error:
        raise VerificationError("the enrolment answer does not open", culprits=(KDC,)) from error
