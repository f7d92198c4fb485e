"""What the five secure sums share: key advertisement, encrypted shares relayed by the server, one input a client.

The order is the originals': advertise keys, share, upload, open. The server counts a message once; whoever is silent
when a step closes has dropped out of it. The clients protect themselves: they refuse thresholds below a majority,
requests that would open both masks of a peer, and anything from an old round.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ebscfl import rng
from ebscfl.errors import RoundAborted, SequenceError, VerificationError
from ebscfl.ids import SERVER, Address, Role, client_address
from ebscfl.protocol.messages import Message
from ebscfl.protocol.messages_secagg import PeerKeys, PublicKeys, RelayedShares, ShareBundle, SumInvitation
from ebscfl.protocol.roles import Floats, Outgoing, RoleMachine, Setup
from ebscfl.protocol.secagg.parameters import SumParameters
from ebscfl.protocol.states import State, Step
from ebscfl.secagg.channel import KEY_SIZE, Context, KeyPair, seal, unseal

Words = npt.NDArray[np.uint32]


@dataclass(frozen=True, eq=False)
class SumOutcome:
    """What the server knows at the end: the exact integer sums of the clients that are in."""

    sums: npt.NDArray[np.int64]  # (m, l)
    included: tuple[int, ...]


class SumClient(RoleMachine):
    """Fresh keys each round, shares for its peers, one input."""

    role = Role.CLIENT
    key_purposes: tuple[str, ...] = ("share",)

    def __init__(self, setup: Setup, params: SumParameters, client: int, root: bytes) -> None:
        super().__init__(setup, client_address(client))
        self.params = params
        self.client = client
        self._root = root
        self._round_id = -1
        self._context = Context(setup.run_id, 0)
        self._pairs: dict[str, KeyPair] = {}
        self._channel: dict[int, bytes] = {}
        self._peer_keys: dict[int, npt.NDArray[np.uint8]] = {}
        self._rejected: set[int] = set()

    def on_invitation(self, sender: Address, message: SumInvitation) -> list[Outgoing]:
        """Step 1: new keys. A round id is never used twice, so old messages find no round to belong to."""
        self._from_server(sender)
        if message.round_id <= self._round_id:
            raise SequenceError(f"round {message.round_id} is not new to {self.address}", culprits=(sender,))
        self._round_id = message.round_id
        self._context = Context(self.setup.run_id, message.round_id)
        self._pairs = {
            purpose: KeyPair(rng.derive(self._root, rng.USAGE_SECAGG, "key", purpose, message.round_id))
            for purpose in self.key_purposes
        }
        self._channel, self._peer_keys, self._rejected = {}, {}, set()
        self.forget()
        keys = b"".join(pair.public for pair in self._pairs.values())
        return [Outgoing(SERVER, PublicKeys(message.round_id, _bytes_matrix([keys]).reshape(-1, KEY_SIZE)))]

    def on_peer_keys(self, sender: Address, message: PeerKeys) -> list[Outgoing]:
        """Step 2: agree on a channel key with every peer, then deal."""
        self._this_round(sender, message.round_id)
        peers = self._check_peers(sender, message.peers)
        if message.keys.shape != (len(peers), len(self.key_purposes), KEY_SIZE):
            raise VerificationError("the list of peers does not fit their keys", culprits=(sender,))
        self._peer_keys = dict(zip(peers, message.keys, strict=True))
        for peer in peers:
            public = self._peer_keys[peer][0].tobytes()
            self._channel[peer] = self._pairs["share"].agree(public, self._context, "share")
        return self.deal(sender, message.threshold)

    @abstractmethod
    def deal(self, sender: Address, threshold: int) -> list[Outgoing]:
        """What follows the keys: shares, or nothing until the input is known."""

    @abstractmethod
    def encode(self, round_id: int, update: Floats, cluster: int) -> list[Outgoing]:
        """Local step: the input of this round."""

    def forget(self) -> None:
        """Drop the last round's secrets."""

    def bundle(self, shares: Mapping[int, bytes]) -> Outgoing:
        """One ciphertext for each peer."""
        sealed = [seal(self._channel[peer], self.client, peer, self._context, plain) for peer, plain in shares.items()]
        return Outgoing(SERVER, ShareBundle(self._round_id, _ids(shares), _bytes_matrix(sealed)))

    def unbundle(self, sender: Address, message: RelayedShares) -> dict[int, bytes]:
        """What peers dealt to this client. A share that fails authentication is left out, and its maker named."""
        self._this_round(sender, message.round_id)
        opened = {}
        for peer, ciphertext in zip(self._check_peers(sender, message.peers), message.ciphertexts, strict=True):
            if peer not in self._channel:
                raise VerificationError(f"client {peer} is no peer of {self.address}", culprits=(sender,))
            try:
                opened[peer] = unseal(self._channel[peer], peer, self.client, self._context, ciphertext.tobytes())
            except VerificationError as error:
                self._rejected.add(peer)
                self.blame(error.culprits, str(error))
        return opened

    def begin_encoding(self, round_id: int) -> None:
        """The checks of every `encode`."""
        self.advance(Step.ENCODE)
        if round_id != self._round_id:
            raise SequenceError(f"{self.address} is in round {self._round_id}, not {round_id}")

    @property
    def is_ready(self) -> bool:
        """Whether it has all it needs to encode: a client left without peers or keys has not."""
        return self.state is State.READY

    def _from_server(self, sender: Address) -> None:
        if sender != SERVER:
            raise SequenceError(f"{sender} is not the server", culprits=(sender,))

    def _this_round(self, sender: Address, round_id: int) -> None:
        self._from_server(sender)
        if round_id != self._round_id:
            raise SequenceError(f"a message of round {round_id} in round {self._round_id}", culprits=(sender,))

    def _check_peers(self, sender: Address, peers: Words) -> list[int]:
        listed = [int(peer) for peer in peers]
        if len(set(listed)) != len(listed) or self.client in listed or max(listed) >= self.params.num_clients:
            raise VerificationError("the list of peers names someone twice, nobody or oneself", culprits=(sender,))
        return listed


class SumServer(RoleMachine):
    """Relays shares it cannot read, adds inputs up as they arrive, opens the sum."""

    role = Role.SERVER
    deals_shares: bool = True
    """Whether shares are dealt in a step of their own, before the inputs."""
    num_keys: int = 1

    def __init__(self, setup: Setup, params: SumParameters, root: bytes) -> None:
        super().__init__(setup, SERVER)
        self.params = params
        self._root = root
        self.round_id = -1
        self.expected: tuple[int, ...] = ()
        self.public_keys: dict[int, npt.NDArray[np.uint8]] = {}
        self.bundles: dict[int, ShareBundle] = {}
        self.peers: dict[int, tuple[int, ...]] = {}
        self.thresholds: dict[int, int] = {}
        self.outcome: SumOutcome | None = None

    def start_round(self, round_id: int, clients: Sequence[int]) -> list[Outgoing]:
        """Invite ``clients``."""
        self.advance(Step.START_ROUND)
        self.round_id, self.expected = round_id, tuple(clients)
        self.public_keys, self.bundles, self.peers, self.thresholds = {}, {}, {}, {}
        self.outcome, self.culprits = None, {}
        self.forget()
        return [Outgoing(client_address(i), SumInvitation(round_id)) for i in clients]

    def forget(self) -> None:
        """Drop the last round's values."""

    def on_public_keys(self, sender: Address, message: PublicKeys) -> list[Outgoing]:
        """Step 1 of one client."""
        client = self.once(sender, message.round_id, self.public_keys, "keys")
        if message.keys.shape != (self.num_keys, KEY_SIZE):
            raise VerificationError(f"{sender} sent keys of shape {message.keys.shape}", culprits=(sender,))
        self.public_keys[client] = message.keys
        return []

    def close_keys(self) -> list[Outgoing]:
        """Step 2: tell everybody who is there the keys of its peers."""
        self.advance(Step.CLOSE_KEYS)
        here = set(self.public_keys)
        self.require(here, self.minimum, "advertised keys")
        graph = self.params.graph(self._root, self.round_id)
        self.peers = {i: tuple(j for j in graph.neighbors[i] if j in here) for i in sorted(here)}
        self.thresholds = {i: self.params.threshold(graph.degree(i) + 1) for i in self.peers}
        # On a sparse graph a client may be left with too few neighbors: it would refuse, so it stays out.
        able = [i for i in self.peers if self.peers[i] and len(self.peers[i]) + 1 >= self.thresholds[i]]
        self.require(set(able), self.minimum, "have enough neighbors with keys", present=here)
        outgoing = []
        for client in able:
            keys = np.stack([self.public_keys[j] for j in self.peers[client]])
            # The threshold follows the full neighborhood: those already gone make it no smaller.
            message = PeerKeys(self.round_id, self.thresholds[client], _ids(self.peers[client]), keys)
            outgoing.append(Outgoing(client_address(client), message))
        return outgoing

    @property
    @abstractmethod
    def minimum(self) -> int:
        """Clients without whom no step can lead to a sum."""

    def on_bundle(self, sender: Address, message: ShareBundle) -> list[Outgoing]:
        """Encrypted shares of one client."""
        client = self.once(sender, message.round_id, self.bundles, "bundle")
        if tuple(int(j) for j in message.peers) != self.peers.get(client) or len(message.ciphertexts) != len(
            message.peers
        ):
            raise VerificationError(f"{sender} did not share with the peers it was given", culprits=(sender,))
        self.bundles[client] = message
        return []

    def close_shares(self) -> list[Outgoing]:
        """Step 3, where shares are dealt in a step of their own: relay them."""
        self.advance(Step.CLOSE_SHARES)
        return self.relay()

    def relay(self) -> list[Outgoing]:
        """Turn bundles by sender into bundles by receiver; only those who dealt receive, and only if that suffices."""
        self.require(set(self.bundles), self.minimum, "dealt shares")
        able = [i for i in sorted(self.bundles) if len(self.dealers(i)) + 1 >= self.thresholds[i]]
        self.require(set(able), self.minimum, "have enough neighbors that dealt", present=set(self.bundles))
        place = {j: {peer: row for row, peer in enumerate(self.peers[j])} for j in self.bundles}
        outgoing = []
        for client in able:
            senders = self.dealers(client)
            rows = [self.bundles[j].ciphertexts[place[j][client]] for j in senders]
            if len({len(row) for row in rows}) > 1:
                odd = [j for j, row in zip(senders, rows, strict=True) if len(row) != len(rows[0])]
                raise RoundAborted(f"encrypted shares of {odd} have another length than the rest", culprits=odd)
            outgoing.append(
                Outgoing(client_address(client), RelayedShares(self.round_id, _ids(senders), np.stack(rows)))
            )
        return outgoing

    def dealers(self, client: int) -> tuple[int, ...]:
        """Peers of ``client`` that dealt."""
        return tuple(j for j in self.peers[client] if j in self.bundles)

    def once(self, sender: Address, round_id: int, seen: Mapping[int, Any], what: str) -> int:
        """The checks every client message gets; returns the client's number."""
        if sender.role is not Role.CLIENT or sender.client not in self.expected:
            raise SequenceError(f"{sender} takes no part in round {self.round_id}", culprits=(sender,))
        if round_id != self.round_id:
            raise SequenceError(f"{what} for round {round_id} in round {self.round_id}", culprits=(sender,))
        if sender.client in seen:
            raise SequenceError(f"second {what} of {sender} in round {round_id}", culprits=(sender,))
        return sender.client

    def require(self, here: set[int], needed: int, what: str, *, present: set[int] | None = None) -> None:
        """Abort where fewer than ``needed`` clients are left, naming those not ``present`` (or not ``here``)."""
        if len(here) < needed:
            missing = sorted(set(self.expected) - (here if present is None else present))
            raise RoundAborted(
                f"round {self.round_id}: {len(here)} clients {what}, {needed} are needed; missing: clients {missing}",
                culprits=missing,
            )

    def complain(self, sender: Address, rejected: Sequence[int]) -> None:
        """Name the makers of shares that reached ``sender`` damaged."""
        for peer in rejected:
            if 0 <= peer < self.params.num_clients:
                self.blame((peer,), f"its share for {sender} fails authentication")

    @abstractmethod
    def close_uploads(self) -> list[Outgoing]:
        """No more inputs: ask for what opens their sum."""

    @abstractmethod
    def finish_round(self) -> list[Outgoing]:
        """Open the sum into `outcome`, or `RoundAborted`."""

    def abandon_round(self) -> None:
        """Give the round up; nothing was opened."""
        self.advance(Step.ABANDON)

    def settle(self, words: Words, included: Sequence[int]) -> None:
        """The opened sum as signed integers."""
        sums = self.params.fixed.lift(words).reshape(self.params.num_clusters, self.params.dim)
        self.outcome = SumOutcome(sums, tuple(sorted(included)))


Handlers = dict[type[Message], Any]


def _ids(clients: Any) -> Words:
    return np.fromiter(clients, dtype=np.uint32)


def _bytes_matrix(rows: Sequence[bytes]) -> npt.NDArray[np.uint8]:
    return np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(len(rows), -1)
