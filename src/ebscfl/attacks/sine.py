"""Sine attack: a vector similar to the server's update but not to the clean one (Kasyap, Tripathy, IEEE TDSC 2024).

The paper's body could not be reached; this is the recurrence of its first author's public code, written anew. From the
base update b and a clean update c, it walks over the coordinates in descending order of the signed ``c_j - b_j`` with

* m, starting at c; N = ||m||; P = <m, c>;
* D, the *tracked* product with b, starting at ``s <c, b>``.

At coordinate j it takes the x that keeps the tracked cosine to b, ``(D - m_j b_j + x b_j)^2 = (D/N)^2 (N^2 - m_j^2 +
x^2)``. One root is m_j itself; the other one replaces m_j iff cos(m, c) falls and the norm stays between ||b|| / S and
S ||b||. With ``scale_dot`` s = 1 tracked and true product agree, so |cos(m, b)| is preserved exactly. Larger s raises a
small cosine to b but makes that of a well aligned c negative, which a rule with a ReLU then drops.

``knowledge`` follows the code: ``in`` (each attacker distorts its own clean update), ``pn`` (c is the mean of the
attackers' updates, one vector for all), ``fn`` (c is the mean of the benign updates, which must be granted). ``base``
is the server's update ("true"), one computed from proxy data ("proxy": the view's builder fills it), or the mean of
the colluders' updates ("colluders": a second reading of "align with the central benign gradient"; use it with
``in``). Every ``scale_epochs`` rounds, the first included, s grows by ``scale_dot_growth`` and S by the factor
``scale_norm_growth``. Defaults are those of two of the author's three repositories (the third: 2, +1, 100, x1, every
1).

Signs: because of the signed order this attack is not odd (on negated inputs it visits the coordinates backwards). We
apply the order to movements; whether the author's harness passes movements or their negatives was not established.

The walk is sequential: `distort` runs one body (`_walk`), compiled if numba is importable, else on lists of floats.
"""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ebscfl.arrays import Array
from ebscfl.attacks.view import AttackView, base_update, benign_updates, finish, own_updates
from ebscfl.errors import UsageError

FloatVector = npt.NDArray[np.float64]
MAX_SCALE_NORM = 1e12
"""S grows without end; beyond this no bound is left and powers would overflow."""


def craft(
    view: AttackView,
    *,
    rng: np.random.Generator,
    knowledge: str = "pn",
    base: str = "true",
    scale_dot: float = 5.0,
    scale_dot_growth: float = 1.0,
    scale_norm: float = 500.0,
    scale_norm_growth: float = 2.0,
    scale_epochs: int = 5,
    poison_percent: float = 1.0,
) -> Array:
    """One distorted vector for all attackers (pn, fn) or one each (in). Nothing is random: ``rng`` is not used."""
    if knowledge not in ("in", "pn", "fn"):
        raise UsageError(f"knowledge of the sine attack must be 'in', 'pn' or 'fn', not {knowledge!r}")
    s, bound = schedule(
        view.round_id,
        scale_dot=scale_dot,
        scale_dot_growth=scale_dot_growth,
        scale_norm=scale_norm,
        scale_norm_growth=scale_norm_growth,
        scale_epochs=scale_epochs,
    )
    steer = base_update(view, "sine attack", base)
    clean = own_updates(view)
    if knowledge == "pn":
        clean = clean.mean(dim=0, keepdim=True)
    elif knowledge == "fn":
        clean = benign_updates(view, "sine attack").mean(dim=0, keepdim=True)
    steer64 = _to_numpy(steer)
    rows = [
        distort(_to_numpy(row), steer64, scale_dot=s, scale_norm=bound, poison_percent=poison_percent) for row in clean
    ]
    return finish(torch.from_numpy(np.stack(rows)).to(clean.device), view)


def schedule(
    round_id: int,
    *,
    scale_dot: float,
    scale_dot_growth: float,
    scale_norm: float,
    scale_norm_growth: float,
    scale_epochs: int,
) -> tuple[float, float]:
    """(s, S) in round ``round_id`` (from 1): both have grown once already in the first round."""
    if scale_epochs < 1:
        raise UsageError(f"scale_epochs must be at least 1, not {scale_epochs}")
    if not (scale_norm > 1.0 and scale_norm_growth >= 1.0):
        raise UsageError("scale_norm must be above 1 and scale_norm_growth at least 1: the norm bounds would cross")
    if not (math.isfinite(scale_dot) and math.isfinite(scale_dot_growth)):
        raise UsageError("scale_dot and scale_dot_growth must be finite")
    growths = max(round_id - 1, 0) // scale_epochs + 1
    log_bound = math.log(scale_norm) + growths * math.log(scale_norm_growth)
    bound = MAX_SCALE_NORM if log_bound >= math.log(MAX_SCALE_NORM) else scale_norm * scale_norm_growth**growths
    return scale_dot + growths * scale_dot_growth, bound


def distort(
    clean: FloatVector,
    base: FloatVector,
    *,
    scale_dot: float,
    scale_norm: float,
    poison_percent: float = 1.0,
    compiled: bool | None = None,
) -> FloatVector:
    """m for one clean update. ``poison_percent`` is the share (0 to 1) of the coordinates visited, the first in order.

    ``compiled=None`` compiles if numba is importable; both ways give the same bits.
    """
    if not 0.0 <= poison_percent <= 1.0:
        raise UsageError(f"poison_percent is a share between 0 and 1, not {poison_percent}")
    visited = math.ceil(poison_percent * clean.size)
    order = np.argsort(base - clean, kind="stable")[:visited]  # ascending b - c is descending c - b
    dot = scale_dot * float(clean @ base)
    square = float(clean @ clean)
    base_square = float(base @ base)
    if dot == 0.0 or square == 0.0 or base_square == 0.0:
        return clean.copy()  # no cosine to keep: every coordinate's second root is the first
    c, b = clean[order], base[order]
    low, high = base_square / scale_norm**2, base_square * scale_norm**2
    if _numba_present() if compiled is None else compiled:
        moved: Any = _compiled_walk()(c, b, np.empty_like(c), dot, square, low, high)
    else:
        moved = _walk(c.tolist(), b.tolist(), [0.0] * visited, dot, square, low, high)
    result = clean.copy()
    result[order] = moved
    return result


def _walk(c: Any, b: Any, m: Any, dot: float, square: float, low: float, high: float) -> Any:
    """The recurrence over coordinates in order; fills and returns m. Arrays or lists: numba compiles this very body.

    dot is D, square N^2, along P = <m, c>; all are updated in O(1) a coordinate. ||c|| is constant and drops out of the
    comparison of cosines.
    """
    along = square
    cosine = along / math.sqrt(square)
    for j in range(len(c)):
        old = c[j]
        m[j] = old
        ratio = dot * dot / square
        denominator = b[j] * b[j] - ratio
        if denominator == 0.0:
            continue  # the equation is linear: m_j is its only root
        # Sum of the roots of (b^2 - ratio) x^2 + 2 (D - m b) b x + ... is -2 (D - m b) b / (b^2 - ratio).
        x = -2.0 * (dot - old * b[j]) * b[j] / denominator - old
        new_square = square - old * old + x * x
        if not (low < new_square < high):
            continue
        new_along = along - old * old + x * old
        new_cosine = new_along / math.sqrt(new_square)
        if new_cosine < cosine:
            m[j] = x
            dot += (x - old) * b[j]
            square, along, cosine = new_square, new_along, new_cosine
    return m


@functools.cache
def _numba_present() -> bool:
    return importlib.util.find_spec("numba") is not None


@functools.cache
def _compiled_walk() -> Callable[..., Any]:
    import numba

    compiled: Callable[..., Any] = numba.njit(_walk)
    return compiled


def _to_numpy(row: torch.Tensor) -> FloatVector:
    return row.double().cpu().numpy()
