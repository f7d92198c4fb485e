"""What every rule in `RULES` promises, whatever it computes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ebscfl import rng, rules
from ebscfl.errors import ProtocolError, UsageError
from ebscfl.rules import RULES, Rule
from ebscfl.rules.result import ClusteredResult

ROOT = rng.root_from_seed(2)
NUM_CLIENTS, DIM, NUM_CLUSTERS = 9, 17, 3
Updates = npt.NDArray[np.floating]


def promising(name: str) -> pytest.MarkDecorator:
    chosen = [rule for rule in RULES.values() if getattr(rule, name)]
    return pytest.mark.parametrize("rule", chosen, ids=[rule.name for rule in chosen])


every_rule = pytest.mark.parametrize("rule", list(RULES.values()), ids=list(RULES))

# Whole numbers: sums, products and halves are exact, so ties are ties and laws hold to rounding of the last division.
whole_updates = hnp.arrays(
    np.float64,
    st.tuples(st.integers(7, 9), st.integers(1, 5)),
    elements=st.integers(-8, 8).map(float),
)


def draw(*context: int, num_clients: int = NUM_CLIENTS, dtype: Any = np.float64) -> Updates:
    generator = rng.numpy_generator(ROOT, "test-rules/1", *context)
    return generator.standard_normal((num_clients, DIM)).astype(dtype)


def settings_of(rule: Rule, updates: Updates, faulty: int = 2) -> dict[str, Any]:
    """Keyword arguments with which ``rule`` can work on ``updates``."""
    num_clients, dim = updates.shape
    server = np.sin(np.arange(1.0, NUM_CLUSTERS * dim + 1)).reshape(NUM_CLUSTERS, dim).astype(updates.dtype)
    if rule.clustered:
        return {"clusters": np.arange(num_clients) % NUM_CLUSTERS, "server_updates": server}
    if rule.needs_server_update:
        return {"server_update": server[0]}
    return {rule.knob: faulty} if rule.knob else {}


def apply(rule: Rule, updates: Any, **arguments: Any) -> tuple[Any, Any]:
    """(aggregate or aggregates, weights)."""
    result = rule(updates, **arguments)
    if isinstance(result, ClusteredResult):
        return result.aggregates, result.weights
    return result.aggregate, result.weights


def on_torch(arguments: dict[str, Any]) -> dict[str, Any]:
    return {k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for k, v in arguments.items()}


@every_rule
def test_shapes_and_weights(rule: Rule) -> None:
    updates = draw()
    aggregate, weights = apply(rule, updates, **settings_of(rule, updates))
    assert aggregate.shape == ((NUM_CLUSTERS, DIM) if rule.clustered else (DIM,))
    assert weights.shape == (NUM_CLIENTS,)
    assert (weights >= 0).all()
    if not rule.clustered:
        assert np.isclose(weights.sum(), 1.0, rtol=1e-14)


@every_rule
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numpy_and_torch_give_the_same(rule: Rule, dtype: Any) -> None:
    updates = draw(dtype=dtype)
    arguments = settings_of(rule, updates)
    by_numpy = rule(updates, **arguments)
    by_torch = rule(torch.from_numpy(updates), **on_torch(arguments))
    for name, value in vars(by_numpy).items():
        other = getattr(by_torch, name)
        assert isinstance(value, np.ndarray)
        assert isinstance(other, torch.Tensor)
        assert np.array_equal(value, other.numpy())
    aggregate, weights = apply(rule, updates, **arguments)
    assert aggregate.dtype == dtype
    assert weights.dtype == np.float64


@every_rule
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_gives_the_same_as_the_cpu(rule: Rule) -> None:
    updates = draw()
    arguments = on_torch(settings_of(rule, updates))
    moved = {k: v.cuda() if isinstance(v, torch.Tensor) else v for k, v in arguments.items()}
    here, _ = apply(rule, torch.from_numpy(updates), **arguments)
    there, weights = apply(rule, torch.from_numpy(updates).cuda(), **moved)
    assert there.is_cuda
    assert weights.is_cuda
    assert torch.allclose(here, there.cpu(), rtol=1e-12, atol=1e-14)


@every_rule
@pytest.mark.parametrize("layout", ["rows", "columns", "read-only"])
def test_no_input_is_modified_whatever_its_layout(rule: Rule, layout: str) -> None:
    updates = draw()
    arguments = settings_of(rule, updates)
    expected, _ = apply(rule, updates, **arguments)
    given_updates = np.asfortranarray(updates) if layout == "columns" else updates.copy()
    given_arguments = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in arguments.items()}
    if layout == "read-only":
        given_updates.setflags(write=False)
    aggregate, _ = apply(rule, given_updates, **given_arguments)
    assert np.allclose(aggregate, expected, rtol=1e-13, atol=1e-15)
    assert np.array_equal(given_updates, updates)
    for name, value in arguments.items():
        assert np.array_equal(given_arguments[name], value)
    aggregate[...] = 1e9  # nor does the result share memory with the input
    assert np.array_equal(given_updates, updates)


@every_rule
def test_a_torch_result_carries_no_gradient(rule: Rule) -> None:
    updates = draw()
    arguments = on_torch(settings_of(rule, updates))
    aggregate, weights = apply(rule, torch.from_numpy(updates).requires_grad_(), **arguments)
    assert not aggregate.requires_grad
    assert not weights.requires_grad


@every_rule
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_clients_with_nan_or_infinity_are_named(rule: Rule, bad: float) -> None:
    updates = draw()
    updates[[2, 5], 3] = bad
    with pytest.raises(ProtocolError, match=r"\[2, 5\] hold NaN or infinity") as caught:
        rule(updates, **settings_of(rule, updates))
    assert caught.value.culprits == (2, 5)


@every_rule
@pytest.mark.parametrize(
    "spoil",
    [
        lambda x: x.astype(np.int64),
        lambda x: x.astype(np.float16),
        lambda x: x.astype(np.complex128),
        lambda x: x[0],
        lambda x: x[None],
        lambda x: x[:0],
        lambda x: x[:, :0],
        lambda x: x.tolist(),
        lambda x: torch.from_numpy(x).bfloat16(),
    ],
    ids=["int", "half", "complex", "1-d", "3-d", "no clients", "no coordinates", "list", "bfloat16"],
)
def test_wrong_dtype_or_shape_is_refused(rule: Rule, spoil: Callable[[Updates], Any]) -> None:
    updates = draw()
    with pytest.raises(UsageError, match="updates"):
        rule(spoil(updates), **settings_of(rule, updates))


@promising("knob")
def test_too_few_clients_for_the_faults_is_refused(rule: Rule) -> None:
    updates = draw(num_clients=8)
    with pytest.raises(UsageError, match=r"n = 8"):
        rule(updates, **{str(rule.knob): 4})


@promising("permutation_invariant")
@given(updates=whole_updates, seed=st.integers(0, 2**20))
@settings(max_examples=40, deadline=None)
def test_the_order_of_the_clients_does_not_matter(rule: Rule, updates: Updates, seed: int) -> None:
    order = rng.numpy_generator(ROOT, "test-order/1", seed).permutation(len(updates))
    arguments = settings_of(rule, updates)
    aggregate, weights = apply(rule, updates, **arguments)
    if rule.clustered:
        arguments["clusters"] = arguments["clusters"][order]
    shuffled, shuffled_weights = apply(rule, updates[order], **arguments)
    assert np.allclose(shuffled, aggregate, rtol=1e-12, atol=1e-12)
    # Equal updates are interchangeable: Krum must pick one of them, so weights are compared per distinct update.
    if not rule.clustered:
        _, same = np.unique(updates, axis=0, return_inverse=True)
        assert np.allclose(
            np.bincount(same.ravel(), weights), np.bincount(same.ravel()[order], shuffled_weights), atol=1e-12
        )


@promising("translation_equivariant")
@given(updates=whole_updates, shift=st.integers(-1000, 1000))
@settings(max_examples=40, deadline=None)
def test_translation(rule: Rule, updates: Updates, shift: int) -> None:
    offset = shift + np.arange(updates.shape[1], dtype=np.float64)
    arguments = settings_of(rule, updates)
    plain, weights = apply(rule, updates, **arguments)
    moved, moved_weights = apply(rule, updates + offset, **arguments)
    assert np.allclose(moved, plain + offset, rtol=1e-12, atol=1e-12)
    assert np.allclose(moved_weights, weights, atol=1e-12)


@promising("scale_equivariant")
@given(updates=whole_updates, power=st.integers(-20, 20))
@settings(max_examples=40, deadline=None)
def test_scale(rule: Rule, updates: Updates, power: int) -> None:
    arguments = settings_of(rule, updates)
    plain, weights = apply(rule, updates, **arguments)
    scaled, scaled_weights = apply(rule, updates * 2.0**power, **arguments)
    assert np.allclose(scaled, plain * 2.0**power, rtol=1e-12, atol=0)
    assert np.allclose(scaled_weights, weights, atol=1e-12)


@promising("mean_without_faults")
@given(updates=whole_updates)
@settings(max_examples=40, deadline=None)
def test_without_faults_it_is_the_mean(rule: Rule, updates: Updates) -> None:
    aggregate, weights = apply(rule, updates, **settings_of(rule, updates, faulty=0))
    assert np.allclose(aggregate, updates.mean(axis=0), rtol=1e-12, atol=1e-12)
    assert np.allclose(weights, 1 / len(updates))


@promising("needs_server_update")
@given(updates=whole_updates, power=st.integers(-20, 20))
@settings(max_examples=40, deadline=None)
def test_rules_with_a_server_update_see_directions_only(rule: Rule, updates: Updates, power: int) -> None:
    assume(updates.any())
    arguments = settings_of(rule, updates)
    longer = updates.copy()
    longer[0] *= 2.0**power
    one, two = apply(rule, updates, **arguments), apply(rule, longer, **arguments)
    assert np.allclose(one[0], two[0], rtol=1e-12, atol=1e-14)
    assert np.allclose(one[1], two[1], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("rule", [r for r in RULES.values() if r.name in ("fedavg", "krum", "multi_krum")], ids=str)
def test_weights_make_the_aggregate_where_whole_updates_are_averaged(rule: Rule) -> None:
    updates = draw()
    aggregate, weights = apply(rule, updates, **settings_of(rule, updates))
    assert np.allclose(weights @ updates, aggregate, rtol=1e-13, atol=1e-15)


def test_a_property_not_promised_really_fails_somewhere() -> None:
    """The table would be worthless if it promised too little."""
    updates = draw()
    for rule in RULES.values():
        arguments = settings_of(rule, updates, faulty=0)
        plain, _ = apply(rule, updates, **arguments)
        if not rule.translation_equivariant:
            assert not np.allclose(apply(rule, updates + 1.0, **arguments)[0], plain + 1.0)
        if not rule.scale_equivariant:
            assert not np.allclose(apply(rule, updates * 2.0, **arguments)[0], plain * 2.0)
        if not rule.mean_without_faults:
            assert not np.allclose(plain, updates.mean(axis=0))


def test_the_table_lists_every_rule_file() -> None:
    not_rules = {"__init__", "result", "geometry", "score_history"}
    files = {path.stem for path in Path(rules.__file__).parent.glob("*.py")} - not_rules
    assert files == set(RULES)
    assert all(name == rule.name == rule.function.__name__ for name, rule in RULES.items())


def test_the_package_and_the_score_history_load_without_torch() -> None:
    code = "import sys, ebscfl.rules.score_history; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
