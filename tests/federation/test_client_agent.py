"""A client enrols once and never encodes two updates under one round's keys, however often it dies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ebscfl.errors import ConfigError, SequenceError
from ebscfl.federation.client_agent import ClientAgent
from ebscfl.federation.loopback import Loopback
from ebscfl.protocol.roles import Setup

ONE, TWO = np.arange(1.0, 21.0), np.arange(21.0, 41.0)


@pytest.fixture
def loop(tmp_path: Path):
    with Loopback(tmp_path, Setup("sealed", 2, 2, 20, b"run-tag!")) as made:
        yield made


def test_the_same_round_gives_the_same_bytes_across_a_death(loop: Loopback):
    first = loop.client(0).upload(3, ONE, 1)
    reborn = loop.client(0)
    assert reborn.last_round == 3
    assert reborn.upload(3, TWO, 0) == first  # another update: still the bytes that may be out already
    assert reborn.upload(4, TWO, 0) != first
    with pytest.raises(SequenceError, match="round 3 is over"):
        reborn.upload(3, ONE, 1)
    assert reborn.sent(4) is not None
    assert reborn.sent(5) is None


def test_enrolment_is_asked_for_once(loop: Loopback):
    loop.client(0)
    before = loop.service.metrics.value("ebscfl_kdc_requests_total", party="client", kind="say", status="ok")
    loop.client(0)
    after = loop.service.metrics.value("ebscfl_kdc_requests_total", party="client", kind="say", status="ok")
    assert before == after == 1


def test_an_unknown_client_is_a_config_error(loop: Loopback):
    with pytest.raises(ConfigError, match="outside the run"):
        ClientAgent(loop.client_dir(0), 7)
