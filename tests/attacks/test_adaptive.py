"""The adaptive attack raises FLTrust's deviation, and its O(d) probes equal aggregating anew."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from attack_views import after, benign, generator, make_view

from ebscfl.attacks import adaptive, trim_attack
from ebscfl.attacks.view import AttackView
from ebscfl.errors import UsageError
from ebscfl.rng import USAGE_ATTACK, torch_generator
from ebscfl.rules.fltrust import fltrust


def slow_craft(view: AttackView, rng: np.random.Generator, *, knowledge: str, passes: int, safeguard: bool) -> Any:
    """The loop word for word: every probe, and every trial of a shorter step, aggregates all clients."""
    scene = adaptive.make_scene(view, knowledge=knowledge, base="true")
    lift = 0.1 if safeguard else None
    vectors = adaptive.starting_vectors(view, scene, rng=rng, knowledge=knowledge, lift=lift)
    noise_source = torch_generator(rng.bytes(32), USAGE_ATTACK)

    def value(i: int, vector: torch.Tensor) -> float:
        return adaptive.objective(scene, torch.stack([vector if j == i else v for j, v in enumerate(vectors)]))

    for _ in range(passes):
        for i in range(len(vectors)):
            for u in adaptive.draw_noise(noise_source, 5, vectors[i], 0.5):
                here = value(i, vectors[i])
                slope = (value(i, vectors[i] + 0.005 * u) - here) / 0.005
                trials = [vectors[i] + 0.01 * slope * 0.5**k * u for k in range(adaptive.HALVINGS + 1)]
                trials = [trial / trial.norm() for trial in trials]
                raising = (trial for trial in trials if value(i, trial) > here)
                vectors[i] = next(raising, vectors[i]) if safeguard else trials[0]
    return scene.base_norm * vectors


@pytest.mark.parametrize("safeguard", [True, False])
@pytest.mark.parametrize("knowledge", ["full", "partial"])
@pytest.mark.parametrize("f", [1, 4])
def test_incremental_probes_equal_the_slow_twin(knowledge: str, f: int, safeguard: bool) -> None:
    view = make_view(f=f, d=30, noise=0.5)
    fast = np.asarray(
        adaptive.craft(view, rng=generator(), knowledge=knowledge, passes=3, probes=5, safeguard=safeguard)
    )
    slow = slow_craft(view, generator(), knowledge=knowledge, passes=3, safeguard=safeguard).numpy()
    start = np.asarray(adaptive.craft(view, rng=generator(), knowledge=knowledge, passes=0, safeguard=safeguard))
    assert np.abs(fast - start).max() > 0.01
    # The twin's finite difference loses h * 2^-52 / smoothing in each of 15 steps a vector; 1e-9 leaves a wide margin.
    np.testing.assert_allclose(fast, slow, rtol=0, atol=1e-9 * np.abs(slow).max())


def test_objective_is_the_published_one() -> None:
    view = make_view(n=7, f=2, d=12)
    everyone, base = np.asarray(view.everyone), np.asarray(view.base)

    def fltrust(rows: Any) -> Any:
        trust = [max(0.0, float(r @ base) / float(np.linalg.norm(r) * np.linalg.norm(base))) for r in rows]
        scaled = [t * np.linalg.norm(base) / np.linalg.norm(r) * r for t, r in zip(trust, rows, strict=True)]
        return sum(scaled) / sum(trust)

    attack = generator(2).standard_normal((2, 12))
    before, now = fltrust(everyone), fltrust([*attack, *benign(view)])
    scene = adaptive.make_scene(view, knowledge="full", base="true")
    unit = torch.from_numpy(attack / np.linalg.norm(attack, axis=1, keepdims=True))
    assert adaptive.objective(scene, unit) == pytest.approx(float(np.sign(before) @ (before - now)), rel=1e-12)


@pytest.mark.parametrize(("noise", "d", "size"), [(0.2, 60, 1.0), (1.0, 60, 1.0), (3.0, 60, 100.0), (1.0, 3000, 1e-3)])
@pytest.mark.parametrize("seed", range(3))
def test_the_search_raises_the_deviation_above_its_start(seed: int, noise: float, d: int, size: float) -> None:
    view = make_view(n=12, f=4, d=d, seed=seed, noise=noise)
    grown = {key: size * np.asarray(getattr(view, key)) for key in ("own", "everyone", "base")}
    view = dataclasses.replace(view, **grown)
    scene = adaptive.make_scene(view, knowledge="full", base="true")
    published, start, end = (
        adaptive.objective(scene, adaptive.unit_rows(torch.from_numpy(np.asarray(vectors))))
        for vectors in (
            adaptive.craft(view, rng=generator(), passes=0, safeguard=False),
            adaptive.craft(view, rng=generator(), passes=0),
            adaptive.craft(view, rng=generator()),
        )
    )
    assert published <= start < end
    assert end > 0


def test_the_published_start_is_the_trim_attack_and_stays_put_where_the_objective_is_flat() -> None:
    view = make_view(n=12, f=4, d=60, noise=1.0)
    base = np.asarray(view.base)
    trim = np.asarray(trim_attack.craft(view, rng=generator()))
    trim *= np.linalg.norm(base) / np.linalg.norm(trim, axis=1, keepdims=True)
    assert (trim @ base < 0).all()
    for passes in (0, 10):
        crafted = np.asarray(adaptive.craft(view, rng=generator(), passes=passes, safeguard=False))
        np.testing.assert_allclose(crafted, trim)


def test_lifting_gives_the_stated_cosine_to_vectors_without_trust_only() -> None:
    view = make_view(n=12, f=4, d=60, noise=1.0)
    scene = adaptive.make_scene(view, knowledge="full", base="true")
    lifted = adaptive.starting_vectors(view, scene, rng=generator(), knowledge="full", lift=0.25)
    np.testing.assert_allclose((lifted @ scene.unit_base).numpy(), 0.25)
    np.testing.assert_allclose(lifted.norm(dim=1).numpy(), 1.0)
    close = make_view(n=12, f=4, d=60, noise=0.2)
    scene = adaptive.make_scene(close, knowledge="full", base="true")
    starts = [
        adaptive.starting_vectors(close, scene, rng=generator(), knowledge="full", lift=x).numpy() for x in (0.25, None)
    ]
    np.testing.assert_array_equal(*starts)


def test_the_packages_own_fltrust_loses_exactly_the_objective() -> None:
    view = make_view(n=12, f=4, d=300)
    crafted = np.asarray(adaptive.craft(view, rng=generator()))
    base = np.asarray(view.base)
    clean = np.asarray(fltrust(np.asarray(view.everyone), server_update=base).aggregate)
    attacked = np.asarray(fltrust(after(view, crafted), server_update=base).aggregate)
    scene = adaptive.make_scene(view, knowledge="full", base="true")
    loss = float(np.sign(clean) @ (clean - attacked))
    assert loss == pytest.approx(adaptive.objective(scene, adaptive.unit_rows(torch.from_numpy(crafted))), rel=1e-9)
    assert loss > 0


def test_every_row_has_the_norm_of_the_base() -> None:
    view = make_view()
    crafted = np.asarray(adaptive.craft(view, rng=generator()))
    np.testing.assert_allclose(np.linalg.norm(crafted, axis=1), float(np.linalg.norm(np.asarray(view.base))))


def test_no_base_is_needed_when_the_colluders_stand_in() -> None:
    view = make_view(full=False)
    with pytest.raises(UsageError, match="grant it"):
        adaptive.craft(view, rng=generator(), knowledge="partial")
    crafted = np.asarray(adaptive.craft(view, rng=generator(), knowledge="partial", base="colluders"))
    norm = float(np.linalg.norm(np.asarray(view.own).mean(axis=0)))
    np.testing.assert_allclose(np.linalg.norm(crafted, axis=1), norm)


def test_degenerate_inputs_stay_finite() -> None:
    view = make_view()
    zero_base = dataclasses.replace(view, base=np.zeros(40))
    assert not np.asarray(adaptive.craft(zero_base, rng=generator())).any()
    opposed = dataclasses.replace(view, base=-np.asarray(view.everyone).mean(axis=0) * 1e3)
    assert np.isfinite(np.asarray(adaptive.craft(opposed, rng=generator()))).all()
    assert np.isfinite(np.asarray(adaptive.craft(make_view(n=3, f=3), rng=generator()))).all()


@pytest.mark.parametrize(
    "settings",
    [{"passes": -1}, {"probes": 0}, {"noise_variance": 0.0}, {"smoothing": 0.0}, {"step": -1.0}, {"lift": 1.0}],
)
def test_wrong_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        adaptive.craft(make_view(), rng=generator(), **settings)


def test_noise_has_the_stated_variance() -> None:
    noise = adaptive.draw_noise(torch_generator(b"\1" * 32, USAGE_ATTACK), 10, torch.zeros(10_000).double(), 0.5)
    # The variance of 10^5 normal draws has standard error 0.5 * sqrt(2 / 10^5) = 0.0022: five of them.
    assert float(noise.var()) == pytest.approx(0.5, abs=5 * 0.5 * math.sqrt(2e-5))
