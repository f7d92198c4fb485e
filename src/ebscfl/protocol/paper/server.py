"""The paper's server: verifies every delta_i, computes alpha_i as it comes, then sums, decodes and aggregates."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from ebscfl.errors import ConfigError, RoundAborted, SequenceError, UsageError, VerificationError
from ebscfl.ids import KDC, Address, client_address
from ebscfl.linalg import F64
from ebscfl.paper import (
    DenseScoringKey as DenseKey,
)
from ebscfl.paper import (
    FactoredScoringKey,
    PaperParameters,
    ServerKey,
    ServerRoundKey,
    TransformKeys,
    combine,
    own,
    relu_sum,
    score,
    verify,
)
from ebscfl.protocol.messages import (
    DenseScoringKey,
    EncodedUpdate,
    Message,
    OpenRound,
    Refusal,
    RoundVerification,
    ScoringKey,
    ServerKeyPackage,
    ServerUpdates,
)
from ebscfl.protocol.roles import Floats, Outcome, Outgoing, ServerRole, Setup


class PaperServer(ServerRole):
    """Keeps every upload until the end of the round: the masks cancel only in the sum over all clients."""

    protocol = "paper"
    survives_dropouts = False

    def __init__(self, setup: Setup, parameters: Callable[..., PaperParameters]) -> None:
        super().__init__(setup)
        self._make_parameters = parameters
        self._params = parameters(setup)
        self._sent_updates: npt.NDArray[np.float64] | None = None
        self._package: ServerKeyPackage | None = None
        self._scoring: FactoredScoringKey | DenseKey | None = None
        self._key: ServerKey | None = None
        self._round_key: ServerRoundKey | None = None
        self._position: dict[int, int] = {}
        self._uploads: dict[int, F64] = {}
        self._alphas: dict[int, npt.NDArray[np.floating]] = {}

    def open_round(self, server_updates: Floats) -> list[Outgoing]:
        """Send the root updates when they changed, then ask for this round's keys."""
        updates = np.array(server_updates, dtype=np.float64)
        try:
            self._params = self._make_parameters(self.setup, len(self.expected))
        except ConfigError as error:  # the run's sizes were checked; those of the clients that are left may not do
            self.abandon_round()
            raise RoundAborted(f"round {self.round_id} with {len(self.expected)} clients: {error}") from error
        self._position = {client: place for place, client in enumerate(self.expected)}
        self._forget_round()
        outgoing = []
        if self._sent_updates is None or not np.array_equal(updates, self._sent_updates):
            self._sent_updates = updates
            outgoing.append(Outgoing(KDC, ServerUpdates(self.round_id, updates)))
        return [*outgoing, Outgoing(KDC, OpenRound(self.round_id, self.expected))]

    def on_key_package(self, sender: Address, message: ServerKeyPackage) -> list[Outgoing]:
        """All keys but alpha'."""
        self._only_kdc(sender)
        self.wipe()  # the keys of an earlier set of clients
        self._package, self._key, self._scoring = message, None, None
        return []

    def on_scoring_key(self, sender: Address, message: ScoringKey | DenseScoringKey) -> list[Outgoing]:
        """A new alpha'."""
        self._only_kdc(sender)
        if self._scoring is not None:
            self._scoring.wipe()
        if isinstance(message, DenseScoringKey):
            self._scoring = DenseKey(dense=own(message.dense))
        else:
            self._scoring = FactoredScoringKey(
                value_factor=own(message.value_factor), mask_factor=own(message.mask_factor), maps=own(message.maps)
            )
        if self._key is not None:
            self._key = self._key.with_scoring_key(self._scoring)
        return []

    def on_round_verification(self, sender: Address, message: RoundVerification) -> list[Outgoing]:
        """This round's verification scalars: from here on uploads are taken."""
        self._only_kdc(sender)
        if message.round_id != self.round_id or message.tags.shape != (len(self.expected),):
            raise VerificationError(f"verification scalars for round {message.round_id}", culprits=(sender,))
        if self._key is None:
            self._key = self._assemble()
        self._round_key = ServerRoundKey(round_id=message.round_id, tags=own(message.tags))
        return []

    def on_upload(self, sender: Address, message: EncodedUpdate) -> list[Outgoing]:
        """Verify (shape, finite, squared norm 3, the vk equation) and score."""
        client = self.check_upload(sender, message.round_id)
        place = self._position[client]
        key, round_key = self._keys()
        try:
            verify(self._params, key, round_key, place, message.delta)
        except VerificationError as error:  # the scheme numbers the clients of this deal, the role knows their names
            reason = str(error).replace(f"client {place}:", f"client {client}:", 1)
            raise VerificationError(reason, culprits=(client_address(client),)) from error
        self._uploads[place] = message.delta
        self._alphas[place] = score(self._params, key, place, message.delta)
        self.accepted.add(client)
        return []

    def finish(self) -> list[Outgoing]:
        key, _ = self._keys()
        order = range(len(self.expected))
        weights = relu_sum(self._params, key, np.stack([self._alphas[i] for i in order]))
        aggregates, total = combine(self._params, key, [self._uploads[i] for i in order], weights, self.pool)
        self._forget_round()
        events = () if total > 0 else ("no client is trusted: no step",)
        self.outcome = Outcome(aggregates, total, None, tuple(sorted(self.accepted)), events)
        return []

    def abandon_round(self) -> None:
        super().abandon_round()
        self._forget_round()

    def _forget_round(self) -> None:
        """Wipe what one round leaves behind: scores and verification scalars; uploads are let go."""
        for alpha in self._alphas.values():
            alpha.fill(0)
        if self._round_key is not None:
            self._round_key.wipe()
        self._uploads, self._alphas, self._round_key = {}, {}, None

    def _assemble(self) -> ServerKey:
        if self._package is None or self._scoring is None:
            raise SequenceError("verification scalars came before the keys", culprits=(KDC,))
        package = self._package
        transform = None
        if package.transform:
            weight_key, update_key = (own(part) for part in package.transform)
            transform = TransformKeys(weight_key=weight_key, update_key=update_key)
        self._package = None
        return ServerKey(
            cluster_basis=own(package.cluster_basis),
            scoring_key=self._scoring,
            sum_basis=own(package.sum_basis),
            relu_key_1=own(package.relu_key_1),
            relu_key_2=own(package.relu_key_2),
            relu_key_3=own(package.relu_key_3),
            decode_key=own(package.decode_key),
            verification_key=own(package.verification_key),
            transform=transform,
        )

    def _keys(self) -> tuple[ServerKey, ServerRoundKey]:
        if self._key is None or self._round_key is None:
            raise UsageError("the key centre has not dealt this round's keys")
        return self._key, self._round_key

    def _only_kdc(self, sender: Address) -> None:
        if sender != KDC:
            raise SequenceError(f"keys come from the key centre, not from {sender}", culprits=(sender,))

    def secrets(self) -> Iterable[npt.NDArray[Any]]:
        yield from self._alphas.values()
        if self._round_key is not None:
            yield self._round_key.tags
        if self._scoring is not None:
            yield from self._scoring.arrays()
        if self._key is not None:
            yield from self._key.arrays()

    def handlers(self) -> dict[type[Message], Callable[[Address, Any], list[Outgoing]]]:
        return {
            ServerKeyPackage: self.on_key_package,
            ScoringKey: self.on_scoring_key,
            DenseScoringKey: self.on_scoring_key,
            RoundVerification: self.on_round_verification,
            EncodedUpdate: self.on_upload,
            Refusal: self.on_refusal,
        }
