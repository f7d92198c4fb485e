"""The measured document has the promised keys and honest numbers."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ebscfl import rng
from ebscfl.errors import ConfigError
from ebscfl.protocol.measure import AGREEMENT, example_round, measure_round, relative_errors

KEYS = {"protocol", "relative_error", "total_weight_error", "culprits", "bytes", "seconds"}


def test_document() -> None:
    document = json.loads(json.dumps(measure_round("plain", num_clients=6, num_clusters=2, dim=300, repeats=1)))
    assert set(document) >= KEYS
    assert set(document["bytes"]) == {"client_upload", "kdc_to_client", "kdc_to_server", "server_to_kdc"}
    assert set(document["seconds"]) >= {"kdc_setup", "kdc_round", "client", "server", "plain_rfca", "fedavg"}
    assert document["bytes"]["client_upload"] == 24 + 8 + 4 + 4 + 4 * 300
    assert 0 < document["relative_error"] < 1e-6
    assert document["culprits"] == []
    with pytest.raises(ConfigError):
        measure_round("plain", num_clients=6, num_clusters=2, dim=300, repeats=0)


def test_example_updates_agree_as_stated() -> None:
    updates, clusters, server = example_round(10, 2, 100_000, rng.root_from_seed(1))
    scores = np.einsum("ij,ij->i", updates, server[list(clusters)])
    # cosine of noise + a s with s, for orthogonal unit noise and s: a / sqrt(1 + a^2); fluctuation 1/sqrt(l) = 0.003
    want = AGREEMENT / np.sqrt(1 + AGREEMENT**2) * np.where(np.arange(10) % 5 == 4, -1, 1)
    assert np.abs(scores - want).max() < 0.02


def test_relative_errors_of_an_empty_cluster_are_absolute() -> None:
    want = np.array([[3.0, 4.0], [0.0, 0.0]])
    assert relative_errors(want + np.array([[0.0, 1.0], [0.0, 0.25]]), want) == [1.0 / 5.0, 0.25]
