"""How good the models are, two ways, for the honest clients with the model each chose on its *training* data.

* own: accuracy on the client's own distribution, i.e. its domain's test set with classes weighted by its label mix;
* global: accuracy of that same model on the union of all domains' test sets.

The published IFCA code picks the model by its loss on labeled *test* data, which is optimistic; nothing here does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ebscfl.algorithms.environment import Environment, choose_clusters
from ebscfl.attacks.backdoor import apply_trigger
from ebscfl.learning.federation import FederatedData
from ebscfl.learning.local import confusion_counts
from ebscfl.sim.metrics import purity


@dataclass(frozen=True, eq=False)
class Evaluation:
    """All accuracies in percent."""

    choices: tuple[int, ...]  # (n,) the model each client, honest or not, would train next
    own: float
    union: float
    clusters: tuple[float | None, ...]  # per model: mean own accuracy of its honest members
    confusion: list[list[int]]  # (classes, classes): honest clients' models on their domains, summed
    purity: float
    backdoor: float | None = None


@dataclass(frozen=True, eq=False)
class Backdoor:
    """The test sets with the trigger on, and what attackers want to be read into them."""

    data: FederatedData
    target: int


def triggered(data: FederatedData, target: int) -> Backdoor:
    """``data`` whose test images all carry the trigger."""
    shape = data.test_x.shape
    images = data.test_x.reshape(-1, *shape[2:]).cpu().numpy()
    marked = torch.from_numpy(apply_trigger(images)).to(data.test_x.device).reshape(shape)
    return Backdoor(replace(data, test_x=marked), target)


def evaluate(
    env: Environment,
    models: Tensor,
    honest: Sequence[int],
    round_id: int,
    backdoor: Backdoor | None = None,
    last: Tensor | None = None,
) -> Evaluation:
    """Accuracies of the (m, d) ``models`` after round ``round_id``.

    Every client is given the model it would train in the next round, chosen on that round's batches (and with regard to
    its ``last`` choice, where there is hysteresis).
    """
    members = torch.tensor(list(honest), device=env.device)
    choices = choose_clusters(env, models, round_id + 1, last)  # (n,)
    chosen = choices[members]  # (h,)
    domains = env.data.client_domain[members]  # (h,)
    counts = confusion_counts(env.model, models, env.data, env.local)  # (m, R, true, predicted)
    own = own_accuracy(counts, chosen, domains, env.data.client_label_share[members])
    correct = counts.diagonal(dim1=2, dim2=3).sum(dim=(1, 2)).double()
    union = (correct / counts.sum(dim=(1, 2, 3)))[chosen]
    per_cluster = [own[chosen == k] for k in range(models.shape[0])]
    success = None
    if backdoor is not None:
        marked = confusion_counts(env.model, models, backdoor.data, env.local)
        success = float(target_rate(marked, chosen, domains, backdoor.target).mean()) * 100
    return Evaluation(
        choices=tuple(choices.tolist()),
        own=float(own.mean()) * 100,
        union=float(union.mean()) * 100,
        clusters=tuple(float(part.mean()) * 100 if len(part) else None for part in per_cluster),
        confusion=counts[chosen, domains].sum(dim=0).tolist(),
        purity=purity(chosen.tolist(), domains.tolist()),
        backdoor=success,
    )


def own_accuracy(counts: Tensor, chosen: Tensor, domains: Tensor, label_share: Tensor) -> Tensor:
    """(h,) accuracy of each client's model on its domain, classes weighted by (h, classes) ``label_share``.

    A class without test samples is left out and the other weights grow in proportion.
    """
    table = counts[chosen, domains].double()  # (h, true, predicted)
    tested = table.sum(dim=2)
    recall = table.diagonal(dim1=1, dim2=2) / tested.clamp(min=1)
    share = label_share * (tested > 0)
    return (recall * share).sum(dim=1) / share.sum(dim=1).clamp(min=torch.finfo(torch.float64).tiny)


def target_rate(counts: Tensor, chosen: Tensor, domains: Tensor, target: int) -> Tensor:
    """(h,) share of the test inputs of other classes that each client's model calls ``target``."""
    table = counts[chosen, domains].double()
    others = torch.arange(table.shape[1], device=table.device) != target
    return table[:, others, target].sum(dim=1) / table[:, others].sum(dim=(1, 2)).clamp(min=1)
