"""Views for the attack tests: benign updates around a common direction, as training gives them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ebscfl import rng as streams
from ebscfl.attacks.view import AttackView

ROOT = streams.root_from_seed(11)
Matrix = npt.NDArray[np.float64]


def generator(*context: int) -> np.random.Generator:
    """A fresh generator: the same context gives the same stream."""
    return streams.numpy_generator(ROOT, streams.USAGE_ATTACK, *context)


def make_view(
    n: int = 11, f: int = 3, d: int = 40, *, noise: float = 1.0, seed: int = 0, round_id: int = 1, full: bool = True
) -> AttackView:
    """n clients with updates direction + noise; attackers are spread over the positions, the base is benign too."""
    draws = generator(1000, seed)
    direction = draws.standard_normal(d)
    everyone = direction + noise * draws.standard_normal((n, d))
    base = direction + noise * draws.standard_normal(d)
    attackers = tuple(int(i) for i in np.sort(draws.permutation(n)[:f]))
    own = everyone[list(attackers)]
    return AttackView(
        own=own,
        attackers=attackers,
        num_clients=n,
        everyone=everyone if full else None,
        base=base if full else None,
        round_id=round_id,
    )


def after(view: AttackView, crafted: Matrix) -> Matrix:
    """All n updates with the attackers' rows replaced."""
    rows = np.array(view.everyone, dtype=np.float64)
    rows[list(view.attackers)] = crafted
    return rows


def benign(view: AttackView) -> Matrix:
    """The rows of the clients that do not attack."""
    return np.delete(np.asarray(view.everyone, dtype=np.float64), list(view.attackers), axis=0)


def krum_index(rows: Matrix, faulty: int) -> int:
    """Krum by definition, in loops: least sum of squared distances to the n - f - 2 nearest others."""
    scores = []
    for i in range(len(rows)):
        distances = sorted(float(np.sum((rows[i] - rows[j]) ** 2)) for j in range(len(rows)) if j != i)
        scores.append(sum(distances[: len(rows) - faulty - 2]))
    return int(np.argmin(scores))
