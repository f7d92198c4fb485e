"""Drives one client role: enrols once, encodes one upload a round, and repeats it byte for byte after any crash.

The upload is on the disk before it is on the wire: a client never encodes two different updates under one round's keys,
however often it is killed or asked.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ebscfl.errors import SequenceError, VerificationError
from ebscfl.ids import KDC, SERVER
from ebscfl.kdc_service.deployment import client_role, open_stub, write_private
from ebscfl.kdc_service.stub import KdcStub, Patience
from ebscfl.protocol import codec
from ebscfl.protocol.roles import ClientRole
from ebscfl.protocol.states import State

Floats = npt.NDArray[np.floating]
ROUND_KEY_PROTOCOLS = ("paper", "paper-naive")
"""Protocols in which a client fetches a key from the key centre every round."""

_ROUND = struct.Struct("<Q")


class ClientAgent:
    """One client of one federation, with its directory of keys and state."""

    def __init__(
        self,
        directory: Path,
        client: int,
        *,
        stub: Callable[[], KdcStub] | None = None,
        patience: Patience | None = None,
    ) -> None:
        self.directory = directory
        self.role: ClientRole = client_role(directory, client)
        self._open_stub = stub or (lambda: open_stub(directory, patience=patience))
        self._round_id, self._upload = self._load()

    def enrol(self) -> None:
        """Get the master key, from the disk if it was ever answered. Protocols without enrolment do nothing."""
        outgoing = self.role.enrol()
        kept = self.directory / "enrolment.bin"
        for _, message in outgoing:
            if kept.exists():
                self._receive(kept.read_bytes())
                continue
            with self._open_stub() as stub:
                (answer,) = stub.say(codec.encode(message, self.role.setup.run_id))
            self._receive(answer)
            if self.role.state is not State.READY:
                refusal = codec.decode(answer, self.role.setup.run_id)
                raise VerificationError(f"{self.role.address} could not enrol: {getattr(refusal, 'reason', '')}")
            write_private(kept, answer)  # sealed to our key: of no use without root.key

    @property
    def last_round(self) -> int:
        """The newest round an upload was encoded for; -1 before the first."""
        return self._round_id

    def sent(self, round_id: int) -> bytes | None:
        """The upload of this round if it was encoded before; an older round is refused."""
        if round_id < self._round_id:
            raise SequenceError(f"round {round_id} is over: round {self._round_id} came after it", culprits=(SERVER,))
        return self._upload if round_id == self._round_id else None

    def upload(self, round_id: int, update: Floats, cluster: int) -> bytes:
        """The bytes for the server; the same for the same round, whatever ``update`` is."""
        known = self.sent(round_id)
        if known is not None:
            return known
        if self.role.setup.protocol in ROUND_KEY_PROTOCOLS:
            self._fetch_keys()
        (outgoing,) = self.role.encode(round_id, update, cluster)
        data = codec.encode(outgoing.message, self.role.setup.run_id)
        write_private(self.directory / "upload.bin", _ROUND.pack(round_id) + data)
        self._round_id, self._upload = round_id, data
        return data

    def _fetch_keys(self) -> None:
        with self._open_stub() as stub:
            for message in stub.collect():
                self._receive(message)

    def _receive(self, message: bytes) -> None:
        self.role.culprits.clear()
        self.role.receive(KDC, message)
        if self.role.culprits:
            why = "; ".join(self.role.culprits.values())
            raise VerificationError(f"the key centre sent something wrong: {why}", culprits=(KDC,))

    def _load(self) -> tuple[int, bytes]:
        path = self.directory / "upload.bin"
        if not path.exists():
            return -1, b""
        data = path.read_bytes()
        return int(_ROUND.unpack_from(data)[0]), data[_ROUND.size :]
