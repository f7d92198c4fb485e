"""A role behind a byte stream: framed codec messages over a pipe, so that it can be a process of its own.

A frame is (kind u8, client i32, length u64, bytes). Kinds 1-3 carry a message, the address is its sender on the way in
and its receiver on the way out; `STEP` starts a local step by name, `NOTE` carries what a step has to say, and `END`
closes the answer to one frame. The other end of the pipe is trusted with addresses: this is for one machine.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import BinaryIO, NamedTuple

from ebscfl.errors import UsageError
from ebscfl.ids import Address, Role
from ebscfl.protocol import codec
from ebscfl.protocol.roles import Outgoing, RoleMachine

_HEADER = struct.Struct("<BiQ")
_KIND_OF_ROLE = {Role.CLIENT: 1, Role.SERVER: 2, Role.KDC: 3}
_ROLE_OF_KIND = {kind: role for role, kind in _KIND_OF_ROLE.items()}
STEP, NOTE, END = 252, 253, 254

LocalStep = Callable[[bytes], "list[Outgoing] | bytes"]
"""A local step: takes the frame's argument, gives messages, or bytes for whoever drives the role."""


class Frame(NamedTuple):
    """One frame; ``address`` is None for steps, notes and ends."""

    kind: int
    address: Address | None
    data: bytes


def write_frame(sink: BinaryIO, frame: Frame) -> None:
    """Send one frame."""
    kind = frame.kind if frame.address is None else _KIND_OF_ROLE[frame.address.role]
    client = -1 if frame.address is None else frame.address.client
    sink.write(_HEADER.pack(kind, client, len(frame.data)))
    sink.write(frame.data)
    sink.flush()


def read_frame(source: BinaryIO) -> Frame | None:
    """The next frame; None when the other side is gone, also in the middle of a frame."""
    header = source.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return None
    kind, client, length = _HEADER.unpack(header)
    data = source.read(length)
    if len(data) < length:
        return None
    role = _ROLE_OF_KIND.get(kind)
    return Frame(kind, None if role is None else Address(role.value, client), data)


def message_frame(address: Address, data: bytes) -> Frame:
    """A frame for an encoded message."""
    return Frame(_KIND_OF_ROLE[address.role], address, data)


def step_frame(name: str, argument: bytes = b"") -> Frame:
    """A frame that starts a local step."""
    return Frame(STEP, None, name.encode() + b"\0" + argument)


def serve(role: RoleMachine, source: BinaryIO, sink: BinaryIO, *, steps: Mapping[str, LocalStep] | None = None) -> None:
    """Answer frames until the stream ends."""
    while (frame := read_frame(source)) is not None:
        if frame.address is not None:
            result: list[Outgoing] | bytes = role.receive(frame.address, frame.data)
        else:
            name, _, argument = frame.data.partition(b"\0")
            if frame.kind != STEP or steps is None or name.decode() not in steps:
                raise UsageError(f"no such step: {name!r}")
            result = steps[name.decode()](argument)
        del frame  # an upload is not held longer than its role holds it
        if isinstance(result, bytes):
            write_frame(sink, Frame(NOTE, None, result))
        else:
            for out in result:
                write_frame(sink, message_frame(out.to, codec.encode(out.message, role.setup.run_id)))
        del result
        write_frame(sink, Frame(END, None, b""))
