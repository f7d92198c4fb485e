"""Misbehavior on purpose: faulty wires that drop, repeat, cut or rewrite what one party sends.

Each function returns a `FaultyWire` for `ebscfl.protocol.bus.Bus`, so that lies go through the real roles and codec.
Combine several with `all_of`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from ebscfl.errors import ProtocolError
from ebscfl.ids import Address
from ebscfl.protocol import codec
from ebscfl.protocol.bus import Carried, FaultyWire
from ebscfl.protocol.messages import Message

RUN_TAG_AT = slice(8, 16)


def all_of(*wires: FaultyWire) -> FaultyWire:
    """Pass what comes out of each wire through the next."""

    def chained(carried: Carried) -> Iterable[Carried]:
        batch = [carried]
        for one in wires:
            batch = [out for item in batch for out in one(item)]
        return batch

    return chained


def silence(sender: Address, *, message: str | None = None, times: int | None = None) -> FaultyWire:
    """Lose what ``sender`` sends: all of it, one kind of message, or only the first ``times``."""
    lost = 0

    def wire(carried: Carried) -> Iterable[Carried]:
        nonlocal lost
        if _concerns(carried, sender, message) and (times is None or lost < times):
            lost += 1
            return ()
        return (carried,)

    return wire


def repeat(sender: Address, *, message: str | None = None) -> FaultyWire:
    """Deliver everything of ``sender`` twice."""
    return lambda c: (c, c) if _concerns(c, sender, message) else (c,)


def cut(sender: Address, *, keep: int, message: str | None = None) -> FaultyWire:
    """Deliver only the first ``keep`` bytes."""
    return lambda c: (c._replace(data=c.data[:keep]),) if _concerns(c, sender, message) else (c,)


def replace_bytes(sender: Address, data: bytes, *, message: str | None = None) -> FaultyWire:
    """Deliver ``data`` instead."""
    return lambda c: (c._replace(data=data),) if _concerns(c, sender, message) else (c,)


def replay(sender: Address, *, message: str) -> FaultyWire:
    """Deliver the first message of that kind again in place of every later one."""
    first: list[bytes] = []

    def wire(carried: Carried) -> Iterable[Carried]:
        if not _concerns(carried, sender, message):
            return (carried,)
        first.append(carried.data)
        return (carried._replace(data=first[0]),)

    return wire


def rewrite(sender: Address, message: str, change: Callable[[Message], Message]) -> FaultyWire:
    """Decode, change and encode again: a peer that lies in well-formed messages."""

    def wire(carried: Carried) -> Iterable[Carried]:
        if not _concerns(carried, sender, message):
            return (carried,)
        tag = carried.data[RUN_TAG_AT]
        return (carried._replace(data=codec.encode(change(codec.decode(carried.data, tag)), tag)),)

    return wire


def set_fields(**changes: Callable[..., object]) -> Callable[[Message], Message]:
    """A change for `rewrite`: each named field is passed through its function."""
    return lambda message: dataclasses.replace(
        message, **{name: change(getattr(message, name)) for name, change in changes.items()}
    )


def _concerns(carried: Carried, sender: Address, message: str | None) -> bool:
    if carried.sender != sender:
        return False
    if message is None:
        return True
    try:
        return type(codec.decode(carried.data, carried.data[RUN_TAG_AT])).__name__ == message
    except ProtocolError:
        return False
