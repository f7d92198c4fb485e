"""Names in certificates decide who a peer is; nothing else does."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from ebscfl.errors import ConfigError, DataError, VerificationError
from ebscfl.ids import KDC, SERVER, client_address
from ebscfl.kdc_service.certificates import (
    Identity,
    address_of_certificate,
    address_of_uri,
    issue,
    make_authority,
    make_request,
    peer_address,
    sign_request,
    tls_context,
    uri_of,
)

RUN, OTHER_RUN = b"run-one!", b"run-two!"


@pytest.fixture(scope="module")
def authority() -> Identity:
    return make_authority()


@pytest.mark.parametrize("address", [KDC, SERVER, client_address(0), client_address(123456)])
def test_names_and_addresses_go_both_ways(address, authority):
    assert address_of_uri(RUN, uri_of(RUN, address)) == address
    assert address_of_certificate(issue(authority, RUN, address).certificate, RUN) == address


@pytest.mark.parametrize(
    "uri",
    ["", "urn:ebscfl", uri_of(OTHER_RUN, SERVER), uri_of(RUN, SERVER) + ":1", uri_of(RUN, SERVER) + "x"]
    + [f"urn:ebscfl:{RUN.hex()}:client{tail}" for tail in ("", ":", ":-1", ":01", ":1:2", ":x", ":٣", ": 1")],
)
def test_other_names_are_nobody(uri):
    assert address_of_uri(RUN, uri) is None


def test_a_certificate_names_exactly_one_party():
    one, two = ("URI", uri_of(RUN, SERVER)), ("URI", uri_of(RUN, KDC))
    assert peer_address({"subjectAltName": (("DNS", "x"), one)}, RUN) == SERVER
    for wrong in (None, {}, {"subjectAltName": (one, two)}, {"subjectAltName": (("DNS", one[1]),)}):
        with pytest.raises(VerificationError):
            peer_address(wrong, RUN)


def test_a_request_is_signed_for_its_own_name_only(authority):
    request, _ = make_request(RUN, client_address(3))
    assert address_of_certificate(sign_request(authority, request, RUN, client_address(3)), RUN) == client_address(3)
    for run, address in ((RUN, client_address(4)), (RUN, SERVER), (OTHER_RUN, client_address(3))):
        with pytest.raises(VerificationError):
            sign_request(authority, request, run, address)
    with pytest.raises(DataError):
        sign_request(authority, b"no request", RUN, client_address(3))
    with pytest.raises(DataError):
        address_of_certificate(b"no certificate", RUN)


def test_private_keys_do_not_print(authority):
    assert "PRIVATE" not in repr(authority) + repr(issue(authority, RUN, SERVER))


def test_contexts_demand_a_certificate_and_modern_tls(authority, tmp_path: Path):
    own = issue(authority, RUN, KDC, ("127.0.0.1",))
    files = [tmp_path / name for name in ("tls.pem", "tls.key", "ca.pem")]
    for path, content in zip(files, (own.certificate, own.private_key, authority.certificate), strict=True):
        path.write_bytes(content)
    for server_side in (True, False):
        context = tls_context(*files, server_side=server_side)
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.minimum_version is ssl.TLSVersion.TLSv1_3
    files[1].unlink()
    with pytest.raises(ConfigError, match="kdc init"):
        tls_context(*files, server_side=True)
