"""Questions and answers as Flower records: exact keys, types and sizes; who answers proves it by a signature.

    question  {"question": {round, nonce}, "models": {models: (m, d) float32}}     models with TRAIN, EVALUATE
    answer    {"answer": {round, nonce, certificate, signature}, "upload": {upload: bytes}}     upload after TRAIN

The signature covers run, node, round, nonce and the upload, under the key of the client's certificate of this
federation. So a client's number is that of its certificate here too: no SuperNode can speak for another client.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from ebscfl.errors import DecodeError, VerificationError
from ebscfl.ids import Role
from ebscfl.kdc_service.certificates import address_of_certificate

NONCE_SIZE = 16
MAX_CERTIFICATE = 8192
LARGEST_ROUND = 1 << 62  # Flower's integers are signed 64-bit


@dataclass(frozen=True, eq=False)
class Question:
    """What the server asks a node."""

    round_id: int
    nonce: bytes
    models: npt.NDArray[np.float32] | None = None


@dataclass(frozen=True, eq=False)
class Answer:
    """What a client answers, once its signature is checked."""

    client: int
    upload: bytes


def pack_question(question: Question) -> RecordDict:
    """A question as records."""
    content = RecordDict({"question": ConfigRecord({"round": question.round_id, "nonce": question.nonce})})
    if question.models is not None:
        content["models"] = ArrayRecord({"models": Array(np.ascontiguousarray(question.models))})
    return content


def read_question(message: Message) -> Question:
    """The question in a message; anything unexpected is the server's fault."""
    content: Any = message.content
    with_models = "models" in content
    _keys(content, {"question", "models"} if with_models else {"question"})
    table = content["question"]
    _keys(table, {"round", "nonce"})
    round_id, nonce = table["round"], table["nonce"]
    if not _is_round(round_id) or not isinstance(nonce, bytes) or len(nonce) != NONCE_SIZE:
        raise DecodeError("the question's round or nonce is malformed")
    return Question(round_id, nonce, _array(content, "models", np.dtype("float32"), 2) if with_models else None)


def hand_in(message: Message, question: Question) -> None:
    """Give a message the form Flower's own mods expect: one array record, with the keys and shapes of the reply's.

    They take a reply for parameters and clip its difference from what the message brought. Ours is the update itself,
    so the message brings zeros; the models travel as bytes beside the question, where only the training function looks.
    """
    assert question.models is not None
    table: dict[str, Any] = {
        "round": question.round_id, "nonce": question.nonce,
        "models": question.models.tobytes(), "shape": list(question.models.shape),
    }  # fmt: skip
    zeros = np.zeros(question.models.shape[1], np.float32)
    message.content = RecordDict({"question": ConfigRecord(table), "update": ArrayRecord({"update": Array(zeros)})})


def read_handed(message: Message) -> Question:
    """The question inside the mods."""
    table: Any = message.content["question"]
    models = np.frombuffer(table["models"], np.float32).reshape(table["shape"])
    return Question(table["round"], table["nonce"], models)


def pack_answer(directory: Path, node: int, question: Question, upload: bytes = b"") -> RecordDict:
    """An answer, signed with the key in the client's directory."""
    key = serialization.load_pem_private_key((directory / "tls.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    certificate = (directory / "tls.pem").read_bytes()
    signature = key.sign(_signed(node, question, upload), ec.ECDSA(hashes.SHA256()))
    table: dict[str, Any] = {
        "round": question.round_id, "nonce": question.nonce, "certificate": certificate, "signature": signature,
    }  # fmt: skip
    content = RecordDict({"answer": ConfigRecord(table)})
    if upload:
        content["upload"] = ArrayRecord({"upload": Array(np.frombuffer(upload, dtype=np.uint8))})
    return content


def read_answer(message: Message, question: Question, *, authority: bytes, run_id: bytes, limit: int) -> Answer:
    """The answer in a reply to ``question``, or an error that says what is wrong with it."""
    if message.has_error():
        raise VerificationError(f"the client's app failed: {message.error.reason or message.error.code}"[:300])
    content: Any = message.content
    wants_upload = question.models is not None
    _keys(content, {"answer", "upload"} if wants_upload else {"answer"})
    table = content["answer"]
    _keys(table, {"round", "nonce", "certificate", "signature"})
    if table["round"] != question.round_id or table["nonce"] != question.nonce:
        raise VerificationError("the answer belongs to another question")
    certificate, signature = table["certificate"], table["signature"]
    if not isinstance(certificate, bytes) or not isinstance(signature, bytes) or len(certificate) > MAX_CERTIFICATE:
        raise DecodeError("the answer's certificate or signature is malformed")
    upload = b""
    if wants_upload:
        upload = _array(content, "upload", np.dtype("uint8"), 1, limit=limit).tobytes()
    address = address_of_certificate(certificate, run_id)
    if address.role is not Role.CLIENT:
        raise VerificationError(f"the answer is signed by {address}, which is no client")
    _check_signature(certificate, authority, signature, _signed(message.metadata.src_node_id, question, upload))
    return Answer(address.client, upload)


def _signed(node: int, question: Question, upload: bytes) -> bytes:
    head = struct.pack("<QQ", node, question.round_id)
    return b"ebscfl answer 1" + head + question.nonce + hashlib.sha256(upload).digest()


def _check_signature(certificate: bytes, authority: bytes, signature: bytes, signed: bytes) -> None:
    leaf, issuer = x509.load_pem_x509_certificate(certificate), x509.load_pem_x509_certificate(authority)
    try:
        leaf.verify_directly_issued_by(issuer)
        key = leaf.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise VerificationError("the certificate's key is of another kind")
        key.verify(signature, signed, ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, ValueError, TypeError) as error:
        raise VerificationError("the answer's certificate or signature is not good") from error


def _is_round(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST_ROUND


def _keys(table: Any, wanted: set[str]) -> None:
    found = {str(key) for key in table}
    if found != wanted:
        raise DecodeError(f"records {sorted(wanted)} expected, got {sorted(found)[:10]}")


def _array(content: Any, name: str, dtype: np.dtype[Any], ndim: int, *, limit: int | None = None) -> Any:
    record = content[name]
    if not isinstance(record, ArrayRecord):
        raise DecodeError(f"{name} is not an array record")
    _keys(record, {name})
    array = record[name]
    if array.dtype != dtype.name or len(array.shape) != ndim or array.stype != "numpy.ndarray":
        raise DecodeError(f"{name} must be {dtype.name} with {ndim} axes, not {array.dtype} {array.shape}")
    if limit is not None and len(array.data) > limit + 1024:
        raise DecodeError(f"{name} has {len(array.data)} bytes, at most {limit} are expected")
    try:
        value = array.numpy()  # Flower reads it with numpy's loader, pickles refused
    except (ValueError, OSError, EOFError) as error:
        raise DecodeError(f"{name} does not decode: {error}") from error
    if value.dtype != dtype or value.ndim != ndim:
        raise DecodeError(f"{name} is {value.dtype} with {value.ndim} axes, announced otherwise")
    return value
