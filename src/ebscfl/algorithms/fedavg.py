"""FedAvg, federated averaging (McMahan et al.; AISTATS 2017, arXiv 1602.05629)."""

from __future__ import annotations

from torch import Tensor

from ebscfl.algorithms.environment import Environment
from ebscfl.algorithms.robust import one_model
from ebscfl.rules.fedavg import fedavg
from ebscfl.rules.result import RuleResult


def _by_size(env: Environment, updates: Tensor, kept: Tensor) -> RuleResult:
    sizes = updates.new_tensor([len(env.data.client_rows[i]) for i in kept.tolist()])
    return fedavg(updates, sizes=sizes)


ALGORITHM = one_model("fedavg", _by_size, lambda faulty: 1)
