"""Vectors of the paper's protocol, checked by code that shares nothing with what made them (struct, hashlib, loops)."""

from __future__ import annotations

import hashlib
import json
import math
import re
import runpy
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from ebscfl.errors import ProtocolError, VerificationError
from ebscfl.paper import PaperParameters, ServerRoundKey, deal, refresh, verify
from ebscfl.protocol import codec
from ebscfl.protocol.messages import MESSAGE_BY_CODE

REPOSITORY = Path(__file__).resolve().parent.parent
SCRIPT = REPOSITORY / "scripts" / "make_vectors.py"


def load(name: str) -> dict[str, Any]:
    return json.loads((REPOSITORY / "tests" / "vectors" / f"{name}.json").read_text(encoding="utf-8"))


def cases(name: str) -> list[Any]:
    return [pytest.param(case, id=case.get("name") or case["message"]) for case in load(name)["cases"]]


@pytest.mark.parametrize("name", ["ok_codec", "bad_codec", "ok_stream"])
def test_exact_vectors_are_made_again_to_the_same_bytes(name: str) -> None:
    made = runpy.run_path(str(SCRIPT))["text_of"](name)
    assert made == (REPOSITORY / "tests" / "vectors" / f"{name}.json").read_text(encoding="utf-8")


def write_value(value: Any, width: int | None, out: bytearray) -> None:
    """The wire format by hand; ``width`` is that of integers."""
    if isinstance(value, dict):
        out += struct.pack(f"<{len(value['shape'])}I", *value["shape"])
        out += bytes(-len(out) % 8)
        letter = {"<f8": "d", "<f4": "f"}[value["dtype"]]
        out += struct.pack(f"<{len(value['values'])}{letter}", *value["values"])
    elif isinstance(value, list):
        out += struct.pack("<I", len(value))
        for item in value:
            write_value(item, 4, out)
    elif isinstance(value, str):
        raw = value.encode()
        out += struct.pack("<I", len(raw)) + raw
    else:
        out += int(value).to_bytes(width or 8, "little")


@pytest.mark.parametrize("case", cases("ok_codec"))
def test_codec_bytes_by_hand_and_back(case: dict[str, Any]) -> None:
    tag = bytes.fromhex(load("ok_codec")["run_tag"])
    out = bytearray(24)
    for name, value in case["fields"].items():
        write_value(value, 4 if name == "cluster" else 8, out)
    out[:24] = b"EBSC" + bytes([1, case["code"], 0, 0]) + tag + (len(out) - 24).to_bytes(8, "little")
    assert bytes(out).hex() == case["bytes"]
    message = codec.decode(bytes.fromhex(case["bytes"]), tag)
    assert type(message).__name__ == case["message"] == MESSAGE_BY_CODE[case["code"]].__name__
    assert codec.encode(message, tag).hex() == case["bytes"]


def test_there_is_a_vector_for_every_message_of_plain_and_paper() -> None:
    assert {case["code"] for case in load("ok_codec")["cases"]} == {code for code in MESSAGE_BY_CODE if code < 64}


@pytest.mark.parametrize("case", cases("bad_codec"))
def test_damaged_bytes_are_refused(case: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match=re.escape(case["error"])):
        codec.decode(bytes.fromhex(case["bytes"]), bytes.fromhex(load("bad_codec")["run_tag"]))


def derive_by_hand(root: bytes, usage: str, context: list[dict[str, Any]]) -> bytes:
    text = b""
    for item in [{"str": usage}, *context]:
        ((kind, value),) = item.items()
        raw = bytes.fromhex(value) if kind == "bytes" else str(value).encode()
        text += kind[0].encode() + struct.pack("<Q", len(raw)) + raw
    return hashlib.blake2b(text, digest_size=32, key=root, person=b"ebscfl-derive-1\0").digest()


def test_streams_by_hand() -> None:
    vector = load("ok_stream")
    root = bytes.fromhex(vector["root"])
    for case in vector["derive"]:
        assert derive_by_hand(root, case["usage"], case["context"]).hex() == case["bytes"]
    assert len({case["bytes"] for case in vector["derive"]}) == len(vector["derive"])
    for case in vector["stream"]:
        material = derive_by_hand(root, case["usage"], case["context"])
        # AES-128 in counter mode is AES of a counter that starts at the second half.
        cipher = Cipher(algorithms.AES(material[:16]), modes.ECB()).encryptor()
        start = int.from_bytes(material[16:], "big")
        blocks = range(case["size"] // 16 - 4, case["size"] // 16 + 1) if case["size"] > 64 else range(4)
        counters = b"".join(((start + i) % (1 << 128)).to_bytes(16, "big") for i in blocks)
        stream = cipher.update(counters)
        end = case["size"] - 16 * blocks[0]
        assert stream[end - 48 : end].hex() == case["tail"]


def test_the_paper_round_by_loops() -> None:
    vector = load("ok_paper_round")
    close = {"rel": vector["tolerance"], "abs": vector["tolerance"]}
    basis, t = np.array(vector["cluster_basis"]), vector["segment_len"]
    total, sums = 0.0, np.zeros((2, 5))
    for i, (update, cluster) in enumerate(zip(vector["updates"], vector["clusters"], strict=True)):
        length = math.sqrt(sum(x * x for x in update))
        server = vector["server_updates"][cluster]
        cosine = (
            sum(a * b for a, b in zip(update, server, strict=True)) / length / math.sqrt(sum(b * b for b in server))
        )
        total += max(cosine, 0.0)
        sums[cluster] += max(cosine, 0.0) * np.array(update) / length
        upload, mask = np.array(vector["uploads"][i]), np.array(vector["round_masks"][i])
        key = np.array(vector["encode_keys"][i])
        padded = [*update, 0.0]
        for k in range(3):
            expected = mask[k].copy()
            for a in range(t):
                for b in range(2 * t):
                    expected += padded[k * t + a] / length * basis[cluster, a, b] * key[b]
            assert upload[k] == pytest.approx(expected, **close)
        assert float((upload**2).sum()) == pytest.approx(3.0, abs=1e-10)
        checked = float((np.array(vector["verification_key"])[i] * upload).sum())
        assert checked == pytest.approx(vector["tags"][i], **close)
    assert np.array(vector["aggregates"]) == pytest.approx(sums / total, **close)
    assert vector["total_weight"] == pytest.approx(total, **close)


def test_this_build_deals_the_vectors_keys() -> None:
    # Bounded, not exact: QR and matrix products round differently from machine to machine.
    vector = load("ok_paper_round")
    params = PaperParameters(num_clients=3, num_clusters=2, dim=5)
    dealt = deal(params, np.array(vector["server_updates"]), bytes.fromhex(vector["secret"]))
    keys = refresh(params, dealt.secret, vector["round_id"])
    for i in range(3):
        assert np.abs(dealt.client_keys[i].encode_key - vector["encode_keys"][i]).max() < vector["tolerance"]
        assert np.abs(keys.client[i].mask - vector["round_masks"][i]).max() < vector["tolerance"]
    assert np.abs(keys.server.tags - vector["tags"]).max() < vector["tolerance"]


@pytest.mark.parametrize("case", cases("bad_paper_upload"))
def test_bad_uploads_are_refused(case: dict[str, Any]) -> None:
    good = load("ok_paper_round")
    params = PaperParameters(num_clients=3, num_clusters=2, dim=5)
    dealt = deal(params, np.array(good["server_updates"]), bytes.fromhex(good["secret"]))
    tags = ServerRoundKey(round_id=7, tags=np.array(good["tags"]))
    for i, upload in enumerate(good["uploads"]):
        verify(params, dealt.server_key, tags, i, np.array(upload))
    with pytest.raises(VerificationError, match=case["error"]) as caught:
        verify(params, dealt.server_key, tags, case["client"], np.array(case["upload"]))
    assert caught.value.culprits == (case["client"],)
    assert case["success"] is False
