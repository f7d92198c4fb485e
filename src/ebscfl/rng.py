"""All randomness: seeds are a function of (root, usage, context), never of what was drawn before.

Two kinds live here and nowhere else:

* *simulation* randomness (data splits, batches, attacks): numpy and torch generators seeded from `derive`;
* *secret* randomness (keys, masks): `SecretStream`, AES-128 in counter mode, seeded from `derive` too, whose
  root is either `os_random` (deployed) or `root_from_seed` (simulation and tests).

``USAGE_*`` labels keep streams apart: no two purposes share one, and each carries a version so that a
change of meaning changes the stream. The `cryptography` package is imported only when a `SecretStream` is
made.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ebscfl.errors import UsageError

if TYPE_CHECKING:
    import torch

ROOT_SIZE = 32
"""Bytes in a root and in everything `derive` returns."""

# One label a purpose. Add here, never inline a string elsewhere.
USAGE_DATA_SPLIT = "data-split/1"
USAGE_ROOT_SET = "root-set/1"
USAGE_PARTITION = "partition/1"
USAGE_MODEL_INIT = "model-init/1"
USAGE_BATCHES = "batches/1"
USAGE_ROOT_BATCHES = "root-batches/1"
USAGE_ATTACKERS = "attackers/1"
USAGE_ATTACK = "attack/1"
USAGE_POISON = "poison/1"
USAGE_CELL = "cell/1"
USAGE_PAPER_BASIS = "paper-basis/1"
USAGE_PAPER_KEYS = "paper-keys/1"
USAGE_PAPER_ROUND = "paper-round/1"
USAGE_SEALED_MASTER = "sealed-master/1"
USAGE_SEALED_PAD = "sealed-pad/1"
USAGE_SEALED_SKETCH = "sealed-sketch/1"
USAGE_SEALED_ROUNDING = "sealed-rounding/1"
USAGE_SEALED_DP = "sealed-dp/1"
USAGE_ROLE = "role/1"
USAGE_SECAGG = "secagg/1"
USAGE_AUDIT = "audit/1"
USAGE_BENCH = "bench/1"

Context = int | str | bytes


def os_random(size: int) -> bytes:
    """Fresh bytes from the operating system: the only place that asks it."""
    return os.urandom(size)  # noqa: TID251 - this is the one place


def root_from_seed(seed: int) -> bytes:
    """A root for simulations: the same integer gives the same run everywhere."""
    if not 0 <= seed < 2**63:
        raise UsageError(f"seed must be between 0 and 2^63 - 1, not {seed}")
    return derive(b"\0" * ROOT_SIZE, "seed/1", seed)


def derive(root: bytes, usage: str, *context: Context) -> bytes:
    """32 bytes bound to ``root``, ``usage`` and every item of ``context`` (types and lengths included)."""
    if len(root) != ROOT_SIZE:
        raise UsageError(f"a root has {ROOT_SIZE} bytes, not {len(root)}")
    state = hashlib.blake2b(digest_size=ROOT_SIZE, key=root, person=b"ebscfl-derive-1\0")
    for item in (usage, *context):
        if isinstance(item, bool) or not isinstance(item, int | str | bytes):
            raise UsageError(f"context items are int, str or bytes, not {type(item).__name__}")
        if isinstance(item, bytes):
            kind, raw = b"b", item
        elif isinstance(item, str):
            kind, raw = b"s", item.encode()
        else:
            kind, raw = b"i", str(item).encode()
        state.update(kind + len(raw).to_bytes(8, "little") + raw)
    return state.digest()


def numpy_generator(root: bytes, usage: str, *context: Context) -> np.random.Generator:
    """A numpy generator for simulation randomness."""
    return np.random.Generator(np.random.PCG64DXSM(int.from_bytes(derive(root, usage, *context), "little")))


def torch_generator(root: bytes, usage: str, *context: Context, device: str = "cpu") -> torch.Generator:
    """A torch generator for simulation randomness on ``device``."""
    import torch

    generator = torch.Generator(device=device)
    generator.manual_seed(int.from_bytes(derive(root, usage, *context)[:8], "little") >> 1)
    return generator


class SecretStream:
    """AES-128-CTR key stream bound to (root, usage, context). Reads advance it; it never prints its key."""

    def __init__(self, root: bytes, usage: str, *context: Context) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        material = derive(root, usage, *context)
        self._encryptor: Any = Cipher(algorithms.AES(material[:16]), modes.CTR(material[16:])).encryptor()
        self._zeros = bytes(1 << 16)

    def __repr__(self) -> str:
        return "SecretStream(<redacted>)"

    def fill(self, out: npt.NDArray[Any]) -> None:
        """Overwrite a contiguous array with the next ``out.nbytes`` bytes of the stream."""
        if not out.flags.c_contiguous:
            raise UsageError("fill needs a contiguous array")
        view = memoryview(out.reshape(-1).view(np.uint8).data)
        step = len(self._zeros)
        for start in range(0, len(view), step):
            part = view[start : start + step]
            # A counter mode writes exactly what it reads: no spare block is needed behind the buffer.
            self._encryptor.update_into(self._zeros[: len(part)], part)

    def bytes(self, size: int) -> bytes:
        """The next ``size`` bytes."""
        out = np.empty(size, dtype=np.uint8)
        self.fill(out)
        return out.tobytes()

    def uint32(self, size: int) -> npt.NDArray[np.uint32]:
        """``size`` uniform 32-bit words."""
        out = np.empty(size, dtype="<u4")
        self.fill(out)
        return out

    def uint64(self, size: int) -> npt.NDArray[np.uint64]:
        """``size`` uniform 64-bit words."""
        out = np.empty(size, dtype="<u8")
        self.fill(out)
        return out

    def uniform(self, shape: int | tuple[int, ...]) -> npt.NDArray[np.float64]:
        """Uniform doubles in [0, 1) with 53 random bits each."""
        size = int(np.prod(shape))
        return ((self.uint64(size) >> np.uint64(11)).astype(np.float64) * 2.0**-53).reshape(shape)

    def normal(self, shape: int | tuple[int, ...]) -> npt.NDArray[np.float64]:
        """Standard normal doubles (Box-Muller on the stream: numpy does not promise its own)."""
        size = int(np.prod(shape))
        half = (size + 1) // 2
        radius = np.sqrt(-2.0 * np.log1p(-self.uniform(half)))  # 1 - u is in (0, 1]
        angle = (2.0 * np.pi) * self.uniform(half)
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:size].reshape(shape)
