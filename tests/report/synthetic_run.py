"""Writes the directory of a made-up run: 4 methods x (2 attacks + none), 20 clients, 4 domains, believable curves."""

import json
from pathlib import Path

import numpy as np

from ebscfl.rng import USAGE_BENCH, numpy_generator, root_from_seed

METHODS = ("fedavg", "ifca", "fltrust", "rfca")
ATTACKS = ("label-flip", "sine")
CLIENTS, CLUSTERS, CLASSES = 20, 4, 10
ATTACKERS = (1, 4, 6, 8, 11, 14, 17, 19)  # two of each domain
DOMAINS = tuple(client % CLUSTERS for client in range(CLIENTS))
CLUSTERED = ("ifca", "rfca")
TRUSTING = ("fltrust", "rfca")
CLEAN = {"fedavg": 71.0, "ifca": 92.0, "fltrust": 69.0, "rfca": 91.5}
HIT = {"fedavg": 0.35, "ifca": 0.45, "fltrust": 0.85, "rfca": 0.985}  # what is left of it under attack

CONFIG = """# rotations, 40 % label flippers
evaluation = "own"

[data]
name = "mnist-mini"

[partition]
kind = "rotation"
clients = 20
groups = 4

[attack]
names = ["label-flip", "sine"]
fraction = 0.4
"""


def write_run(
    run_dir: Path,
    *,
    rounds: int = 40,
    attacks: tuple[str, ...] = ATTACKS,
    methods: tuple[str, ...] = METHODS,
    protocol: bool = True,
    stop_after: int | None = None,
    **info: object,
) -> Path:
    """Write the four files; ``stop_after`` cuts the last cell there and leaves no results.json."""
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "config.toml").write_text(CONFIG)
    run_id = "20260101-120000-rotation-7"
    facts = {
        "run_id": run_id,
        "preset": "rotation-mini",
        "seed": 7,
        "command": "run",
        "version": "0.1.0",
        "started": "2026-01-01T12:00:00Z",
        "device": "cpu",
        "torch": "2.13.0",
        "numpy": "2.4.6",
        "platform": "Linux x86_64",
        "seconds": 143.2,
        "status": "complete" if stop_after is None else "interrupted",
        "reproduce": "ebs-cfl run rotation-mini --set seed=7 --set partition.clients=20",
        "config_hash": "b2a1c3d4e5f60718",
        **info,
    }
    (run_dir / "run.json").write_text(json.dumps(facts))
    lines, ends = [], {}
    cells = [(m, a) for a in (*attacks, "none") for m in methods]
    for method, attack in cells:
        last = stop_after if stop_after is not None and (method, attack) == cells[-1] else rounds
        records, end = make_cell(method, attack, last, rounds, protocol=protocol)
        lines += records
        if last == rounds:
            lines.append(end)
            ends[method, attack] = end
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if stop_after is None:
        document = {"run_id": run_id, "preset": facts["preset"], "seconds": facts["seconds"], "results": rows(ends)}
        (run_dir / "results.json").write_text(json.dumps(document, indent=1))
    return run_dir


def rows(ends):
    """The rows of results.json: AIR in both forms from FA, MA and the same method's FA without attack."""
    out = []
    for (method, attack), end in ends.items():
        na, half = ends[method, "none"]["fa"], (end["fa"] + end["ma"]) / 2
        out.append(
            {
                "method": method,
                "attack": attack,
                "fa": end["fa"],
                "ma": end["ma"],
                "na": na,
                "asr": end["asr"],
                "air_printed": None if attack == "none" else 100 * (na - half) / na,
                "air_points": None if attack == "none" else na - half,
                "attacker_weight_share": None
                if end["attacker_weight_share"] is None
                else 100 * end["attacker_weight_share"],
            }
        )
    return out


def make_cell(method, attack, last, rounds, *, protocol):
    """Round records 0..last and the record of the cell's end."""
    rng = numpy_generator(root_from_seed(1), USAGE_BENCH, method, attack)
    attackers = () if attack == "none" else ATTACKERS
    models = CLUSTERS if method in CLUSTERED else 1
    goal = CLEAN[method] * (HIT[method] if attackers else 1.0)
    records, shares = [], []
    for t in range(last + 1):
        rise = 1.0 - np.exp(-4.5 * t / rounds)
        noise = 4.0 if attackers and method not in TRUSTING else 0.8
        own = float(np.clip(10.0 + (goal - 10.0) * rise + rng.normal(0.0, noise), 0.0, 100.0))
        record = {
            "kind": "round",
            "method": method,
            "attack": attack,
            "round": t,
            "accuracy_own": own,
            "accuracy_global": own if models == 1 else 10.0 + (own - 10.0) / 3.5,
            "accuracy_clusters": [float(np.clip(own + 3.0 * (k - 1.5) * rise, 0, 100)) for k in range(models)],
        }
        if t == 0:
            record |= {"clusters": claimed(models, t, rng), "weights": [0.0] * CLIENTS, "scores": None}
            record |= {"seconds": {"evaluate": 0.12}, "events": []}
        else:
            clusters = claimed(models, t, rng)
            weights = trust(method, attackers, rng)
            shares.append(float(sum(weights[a] for a in attackers)))
            record |= {"clusters": clusters, "weights": weights, "scores": None}
            record |= {"attacker_weight_share": shares[-1], "attackers_accepted": len(attackers), "backdoor": None}
            phases = {"train": 0.41, "cluster": 0.06 * models, "attack": 0.02 * len(attackers), "aggregate": 0.01}
            record["seconds"] = {k: v * (1 + 0.1 * rng.random()) for k, v in (phases | {"evaluate": 0.12}).items()}
            record["events"] = ["cluster 3 is empty: it keeps its model"] if t == 3 and models > 1 else []
            if protocol and method == "rfca":
                record["bytes"] = {"KeyPackage": 20 * 4096, "EncodedUpdate": 20 * 813_056, "ClusterModels": 4 * 813_056}
                record["role_seconds"] = {"client": 0.9, "server": 0.3, "kdc": 0.05}
                record["dp"] = {"epsilon": 0.5, "delta": 1e-5, "epsilon_total": 0.5 * t**0.5}
        records.append(record)
    accuracies = [r["accuracy_own"] for r in records]
    return records, {
        "kind": "cell",
        "method": method,
        "attack": attack,
        "fa": accuracies[-1],
        "ma": max(accuracies),
        "asr": None if not attackers else 3.25 if method == "rfca" else 21.5 if method == "fltrust" else 100.0,
        "attacker_weight_share": float(np.mean(shares)) if attackers else None,
        "backdoor": None,
        "attackers": list(attackers),
        "client_domain": list(DOMAINS),
        "purity": 0.975,
        "confusion": confusion(accuracies[-1], rng),
        "seconds": sum(sum(r["seconds"].values()) for r in records),
    }


def claimed(models, t, rng):
    """Clients find their domain's cluster within about ten rounds."""
    lost = rng.random(CLIENTS) < np.exp(-0.35 * t)
    return [int(rng.integers(models)) if lost[c] else DOMAINS[c] % models for c in range(CLIENTS)]


def trust(method, attackers, rng):
    """Shares that sum to 1: equal without trust scores, near zero for attackers with them."""
    if method not in TRUSTING:
        return [1.0 / CLIENTS] * CLIENTS
    raw = np.clip(rng.normal(0.6, 0.12, CLIENTS), 0.05, None)
    for a in attackers:
        raw[a] = max(0.0, rng.normal(-0.15 if method == "rfca" else 0.1, 0.08))
    return [float(w) for w in raw / raw.sum()]


def confusion(accuracy, rng):
    """Counts of 120 images a class with about ``accuracy`` percent on the diagonal."""
    out = []
    for k in range(CLASSES):
        p = np.full(CLASSES, (1 - accuracy / 100) / (CLASSES - 1))
        p[k] = accuracy / 100
        out.append([int(c) for c in rng.multinomial(120, p)])
    return out
