"""Round trips, and a bad case for every check of the decoder."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ebscfl.errors import DecodeError, UsageError
from ebscfl.protocol import codec
from ebscfl.protocol.messages import MESSAGE_BY_CODE, Message, OpenRound, PlainUpload, ResendRequest, ServerUpdates
from ebscfl.protocol.wire import Reader

TAG = b"run-tag!"
FLOATS = hnp.arrays(np.float32, st.integers(1, 40), elements=st.floats(width=32))


def upload(size: int = 5) -> PlainUpload:
    return PlainUpload(3, 1, np.arange(size, dtype=np.float32))


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), FLOATS)
def test_round_trip_is_exact(round_id: int, cluster: int, update: np.ndarray) -> None:
    message = PlainUpload(round_id, cluster, update)
    again = codec.decode(codec.encode(message, TAG), TAG)
    assert isinstance(again, PlainUpload)
    assert (again.round_id, again.cluster) == (round_id, cluster)
    assert again.update.tobytes() == update.tobytes()  # NaN payloads and signed zeros too


@given(st.integers(0, 9), st.lists(st.integers(0, 2**32 - 1), max_size=5), st.text(max_size=50))
def test_tuples_and_text_round_trip(round_id: int, clients: list[int], text: str) -> None:
    for message in (OpenRound(round_id, tuple(clients)), ResendRequest(round_id, text)):
        assert message.same_as(codec.decode(codec.encode(message, TAG), TAG))


def test_size_is_header_fields_and_padding() -> None:
    # 24 header + 8 round + 4 cluster + 4 shape, which is a multiple of eight, + 4 bytes a number
    assert len(codec.encode(upload(10), TAG)) == 24 + 8 + 4 + 4 + 4 * 10


def test_arrays_are_read_only_views_of_the_received_bytes() -> None:
    data = codec.encode(upload(), TAG)
    array = codec.decode(data, TAG).update  # type: ignore[attr-defined]
    assert not array.flags.writeable
    assert np.shares_memory(array, np.frombuffer(data, np.uint8))


def test_every_truncation_and_every_extension_is_refused() -> None:
    for message in (upload(), OpenRound(1, (1, 2)), ResendRequest(1, "late"), ServerUpdates(1, np.ones((2, 3)))):
        data = codec.encode(message, TAG)
        for size in range(len(data)):
            with pytest.raises(DecodeError):
                codec.decode(data[:size], TAG)
        with pytest.raises(DecodeError):
            codec.decode(data + b"\0", TAG)


def test_leftover_bytes_inside_a_consistent_length_are_refused() -> None:
    data = bytearray(codec.encode(upload(), TAG) + b"\0" * 8)
    data[16:24] = struct.pack("<Q", len(data) - codec.HEADER.size)
    with pytest.raises(DecodeError, match="left over"):
        codec.decode(bytes(data), TAG)


@pytest.mark.parametrize(
    ("position", "value", "reason"),
    [
        (0, 0, "not an ebscfl"),
        (4, 9, "version"),
        (5, 255, "unknown message"),
        (6, 1, "not an ebscfl"),
        (8, 0, "another run"),
    ],
)
def test_every_header_field_is_checked(position: int, value: int, reason: str) -> None:
    data = bytearray(codec.encode(upload(), TAG))
    data[position] = value
    with pytest.raises(DecodeError, match=reason):
        codec.decode(bytes(data), TAG)


def test_announced_sizes_allocate_nothing() -> None:
    data = bytearray(codec.encode(upload(), TAG))
    data[36:40] = struct.pack("<I", 2**32 - 1)  # the array's side
    with pytest.raises(DecodeError, match="ends early"):
        codec.decode(bytes(data), TAG)
    data = bytearray(codec.encode(OpenRound(1, (1, 2)), TAG))
    data[32:36] = struct.pack("<I", 2**32 - 1)  # the number of items
    with pytest.raises(DecodeError, match="items announced"):
        codec.decode(bytes(data), TAG)


def test_non_zero_padding_is_refused() -> None:
    source = Reader(b"\x01" + bytes(15), 1)
    source.align()
    assert source.position == 8
    with pytest.raises(DecodeError, match="padding"):
        Reader(b"\x01\x00\x02" + bytes(13), 1).align()


def test_every_message_class_has_its_own_code() -> None:
    kinds = Message.__subclasses__()
    assert sorted(kind.code for kind in kinds) == sorted(MESSAGE_BY_CODE)


def test_limits_are_checked_before_the_body() -> None:
    data = codec.encode(upload(1000), TAG)
    with pytest.raises(DecodeError, match="over the limit"):
        codec.decode(data, TAG, limit=1000)
    with pytest.raises(DecodeError, match="24 bytes"):
        codec.body_length(b"EBSC")


@given(st.binary(max_size=200))
def test_random_bytes_never_crash_the_decoder(data: bytes) -> None:
    for candidate in (data, codec.HEADER.pack(b"EBSC", 1, 16, 0, TAG, len(data)) + data):
        try:
            message = codec.decode(candidate, TAG)
        except DecodeError:
            continue
        assert codec.encode(message, TAG) == candidate  # one byte string a message


def test_constructors_check_and_reprs_show_no_contents() -> None:
    with pytest.raises(UsageError, match="float32"):
        PlainUpload(1, 0, np.zeros(3))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="axes"):
        PlainUpload(1, 0, np.zeros((3, 3), np.float32))
    with pytest.raises(UsageError, match="fit"):
        PlainUpload(-1, 0, np.zeros(3, np.float32))
    with pytest.raises(UsageError, match="empty"):
        PlainUpload(1, 0, np.zeros(0, np.float32))
    assert "0.123" not in repr(PlainUpload(1, 0, np.full(3, 0.123, np.float32)))
    for kind in MESSAGE_BY_CODE.values():
        if kind.confidential:
            assert repr(kind.__new__(kind)) == f"{kind.__name__}(<redacted>)"


def test_run_tags_have_one_length() -> None:
    with pytest.raises(UsageError):
        codec.encode(upload(), b"short")
