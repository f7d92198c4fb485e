"""Frames survive the pipe, broken ones end the stream, and a served role answers as it would in process."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebscfl.errors import UsageError
from ebscfl.ids import KDC, SERVER, Address, client_address
from ebscfl.protocol import codec, stream
from ebscfl.protocol.messages import PlainUpload
from ebscfl.protocol.registry import make_roles
from ebscfl.protocol.roles import Setup
from ebscfl.rng import root_from_seed

ADDRESSES = st.one_of(st.just(SERVER), st.just(KDC), st.integers(0, 2**31 - 1).map(client_address))


@given(st.lists(st.tuples(ADDRESSES, st.binary(max_size=50))))
def test_frames_round_trip(frames: list[tuple[Address, bytes]]) -> None:
    pipe = io.BytesIO()
    for address, data in frames:
        stream.write_frame(pipe, stream.message_frame(address, data))
    pipe.seek(0)
    for address, data in frames:
        frame = stream.read_frame(pipe)
        assert frame is not None
        assert (frame.address, frame.data) == (address, data)
    assert stream.read_frame(pipe) is None


def test_a_frame_that_is_cut_ends_the_stream() -> None:
    pipe = io.BytesIO()
    stream.write_frame(pipe, stream.message_frame(SERVER, b"content"))
    whole = pipe.getvalue()
    for size in range(len(whole)):
        assert stream.read_frame(io.BytesIO(whole[:size])) is None


def served(*frames: stream.Frame) -> list[stream.Frame]:
    """What a plain server answers to these frames."""
    setup = Setup("plain", 2, 1, 3)
    _, server, _ = make_roles(setup, root_from_seed(0))
    source, sink = io.BytesIO(), io.BytesIO()
    for frame in frames:
        stream.write_frame(source, frame)
    source.seek(0)
    steps: dict[str, stream.LocalStep] = {
        "start": lambda _: server.start_round(1, range(2), np.ones((1, 3))),
        "close": lambda _: server.close_uploads(),
        "accepted": lambda argument: argument + repr(sorted(server.accepted)).encode(),
    }
    stream.serve(server, source, sink, steps=steps)
    sink.seek(0)
    return list(iter(lambda: stream.read_frame(sink), None))  # type: ignore[arg-type]


def test_a_served_role_answers_frames_steps_and_notes() -> None:
    upload = codec.encode(PlainUpload(1, 0, np.ones(3, dtype=np.float32)), bytes(8))
    answers = served(
        stream.step_frame("start"),
        stream.message_frame(client_address(1), upload),
        stream.step_frame("accepted", b"they are "),
        stream.step_frame("close"),
    )
    kinds = [frame.kind for frame in answers]
    assert kinds == [stream.END, stream.END, stream.NOTE, stream.END, 1, stream.END]
    assert answers[2].data == b"they are [1]"
    assert answers[4].address == client_address(0)  # asked to send again
    assert type(codec.decode(answers[4].data, bytes(8))).__name__ == "ResendRequest"


@pytest.mark.parametrize("frame", [stream.step_frame("dance"), stream.Frame(stream.NOTE, None, b"start\0")])
def test_unknown_steps_are_our_mistake(frame: stream.Frame) -> None:
    with pytest.raises(UsageError, match="no such step"):
        served(frame)
