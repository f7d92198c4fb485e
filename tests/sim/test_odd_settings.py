"""Whole tiny runs at the edges: every one ends, and what it writes are numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_runs import config, use_rows

from ebscfl.sim import runner
from ebscfl.sim.journal import read_lines

BASE = (
    "protocol=direct",
    "rounds=3",
    'methods=["fltrust", "ifca", "rfca", "rfca-h"]',
    'attacks=["label-flip", "alie"]',
)
SEALED = ("protocol=sealed", 'methods=["rfca", "rfca-h"]')
ALONE = ("data.kind=iid", "data.clients=1", "data.root_parts=clients", "attacks=[]", "attack.fraction=0.0")
OURS = (
    "server.root_scale=part",
    "server.root_direction=mixed",
    "server.history_weight=record",
    "server.share=body",
    "model.name=mlp",
)
EDGES = {
    "one client": ALONE,
    "one client, sealed": (*SEALED, *ALONE),
    "two clients": ("data.clients=2", "attack.fraction=0.5"),
    "two clients, sealed": (*SEALED, "data.clients=2", "attack.fraction=0.5"),
    "more clusters than clients": ("server.clusters=9",),
    "more clusters than clients, sealed": (*SEALED, "server.clusters=9"),
    "one cluster": ("server.clusters=1",),
    "empty clusters": ("server.unsupported=distrust", "server.empty_cluster=follow", "server.clusters=5"),
    "nearly all attack": ("attack.fraction=0.9",),
    "diverging": ("local.lr=1e30",),
    "diverging, sealed": (*SEALED, "local.lr=1e30"),
    "diverging root": ("server.root_lr=1e38",),
    "diverging root with momentum": ("server.root_lr=1e37", "server.root_momentum=0.99"),
    "diverging models": ("server.eta=1e38",),
    "updates that vanish": ("local.lr=1e-45",),
    "updates that vanish, sealed": (*SEALED, "local.lr=1e-45"),
    "bfloat16": ("local.dtype=bfloat16",),
    "batches beyond the data": ("local.batch_size=1000", "server.root_batch=1000"),
    "one step of one sample": ("local.steps=1", "local.batch_size=1"),
    "everybody stays new": ("server.history_warmup=50",),
    "no memory": ("server.history_decay=0.0",),
    "a history per cluster": ("server.history_scope=cluster", "server.clusters=3"),
}


@pytest.mark.slow
@pytest.mark.parametrize("ours", [False, True], ids=["paper", "ours"])
@pytest.mark.parametrize("edge", list(EDGES))
def test_a_run_at_the_edge_ends_with_numbers(
    edge: str, ours: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_rows(monkeypatch)
    settings = config(*BASE, *EDGES[edge], *(OURS if ours else ()))
    runner.run(settings, out=tmp_path / "r")
    lines = read_lines(tmp_path / "r" / "metrics.jsonl")  # strict JSON: no NaN, no infinity
    for method, attack in settings.cells:
        mine = [line for line in lines if (line["method"], line["attack"]) == (method, attack)]
        assert [line["round"] for line in mine if line["kind"] == "round"] == [0, 1, 2, 3]
        for line in mine:
            if line["kind"] == "cell":
                assert 0.0 <= line["fa"] <= line["ma"] <= 100.0
            elif line["round"] > 0:
                assert sum(line["weights"]) == pytest.approx(1.0) or not any(line["weights"])
                assert min(line["weights"]) >= 0.0
                assert any(line["weights"]) or line["events"], "no step, and nobody says why"
