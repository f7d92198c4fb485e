"""Adaptive attack on FLTrust: zeroth-order ascent on the deviation of its aggregate (Cao, Fang, Liu, Gong, NDSS 2021).

With e_i = u_i / ||u_i||, e_0 = base / ||base|| and c_i = <e_i, e_0>, FLTrust's aggregate of the clean updates is ``g
= ||base|| sum ReLU(c_i) e_i / sum ReLU(c_i)``. With s = sign(g) and g' the aggregate after the attack, the attackers
choose unit vectors e'_1..e'_f that maximize ``h = <s, g - g'>`` and send ``||base|| e'_i``. They start at the
normalized Trim attack; then, ``passes`` times over all attackers, ``probes`` times each: u ~ N(0, noise_variance I),
``e' <- e' + step * (h(e' + smoothing u) - h(e')) / smoothing * u``, normalized. h stays the same when every
vector is negated and the noise is symmetric, so the attack reads the same for movements and gradients.

``safeguard`` (the default) repairs two weaknesses of the published search; ``safeguard=False`` is the printed one:

* where the Trim start has cosine <= 0 with the base, which is what widely spread benign updates give, ReLU makes h flat
  and the search never moves. Such a start has no weight to lose, so it is turned until its cosine is ``lift``;
* the step has no scale: with many coordinates or a large base one step is many times longer than e' itself and replaces
  it by noise. A step that does not raise h is halved, up to `HALVINGS` times, and then left out: h never falls.

The vectors enter h only through the two numbers ``a_i = <s, e'_i>`` and ``c_i = <e_0, e'_i>``: ``h = <s, g> -
||base|| sum ReLU(c_i) a_i / sum ReLU(c_i)``. So a probe needs the products of u with s, e_0 and the attacker's
earlier vectors and nothing else: O(d), against O(n d) for code that aggregates anew. `objective` is that slow
evaluation, kept as the twin the tests replay.

Defaults: V = Q = 10, gamma = 0.005, eta = 0.01 and sigma^2 = 0.5, i.e. a standard deviation of sqrt(0.5) (one public
port passes 0.5 as the deviation). With ``knowledge="partial"`` the attackers' own clean updates stand in for those of
the n - f others, scaled to their number, and the Trim start is the partial one; ``base="colluders"`` takes the mean
of the own updates for the server's. Noise comes from torch's generator of the view's device, seeded from ``rng``: the
same seed gives different noise on CPU and CUDA.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from ebscfl.arrays import Array, as_tensor
from ebscfl.attacks import trim_attack
from ebscfl.attacks.view import AttackView, all_updates, base_update, benign_updates, finish, is_full, own_updates
from ebscfl.errors import UsageError
from ebscfl.rng import USAGE_ATTACK, torch_generator

HALVINGS = 16
"""Enough for steps 2^16 times too long; beyond, a probe is a direction along which h falls either way."""


@dataclass(frozen=True, eq=False)
class Scene:
    """What stays fixed while the attackers search."""

    signs: torch.Tensor  # (d,) s, the signs of the clean aggregate
    unit_base: torch.Tensor  # (d,) e_0
    base_norm: float
    clean_push: float  # <s, g>
    benign: torch.Tensor  # (k, d) unit vectors of the benign clients
    benign_trust: torch.Tensor  # (k,) ReLU(c_i), times the number of clients each row stands for
    benign_push: float  # sum of ReLU(c_i) a_i over them: with the sum of trust, all that a probe needs of them


def craft(
    view: AttackView,
    *,
    rng: np.random.Generator,
    knowledge: str = "full",
    base: str = "true",
    passes: int = 10,
    probes: int = 10,
    noise_variance: float = 0.5,
    smoothing: float = 0.005,
    step: float = 0.01,
    safeguard: bool = True,
    lift: float = 0.1,
) -> Array:
    """(f, d) vectors of the base update's norm; see the module's first lines for the settings."""
    if passes < 0 or probes < 1:
        raise UsageError(f"passes must be at least 0 and probes at least 1, not {passes} and {probes}")
    if not (noise_variance > 0.0 and smoothing > 0.0 and step > 0.0):
        raise UsageError("noise_variance, smoothing and step must be positive")
    if not 0.0 < lift < 1.0:
        raise UsageError(f"lift must be a cosine in (0, 1), not {lift}")
    scene = make_scene(view, knowledge=knowledge, base=base)
    vectors = starting_vectors(view, scene, rng=rng, knowledge=knowledge, lift=lift if safeguard else None)
    generator = torch_generator(rng.bytes(32), USAGE_ATTACK, device=str(vectors.device))
    halvings = HALVINGS if safeguard else None
    pairs = [_pair(scene, vector) for vector in vectors]
    for _ in range(passes):
        for attacker, vector in enumerate(vectors):
            others = _others(scene, pairs[:attacker] + pairs[attacker + 1 :])
            noise = draw_noise(generator, probes, vector, noise_variance)
            vector.copy_(_ascend(scene, others, vector, noise, smoothing=smoothing, step=step, halvings=halvings))
            pairs[attacker] = _pair(scene, vector)
    return finish(scene.base_norm * vectors, view)


def make_scene(view: AttackView, *, knowledge: str, base: str) -> Scene:
    """The fixed quantities of h under the granted knowledge."""
    steer = base_update(view, "adaptive attack", base)
    own = own_updates(view)
    full = is_full(knowledge)
    base_norm = float(steer.norm())
    unit_base = steer / base_norm if base_norm > 0.0 else torch.zeros_like(steer)
    everyone = unit_rows(all_updates(view, "adaptive attack") if full else own)
    trust = (everyone @ unit_base).clamp_min(0.0)
    aggregate = base_norm * _weighted_mean(trust, everyone)
    if not full:
        benign = everyone
        stands_for = (view.num_clients - own.shape[0]) / own.shape[0]
    elif own.shape[0] < view.num_clients:
        benign, stands_for = unit_rows(benign_updates(view, "adaptive attack")), 1.0
    else:
        benign, stands_for = everyone[:0], 1.0
    signs = aggregate.sign()
    benign_trust = stands_for * (benign @ unit_base).clamp_min(0.0)
    return Scene(
        signs=signs,
        unit_base=unit_base,
        base_norm=base_norm,
        clean_push=float(signs @ aggregate),
        benign=benign,
        benign_trust=benign_trust,
        benign_push=float(benign_trust @ (benign @ signs)),
    )


def starting_vectors(
    view: AttackView, scene: Scene, *, rng: np.random.Generator, knowledge: str, lift: float | None
) -> torch.Tensor:
    """(f, d) unit vectors of the Trim attack; those without trust are turned to cosine ``lift`` with the base."""
    start = as_tensor(trim_attack.craft(view, rng=rng, knowledge=knowledge), name="trim attack", ndim=2)
    vectors = unit_rows(start)
    cosines = vectors @ scene.unit_base
    if lift is None or scene.base_norm == 0.0:
        return vectors
    across = unit_rows(vectors - cosines[:, None] * scene.unit_base)
    lifted = unit_rows(lift * scene.unit_base + math.sqrt(1.0 - lift * lift) * across)
    return torch.where(cosines[:, None] > 0.0, vectors, lifted)


def objective(scene: Scene, vectors: torch.Tensor) -> float:
    """h for the attackers' vectors (f, d), by aggregating all clients anew: O(n d)."""
    trust = torch.cat([(vectors @ scene.unit_base).clamp_min(0.0), scene.benign_trust])
    attacked = scene.base_norm * _weighted_mean(trust, torch.cat([vectors, scene.benign]))
    return scene.clean_push - float(scene.signs @ attacked)


def draw_noise(generator: torch.Generator, probes: int, like_row: torch.Tensor, variance: float) -> torch.Tensor:
    """(Q, d) normal directions for one visit of one attacker."""
    shape = (probes, like_row.shape[0])
    noise = torch.empty(shape, dtype=like_row.dtype, device=like_row.device)
    return noise.normal_(0.0, math.sqrt(variance), generator=generator)


def unit_rows(rows: torch.Tensor) -> torch.Tensor:
    """Rows divided by their norms; zero rows stay zero."""
    norms = rows.norm(dim=1, keepdim=True)
    return rows / torch.where(norms > 0.0, norms, torch.ones_like(norms))


@dataclass(frozen=True)
class _Others:
    """h as a function of one attacker's (a, c), all other clients fixed."""

    clean_push: float
    base_norm: float
    trust: float
    push: float

    def deviation(self, a: float, c: float) -> float:
        trust = max(c, 0.0)
        total = self.trust + trust
        return self.clean_push - self.base_norm * (self.push + trust * a) / total if total > 0.0 else self.clean_push


def _pair(scene: Scene, vector: torch.Tensor) -> tuple[float, float]:
    """(a, c) of one vector."""
    return float(scene.signs @ vector), float(scene.unit_base @ vector)


def _others(scene: Scene, pairs: list[tuple[float, float]]) -> _Others:
    """The benign clients and the other attackers, from the (a, c) of the latter."""
    trust = float(scene.benign_trust.sum()) + sum(max(c, 0.0) for _, c in pairs)
    push = scene.benign_push + sum(max(c, 0.0) * a for a, c in pairs)
    return _Others(scene.clean_push, scene.base_norm, trust, push)


def _ascend(
    scene: Scene,
    others: _Others,
    vector: torch.Tensor,
    noise: torch.Tensor,
    *,
    smoothing: float,
    step: float,
    halvings: int | None,
) -> torch.Tensor:
    """All probes of one visit. The vector is kept as ``share * e' + coefficients @ noise`` and assembled once."""
    rows = torch.cat([torch.stack([scene.signs, scene.unit_base, vector]), noise])
    # Matrix-vector products: memory-bound as they are, they beat one thin matrix product on busy cores by far.
    products = torch.stack([rows @ u for u in noise]).tolist()  # (Q, 3 + Q): <u, s>, <u, e_0>, <u, e'>, <u, u_r>
    (a, c), length = _pair(scene, vector), float(vector @ vector)
    share, coefficients = 1.0, [0.0] * len(products)
    for t, (noise_a, noise_c, noise_start, *gram) in enumerate(products):
        here = others.deviation(a, c)
        slope = (others.deviation(a + smoothing * noise_a, c + smoothing * noise_c) - here) / smoothing
        overlap = share * noise_start + sum(w * gram[r] for r, w in enumerate(coefficients[:t]))
        for halving in range(1 if halvings is None else halvings + 1):
            move = step * slope * 0.5**halving
            square = length + 2.0 * move * overlap + move * move * gram[t]
            norm = math.sqrt(square) if square > 0.0 else 1.0
            new_a, new_c = (a + move * noise_a) / norm, (c + move * noise_c) / norm
            if halvings is None or others.deviation(new_a, new_c) > here:
                coefficients[t] = move
                share, coefficients = share / norm, [w / norm for w in coefficients]
                a, c, length = new_a, new_c, square / (norm * norm)
                break
    return share * vector + torch.tensor(coefficients, dtype=noise.dtype, device=noise.device) @ noise


def _weighted_mean(weights: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Weighted mean of rows; zero if no row has weight, as FLTrust then makes no step."""
    total = weights.sum()
    return weights @ rows / torch.where(total > 0.0, total, torch.ones_like(total))
