"""Rows are complete, bytes are what the roles send, samples change no size, targets are ratios of rows."""

from __future__ import annotations

import pytest

from ebscfl.errors import ConfigError
from ebscfl.protocol.codec import HEADER
from ebscfl.reproduce import secure_sums

KEYS = {
    "protocol", "clients", "dim", "clusters", "client_cpu_s", "server_cpu_s", "kdc_cpu_s", "client_upload_bytes",
    "server_download_bytes",
}  # fmt: skip


@pytest.mark.parametrize("protocol", ["plain", "sealed", "paper", *secure_sums.SECURE_SUMS])
def test_every_protocol_gives_a_complete_row(protocol: str) -> None:
    row = secure_sums.measure(protocol, clients=10, dim=60, clusters=2)
    assert set(row) >= KEYS
    assert row["client_cpu_s"] > 0
    assert row["server_cpu_s"] > 0
    assert (row["kdc_cpu_s"] > 0) == (protocol in ("sealed", "paper"))
    assert row["server_download_bytes"] >= 10 * row["client_upload_bytes"]
    assert row["sampled_clients"] == 10


def test_a_plain_upload_is_its_message() -> None:
    row = secure_sums.measure("plain", clients=4, dim=100)
    assert row["client_upload_bytes"] == HEADER.size + 8 + 4 + 4 + 4 * 100  # round, cluster, shape, numbers


@pytest.mark.parametrize("protocol", ["plain", "sealed", "secagg", "fastsecagg"])
def test_leavers_are_not_billed(protocol: str) -> None:
    without = secure_sums.measure(protocol, clients=10, dim=500)
    row = secure_sums.measure(protocol, clients=10, dim=500, dropouts=0.1)
    assert row["dropouts"] == 0.1
    assert row["sampled_clients"] == 9
    assert row["client_upload_bytes"] < without["client_upload_bytes"]
    if protocol in ("plain", "sealed"):
        assert row["client_upload_bytes"] == pytest.approx(0.9 * without["client_upload_bytes"])


def test_a_sample_changes_no_size(monkeypatch: pytest.MonkeyPatch) -> None:
    full = secure_sums.measure("secagg", clients=12, dim=50, dropouts=0.25)
    monkeypatch.setattr(secure_sums, "MASK_WORDS", 1)
    few = secure_sums.measure("secagg", clients=12, dim=50, dropouts=0.25)
    assert few["sampled_clients"] == secure_sums.SAMPLE < full["sampled_clients"] == 9
    assert {k: v for k, v in few.items() if k.endswith("bytes")} == {
        k: v for k, v in full.items() if k.endswith("bytes")
    }


def test_the_document_and_its_targets() -> None:
    document = secure_sums.bench(clients=10, dim=200, protocols=("plain", "sealed", "secagg"), repeats=1)
    assert [(row["protocol"], row["dropouts"]) for row in document["rows"]] == [
        (name, share) for name in ("plain", "sealed", "secagg") for share in (0.0, 0.1)
    ]
    found = {row["protocol"]: row for row in document["rows"] if row["dropouts"] == 0.0}
    by_text = {target["target"]: target for target in document["targets"]}
    upload = by_text["client upload: sealed over plain, at most 2.1"]
    want = found["sealed"]["client_upload_bytes"] / found["plain"]["client_upload_bytes"]
    assert upload["measured"] == want
    assert upload["reached"] == (want <= 2.1)
    client = by_text["client CPU: secagg over sealed, at least 20"]
    assert client["measured"] == found["secagg"]["client_cpu_s"] / found["sealed"]["client_cpu_s"]


def test_bad_cases() -> None:
    with pytest.raises(ConfigError, match="unknown protocol"):
        secure_sums.measure("cloud", clients=4, dim=4)
    with pytest.raises(ConfigError, match="repeats"):
        secure_sums.measure("plain", clients=4, dim=4, repeats=0)
    with pytest.raises(ConfigError, match="share of drop-outs"):
        secure_sums.measure("plain", clients=4, dim=4, dropouts=1.0)
    with pytest.raises(ConfigError, match="3 n m l"):
        secure_sums.measure("paper", clients=1000, dim=100_000)
