"""The paper's key centre: deals all keys once, fresh masks every round, alpha' when the server updates change.

When the set of clients changes (a restart without those who failed) everything is dealt anew: masks that sum to zero
over the old set are useless for the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from ebscfl import rng
from ebscfl.errors import SequenceError, VerificationError
from ebscfl.ids import KDC, SERVER, Address, client_address
from ebscfl.paper import (
    DealerSecret,
    PaperParameters,
    ServerKey,
    deal,
    re_deal_alpha,
    refresh,
)
from ebscfl.paper import DenseScoringKey as DenseKey
from ebscfl.paper import FactoredScoringKey as FactoredKey
from ebscfl.protocol.messages import (
    ClientKeyPackage,
    DenseScoringKey,
    Message,
    OpenRound,
    RoundKey,
    RoundVerification,
    ScoringKey,
    ServerKeyPackage,
    ServerUpdates,
)
from ebscfl.protocol.roles import KdcRole, Outgoing, Setup
from ebscfl.protocol.states import State


class PaperKdc(KdcRole):
    """Knows the server updates and every key; keeps only what a refresh or a new alpha' needs."""

    protocol = "paper"

    def __init__(self, setup: Setup, root: bytes, parameters: Callable[..., PaperParameters]) -> None:
        super().__init__(setup, KDC)
        self.state = State.SERVING
        self._root = root
        self._make_parameters = parameters
        self._params: PaperParameters | None = None
        self._clients: tuple[int, ...] = ()
        self._secret: DealerSecret | None = None
        self._updates: npt.NDArray[np.float64] | None = None
        self._stale_alpha = False
        self._last_round = -1

    def on_server_updates(self, sender: Address, message: ServerUpdates) -> list[Outgoing]:
        """New root updates: alpha' must be dealt again, nothing else."""
        self._only_server(sender)
        if message.updates.shape != (self.setup.num_clusters, self.setup.dim):
            raise VerificationError(f"server updates of shape {message.updates.shape}", culprits=(sender,))
        norms = np.linalg.norm(message.updates, axis=1)
        if not (np.isfinite(norms) & (norms > 0)).all():
            raise VerificationError("a server update is zero or not finite", culprits=(sender,))
        self._updates = np.array(message.updates)
        self._stale_alpha = True
        return []

    def on_open_round(self, sender: Address, message: OpenRound) -> list[Outgoing]:
        """Deal what is missing for these clients, then this round's masks."""
        self._only_server(sender)
        if message.round_id <= self._last_round:
            raise SequenceError(f"round {message.round_id} is not newer than {self._last_round}", culprits=(sender,))
        if self._updates is None:
            raise SequenceError("a round was opened before the server updates came", culprits=(sender,))
        if not set(message.clients) <= set(range(self.setup.num_clients)) or len(set(message.clients)) < 2:
            raise VerificationError("a round needs at least two different known clients", culprits=(sender,))
        self._last_round = message.round_id
        outgoing: list[Outgoing] = []
        if self._secret is None or message.clients != self._clients:
            outgoing += self._deal(message.clients)
        elif self._stale_alpha:
            assert self._params is not None
            outgoing.append(
                Outgoing(SERVER, _scoring_message(re_deal_alpha(self._params, self._secret, self._updates)))
            )
        self._stale_alpha = False
        return outgoing + self._refresh(message.round_id)

    def _deal(self, clients: tuple[int, ...]) -> list[Outgoing]:
        assert self._updates is not None
        if self._secret is not None:
            self._secret.wipe()
        self._params, self._clients = self._make_parameters(self.setup, len(clients)), clients
        # A function of who takes part, so that a resumed run deals the same; masks differ by round in any case.
        secret = rng.derive(self._root, rng.USAGE_PAPER_KEYS, *clients)
        dealt = deal(self._params, self._updates, secret)
        self._secret = dealt.secret
        packages = [
            Outgoing(client_address(i), ClientKeyPackage(key.encode_key, key.cluster_basis))
            for i, key in zip(clients, dealt.client_keys, strict=True)
        ]
        key = dealt.server_key
        return [*packages, Outgoing(SERVER, _server_message(key)), Outgoing(SERVER, _scoring_message(key.scoring_key))]

    def _refresh(self, round_id: int) -> list[Outgoing]:
        assert self._params is not None
        assert self._secret is not None
        keys = refresh(self._params, self._secret, round_id, self.pool)
        round_keys = [
            Outgoing(client_address(i), RoundKey(round_id, key.mask))
            for i, key in zip(self._clients, keys.client, strict=True)
        ]
        return [*round_keys, Outgoing(SERVER, RoundVerification(round_id, keys.server.tags))]

    def _only_server(self, sender: Address) -> None:
        if sender != SERVER:
            raise SequenceError(f"rounds are opened by the server, not by {sender}", culprits=(sender,))

    def secrets(self) -> Iterable[npt.NDArray[Any]]:
        if self._secret is not None:
            yield from self._secret.arrays()
        if self._updates is not None:
            yield self._updates

    def handlers(self) -> dict[type[Message], Callable[[Address, Any], list[Outgoing]]]:
        return {ServerUpdates: self.on_server_updates, OpenRound: self.on_open_round}


def _scoring_message(key: DenseKey | FactoredKey) -> Message:
    if isinstance(key, DenseKey):
        return DenseScoringKey(key.dense)
    return ScoringKey(key.value_factor, key.mask_factor, key.maps)


def _server_message(key: ServerKey) -> ServerKeyPackage:
    transform = () if key.transform is None else (key.transform.weight_key, key.transform.update_key)
    return ServerKeyPackage(
        cluster_basis=key.cluster_basis,
        sum_basis=key.sum_basis,
        relu_key_1=key.relu_key_1,
        relu_key_2=key.relu_key_2,
        relu_key_3=key.relu_key_3,
        decode_key=key.decode_key,
        verification_key=key.verification_key,
        transform=transform,
    )
