"""A whole training through the paper's roles walks the path of plain RFCA with one total weight."""

from __future__ import annotations

import pytest
import torch
from tiny_runs import config, use_rows

from ebscfl.sim.cell import build_cell, build_world

ROUNDS = 4


def models_after_each_round(protocol: str, attack: str) -> list[torch.Tensor]:
    world = build_world(config(f"protocol={protocol}", "server.normalize=global", 'methods=["rfca"]'))
    cell = build_cell(world, "rfca", attack)
    state = cell.algorithm.init(cell.env)
    path = [state.models]
    for round_id in range(1, ROUNDS + 1):
        state, report = cell.algorithm.round(cell.env, state, round_id)
        assert not report.events
        path.append(state.models)
    return path


@pytest.mark.parametrize("attack", ["none", "label-flip"])
def test_paper_plain_and_direct_train_the_same_models(monkeypatch: pytest.MonkeyPatch, attack: str) -> None:
    use_rows(monkeypatch)
    direct = models_after_each_round("direct", attack)
    assert float((direct[-1] - direct[0]).norm()) > 0.1  # it moved
    for protocol in ("plain", "paper"):
        for got, want in zip(models_after_each_round(protocol, attack), direct, strict=True):
            # float32 models: a rounding error of 2^-24 a round, carried on by four rounds of training
            assert float((got - want).norm()) < 1e-5 * float(want.norm())
