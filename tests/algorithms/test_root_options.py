"""Root updates (scale, direction, batches), choices on fewer batches and shared bodies: each beside a twin in numpy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_federation import LIKES_0, LIKES_1, Fixed, environment, federation
from torch import Tensor

from ebscfl.algorithms import ALGORITHMS, Environment, ServerSettings, ServerState
from ebscfl.algorithms.environment import choose_clusters, client_batches, root_batches, share_body
from ebscfl.algorithms.fltrust import root_update
from ebscfl.algorithms.initialization import cluster_models
from ebscfl.algorithms.rfca import _mixed, clustered_root_updates
from ebscfl.errors import ConfigError
from ebscfl.learning.federation import FederatedData
from ebscfl.learning.models import make_model
from ebscfl.rng import numpy_generator, root_from_seed
from ebscfl.rules.rfca import rfca

Floats = npt.NDArray[np.float64]
MODELS = torch.stack([LIKES_0, LIKES_1])
NOTHING = torch.zeros(2, 6)


def varied(labels: tuple[tuple[int, ...], ...], root: tuple[tuple[int, ...], ...]) -> FederatedData:
    """`federation` with an image of its own for every sample."""
    data = federation(labels, root)
    draw = numpy_generator(root_from_seed(2), "test-root-options/1")
    images = draw.integers(0, 256, size=tuple(data.x.shape)).astype(np.uint8)
    return replace(data, x=torch.from_numpy(images))


DATA = varied(((0, 1), (1, 1, 0)), ((0, 0, 1), (0, 0, 0), (1, 1, 1), (1, 0, 1, 1), (0, 1, 0)))


def slow_loss(theta: Floats, x: Floats, y: npt.NDArray[np.int64]) -> float:
    """Mean cross entropy of softmax regression, sample by sample."""
    weight, bias = theta[:4].reshape(2, 2), theta[4:]
    total = 0.0
    for image, label in zip(x, y, strict=True):
        logits = weight @ image + bias
        total += float(np.log(np.exp(logits).sum()) - logits[label])
    return total / len(y)


def slow_step(theta: Floats, x: Floats, y: npt.NDArray[np.int64], lr: float) -> Floats:
    """One step of gradient descent on `slow_loss`."""
    weight, bias = theta[:4].reshape(2, 2), theta[4:]
    gradient = np.zeros(6)
    for image, label in zip(x, y, strict=True):
        odds = np.exp(weight @ image + bias)
        signal = odds / odds.sum() - np.eye(2)[label]
        gradient += np.concatenate([np.outer(signal, image).ravel(), signal]) / len(y)
    return theta - lr * gradient


def slow_root_updates(env: Environment, models: Tensor, round_id: int) -> Floats:
    """Root updates of a model that is not empty, part by part."""
    server, m = env.server, len(models)
    pixels = env.data.x.numpy().reshape(len(env.data.x), 2) / 255.0
    labels = env.data.y.numpy()
    own: list[list[Floats]] = [[] for _ in range(m)]
    for part in root_batches(env, env.data.root_rows, round_id).numpy():
        rows = part[: server.choice_steps].ravel()
        losses = [slow_loss(theta.double().numpy(), pixels[rows], labels[rows]) for theta in models]
        start = models[int(np.argmin(losses))].double().numpy()
        theta = start
        for batch in part:
            theta = slow_step(theta, pixels[batch], labels[batch], server.root_lr or env.local.lr)
        own[int(np.argmin(losses))].append(theta - start)
    found = np.zeros((m, 6))
    everyone = sum(move for moves in own for move in moves)
    assert isinstance(everyone, np.ndarray)
    for k, moves in enumerate(own):
        if not moves:
            continue
        if server.root_scale == "paper":
            found[k] = sum(moves) * m / len(env.data.root_rows)
        else:
            found[k] = sum(moves) / len(moves)
        if server.root_scale == "part":
            found[k] *= np.mean([np.linalg.norm(move) for move in moves]) / np.linalg.norm(found[k])
        if server.root_direction == "mixed":
            length = np.linalg.norm(found[k])
            turned = found[k] / length + everyone / np.linalg.norm(everyone)
            found[k] = turned / np.linalg.norm(turned) * length
    return found


@pytest.mark.parametrize("scale", ["paper", "mean", "part"])
@pytest.mark.parametrize("direction", ["cluster", "mixed"])
@pytest.mark.parametrize("choice_steps", [None, 1])
def test_root_updates_are_the_slow_twin_s(scale: str, direction: str, choice_steps: int | None) -> None:
    env = environment(
        DATA,
        root_scale=scale,
        root_direction=direction,
        root_steps=3,
        root_batch=2,
        root_lr=0.5,
        choice_steps=choice_steps,
    )
    for round_id in (1, 2, 3):
        fast = clustered_root_updates(env, MODELS, NOTHING, round_id)
        slow = slow_root_updates(env, MODELS, round_id)
        assert slow.any(axis=1).all()  # both models are somebody's
        np.testing.assert_allclose(fast.double().numpy(), slow, rtol=0.0, atol=1e-5)


def test_scales_change_lengths_and_nothing_else() -> None:
    rows = {
        scale: clustered_root_updates(environment(DATA, root_scale=scale), MODELS, NOTHING, 1)
        for scale in ("paper", "mean", "part")
    }
    units = {scale: torch.nn.functional.normalize(found, dim=1) for scale, found in rows.items()}
    assert torch.allclose(units["paper"], units["mean"], atol=1e-6)
    assert torch.allclose(units["part"], units["mean"], atol=1e-6)
    # The mean of vectors is no longer than they are on average.
    lengths = {scale: torch.linalg.vector_norm(found, dim=1) for scale, found in rows.items()}
    assert bool((lengths["part"] >= lengths["mean"] - 1e-6).all())
    assert not torch.allclose(lengths["part"], lengths["mean"])


def test_a_cluster_no_part_chose_is_not_scaled_or_turned() -> None:
    """Nobody's moves have no length and no direction: last round's root update, or none, but never NaN."""
    data = federation(((0,),), root=((0,), (0,)))
    last = torch.stack([torch.zeros(6), torch.full((6,), 2.0)])
    for options in ({"root_scale": "part"}, {"root_direction": "mixed"}, {"root_scale": "part", "share": "body"}):
        kept = clustered_root_updates(environment(data, **options), MODELS, last, 1)
        assert torch.equal(kept[1], last[1])
        assert bool(torch.isfinite(kept).all())
        gone = clustered_root_updates(environment(data, unsupported="distrust", **options), MODELS, last, 1)
        assert not bool(gone[1].any())


def test_zero_moves_give_zero_root_updates() -> None:
    sure = 50.0 * MODELS  # exp(-150) is zero in float32: there is nothing left to learn
    data = federation(((0,),), root=((0,), (1,)))
    for options in ({}, {"root_scale": "part"}, {"root_direction": "mixed"}):
        assert torch.equal(clustered_root_updates(environment(data, **options), sure, NOTHING, 1), NOTHING)


def mlp(data: FederatedData = DATA, **server: object) -> Environment:
    """Two layers: 2 x 256 shared weights, 256 x 2 of the head."""
    env = environment(data, **server)
    return replace(env, model=make_model("mlp", (1, 1, 2), 2))


rows_of_numbers = st.lists(st.floats(-3, 3), min_size=18, max_size=18)


@given(rows_of_numbers, st.sampled_from(["none", "body"]))
def test_mixed_rows_point_halfway_and_keep_their_lengths(numbers: list[float], share: str) -> None:
    values = np.round(np.array(numbers).reshape(3, 6), 3)
    env = mlp(share=share)
    assert env.model.head == 512
    wide = np.zeros((3, env.model.dim))
    wide[:, [0, 1, 511, 512, 513, 1023]] = values  # three of the body, three of the head
    rows, everyone = wide[:2], wide[2]
    found = _mixed(env, torch.from_numpy(rows), torch.from_numpy(everyone)).numpy()
    for row, got in zip(rows, found, strict=True):
        seen, whole = (part[:512] if share == "body" else part for part in (row, everyone))
        turned = np.zeros(env.model.dim)
        for part in (seen, whole):
            if np.linalg.norm(part) > 0:
                turned[: len(part)] += part / np.linalg.norm(part)
        length = np.linalg.norm(turned)
        if 0 < length < 1e-6:
            continue  # exactly opposite up to rounding: there is no halfway
        expected = turned / length * np.linalg.norm(row) if length > 0 else np.zeros(env.model.dim)
        np.testing.assert_allclose(got, expected, atol=1e-6)
        if share == "body":
            assert not got[512:].any()


def test_choices_are_made_on_the_first_batches_only() -> None:
    data = federation(((0, 1),))
    for round_id in range(1, 7):
        both = environment(data)
        env = replace(both, local=replace(both.local, steps=2))
        first = int(data.y[client_batches(env, round_id)[0, 0, 0]])
        short = replace(env, server=replace(env.server, choice_steps=1))
        assert choose_clusters(short, MODELS, round_id).tolist() == [first]
    more = replace(env, server=replace(env.server, choice_steps=5))  # than there are: all of them
    assert choose_clusters(more, MODELS, 1).tolist() == choose_clusters(env, MODELS, 1).tolist()


@pytest.mark.parametrize("choice_steps", [None, 1, 2])
def test_choices_are_the_slow_twin_s(choice_steps: int | None) -> None:
    base = environment(DATA, choice_steps=choice_steps)
    env = replace(base, local=replace(base.local, steps=4))
    close = torch.stack([LIKES_0, LIKES_0 + 0.1 * (LIKES_1 - LIKES_0), torch.zeros(6)])
    pixels, labels = DATA.x.numpy().reshape(-1, 2) / 255.0, DATA.y.numpy()
    for round_id in (1, 2, 3):
        batches = client_batches(env, round_id).numpy()
        expected = []
        for own in batches:
            rows = own[:choice_steps].ravel()
            expected.append(
                int(np.argmin([slow_loss(theta.double().numpy(), pixels[rows], labels[rows]) for theta in close]))
            )
        assert choose_clusters(env, close, round_id).tolist() == expected


def test_root_batches_are_no_larger_than_the_largest_part() -> None:
    env = environment(DATA, root_batch=64, root_steps=3)
    batches = root_batches(env, DATA.root_rows, 1)
    assert batches.shape == (5, 3, 4)  # the largest part has four samples
    for own in batches[3]:
        assert sorted(own.tolist()) == DATA.root_rows[3].tolist()  # each batch is the whole part
    for rows, own in zip(DATA.root_rows, batches, strict=True):
        assert set(own.flatten().tolist()) == set(rows.tolist())
    assert root_batches(environment(DATA, root_batch=2), DATA.root_rows, 1).shape == (5, 1, 2)
    # FLTrust's one part holds all 16 samples.
    pooled = (torch.cat(DATA.root_rows),)
    assert root_batches(env, pooled, 1).shape == (1, 3, 16)
    assert torch.isfinite(root_update(env, MODELS[:1], 1)).all()


# --- shared bodies ------------------------------------------------------------------------------------------------


def test_share_body_is_the_weighted_mean_of_all_but_the_last_layer() -> None:
    env = mlp(share="body")
    draw = numpy_generator(root_from_seed(2), "test-root-options/2")
    rows, weights = draw.standard_normal((3, 1024)), np.array([2.0, 0.0, 6.0])
    found = share_body(env, torch.from_numpy(rows), torch.from_numpy(weights)).numpy()
    mean = (2.0 * rows[0] + 6.0 * rows[2]) / 8.0
    for k in range(3):
        np.testing.assert_allclose(found[k, :512], mean[:512])
        assert np.array_equal(found[k, 512:], rows[k, 512:])
    nobody = torch.from_numpy(rows)
    assert torch.equal(share_body(env, nobody, torch.zeros(3)), nobody)
    assert torch.equal(share_body(mlp(), nobody, torch.ones(3)), nobody)
    assert torch.equal(nobody, torch.from_numpy(rows))  # the argument stays


def test_a_model_of_one_layer_shares_nothing() -> None:
    env = environment(DATA, share="body")
    assert env.model.head == 0
    assert torch.equal(share_body(env, MODELS, torch.ones(2)), MODELS)


@pytest.mark.parametrize("init", ["root", "independent", "covering"])
def test_first_models_share_their_body(init: str) -> None:
    apart = cluster_models(mlp(cluster_init=init))
    shared = cluster_models(mlp(cluster_init=init, share="body"))
    assert torch.allclose(shared[:, :512], apart[:, :512].mean(dim=0).expand(2, -1))
    assert torch.equal(shared[:, 512:], apart[:, 512:])


def uploads(count: int) -> Tensor:
    draw = numpy_generator(root_from_seed(2), "test-root-options/3")
    return torch.from_numpy(draw.standard_normal((count, 1024)).astype(np.float32))


FOUR = varied(((0, 0), (1, 1), (0, 0), (1, 1)), ((0, 0), (1, 1)))


def two_minds(env: Environment) -> Tensor:
    """Two models that share their body and disagree in the head."""
    start = env.model.init(env.root, 0)
    models = torch.stack([start, start])
    models[1, 512:] *= -1
    return models


def test_ifca_trains_the_body_on_everybody_and_the_head_on_its_own() -> None:
    moved = uploads(4)
    env = replace(mlp(FOUR, share="body", eta=0.5), adversary=Fixed(moved))
    models = two_minds(env)
    state, report = ALGORITHMS["ifca"].round(env, ServerState(models), 1)
    clusters = np.array(report.clusters)
    assert set(clusters) == {0, 1}
    steps = moved.double().numpy()
    for k in (0, 1):
        got = (state.models[k] - models[k]).double().numpy()
        np.testing.assert_allclose(got[:512], 0.5 * steps[:, :512].mean(axis=0), atol=1e-5)
        np.testing.assert_allclose(got[512:], 0.5 * steps[clusters == k, 512:].mean(axis=0), atol=1e-5)


def test_rfca_shares_the_body_by_the_trust_of_clusters() -> None:
    env = mlp(FOUR, share="body", root_updates="fixed")
    models = two_minds(env)
    draw = numpy_generator(root_from_seed(2), "test-root-options/4")
    server = torch.from_numpy(draw.standard_normal((2, 1024)).astype(np.float32))
    clusters = choose_clusters(env, models, 1)
    moved = uploads(4) + server[clusters]
    env = replace(env, adversary=Fixed(moved))
    state, _ = ALGORITHMS["rfca"].round(env, ServerState(models, server), 1)
    result = rfca(moved.double(), clusters=clusters, server_updates=server.double())
    steps = np.asarray(result.aggregates) * np.linalg.norm(server.double().numpy(), axis=1)[:, None]
    weight = np.asarray(result.cluster_weight)
    assert (weight > 0).all()
    body = sum(w * step[:512] for w, step in zip(weight, steps, strict=True)) / weight.sum()
    for k in (0, 1):
        got = (state.models[k] - models[k]).double().numpy()
        np.testing.assert_allclose(got[:512], body, atol=1e-5)
        np.testing.assert_allclose(got[512:], steps[k, 512:], atol=1e-5)


@pytest.mark.parametrize("method", ["ifca", "rfca", "rfca-h"])
@pytest.mark.parametrize("options", [{}, {"root_direction": "mixed"}, {"empty_cluster": "follow"}, {"clusters": 5}])
def test_bodies_stay_one_over_rounds(method: str, options: dict[str, Any]) -> None:
    env = mlp(FOUR, share="body", **options)
    algorithm = ALGORITHMS[method]
    state = algorithm.init(env)
    for round_id in (1, 2, 3):
        before = state.models
        state, _ = algorithm.round(env, state, round_id)
        assert bool(torch.isfinite(state.models).all())
        assert torch.allclose(state.models[:, :512], state.models[:1, :512].expand(len(state.models), -1), atol=1e-6)
    assert not torch.equal(state.models, before)


def test_a_cluster_nobody_is_trusted_in_still_gets_the_body() -> None:
    env = mlp(FOUR, share="body", root_updates="fixed")
    models = two_minds(env)
    server = torch.zeros(2, 1024)
    server[:, 0] = 1.0
    clusters = choose_clusters(env, models, 1)
    moved = torch.zeros(4, 1024)
    moved[:, 0] = torch.where(clusters == 0, 1.0, -1.0)  # cluster 1 points away
    state, report = ALGORITHMS["rfca"].round(replace(env, adversary=Fixed(moved)), ServerState(models, server), 1)
    assert [weight > 0 for weight in report.weights] == [int(k) == 0 for k in clusters]
    for k in (0, 1):
        assert float(state.models[k, 0] - models[k, 0]) == pytest.approx(1.0, abs=1e-6)
        assert torch.equal(state.models[k, 512:], models[k, 512:])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"share": "head"}, "share must be one of none, body"),
        ({"share": "body", "normalize": "global"}, "share: .* normalize must be cluster"),
        ({"share": "body", "averaging": "gradient"}, "share: .* averaging must be model"),
        ({"root_direction": "all"}, "root_direction must be one of cluster, mixed"),
        ({"root_scale": "parts"}, "root_scale must be one of paper, mean, part"),
        ({"choice_steps": 0}, "choice_steps must be at least 1"),
        ({"history_weight": "cosine"}, "history_weight must be one of score, record, equal"),
    ],
)
def test_settings_that_do_not_fit_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ServerSettings(**wrong)


def test_a_body_is_shared_with_any_other_setting() -> None:
    for fine in ({"root_scale": "part"}, {"root_direction": "mixed"}, {"root_momentum": 0.5}, {"hysteresis": 0.1}):
        ServerSettings(share="body", **fine)  # type: ignore[arg-type]
