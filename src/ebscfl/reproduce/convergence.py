"""The convergence theorem on linear regression clusters, the synthetic study of IFCA (Ghosh et al., NeurIPS 2020).

Clients of cluster j hold n' samples y = <x, theta*_j> + noise with x ~ N(0, H), H diagonal with eigenvalues from
lambda to L = 1, so the loss of cluster j is lambda-strongly convex and L-smooth with minimum theta*_j; the minima are
Bernoulli(0.5) vectors scaled to a distance of about Delta. One gradient a round, step gamma = 1/L. The theorem says
that once the start is close enough,

    ||theta+ - theta*|| <= (1 - p lambda / (8 L)) ||theta - theta*|| + floor

with p the smallest share of clients that a cluster has. Rules: *ifca* (Option I: divided by all clients); *theorem*,
the step its proof analyzes, gamma / w * sum of w_i times the gradients with w the weight of all clients; *rfca*,
Algorithm 2's step, unit gradients scaled by the root update, which is recomputed every round; *fixed*, the same with
the root update of the start, as printed. Attackers (a share of the clients) keep their cluster's data, choose their
cluster honestly and answer every label y with -y.

The measured rate is the geometric mean of the contraction per round while the distance is above twice its floor.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ebscfl.report.tables import number
from ebscfl.reproduce import tables
from ebscfl.rng import USAGE_BENCH, numpy_generator, root_from_seed

Floats = npt.NDArray[np.float64]
RULES = ("ifca", "theorem", "rfca", "fixed")
NAME = "figure-convergence"


@dataclass(frozen=True)
class Study:
    """Sizes of one simulation."""

    dim: int = 100
    clusters: int = 4
    clients: int = 40
    samples: int = 100
    """n' of a client."""
    noise: float = 0.1
    curvature: float = 0.5
    """lambda; L is 1."""
    separation: float = 1.0
    """Delta, about: the distance between two minima."""
    start: float = 0.3
    """Distance of every first model from its minimum, in Delta (the theorem wants less than 1/2 sqrt(lambda / L))."""
    attackers: float = 0.0
    """Share of the clients of every cluster that answer with -y."""
    root_samples: int = 100
    """What the server holds of every cluster."""
    rounds: int = 150


@dataclass(frozen=True, eq=False)
class World:
    """Second moments instead of samples: client i's gradient at theta is A_i theta - b_i."""

    moments: Floats  # (clients + clusters, dim, dim); the server's clean parts come last
    targets: Floats  # (clients + clusters, dim)
    energies: Floats  # (clients + clusters,) mean y^2
    minima: Floats  # (clusters, dim)
    members: npt.NDArray[np.int64]  # (clients,)
    first: Floats  # (clusters, dim)


def make_world(study: Study, seed: int) -> World:
    """Draw minima, data and first models."""
    rng = numpy_generator(root_from_seed(seed), USAGE_BENCH, "convergence")
    spectrum = np.linspace(study.curvature, 1.0, study.dim)
    # Two Bernoulli(1/2) vectors differ in half of their coordinates.
    unit = study.separation / math.sqrt(study.dim / 2)
    minima = np.where(rng.random((study.clusters, study.dim)) < 0.5, unit, 0.0)
    members = np.arange(study.clients) % study.clusters
    hostile = hostile_clients(study)
    moments, targets, energies = [], [], []
    for i, j in enumerate([*members.tolist(), *range(study.clusters)]):
        size = study.samples if i < study.clients else study.root_samples
        x = rng.standard_normal((size, study.dim)) * np.sqrt(spectrum)
        y = x @ minima[j] + study.noise * rng.standard_normal(size)
        y = -y if i in hostile else y
        moments.append(x.T @ x / size)
        targets.append(x.T @ y / size)
        energies.append(float(y @ y) / size)
    away = rng.standard_normal((study.clusters, study.dim))
    away *= study.start * study.separation / np.linalg.norm(away, axis=1, keepdims=True)
    first: Floats = np.asarray(minima + away, dtype=np.float64)
    return World(np.array(moments), np.array(targets), np.array(energies), minima, members, first)


def hostile_clients(study: Study) -> frozenset[int]:
    """The first clients of every cluster."""
    per_cluster = round(study.attackers * study.clients / study.clusters)
    return frozenset(range(per_cluster * study.clusters))


def slopes(world: World, models: Floats) -> Floats:
    """(holders, dim, models): A_i theta_m."""
    found: Floats = np.matmul(world.moments, models.T)
    return found


def gradients(world: World, models: Floats) -> Floats:
    """(holders, models, dim) gradients of 1/2 mean (y - <x, theta>)^2."""
    found: Floats = slopes(world, models).transpose(0, 2, 1) - world.targets[:, None, :]
    return found


def losses(world: World, models: Floats) -> Floats:
    """(holders, models) half the mean squared residual."""
    squares = (slopes(world, models) * models.T[None]).sum(axis=1)
    found: Floats = 0.5 * (squares - 2.0 * world.targets @ models.T + world.energies[:, None])
    return found


def step(rule: str, own: Floats, clusters: npt.NDArray[np.int64], root: Floats, count: int) -> Floats:
    """(clusters, dim) movement of every model: -gamma times the rule's mix of the (n, dim) gradients ``own``.

    ``root`` (clusters, dim) are the server's gradients. Gradients and movements have the same cosines, so the weights
    ReLU(cos) are those of Algorithm 2.
    """
    member = clusters[:, None] == np.arange(count)  # (n, clusters)
    if rule == "ifca":
        return mixture(member / -float(len(own)), own)
    lengths = np.linalg.norm(own, axis=1)
    anchor = np.linalg.norm(root, axis=1)
    dots = (own * root[clusters]).sum(axis=1)
    scale = lengths * anchor[clusters]
    weights = np.maximum(np.divide(dots, scale, out=np.zeros_like(dots), where=scale > 0), 0.0)
    if rule == "theorem":
        total = weights.sum()
        return mixture(member * weights[:, None] / -(total if total > 0 else 1.0), own)
    unit = own / np.where(lengths > 0, lengths, 1.0)[:, None]
    mixed = mixture(member * weights[:, None], unit)
    trust = (member * weights[:, None]).sum(axis=0)
    moved: Floats = mixed * (-anchor / np.where(trust > 0, trust, 1.0))[:, None]
    return moved


def mixture(shares: Floats, rows: Floats) -> Floats:
    """(clusters, dim): (n, clusters) shares of the (n, dim) rows."""
    found: Floats = shares.T @ rows
    return found


def distances(study: Study, world: World, rule: str) -> Floats:
    """(rounds + 1,) largest distance of a model to its minimum, before and after every round."""
    models, fixed = world.first.copy(), None
    found = [np.linalg.norm(models - world.minima, axis=1).max()]
    for _ in range(study.rounds):
        every = gradients(world, models)
        clusters = choose(study, world, models)
        own = every[np.arange(study.clients), clusters]
        root = np.stack([every[study.clients + j, j] for j in range(study.clusters)])
        if rule == "fixed":
            fixed = root if fixed is None else fixed
            root = fixed
        models = models + step(rule, own, clusters, root, study.clusters)
        found.append(np.linalg.norm(models - world.minima, axis=1).max())
    return np.array(found)


def choose(study: Study, world: World, models: Floats) -> npt.NDArray[np.int64]:
    """(n,) the model with the lowest loss; attackers take that of their cluster, to be where they hurt."""
    chosen: npt.NDArray[np.int64] = losses(world, models)[: study.clients].argmin(axis=1)
    hostile = list(hostile_clients(study))
    chosen[hostile] = world.members[hostile]
    return chosen


def bound_rate(study: Study) -> float:
    """1 - p lambda / (8 L) with L = 1 and p the smallest share of clients of a cluster."""
    sizes = np.bincount(np.arange(study.clients) % study.clusters, minlength=study.clusters)
    return float(1.0 - sizes.min() / study.clients * study.curvature / 8.0)


def floor_of(curve: Floats) -> float:
    """Where the distance settles: the median of its last quarter (a last value alone is mostly noise)."""
    return float(np.median(curve[-max(1, len(curve) // 4) :]))


def measured_rate(curve: Floats) -> float | None:
    """Geometric mean of the contraction until the distance is at most twice its floor; None if it begins there."""
    near = np.flatnonzero(curve <= 2.0 * floor_of(curve))
    rounds = int(near[0])  # the floor itself is near
    return float((curve[rounds] / curve[0]) ** (1.0 / rounds)) if rounds > 0 else None


def studies(scale: str) -> dict[str, Study]:
    """Without and with attackers."""
    base = {
        "smoke": Study(dim=20, clusters=2, clients=10, samples=60, root_samples=60, rounds=40),
        "small": Study(),
        "full": Study(dim=400, clusters=4, clients=100, samples=400, root_samples=400, rounds=300),
    }[scale]
    named = {f"{share:.0%}": share for share in (0.0, 0.2, 0.4)}
    return {name: Study(**{**base.__dict__, "attackers": share}) for name, share in named.items()}


def simulate(scale: str, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """One row per share of attackers, rule and seed."""
    rows = []
    for share, study in studies(scale).items():
        for seed in seeds:
            world = make_world(study, seed)
            for rule in RULES:
                curve = distances(study, world, rule)
                rate = measured_rate(curve)
                rows.append(
                    {
                        "attackers": share,
                        "rule": rule,
                        "seed": seed,
                        "start": round(float(curve[0]), 6),
                        "end": round(floor_of(curve), 6),
                        "rate": None if rate is None else round(rate, 6),
                        "bound": round(bound_rate(study), 6),
                        "holds": rate is not None and rate <= bound_rate(study),
                        "curve": [float(f"{value:.5g}") for value in curve],
                    }
                )
    return rows


def render(document: Mapping[str, Any]) -> str:
    """Rates and final distances, mean and spread over the seeds."""
    body = []
    for share in dict.fromkeys(row["attackers"] for row in document["rows"]):
        for rule in RULES:
            rows = [row for row in document["rows"] if (row["attackers"], row["rule"]) == (share, rule)]
            rates = [row["rate"] for row in rows if row["rate"] is not None]
            ends = [row["end"] / row["start"] for row in rows]
            body.append(
                [
                    share,
                    rule,
                    f"{sum(rates) / len(rates):.4f}" if rates else "never halves",
                    number(rows[0]["bound"], 4),
                    f"{sum(row['holds'] for row in rows)} of {len(rows)}",
                    f"{sum(ends) / len(ends):.3f}",
                ]
            )
    head = ["attackers", "rule", "measured rate", "bound's rate", "rate holds in", "floor / first distance"]
    commit = document["commit"] or "no checkout"
    return (
        f"`{document['command']}`: seeds {', '.join(map(str, document['seeds']))}, {document['seconds']:.1f} s, "
        f"commit {commit[:12]}.\n\n{tables.markdown_table(head, body, 2)}\n"
    )


def draw(document: Mapping[str, Any], folder: Path) -> list[Path]:
    """Distance over rounds per share of attackers, on a log scale, beside the bound's slope."""
    from ebscfl.reproduce import plots

    shares = list(dict.fromkeys(row["attackers"] for row in document["rows"]))
    figure, axes = plots.new_figure(len(shares))
    looks = dict(zip(RULES, ("#1d4ed8", "#65a30d", "#0f766e", "#b91c1c"), strict=True))
    for axis, share in zip(axes, shares, strict=True):
        mine = [row for row in document["rows"] if row["attackers"] == share]
        for rule in RULES:
            curves = [row["curve"] for row in mine if row["rule"] == rule]
            mean = [sum(values) / len(values) for values in zip(*curves, strict=True)]
            axis.plot(range(len(mean)), mean, color=looks[rule], label=rule)
        rate, start, count = mine[0]["bound"], mine[0]["start"], len(mine[0]["curve"])
        axis.plot(
            range(count), [start * rate**t for t in range(count)], "k--", linewidth=1, label="bound without floor"
        )
        plots.label(axis, f"{share} attackers", "round", "distance to the minimum", log="y")
    plots.legend_below(figure, axes[0])
    plots.share_y(axes)
    return plots.save(figure, folder, "curves")


def figure_convergence(folder: Path, *, scale: str = "full", seeds: Sequence[int] | None = None) -> list[Path]:
    """Simulate and write results.json, results.md and the plot to ``folder``/figure-convergence/<scale>."""
    from ebscfl.reproduce.accuracy import SEEDS, Experiment, provenance, to_json, write_views
    from ebscfl.sim.checkpoint import write_atomically

    chosen = tuple(seeds or SEEDS[scale])
    started = time.perf_counter()
    rows = simulate(scale, chosen)
    document = {
        "name": NAME,
        "scale": scale,
        "command": f"ebs-cfl reproduce {NAME} --scale {scale}",
        "seeds": list(chosen),
        "seconds": round(time.perf_counter() - started, 2),
        **provenance("cpu"),
        "studies": {name: study.__dict__ for name, study in studies(scale).items()},
        "rows": rows,
    }
    out = folder / NAME / scale
    write_atomically(out / "results.json", to_json(document))
    return write_views(Experiment(NAME, "The convergence theorem, simulated", lambda scale: [], render, draw), out)
