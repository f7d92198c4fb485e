"""Field kinds of wire messages: how one value is checked, written and read.

A message is a frozen dataclass whose fields are declared with ``wire(kind)``. The kind checks the value when the
object is made, so a decoded message is valid by construction. Arrays start at multiples of eight bytes and are read
as read-only views into the received buffer: decoding allocates nothing that a peer could inflate.
"""

from __future__ import annotations

import dataclasses
import struct
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from ebscfl.errors import DecodeError, UsageError

ALIGN = 8
MAX_NDIM = 4


class Reader:
    """A cursor over received bytes that never reads past the end."""

    def __init__(self, data: bytes | bytearray, start: int = 0) -> None:
        self._view = memoryview(data)
        self.position = start

    @property
    def remaining(self) -> int:
        """Bytes not read yet."""
        return len(self._view) - self.position

    def take(self, size: int) -> memoryview:
        """The next ``size`` bytes as a view."""
        if size > self.remaining:
            raise DecodeError(f"message ends early: {size} bytes wanted, {self.remaining} left")
        part = self._view[self.position : self.position + size]
        self.position += size
        return part

    def align(self) -> None:
        """Skip padding to the next multiple of eight; it must be zero."""
        if any(self.take(-self.position % ALIGN)):
            raise DecodeError("padding is not zero")


class Writer:
    """Collects the pieces of a message; arrays are not copied until the final join."""

    def __init__(self) -> None:
        self.parts: list[bytes | memoryview] = []
        self.size = 0

    def put(self, part: bytes | memoryview) -> None:
        """Append bytes."""
        self.parts.append(part)
        self.size += len(part) if isinstance(part, bytes) else part.nbytes

    def align(self) -> None:
        """Pad with zeros to the next multiple of eight."""
        self.put(bytes(-self.size % ALIGN))


class Kind(ABC):
    """One way to write a value."""

    @abstractmethod
    def check(self, value: Any) -> str | None:
        """A reason why ``value`` is not acceptable, or None."""

    @abstractmethod
    def write(self, value: Any, out: Writer) -> None:
        """Append the value."""

    @abstractmethod
    def read(self, source: Reader) -> Any:
        """Read one value."""

    def describe(self, value: Any) -> str:
        """What ``repr`` may show: never contents of arrays or bytes."""
        return str(value)


class Unsigned(Kind):
    """An unsigned integer of 1, 4 or 8 bytes, little-endian."""

    def __init__(self, size: int) -> None:
        self._format = {1: "<B", 4: "<I", 8: "<Q"}[size]
        self._size = size

    def check(self, value: Any) -> str | None:
        if isinstance(value, bool) or not isinstance(value, int):
            return f"must be an int, not {type(value).__name__}"
        return None if 0 <= value < 1 << (8 * self._size) else f"{value} does not fit {self._size} bytes"

    def write(self, value: Any, out: Writer) -> None:
        out.put(struct.pack(self._format, value))

    def read(self, source: Reader) -> int:
        return int(struct.unpack(self._format, source.take(self._size))[0])


class Real(Kind):
    """A finite float64."""

    def check(self, value: Any) -> str | None:
        if not isinstance(value, float):
            return f"must be a float, not {type(value).__name__}"
        return None if np.isfinite(value) else "is not finite"

    def write(self, value: Any, out: Writer) -> None:
        out.put(struct.pack("<d", value))

    def read(self, source: Reader) -> float:
        return float(struct.unpack("<d", source.take(8))[0])


class Blob(Kind):
    """Bytes of at most ``limit``, or of exactly ``exact``."""

    def __init__(self, limit: int = 1 << 16, *, exact: int | None = None) -> None:
        self._limit = limit if exact is None else exact
        self._exact = exact

    def check(self, value: Any) -> str | None:
        if not isinstance(value, bytes):
            return f"must be bytes, not {type(value).__name__}"
        if self._exact is not None and len(value) != self._exact:
            return f"must have {self._exact} bytes, not {len(value)}"
        return None if len(value) <= self._limit else f"is longer than {self._limit} bytes"

    def write(self, value: Any, out: Writer) -> None:
        out.put(struct.pack("<I", len(value)))
        out.put(value)

    def read(self, source: Reader) -> bytes:
        (size,) = struct.unpack("<I", source.take(4))
        if size > self._limit:
            raise DecodeError(f"{size} bytes where at most {self._limit} are allowed")
        return bytes(source.take(size))

    def describe(self, value: Any) -> str:
        return f"<{len(value)} bytes>"


class Text(Blob):
    """UTF-8 text of at most ``limit`` bytes."""

    def check(self, value: Any) -> str | None:
        if not isinstance(value, str):
            return f"must be text, not {type(value).__name__}"
        return super().check(value.encode())

    def write(self, value: Any, out: Writer) -> None:
        super().write(value.encode(), out)

    def read(self, source: Reader) -> str:  # type: ignore[override]
        try:
            return super().read(source).decode()
        except UnicodeDecodeError as error:
            raise DecodeError("text is not UTF-8") from error

    def describe(self, value: Any) -> str:
        return repr(value)


class Array(Kind):
    """A numpy array of one dtype and a fixed number of axes; read back as a read-only view."""

    def __init__(self, dtype: str, ndim: int) -> None:
        self._dtype = np.dtype(dtype).newbyteorder("<")
        if not 1 <= ndim <= MAX_NDIM:
            raise UsageError(f"arrays have 1 to {MAX_NDIM} axes, not {ndim}")
        self._ndim = ndim

    def check(self, value: Any) -> str | None:
        if not isinstance(value, np.ndarray):
            return f"must be an array, not {type(value).__name__}"
        if value.dtype != self._dtype:
            return f"must be {self._dtype}, not {value.dtype}"
        if value.ndim != self._ndim:
            return f"must have {self._ndim} axes, not shape {value.shape}"
        return None if all(0 < side < 1 << 32 for side in value.shape) else f"has an empty axis: {value.shape}"

    def write(self, value: Any, out: Writer) -> None:
        out.put(struct.pack(f"<{self._ndim}I", *value.shape))
        out.align()
        out.put(memoryview(np.ascontiguousarray(value, dtype=self._dtype).reshape(-1).view(np.uint8).data))

    def read(self, source: Reader) -> Any:
        shape = struct.unpack(f"<{self._ndim}I", source.take(4 * self._ndim))
        source.align()
        # Python integers: the product cannot wrap, and take() compares it with what really arrived.
        size = self._dtype.itemsize
        for side in shape:
            size *= side
        values = np.frombuffer(source.take(size), dtype=self._dtype).reshape(shape)
        values.flags.writeable = False  # also where the receiver owns the buffer: only wiping may write there
        return values

    def describe(self, value: Any) -> str:
        return f"<{self._dtype} {'x'.join(map(str, value.shape))}>"


class Items(Kind):
    """A tuple of at most ``limit`` values of one kind."""

    def __init__(self, kind: Kind, limit: int = 1 << 20) -> None:
        self._kind = kind
        self._limit = limit

    def check(self, value: Any) -> str | None:
        if not isinstance(value, tuple):
            return f"must be a tuple, not {type(value).__name__}"
        if len(value) > self._limit:
            return f"has more than {self._limit} items"
        return next((reason for item in value if (reason := self._kind.check(item))), None)

    def write(self, value: Any, out: Writer) -> None:
        out.put(struct.pack("<I", len(value)))
        for item in value:
            self._kind.write(item, out)

    def read(self, source: Reader) -> tuple[Any, ...]:
        (count,) = struct.unpack("<I", source.take(4))
        # Every item takes at least one byte, so a huge count is refused before anything is built.
        if count > min(self._limit, source.remaining):
            raise DecodeError(f"{count} items announced, {source.remaining} bytes left")
        return tuple(self._kind.read(source) for _ in range(count))

    def describe(self, value: Any) -> str:
        return f"<{len(value)} items>"


U8, U32, U64, REAL = Unsigned(1), Unsigned(4), Unsigned(8), Real()


def wire(kind: Kind, *, default: Any = dataclasses.MISSING) -> Any:
    """Declare a message field written with ``kind``; ``default`` is for who builds the message."""
    return dataclasses.field(default=default, metadata={"wire": kind})
