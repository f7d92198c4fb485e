"""The attackers of a run: who they are, what they poison before training and what they upload after it.

An attack is called once a round and *aggregation group* (all clients that claim the same model) with a frozen
`AttackView`. The view grants what the attack's options ask for and nothing more: everybody's clean updates under full
knowledge, the server's root update (``base = "true"``), or one the attackers compute on their own clean data
(``base = "proxy"``). Where a method has no root update, "true" falls back on the proxy. The method's name is nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ebscfl.algorithms import ClientRound, Uploads
from ebscfl.arrays import Array
from ebscfl.attacks import AttackSpec, AttackView
from ebscfl.errors import UsageError
from ebscfl.learning.federation import FederatedData, replace_clients
from ebscfl.learning.local import LocalSettings, draw_batches, local_updates
from ebscfl.learning.models import FlatModel
from ebscfl.rng import USAGE_ATTACK, USAGE_ATTACKERS, USAGE_POISON, numpy_generator


def choose_attackers(root: bytes, count: int, domains: Sequence[int], placement: str = "uniform") -> tuple[int, ...]:
    """``count`` client ids in order: uniformly, or as evenly over the domains as the count allows ("per-domain")."""
    shuffled = numpy_generator(root, USAGE_ATTACKERS).permutation(len(domains)).tolist()
    if placement == "per-domain":
        # The k-th client of every domain comes before the (k+1)-th of any.
        turn: dict[int, int] = {}
        keyed = []
        for client in shuffled:
            turn[domains[client]] = turn.get(domains[client], 0) + 1
            keyed.append((turn[domains[client]], client))
        shuffled = [client for _, client in sorted(keyed, key=lambda item: item[0])]
    return tuple(sorted(shuffled[:count]))


def poison(
    data: FederatedData, attackers: Sequence[int], spec: AttackSpec, options: Mapping[str, Any], root: bytes
) -> FederatedData:
    """``data`` with the attackers' samples replaced by the attack's poisoned ones (unchanged if it has none)."""
    if spec.poison is None or not attackers:
        return data
    samples = {}
    for client in attackers:
        rows = data.client_rows[client]
        images, labels = spec.poison(
            data.x[rows].cpu().numpy(),
            data.y[rows].cpu().numpy(),
            num_classes=data.num_classes,
            rng=numpy_generator(root, USAGE_POISON, spec.name, client),
            **spec.for_poison(options),
        )
        samples[client] = (torch.from_numpy(images), torch.from_numpy(labels))
    return replace_clients(data, samples)


@dataclass(frozen=True, eq=False)
class UpdateAdversary:
    """Replaces the attackers' uploads by what an attack crafts from its view."""

    root: bytes
    attackers: tuple[int, ...]
    spec: AttackSpec
    options: Mapping[str, Any]
    model: FlatModel
    clean: FederatedData  # before poisoning: what a proxy update is trained on
    proxy_settings: LocalSettings  # those of the server's root update
    proxy_size: int  # samples of a proxy set

    def corrupt(self, clients: ClientRound) -> Uploads:
        """The uploads of all clients, the attackers' replaced group by group."""
        if self.spec.craft is None:
            return Uploads(clients.updates)
        updates = clients.updates.clone()
        malformed: list[int] = []
        events: list[str] = []
        claimed = clients.clusters.tolist()
        for cluster in sorted({claimed[i] for i in self.attackers}):
            # A diverged (non-finite) update is dropped by the server; it is no use to the attackers either.
            group = [i for i, own in enumerate(claimed) if own == cluster and bool(clients.updates[i].isfinite().all())]
            members = [i for i in group if i in self.attackers]
            if not members:
                continue
            try:
                crafted = self._craft(clients, cluster, group, members)
            except UsageError as error:
                events.append(f"cluster {cluster}: attack not possible, attackers upload what they trained ({error})")
                continue
            rows = _rows(crafted, len(members), updates)
            if rows is None:
                malformed += members
            else:
                updates[members] = rows
        return Uploads(updates, tuple(malformed), tuple(events))

    def _craft(self, clients: ClientRound, cluster: int, group: list[int], members: list[int]) -> Array:
        assert self.spec.craft is not None
        needs = self.spec.needs(self.options)
        base = None
        if needs & {"base", "proxy"}:
            base = clients.server_updates[cluster] if clients.server_updates is not None and "base" in needs else None
            if base is None or not bool(base.any()):
                base = self._proxy(clients, cluster, members)
        view = AttackView(
            own=clients.updates[members],
            attackers=tuple(group.index(i) for i in members),
            num_clients=len(group),
            everyone=clients.updates[group] if "everyone" in needs else None,
            base=base,
            round_id=clients.round_id,
        )
        rng = numpy_generator(self.root, USAGE_ATTACK, self.spec.name, clients.round_id, cluster)
        crafted: Array = self.spec.craft(view, rng=rng, **self.spec.for_craft(self.options))
        return crafted

    def _proxy(self, clients: ClientRound, cluster: int, members: list[int]) -> Tensor:
        """(d,): what the server's update would be if its root set were clean samples of the group's attackers."""
        pool = torch.cat([self.clean.client_rows[i] for i in members])
        order = numpy_generator(self.root, USAGE_ATTACK, "proxy", clients.round_id, cluster).permutation(len(pool))
        held = pool[torch.from_numpy(order[: self.proxy_size]).to(pool.device)]
        settings = self.proxy_settings
        batches = draw_batches(
            (held,), settings.steps, settings.batch_size, self.root, USAGE_ATTACK, clients.round_id, ids=[cluster]
        )
        update: Tensor = local_updates(self.model, clients.models[[cluster]], self.clean, batches, settings)[0]
        return update


def _rows(crafted: Array, count: int, updates: Tensor) -> Tensor | None:
    """``crafted`` as (count, d) rows of ``updates``' kind, None if it does not have that shape."""
    rows = torch.as_tensor(crafted)
    return rows.to(updates) if tuple(rows.shape) == (count, updates.shape[1]) else None
