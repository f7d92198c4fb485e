"""What the server of a federation does with a protocol's outcome, beside the simulator's arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ebscfl.algorithms import ServerState
from ebscfl.config import load_preset
from ebscfl.errors import ConfigError
from ebscfl.federation.training import Training
from ebscfl.protocol.roles import Outcome
from ebscfl.rng import numpy_generator, root_from_seed

SETS = ("model.name=mlp", "data.clients=4", "data.groups=2", "server.clusters=2", "server.eta=0.5", "attacks=[]")


def moved(weights: list[float] | None, *sets: str) -> tuple[np.ndarray, np.ndarray, int]:
    """(how far the models moved, eta |g0| aggregate, where the head begins)."""
    training = Training(load_preset("smoke", (*SETS, *sets)))
    model = training.cell.env.model
    draw = numpy_generator(root_from_seed(1), "test-federation-training/1")
    models, server, aggregates = draw.standard_normal((3, 2, model.dim))
    outcome = Outcome(aggregates, 2.0, None if weights is None else np.array(weights), (0, 1, 2, 3))
    before = ServerState(torch.from_numpy(models), torch.from_numpy(server))
    after = training.move(before, outcome)
    assert after.server_updates is before.server_updates
    steps = 0.5 * np.linalg.norm(server, axis=1)[:, None] * aggregates
    return (after.models - before.models).numpy(), steps, model.head


@pytest.mark.parametrize("protocol", ["paper", "paper-naive", "plain", "sealed"])
def test_models_move_by_the_aggregates(protocol: str) -> None:
    """The paper's protocols reveal one total weight and none of the clusters."""
    hidden = protocol.startswith("paper")
    # The configuration multiplies eta by m = 2 where the divisor is global.
    got, steps, _ = moved(None if hidden else [1.5, 0.5], f"protocol={protocol}")
    np.testing.assert_allclose(got, (2.0 if hidden else 1.0) * steps, rtol=1e-6, atol=1e-9)


def test_a_shared_body_moves_by_the_weights_of_clusters() -> None:
    got, steps, head = moved([1.5, 0.5], "protocol=sealed", "server.share=body")
    body = (1.5 * steps[0, :head] + 0.5 * steps[1, :head]) / 2.0
    for k in (0, 1):
        np.testing.assert_allclose(got[k, :head], body, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(got[k, head:], steps[k, head:], rtol=1e-6, atol=1e-9)


def test_a_shared_body_needs_a_protocol_that_tells_them() -> None:
    with pytest.raises(ConfigError, match="'paper' hides"):
        load_preset("smoke", (*SETS, "protocol=paper", "server.share=body"))
