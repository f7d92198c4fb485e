"""Client of SecAgg, SecAgg+ and CCESA: double masking (Bonawitz et al., CCS 2017, figure 4, semi-honest)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ebscfl import rng
from ebscfl.errors import VerificationError
from ebscfl.field import M61, FieldStream
from ebscfl.ids import SERVER, Address
from ebscfl.protocol.messages_secagg import (
    MaskedInput,
    PeerKeys,
    RelayedShares,
    SumInvitation,
    UnmaskRequest,
    UnmaskShares,
)
from ebscfl.protocol.roles import Floats, Outgoing, Setup
from ebscfl.protocol.secagg.parameters import SumParameters
from ebscfl.protocol.secagg.roles import Handlers, SumClient
from ebscfl.secagg import shamir
from ebscfl.secagg.masking import apply_mask, pair_sign

KEY, SEED = 0, 1
"""Which of a peer's two shared secrets: its mask key, opened if it drops out, or its self-mask seed, if it does not."""

Shares = npt.NDArray[np.uint64]


class MaskedClient(SumClient):
    """Hides its input under one mask with each peer and one of its own."""

    protocol = "secagg"
    key_purposes = ("share", "mask")

    def __init__(self, setup: Setup, params: SumParameters, client: int, root: bytes) -> None:
        super().__init__(setup, params, client, root)
        self._seed = b""
        self._threshold = 0
        self._held: dict[int, Shares] = {}  # by dealer: (2, words)
        self._partners: tuple[int, ...] = ()  # peers that dealt: a mask with each

    def forget(self) -> None:
        self._seed, self._held, self._partners = b"", {}, ()

    def deal(self, sender: Address, threshold: int) -> list[Outgoing]:
        """Step 2: share the mask key and the self-mask seed t-of-(peers and oneself)."""
        neighborhood = [self.client, *self._peer_keys]
        if not self.params.threshold(len(neighborhood)) <= threshold <= len(neighborhood):
            raise VerificationError(
                f"{threshold} of {len(neighborhood)} shares is not a threshold {self.address} accepts",
                culprits=(sender,),
            )
        self._threshold = threshold
        self._seed = rng.derive(self._root, rng.USAGE_SECAGG, "self", self._round_id)
        stream = FieldStream(M61, self._root, rng.USAGE_SECAGG, "shamir", self._round_id)
        secrets = [self._pairs["mask"].private, self._seed]
        shares = shamir.share(secrets, threshold, [i + 1 for i in neighborhood], stream)
        self._held = {self.client: shares[0]}
        dealt = {peer: share.tobytes() for peer, share in zip(neighborhood[1:], shares[1:], strict=True)}
        return [self.bundle(dealt)]

    def on_relayed_shares(self, sender: Address, message: RelayedShares) -> list[Outgoing]:
        """Step 3: keep what peers dealt; fewer than the threshold could never be opened."""
        opened = self.unbundle(sender, message)
        self._partners = tuple(int(peer) for peer in message.peers)
        if len(self._partners) + 1 < self._threshold:
            raise VerificationError(
                f"{len(self._partners) + 1} of {self._threshold} neighbors are left", culprits=(sender,)
            )
        for peer, plain in opened.items():
            if len(plain) != 2 * shamir.WORDS * 8:
                raise VerificationError(f"client {peer} dealt a share of {len(plain)} bytes", culprits=(peer,))
            self._held[peer] = np.frombuffer(plain, dtype="<u8").reshape(2, shamir.WORDS)
        return []

    def encode(self, round_id: int, update: Floats, cluster: int) -> list[Outgoing]:
        """Step 3: y = x + PRG(b) + sum of +-PRG(s_ij) over the peers that dealt."""
        self.begin_encoding(round_id)
        masked = self.params.place(update, cluster)
        apply_mask(masked, self._seed, round_id)
        for peer in self._partners:
            public = self._peer_keys[peer][1].tobytes()
            seed = self._pairs["mask"].agree(public, self._context, "mask")
            apply_mask(masked, seed, round_id, subtract=pair_sign(self.client, peer))
        return [Outgoing(SERVER, MaskedInput(round_id, masked))]

    def on_unmask_request(self, sender: Address, message: UnmaskRequest) -> list[Outgoing]:
        """Step 4: for a peer that stayed its seed's share, for one that left its key's; never both, once a round."""
        self._this_round(sender, message.round_id)
        stayed, left = set(message.survivors), set(message.dropped)
        if stayed & left:
            raise VerificationError("the server asks for both masks of a client", culprits=(sender,))
        if self.client in left or not stayed | left <= {self.client, *self._partners}:
            raise VerificationError("the server asks for masks it may not open", culprits=(sender,))
        if len(stayed) < self._threshold:
            raise VerificationError(
                f"{len(stayed)} survivors are fewer than the threshold {self._threshold}", culprits=(sender,)
            )
        asked = [(peer, SEED) for peer in message.survivors] + [(peer, KEY) for peer in message.dropped]
        known = [(peer, which) for peer, which in asked if peer in self._held]
        shares = np.stack([self._held[peer][which] for peer, which in known])
        peers = np.array([peer for peer, _ in known], dtype=np.uint32)
        return [Outgoing(SERVER, UnmaskShares(message.round_id, peers, shares, tuple(sorted(self._rejected))))]

    def handlers(self) -> Handlers:
        return {
            SumInvitation: self.on_invitation,
            PeerKeys: self.on_peer_keys,
            RelayedShares: self.on_relayed_shares,
            UnmaskRequest: self.on_unmask_request,
        }
