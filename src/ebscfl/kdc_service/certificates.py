"""Certificates of one federation: an own authority, and a name in every certificate that says which role its owner is.

The name is a URI, ``urn:ebscfl:<run id>:client:3``. It is the only place a peer's `Address` is ever taken from: what a
message says about its sender counts for nothing. Names hold the run id, so a certificate of one run opens no other.
"""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ebscfl.errors import ConfigError, DataError, VerificationError
from ebscfl.ids import Address, Role, client_address

PREFIX = "urn:ebscfl"
AUTHORITY_DAYS = 3650
LEAF_DAYS = 365
CLOCK_SKEW = datetime.timedelta(hours=1)
"""Certificates begin this much before they are made, so that a peer whose clock is a little behind accepts them."""


@dataclass(frozen=True, repr=False)
class Identity:
    """A certificate with its private key, both PEM."""

    certificate: bytes
    private_key: bytes

    def __repr__(self) -> str:
        return "Identity(<redacted>)"


def uri_of(run_id: bytes, address: Address) -> str:
    """The name that stands for ``address`` in certificates of this run."""
    tail = f"client:{address.client}" if address.role is Role.CLIENT else address.role_name
    return f"{PREFIX}:{run_id.hex()}:{tail}"


def address_of_uri(run_id: bytes, uri: str) -> Address | None:
    """The address a name stands for, or None when it is not one of this run."""
    head = f"{PREFIX}:{run_id.hex()}:"
    if not uri.startswith(head):
        return None
    kind, _, number = uri.removeprefix(head).partition(":")
    if kind == Role.CLIENT.value and number.isascii() and number.isdecimal() and str(int(number)) == number:
        return client_address(int(number))
    if kind in (Role.SERVER.value, Role.KDC.value) and not number:
        return Address(kind)
    return None


def peer_address(certificate: Mapping[str, Any] | None, run_id: bytes) -> Address:
    """Who the other end of a TLS connection is, by ``SSLSocket.getpeercert()``."""
    names = [value for kind, value in (certificate or {}).get("subjectAltName", ()) if kind == "URI"]
    found = [address for name in names if (address := address_of_uri(run_id, name)) is not None]
    if len(found) != 1:
        raise VerificationError("the peer's certificate names no party of this run")
    return found[0]


def address_of_certificate(certificate: bytes, run_id: bytes) -> Address:
    """Who a PEM certificate stands for."""
    try:
        parsed = x509.load_pem_x509_certificate(certificate)
        names = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound) as error:
        raise DataError(f"this is not a certificate of a federation: {error}") from error
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    return peer_address({"subjectAltName": tuple(("URI", uri) for uri in uris)}, run_id)


def make_authority(common_name: str = "ebscfl federation") -> Identity:
    """A new certificate authority; its key signs every other certificate of the federation."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)  # signs certificates, lists
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(days=AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Identity(certificate.public_bytes(serialization.Encoding.PEM), _private_pem(key))


def make_request(run_id: bytes, address: Address) -> tuple[bytes, bytes]:
    """(certificate signing request, private key): what a party makes for itself, so that its key never travels."""
    key = ec.generate_private_key(ec.SECP256R1())
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(_subject(address))
        .add_extension(x509.SubjectAlternativeName([_uri(run_id, address)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return request.public_bytes(serialization.Encoding.PEM), _private_pem(key)


def sign_request(authority: Identity, request: bytes, run_id: bytes, address: Address) -> bytes:
    """The certificate for a request. The name is the one the operator gives; the request must ask for the same."""
    try:
        parsed = x509.load_pem_x509_csr(request)
        valid = parsed.is_signature_valid
        wanted = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, InvalidSignature, x509.ExtensionNotFound) as error:
        raise DataError(f"this is not a certificate request of `ebs-cfl client init`: {error}") from error
    if not valid or wanted.get_values_for_type(x509.UniformResourceIdentifier) != [uri_of(run_id, address)]:
        raise VerificationError(f"the request is not {address}'s request for this run")
    return _sign(authority, parsed.public_key(), run_id, address, (), LEAF_DAYS)


def issue(
    authority: Identity,
    run_id: bytes,
    address: Address,
    hosts: Sequence[str] = (),
    *,
    days: float = LEAF_DAYS,
    at: datetime.datetime | None = None,
) -> Identity:
    """A certificate and key for ``address``, good for servers at ``hosts`` and for clients.

    at: the signer's clock, for tests of clocks that differ.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    return Identity(_sign(authority, key.public_key(), run_id, address, hosts, days, at), _private_pem(key))


def _sign(
    authority: Identity,
    public_key: Any,
    run_id: bytes,
    address: Address,
    hosts: Sequence[str],
    days: float,
    at: datetime.datetime | None = None,
) -> bytes:
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    signer = serialization.load_pem_private_key(authority.private_key, None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    now = at or datetime.datetime.now(datetime.UTC)
    begin = now - CLOCK_SKEW if days > 0 else now + datetime.timedelta(days=days) - CLOCK_SKEW
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
    names = [_uri(run_id, address), *(_host(host) for host in hosts)]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(_subject(address))
        .issuer_name(issuer.subject)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM)


def _subject(address: Address) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"ebscfl {address}")])


def _uri(run_id: bytes, address: Address) -> x509.UniformResourceIdentifier:
    return x509.UniformResourceIdentifier(uri_of(run_id, address))


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def tls_context(certificate: Path, private_key: Path, authority: Path, *, server_side: bool) -> ssl.SSLContext:
    """TLS 1.3, both ends show a certificate of this authority; nothing else of the machine's trust store counts."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(certificate, private_key)
        context.load_verify_locations(cafile=authority)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"cannot use the certificates {certificate}, {private_key}, {authority}: {error}; "
            "make them with `ebs-cfl kdc init` and `ebs-cfl kdc enrol`"
        ) from error
    return context
