"""Clients of LightSecAgg (So et al., MLSys 2022) and FastSecAgg (Kadhe et al., 2020): shares by a ramp code.

LightSecAgg deals shares of a mask before the input is known and uploads the masked input; FastSecAgg deals shares of
the input itself. Both then answer with one sum of the shares they hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ebscfl import rng
from ebscfl.errors import VerificationError
from ebscfl.ids import SERVER, Address
from ebscfl.protocol.messages_secagg import (
    MaskedInput,
    PeerKeys,
    RelayedShares,
    ShareComplaint,
    ShareSum,
    ShareSumRequest,
    SumInvitation,
)
from ebscfl.protocol.roles import Floats, Outgoing, Setup
from ebscfl.protocol.secagg.parameters import SumParameters
from ebscfl.protocol.secagg.roles import Handlers, SumClient
from ebscfl.secagg import ntt
from ebscfl.secagg.ramp import Code

Words = npt.NDArray[np.uint32]


class CodedClient(SumClient):
    """What both share: dealing rows of a code and adding up what is held."""

    def __init__(self, setup: Setup, params: SumParameters, client: int, root: bytes, code: Code) -> None:
        super().__init__(setup, params, client, root)
        self._code = code
        self._own: Words = np.zeros(0, dtype=np.uint32)
        self._held: dict[int, Words] = {}

    def forget(self) -> None:
        self._own, self._held = np.zeros(0, dtype=np.uint32), {}

    def deal_rows(self, vector: Words) -> Outgoing:
        """Share ``vector``: row i of the code to client i, the own row kept."""
        rows = self._code.share(vector, rng.derive(self._root, rng.USAGE_SECAGG, "code"), self._round_id)
        self._own = rows[self.client].copy()
        return self.bundle({peer: rows[peer].tobytes() for peer in self._peer_keys})

    def keep(self, opened: Mapping[int, bytes]) -> None:
        """Check and keep what peers dealt."""
        columns = self._code.shape.columns(self.params.width)
        for peer, plain in opened.items():
            if len(plain) != 4 * columns:
                raise VerificationError(f"client {peer} dealt a share of {len(plain)} bytes", culprits=(peer,))
            words = np.frombuffer(plain, dtype="<u4")
            self._held[peer] = ntt.check_residues(words, name=f"client {peer}'s share", size=columns)

    def add_up(self, dealers: Sequence[int]) -> Outgoing:
        """The sum of the shares of ``dealers``, or a complaint where one is unusable."""
        lacking = [i for i in dealers if i != self.client and i not in self._held]
        if lacking:
            return Outgoing(SERVER, ShareComplaint(self._round_id, tuple(sorted(lacking))))
        total = self._own.copy() if self.client in dealers else np.zeros_like(self._own)
        for i in dealers:
            if i != self.client:
                ntt.add_into(total, self._held[i])
        return Outgoing(SERVER, ShareSum(self._round_id, total))


class MaskCodeClient(CodedClient):
    """LightSecAgg: one mask, coded and dealt offline."""

    protocol = "lightsecagg"

    def __init__(self, setup: Setup, params: SumParameters, client: int, root: bytes, code: Code) -> None:
        super().__init__(setup, params, client, root, code)
        self._mask: Words = np.zeros(0, dtype=np.uint32)

    def deal(self, sender: Address, threshold: int) -> list[Outgoing]:
        """Offline: draw the mask and deal its shares."""
        self._mask = ntt.uniform(self.params.width, self._root, rng.USAGE_SECAGG, "mask", self._round_id)
        return [self.deal_rows(self._mask)]

    def on_relayed_shares(self, sender: Address, message: RelayedShares) -> list[Outgoing]:
        """Offline: keep the shares of the peers' masks."""
        self.keep(self.unbundle(sender, message))
        return []

    def encode(self, round_id: int, update: Floats, cluster: int) -> list[Outgoing]:
        """The input plus the mask."""
        self.begin_encoding(round_id)
        masked = self.params.place(update, cluster)
        ntt.add_into(masked, self._mask)
        return [Outgoing(SERVER, MaskedInput(round_id, masked))]

    def on_sum_request(self, sender: Address, message: ShareSumRequest) -> list[Outgoing]:
        """Add up the coded masks of the survivors: once a round, and never of too few."""
        self._this_round(sender, message.round_id)
        survivors = set(message.survivors)
        if len(survivors) != len(message.survivors) or not survivors <= {self.client, *self._peer_keys}:
            raise VerificationError("the server lists survivors that are no peers", culprits=(sender,))
        if len(survivors) < self._code.shape.needed:
            raise VerificationError(
                f"{len(survivors)} survivors are fewer than {self._code.shape.needed}", culprits=(sender,)
            )
        return [self.add_up(message.survivors)]

    def handlers(self) -> Handlers:
        return {
            SumInvitation: self.on_invitation,
            PeerKeys: self.on_peer_keys,
            RelayedShares: self.on_relayed_shares,
            ShareSumRequest: self.on_sum_request,
        }


class InputCodeClient(CodedClient):
    """FastSecAgg: the input itself, coded and dealt."""

    protocol = "fastsecagg"

    def deal(self, sender: Address, threshold: int) -> list[Outgoing]:
        """Nothing to deal until the input is known."""
        return []

    def encode(self, round_id: int, update: Floats, cluster: int) -> list[Outgoing]:
        """Shares of the input for every peer."""
        self.begin_encoding(round_id)
        return [self.deal_rows(self.params.place(update, cluster))]

    def on_relayed_shares(self, sender: Address, message: RelayedShares) -> list[Outgoing]:
        """Add up all shares received, the own one included: the server gave everybody the same list of dealers."""
        self.keep(self.unbundle(sender, message))
        if len(message.peers) + 1 < self._code.shape.needed:
            raise VerificationError(
                f"{len(message.peers) + 1} inputs are fewer than {self._code.shape.needed}", culprits=(sender,)
            )
        return [self.add_up([self.client, *(int(peer) for peer in message.peers)])]

    def handlers(self) -> Handlers:
        return {
            SumInvitation: self.on_invitation,
            PeerKeys: self.on_peer_keys,
            RelayedShares: self.on_relayed_shares,
        }
