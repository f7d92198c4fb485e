"""Writes tests/vectors/*.json: bytes and numbers that every implementation of the paper's protocol must agree on.

    python scripts/make_vectors.py [FOLDER]

Three kinds: *exact* (``ok_codec``, ``ok_stream``): bytes, the same on every machine, so they rest on nothing but
arithmetic of quarters, AES and BLAKE2b. *bounded* (``ok_paper_round``): linear algebra, values with a
tolerance, because BLAS and QR differ between machines. *bad* (``bad_codec``, ``bad_paper_upload``): what must be
refused, and with which words. Tests check them with code of their own: tests/test_paper_vectors.py.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from ebscfl import rng
from ebscfl.paper import PaperParameters, aggregate, deal, encode, refresh
from ebscfl.protocol import codec, messages

RUN_TAG = bytes(range(1, 9))
FOLDER = Path(__file__).resolve().parent.parent / "tests" / "vectors"


def ramp(*shape: int) -> np.ndarray:
    """1/4, 2/4, ... with alternating signs: exact in float64 and float32."""
    count = int(np.prod(shape))
    values = np.arange(1, count + 1) / 4.0
    return (values * np.where(np.arange(count) % 2, -1.0, 1.0)).reshape(shape)


def samples() -> list[messages.Message]:
    """One message of every kind `plain` and `paper` send."""
    pair, quad = (ramp(2, 1, 2, 2) for _ in range(2))
    package = messages.ServerKeyPackage(
        cluster_basis=ramp(1, 1, 2), sum_basis=pair, relu_key_1=quad, relu_key_2=-pair, relu_key_3=2.0 * quad,
        decode_key=ramp(2, 3), verification_key=ramp(1, 2, 3), transform=(ramp(1, 2, 2), ramp(1, 3, 3)),
    )  # fmt: skip
    return [
        messages.ResendRequest(65_537, "client 3: send it once more — ça va?"),
        messages.Refusal(65_536, "no"),
        messages.ServerUpdates(65_536, ramp(2, 3)),
        messages.OpenRound(65_536, (0, 2, 4_294_967_295)),
        messages.PlainUpload(65_536, 1, ramp(5).astype(np.float32)),
        messages.ClientKeyPackage(ramp(2, 6), ramp(2, 1, 2)),
        messages.RoundKey(2**63 - 1, ramp(3, 6)),
        package,
        messages.ScoringKey(ramp(1, 1, 2, 3), ramp(1, 1, 3), ramp(2, 1, 2, 4)),
        messages.DenseScoringKey(ramp(1, 1, 3, 4)),
        messages.RoundVerification(65_536, ramp(4)),
        messages.EncodedUpdate(65_536, ramp(3, 6)),
    ]


def field_values(message: messages.Message) -> dict[str, Any]:
    """The fields as plain JSON: arrays as dtype, shape and numbers."""

    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return {"dtype": value.dtype.str, "shape": list(value.shape), "values": value.reshape(-1).tolist()}
        return [plain(item) for item in value] if isinstance(value, tuple) else value

    return {name: plain(value) for name, value in vars(message).items()}


def ok_codec() -> dict[str, Any]:
    """Every message with its bytes."""
    return {
        "kind": "exact",
        "run_tag": RUN_TAG.hex(),
        "cases": [
            {
                "message": type(m).__name__, "code": m.code, "fields": field_values(m),
                "bytes": codec.encode(m, RUN_TAG).hex(),
            }
            for m in samples()
        ],
    }  # fmt: skip


def bad_codec() -> dict[str, Any]:
    """One good message, damaged in every way the decoder looks for."""
    good = codec.encode(messages.EncodedUpdate(65_536, ramp(1, 3)), RUN_TAG)
    body = codec.HEADER.size
    length = slice(16, 24)

    def put(place: int | slice, value: bytes) -> bytes:
        where = place if isinstance(place, slice) else slice(place, place + len(value))
        return good[: where.start] + value + good[where.stop :]

    def sized(data: bytes) -> bytes:
        return data[: length.start] + (len(data) - body).to_bytes(8, "little") + data[length.stop :]

    cases = {
        "empty": (b"", "header"),
        "header cut": (good[: body - 1], "header"),
        "other magic": (put(0, b"EBSX"), "not an ebscfl message"),
        "other version": (put(4, b"\x02"), "version 2"),
        "unknown code": (put(5, b"\xff"), "unknown message code 255"),
        "reserved bits": (put(6, b"\x01\x00"), "not an ebscfl message"),
        "other run": (put(8, b"\x09"), "another run"),
        "body cut": (good[:-1], "announced"),
        "body too long": (good + b"\x00", "announced"),
        "length over the limit": (put(length, (1 << 40).to_bytes(8, "little")), "limit"),
        "a byte left over": (sized(good + b"\x00"), "left over"),
        "array cut": (sized(good[:-8]), "ends early"),
        "array announces too much": (put(body + 8, (1 << 31).to_bytes(4, "little")), "ends early"),
        "empty axis": (sized(put(body + 8, bytes(4))[:-24]), "empty axis"),
        "code of another message": (put(5, bytes([messages.OpenRound.code])), "left over"),
    }
    return {
        "kind": "exact",
        "run_tag": RUN_TAG.hex(),
        "cases": [{"name": name, "bytes": data.hex(), "error": words} for name, (data, words) in cases.items()],
    }


def ok_stream() -> dict[str, Any]:
    """`rng.derive` and `rng.SecretStream`: labels, contexts and lengths around the 64 KiB step."""
    root = bytes(range(32))
    derived = [
        ("paper-keys/1", ()), ("paper-keys/1", (0, 1, 2)), ("paper-keys/1", ("0", 1, 2)), ("paper-round/1", (65_536,)),
        ("paper-keys/1", (b"\x00\xff",)),
    ]  # fmt: skip
    streams = [("paper-basis/1", (), 48), ("paper-keys/1", ("gauge",), 48), ("paper-round/1", (65_536,), (1 << 16) + 5)]
    return {
        "kind": "exact",
        "root": root.hex(),
        "derive": [
            {"usage": usage, "context": [label(c) for c in context], "bytes": rng.derive(root, usage, *context).hex()}
            for usage, context in derived
        ],
        "stream": [
            {
                "usage": usage, "context": [label(c) for c in context], "size": size,
                "tail": rng.SecretStream(root, usage, *context).bytes(size)[-48:].hex(),
            }
            for usage, context, size in streams
        ],
    }  # fmt: skip


def label(item: int | str | bytes) -> dict[str, Any]:
    """A context item with its type."""
    return {"bytes": item.hex()} if isinstance(item, bytes) else {type(item).__name__: item}


def paper_round() -> tuple[PaperParameters, Any, np.ndarray, list[int], np.ndarray, list[np.ndarray]]:
    """A small round on a ramp of updates."""
    params = PaperParameters(num_clients=3, num_clusters=2, dim=5)
    updates = np.array([[3.0, 1, 0, 2, -1], [0, 2, 1, -1, 1], [1, 0, -2, 1, 4]])
    server = np.array([[1.0, 0, 0, 0, 0], [0, 1.0, 0, 0, 2.0]])
    clusters = [0, 1, 0]
    dealt = deal(params, server, bytes(range(32)))
    keys = refresh(params, dealt.secret, 7)
    uploads = [encode(params, dealt.client_keys[i], keys.client[i], updates[i], clusters[i]) for i in range(3)]
    return params, (dealt, keys), updates, clusters, server, uploads


def ok_paper_round() -> dict[str, Any]:
    """Keys, uploads and aggregates of a small round; the aggregates are arithmetic, the rest is this build's draw."""
    params, (dealt, keys), updates, clusters, server, uploads = paper_round()
    aggregates, weight = aggregate(params, dealt.server_key, uploads)
    return {
        "kind": "bounded",
        "tolerance": 1e-9,
        "segment_len": params.segment_len,
        "secret": bytes(range(32)).hex(),
        "round_id": 7,
        "updates": updates.tolist(),
        "clusters": clusters,
        "server_updates": server.tolist(),
        "encode_keys": [key.encode_key.tolist() for key in dealt.client_keys],
        "cluster_basis": dealt.server_key.cluster_basis.tolist(),
        "round_masks": [key.mask.tolist() for key in keys.client],
        "verification_key": dealt.server_key.verification_key.tolist(),
        "tags": keys.server.tags.tolist(),
        "uploads": [upload.tolist() for upload in uploads],
        "aggregates": aggregates.tolist(),
        "total_weight": weight,
        "operations": [
            {"operation": "encode", "success": True},
            {"operation": "verify", "success": True},
            {"operation": "aggregate", "success": True},
        ],
    }


def bad_paper_upload() -> dict[str, Any]:
    """Uploads of `ok_paper_round` that verification must refuse."""
    _, (_, keys), _, _, _, uploads = paper_round()
    other = uploads[1] - keys.client[1].mask + keys.client[0].mask
    swapped = uploads[0].copy()
    swapped[:, [0, 1]] = swapped[:, [1, 0]]
    cases = [
        ("scaled", 0, 1.01 * uploads[0], "squared length"),
        ("not normalized", 0, keys.client[0].mask + 2.0 * (uploads[0] - keys.client[0].mask), "squared length 6"),
        ("sign turned", 0, -uploads[0], "verification equation"),
        ("another client's upload", 1, uploads[0], "verification equation"),
        ("columns swapped", 0, swapped, "verification equation"),
        ("another client's masks", 1, other, "squared length"),
        ("a row short", 2, uploads[2][:-1], "shape"),
    ]
    return {
        "kind": "bounded",
        "of": "ok_paper_round",
        "cases": [
            {"name": name, "client": client, "upload": upload.tolist(), "success": False, "error": words}
            for name, client, upload, words in cases
        ],
    }


VECTORS = {
    "ok_codec": ok_codec,
    "bad_codec": bad_codec,
    "ok_stream": ok_stream,
    "ok_paper_round": ok_paper_round,
    "bad_paper_upload": bad_paper_upload,
}
EXACT = ("ok_codec", "bad_codec", "ok_stream")


def text_of(name: str) -> str:
    """The file's content."""
    return json.dumps(VECTORS[name](), indent=1) + "\n"


def main(arguments: list[str]) -> int:
    """Write all files."""
    folder = Path(arguments[0]) if arguments else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for name in VECTORS:
        (folder / f"{name}.json").write_text(text_of(name), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
