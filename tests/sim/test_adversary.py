from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_runs import config, make_rows

from ebscfl.algorithms import ClientRound
from ebscfl.attacks import AttackSpec, AttackView
from ebscfl.errors import UsageError
from ebscfl.learning.federation import FederatedData, build_federation
from ebscfl.learning.local import LocalSettings
from ebscfl.learning.models import make_model
from ebscfl.learning.partition import make_partition
from ebscfl.rng import root_from_seed
from ebscfl.sim.adversary import UpdateAdversary, choose_attackers, poison
from ebscfl.sim.attack_plans import ATTACKS

ROOT = root_from_seed(5)
DIM = 36 * 4 + 4
CLUSTERS = torch.tensor([0, 1, 0, 1, 0, 0])
ATTACKERS = (1, 2, 4)


def federation() -> FederatedData:
    rows = make_rows()
    return build_federation(rows, make_partition(rows, config().data, ROOT))


class Recorder:
    """An attack that keeps what it saw and sends what it is told."""

    def __init__(self, answer: Any = None) -> None:
        self.views: list[AttackView] = []
        self.answer = answer

    def craft(self, view: AttackView, *, rng: np.random.Generator, knowledge: str = "partial", base: str = "") -> Any:
        self.views.append(view)
        return -view.own if self.answer is None else self.answer(view)


def adversary(recorder: Recorder, options: Mapping[str, Any]) -> UpdateAdversary:
    return UpdateAdversary(
        root=ROOT,
        attackers=ATTACKERS,
        spec=AttackSpec("recorder", craft=recorder.craft),
        options=options,
        model=make_model("linear", (1, 6, 6), 4),
        clean=federation(),
        proxy_settings=LocalSettings(steps=2, batch_size=4, lr=0.5),
        proxy_size=10,
    )


def client_round(**changes: Any) -> ClientRound:
    updates = torch.arange(1.0, 7.0)[:, None].expand(6, DIM).contiguous()
    base = ClientRound(
        3, torch.zeros(2, DIM), CLUSTERS, updates, torch.stack([torch.full((DIM,), 8.0), torch.ones(DIM)])
    )
    return replace(base, **changes)


def test_attackers_are_a_function_of_the_seed() -> None:
    domains = [0, 1] * 10
    chosen = choose_attackers(ROOT, 8, domains)
    assert chosen == choose_attackers(ROOT, 8, domains)
    assert chosen != choose_attackers(root_from_seed(6), 8, domains)
    assert len(set(chosen)) == 8
    assert list(chosen) == sorted(chosen)
    assert choose_attackers(ROOT, 0, domains) == ()


@pytest.mark.parametrize("count", [4, 8, 10])
def test_per_domain_placement_is_even(count: int) -> None:
    domains = [0] * 5 + [1] * 5 + [2] * 5 + [3] * 5
    chosen = choose_attackers(ROOT, count, domains, "per-domain")
    per_domain = [sum(domains[i] == d for i in chosen) for d in range(4)]
    assert max(per_domain) - min(per_domain) <= 1
    assert sum(per_domain) == count


def test_poison_changes_the_attackers_labels_and_nothing_else() -> None:
    data = federation()
    spec = ATTACKS["label-flip"]
    poisoned = poison(data, ATTACKERS, spec, spec.defaults, ROOT)
    for client in range(6):
        before, after = data.y[data.client_rows[client]], poisoned.y[poisoned.client_rows[client]]
        assert torch.equal(after, 3 - before if client in ATTACKERS else before)
    assert torch.equal(poisoned.x, data.x)
    assert poison(data, (), spec, spec.defaults, ROOT) is data
    assert poison(data, ATTACKERS, ATTACKS["sign-flip"], {}, ROOT) is data


def test_views_are_per_cluster_and_grant_nothing_by_default() -> None:
    recorder = Recorder()
    clients = client_round()
    uploads = adversary(recorder, {}).corrupt(clients)
    # Cluster 0 is clients 0, 2, 4, 5, of which 2 and 4 attack; cluster 1 is 1 and 3, of which 1 attacks.
    zero, one = recorder.views
    assert (zero.attackers, zero.num_clients, zero.round_id) == ((1, 2), 4, 3)
    assert (one.attackers, one.num_clients) == ((0,), 2)
    assert zero.everyone is None
    assert zero.base is None
    assert uploads.updates[:, 0].tolist() == [1.0, -2.0, -3.0, 4.0, -5.0, 6.0]
    assert clients.updates[:, 0].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_full_knowledge_grants_the_groups_clean_updates() -> None:
    recorder = Recorder()
    adversary(recorder, {"knowledge": "full"}).corrupt(client_round())
    everyone = recorder.views[0].everyone
    assert everyone is not None
    assert everyone[:, 0].tolist() == [1.0, 3.0, 5.0, 6.0]


def test_true_base_is_the_servers_update_of_the_claimed_cluster() -> None:
    recorder = Recorder()
    adversary(recorder, {"base": "true"}).corrupt(client_round())
    bases = [view.base for view in recorder.views]
    assert bases[0] is not None
    assert bases[1] is not None
    assert (float(bases[0][0]), float(bases[1][0])) == (8.0, 1.0)


def test_proxy_base_is_trained_on_the_colluders_clean_data() -> None:
    for options, changes in (({"base": "proxy"}, {}), ({"base": "true"}, {"server_updates": None})):
        recorder = Recorder()
        adversary(recorder, options).corrupt(client_round(**changes))
        for view in recorder.views:
            assert view.base is not None
            assert view.base.shape == (DIM,)
            assert 0 < float(torch.as_tensor(view.base).norm()) < 8.0
        again = Recorder()
        adversary(again, options).corrupt(client_round(**changes))
        assert torch.equal(torch.as_tensor(again.views[0].base), torch.as_tensor(recorder.views[0].base))


def test_wrongly_shaped_crafts_are_marked_malformed() -> None:
    uploads = adversary(Recorder(lambda view: view.own[:, :-1]), {}).corrupt(client_round())
    assert sorted(uploads.malformed) == list(ATTACKERS)


def test_an_impossible_attack_uploads_what_was_trained_and_says_so() -> None:
    def refuse(view: AttackView) -> None:
        raise UsageError("needs a crowd")

    clients = client_round()
    uploads = adversary(Recorder(refuse), {}).corrupt(clients)
    assert torch.equal(uploads.updates, clients.updates)
    assert len(uploads.events) == 2
    assert "needs a crowd" in uploads.events[0]


def test_diverged_updates_stay_out_of_views() -> None:
    updates = client_round().updates.clone()
    updates[[1, 2]] = float("nan")
    recorder = Recorder()
    uploads = adversary(recorder, {"knowledge": "full"}).corrupt(client_round(updates=updates))
    (view,) = recorder.views  # the only attacker of cluster 1 diverged
    assert (view.attackers, view.num_clients) == ((1,), 3)
    assert bool(uploads.updates[1].isnan().all())


@pytest.mark.parametrize("name", [name for name, spec in ATTACKS.items() if spec.craft is not None])
def test_every_attack_plays_a_round(name: str) -> None:
    spec = ATTACKS[name]
    options = {**spec.defaults, **({"passes": 1, "probes": 1} if name == "adaptive" else {})}
    generator = torch.Generator().manual_seed(1)
    clients = client_round(updates=torch.randn(6, DIM, generator=generator))
    uploads = replace(adversary(Recorder(), {}), spec=spec, options=options).corrupt(clients)
    assert uploads.malformed == ()
    honest = [0, 3, 5]
    assert torch.equal(uploads.updates[honest], clients.updates[honest])
    assert bool(uploads.updates.isfinite().all())
