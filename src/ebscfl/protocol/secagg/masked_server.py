"""Server of SecAgg, SecAgg+ and CCESA: adds masked inputs as they come, then takes off the masks that do not cancel."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ebscfl.errors import DecodeError, RoundAborted, VerificationError
from ebscfl.field import M61
from ebscfl.ids import Address, client_address
from ebscfl.protocol.messages_secagg import MaskedInput, PublicKeys, ShareBundle, UnmaskRequest, UnmaskShares
from ebscfl.protocol.roles import Outgoing, Setup
from ebscfl.protocol.secagg.parameters import SumParameters
from ebscfl.protocol.secagg.roles import Handlers, SumServer
from ebscfl.protocol.states import Step
from ebscfl.secagg import shamir
from ebscfl.secagg.channel import Context, KeyPair
from ebscfl.secagg.masking import apply_mask, pair_sign

Words = npt.NDArray[np.uint32]


class MaskedServer(SumServer):
    """Needs, for every client that dealt, a threshold of answers from its neighborhood."""

    protocol = "secagg"
    num_keys = 2

    def __init__(self, setup: Setup, params: SumParameters, root: bytes) -> None:
        super().__init__(setup, params, root)
        self._total: Words = np.zeros(0, dtype=np.uint32)
        self._uploaded: set[int] = set()
        self._answers: dict[int, dict[int, npt.NDArray[np.uint64]]] = {}  # by answering client, then by owner

    def forget(self) -> None:
        self._total = np.zeros(self.params.width, dtype=np.uint32)
        self._uploaded, self._answers = set(), {}

    @property
    def minimum(self) -> int:
        """On the complete graph the threshold itself; on a sparse one every neighborhood is judged by itself."""
        complete = self.params.protocol == "secagg"
        return self.params.threshold(self.params.num_clients) if complete else 2

    def on_masked_input(self, sender: Address, message: MaskedInput) -> list[Outgoing]:
        """Step 3 of one client: one addition, and the input is gone."""
        client = self.once(sender, message.round_id, dict.fromkeys(self._uploaded), "upload")
        if client not in self.bundles or message.masked.shape != (self.params.width,):
            raise VerificationError(f"{sender} sent {message.masked.shape[0]} words", culprits=(sender,))
        np.add(self._total, message.masked, out=self._total)
        self._uploaded.add(client)
        return []

    def neighborhood(self, client: int) -> set[int]:
        """Who holds shares of ``client``'s secrets: its peers that dealt, and itself."""
        return {client, *self.dealers(client)}

    def close_uploads(self) -> list[Outgoing]:
        """Step 4: ask everybody who uploaded for its share of each neighbor's one secret."""
        self.advance(Step.CLOSE_UPLOADS)
        self.require(self._uploaded, self.minimum, "uploaded")
        for client in sorted(self.bundles):
            self._require_holders(client, self._uploaded, "are left")
        outgoing = []
        for client in sorted(self._uploaded):
            around = self.neighborhood(client)
            stayed, left = sorted(around & self._uploaded), sorted(around - self._uploaded)
            request = UnmaskRequest(self.round_id, tuple(stayed), tuple(left))
            outgoing.append(Outgoing(client_address(client), request))
        return outgoing

    def _require_holders(self, client: int, here: set[int], what: str) -> None:
        around = self.neighborhood(client)
        needed = self.thresholds[client]
        if client not in self._uploaded and not around & self._uploaded - {client}:
            return  # nobody that uploaded has a mask with it
        if len(around & here) < needed:
            missing = sorted(around - here)
            raise RoundAborted(
                f"round {self.round_id}: {len(around & here)} key shares of client {client} {what}, "
                f"{needed} are needed; missing: clients {missing}",
                culprits=missing,
            )

    def on_unmask_shares(self, sender: Address, message: UnmaskShares) -> list[Outgoing]:
        """Step 4 of one client."""
        client = self.once(sender, message.round_id, self._answers, "answer")
        owners = [int(i) for i in message.peers]
        fits = message.shares.shape == (len(owners), shamir.WORDS) and len(set(owners)) == len(owners)
        if client not in self._uploaded or not fits or not set(owners) <= self.neighborhood(client):
            raise VerificationError(f"{sender} answered what it was not asked", culprits=(sender,))
        if int(message.shares.max()) >= M61.modulus:
            raise VerificationError(f"{sender} sent shares outside the field", culprits=(sender,))
        self._answers[client] = dict(zip(owners, message.shares, strict=True))
        self.complain(sender, message.rejected)
        return []

    def finish_round(self) -> list[Outgoing]:
        """Take off self masks of those who stayed, and pair masks with those who left."""
        weights: dict[tuple[int, ...], tuple[int, ...]] = {}
        secrets = {client: self._open(client, weights) for client in sorted(self.bundles)}
        context = Context(self.setup.run_id, self.round_id)
        for client, secret in secrets.items():
            if secret is None:
                continue
            if client in self._uploaded:
                apply_mask(self._total, secret, self.round_id, subtract=True)
                continue
            key = KeyPair(secret)
            if key.public != self.public_keys[client][1].tobytes():
                raise RoundAborted(
                    f"round {self.round_id}: the shares of client {client}'s key do not fit its public key",
                    culprits=(client,),
                )
            for peer in self.neighborhood(client) & self._uploaded:
                seed = key.agree(self.public_keys[peer][1].tobytes(), context, "mask")
                apply_mask(self._total, seed, self.round_id, subtract=not pair_sign(peer, client))
        self.settle(self._total, sorted(self._uploaded))
        self.advance(Step.FINISH_ROUND)  # last, so that a round that cannot be opened can be abandoned
        return []

    def _open(self, client: int, weights: dict[tuple[int, ...], tuple[int, ...]]) -> bytes | None:
        """One client's seed or key from the first threshold of answers; None where no mask depends on it."""
        holders = {i for i in self.neighborhood(client) if client in self._answers.get(i, {})}
        self._require_holders(client, holders, "arrived")
        used = tuple(sorted(holders))[: self.thresholds[client]]
        if not used:
            return None
        if used not in weights:  # neighbors on a complete graph all have the same holders
            weights[used] = shamir.coefficients([i + 1 for i in used])
        try:
            return shamir.combine(weights[used], np.stack([self._answers[i][client] for i in used]))
        except DecodeError as error:
            raise RoundAborted(
                f"round {self.round_id}: the key shares of client {client} do not fit together", culprits=(client,)
            ) from error

    def handlers(self) -> Handlers:
        return {
            PublicKeys: self.on_public_keys,
            ShareBundle: self.on_bundle,
            MaskedInput: self.on_masked_input,
            UnmaskShares: self.on_unmask_shares,
        }
