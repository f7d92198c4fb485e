"""The sealed client: enrols once, then one message a round."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from ebscfl import rng
from ebscfl.errors import SequenceError, UsageError, VerificationError
from ebscfl.ids import KDC, Address
from ebscfl.protocol.messages import Enrolment, EnrolRequest, Message, Refusal, ResendRequest, SealedUpload
from ebscfl.protocol.roles import ClientRole, Floats, Outgoing, Setup
from ebscfl.protocol.sealed.channel import open_sealed, public_key
from ebscfl.protocol.sealed.round_store import RoundStore
from ebscfl.protocol.sealed.words import to_wire
from ebscfl.protocol.states import Step
from ebscfl.sealed import SealedParameters, client_keys, encode, seal, seal_blind


def enrolment_context(run_id: bytes, client: int) -> bytes:
    """What a sealed master key is bound to."""
    return b"%s client %d" % (run_id.hex().encode(), client)


class SealedClient(ClientRole):
    """Holds a long-term X25519 key and the master key it shares with the key centre."""

    protocol = "sealed"

    def __init__(
        self,
        setup: Setup,
        params: SealedParameters,
        client: int,
        *,
        root: bytes,
        rounds: RoundStore | None = None,
    ) -> None:
        """``root`` and ``rounds`` are what a client must keep: with both it enrols again after a crash and goes on."""
        super().__init__(setup, client)
        self._params = params
        self._rounds = rounds
        if rounds is not None:
            self._round_id = rounds.newest()
        self._private = rng.derive(root, rng.USAGE_ROLE, "x25519")
        self._rounding_root = rng.derive(root, rng.USAGE_SEALED_ROUNDING)
        self._master: npt.NDArray[np.uint8] | None = None
        self.refusal: str | None = None

    def enrol(self) -> list[Outgoing]:
        self.advance(Step.ENROL)
        return [Outgoing(KDC, EnrolRequest(public_key(self._private)))]

    def on_enrolment(self, sender: Address, message: Enrolment) -> list[Outgoing]:
        """Open the master key."""
        if sender != KDC:
            raise SequenceError(f"keys come from the key centre, not from {sender}", culprits=(sender,))
        context = enrolment_context(self.setup.run_id, self.client)
        master = open_sealed(self._private, message.ephemeral_key, message.ciphertext, context=context)
        if len(master) != rng.ROOT_SIZE:
            raise VerificationError("the master key has the wrong length", culprits=(sender,))
        if self._master is not None and self._master.tobytes() != master:
            raise VerificationError("the key centre sent another master key", culprits=(sender,))
        self._master = np.frombuffer(master, dtype=np.uint8).copy()
        return []

    def on_refusal(self, sender: Address, message: Refusal) -> list[Outgoing]:
        """The key centre does not enrol this client (it is enrolled already under another key)."""
        if sender != KDC:
            raise SequenceError(f"only the key centre refuses, not {sender}", culprits=(sender,))
        self.refusal = message.reason
        return []

    def build_upload(self, round_id: int, update: Floats, cluster: int) -> Message:
        if self._master is None:
            raise UsageError(f"{self.address} is not enrolled")
        if self._rounds is not None:
            self._rounds.use(round_id)  # on disk first: these keys are never used again
        params = self._params
        encoded = encode(params, update, cluster, self._rounding_root, round_id, self.client)
        keys = client_keys(params, self._master.tobytes(), self.setup.run_id.hex(), round_id, self.client)
        upload = seal(params, encoded, keys)
        blind = seal_blind(params, keys, self._rounding_root, round_id)
        return SealedUpload(round_id, to_wire(upload.words), to_wire(upload.guard), to_wire(blind))

    def secrets(self) -> Iterable[npt.NDArray[Any]]:
        if self._master is not None:
            yield self._master

    def handlers(self) -> dict[type[Message], Callable[[Address, Any], list[Outgoing]]]:
        return {
            Enrolment: self.on_enrolment,
            ResendRequest: self.on_resend_request,
            Refusal: self.on_refusal,
        }
