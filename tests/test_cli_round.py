"""`ebs-cfl round`: the promised keys, honest errors, and a plain word about what hides nothing."""

from __future__ import annotations

import json

import pytest

from ebscfl.cli import main
from ebscfl.protocol.registry import PROTOCOLS

SIZES = ["--clients", "4", "--clusters", "2", "--dim", "5", "--repeats", "1"]
LIMITS = {"plain": 1e-6, "paper": 1e-9, "paper-naive": 1e-9, "sealed": 5e-3}


@pytest.mark.parametrize("protocol", sorted(LIMITS))
def test_json_document(protocol: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["round", "--protocol", protocol, *SIZES, "--seed", "7", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["protocol"] == protocol
    assert 0 < document["relative_error"] < LIMITS[protocol]
    assert 0 <= document["total_weight_error"] < LIMITS[protocol]
    assert document["culprits"] == []
    assert set(document["bytes"]) == {"client_upload", "kdc_to_client", "kdc_to_server", "server_to_kdc"}
    assert {"kdc_setup", "kdc_round", "client", "server", "plain_rfca", "fedavg"} <= set(document["seconds"])


@pytest.mark.parametrize("protocol", sorted(LIMITS))
def test_text_warns_where_nothing_is_hidden(protocol: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["round", "--protocol", protocol, *SIZES]) == 0
    text = capsys.readouterr().out
    assert ("does not hide" in text) is not PROTOCOLS[protocol].hides_updates


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--protocol", "magic"], 3, "there are"),
        (["--clients", "1"], 3, "at least 2"),
        (["--protocol", "paper-naive", "--dim", "5000"], 3, "compressed"),
        (["--protocol", "sealed", "--segment", "2"], 3, "no option"),
        (["--repeats", "0"], 3, "repeats"),
        (["--normalize", "half"], 3, "normalize"),
    ],
)
def test_wrong_values_are_one_line(
    arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    base = [] if "--protocol" in arguments else ["--protocol", "paper"]
    assert main(["round", *base, *arguments]) == code
    error = capsys.readouterr().err
    assert error.startswith("ebs-cfl: ")
    assert error.count("\n") == 1
    assert words in error
