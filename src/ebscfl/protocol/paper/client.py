"""The paper's client: delta_i = g_i / |g_i| A_c ek^0 + ek^1."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy.typing as npt

from ebscfl.errors import SequenceError, UsageError, VerificationError
from ebscfl.ids import KDC, Address
from ebscfl.paper import ClientKey, ClientRoundKey, PaperParameters, encode, own
from ebscfl.protocol.messages import ClientKeyPackage, EncodedUpdate, Message, ResendRequest, RoundKey
from ebscfl.protocol.roles import ClientRole, Floats, Outgoing, Setup


class PaperClient(ClientRole):
    """Holds ek^0 for the run and ek^1 for one round; the upload overwrites ek^1."""

    protocol = "paper"

    def __init__(self, setup: Setup, client: int, parameters: Callable[..., PaperParameters]) -> None:
        super().__init__(setup, client)
        self._parameters = parameters(setup)
        self._key: ClientKey | None = None
        self._round_key: ClientRoundKey | None = None

    def on_key_package(self, sender: Address, message: ClientKeyPackage) -> list[Outgoing]:
        """Keep ek^0 and A. The width of ek^0 depends on the group size, which a restart may shrink."""
        self._only_kdc(sender)
        params = self._parameters
        rows, basis = message.encode_key.shape[0], (params.num_clusters, params.segment_len, params.width)
        if rows != params.width or message.cluster_basis.shape != basis:
            raise VerificationError("the key package does not fit this run", culprits=(sender,))
        self.wipe()
        self._key = ClientKey(encode_key=own(message.encode_key), cluster_basis=own(message.cluster_basis))
        return []

    def on_round_key(self, sender: Address, message: RoundKey) -> list[Outgoing]:
        """Keep ek^1 until it is used."""
        self._only_kdc(sender)
        if self._key is None or message.mask.shape != (self._parameters.num_segments, self._key.encode_key.shape[1]):
            raise VerificationError("the round key does not fit this client's key", culprits=(sender,))
        if self._round_key is not None:  # a round that was opened and never reached
            self._round_key.wipe()
        self._round_key = ClientRoundKey(round_id=message.round_id, mask=own(message.mask))
        return []

    def build_upload(self, round_id: int, update: Floats, cluster: int) -> Message:
        if self._key is None or self._round_key is None or self._round_key.round_id != round_id:
            raise UsageError(f"{self.address} has no key for round {round_id}")
        mask = self._round_key.mask
        # In place: no second array of this size, and nothing of ek^1 is left to wipe.
        mask.setflags(write=True)
        delta = encode(self._parameters, self._key, self._round_key, update, cluster, out=mask)
        mask.setflags(write=False)
        self._round_key = None
        return EncodedUpdate(round_id, delta)

    def _only_kdc(self, sender: Address) -> None:
        if sender != KDC:
            raise SequenceError(f"keys come from the key centre, not from {sender}", culprits=(sender,))

    def secrets(self) -> Iterable[npt.NDArray[Any]]:
        if self._key is not None:
            yield from self._key.arrays()
        if self._round_key is not None:
            yield self._round_key.mask

    def handlers(self) -> dict[type[Message], Callable[[Address, Any], list[Outgoing]]]:
        return {
            ClientKeyPackage: self.on_key_package,
            RoundKey: self.on_round_key,
            ResendRequest: self.on_resend_request,
        }
