"""Whole rounds against plain RFCA: exactness, verification with tampering, and refused input."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paper_rounds import SMALL, Round, relative_error

from ebscfl.errors import UsageError, VerificationError
from ebscfl.paper import PaperParameters, aggregate, refresh, relu_sum
from ebscfl.paper.scheme import tag_tolerance
from ebscfl.rng import USAGE_BENCH, SecretStream, root_from_seed


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("seed", range(3))
def test_a_round_equals_plain_rfca(name, seed):
    done = Round(SMALL[name], seed=seed, lean=0.4)
    for i, upload in enumerate(done.uploads):
        done.verify(i, upload)
    found, total = done.aggregate()
    expected, weight, _ = done.plain()
    assert found.shape == (done.params.num_clusters, done.params.dim)
    assert relative_error(found, expected) < 1e-10
    assert total == pytest.approx(weight, rel=1e-10)


@pytest.mark.parametrize(("dim", "seeds"), [(40, 25), (300, 20), (2000, 12)])
def test_error_bound_over_many_seeds(dim, seeds):
    # Updates that have nothing to do with the server updates are the hard case: cosines are around 1 / sqrt(dim), and
    # rounding reaches a weight as eps_eff / |cosine|.
    params = PaperParameters(num_clients=20, num_clusters=2, dim=dim)
    for seed in range(seeds):
        done = Round(params, seed=seed)
        assert relative_error(done.aggregate()[0], done.plain()[0]) <= 1e-10


@pytest.mark.slow
def test_error_bound_at_full_size():
    done = Round(PaperParameters(num_clients=20, num_clusters=2, dim=200_000))
    for i, upload in enumerate(done.uploads):
        done.verify(i, upload)
    assert relative_error(done.aggregate()[0], done.plain()[0]) <= 1e-8


def test_scale_of_an_update_and_its_precision_do_not_matter():
    done = Round(SMALL["one client a group"])
    assert np.abs(done.encode(1, 1e9 * done.updates[1]) - done.uploads[1]).max() < 1e-14
    narrow = done.updates[1].astype(np.float32)
    assert np.array_equal(done.encode(1, narrow), done.encode(1, narrow.astype(np.float64)))


def test_encoding_by_the_paper():
    # delta_ik = g_ik/|g_i| A_c M'_i + R''_ik A M'_{i+n} + mu_i M'_{i+2n}, segment by segment.
    done = Round(SMALL["three clusters, padded"])
    params, i = done.params, 2
    unit = np.zeros(params.num_segments * params.segment_len)
    unit[: params.dim] = done.updates[i] / np.linalg.norm(done.updates[i])
    basis = done.dealt.client_keys[i].cluster_basis[done.clusters[i]]
    for k in range(params.num_segments):
        piece = unit[k * params.segment_len : (k + 1) * params.segment_len]
        expected = piece @ basis @ done.dealt.client_keys[i].encode_key + done.round_keys.client[i].mask[k]
        assert np.abs(done.uploads[i][k] - expected).max() < 1e-14


def tamper(done, i, how):
    noise = SecretStream(root_from_seed(5), USAGE_BENCH).normal(done.params.upload_shape)
    honest = done.uploads[i]
    if how == "scaled update":  # twice the update under the right masks
        return honest + (honest - done.round_keys.client[i].mask)
    if how == "tampered mask":  # length repaired, so that only the vk equation can tell
        changed = honest + 1e-3 * noise
        return changed * np.sqrt(3.0) / np.linalg.norm(changed)
    if how == "replayed":
        return done.encode(i, round_keys=refresh(done.params, done.dealt.secret, 41))
    if how == "other client's key":
        return done.encode(i, key=(i + 1) % done.params.num_clients)
    if how == "negated":
        return -honest
    if how == "no masks":
        return honest - done.round_keys.client[i].mask
    if how == "nan":
        return np.where(np.arange(honest.size).reshape(honest.shape) == 3, np.nan, honest)
    if how == "infinite":
        return np.full_like(honest, np.inf)
    return {"cut": honest[:-1], "float32": honest.astype(np.float32)}[how]


TAMPERINGS = (
    "scaled update",
    "tampered mask",
    "replayed",
    "other client's key",
    "negated",
    "no masks",
    "nan",
    "infinite",
    "cut",
    "float32",
)


@pytest.mark.parametrize("how", TAMPERINGS)
@pytest.mark.parametrize("name", ["one client a group", "pairs, last group half full", "naive"])
def test_tampered_uploads_are_refused_by_name(name, how):
    done = Round(SMALL[name])
    with pytest.raises(VerificationError, match="client 1") as caught:
        done.verify(1, tamper(done, 1, how))
    assert caught.value.culprits == (1,)
    done.verify(2, done.uploads[2])


def test_unknown_clients_are_refused():
    done = Round(SMALL["naive"])
    with pytest.raises(VerificationError, match="no client 3"):
        done.verify(3, done.uploads[0])


def test_honest_uploads_stay_far_from_the_tolerance():
    for dim in (5, 400):
        params = PaperParameters(num_clients=6, num_clusters=2, dim=dim)
        for seed in range(20):
            done = Round(params, seed=seed)
            for i, upload in enumerate(done.uploads):
                key = done.server_key.verification_key[i].reshape(-1)
                error = abs(key @ upload.reshape(-1) - done.round_keys.server.tags[i])
                assert error < tag_tolerance(params) / 8
                assert abs(np.sum(upload**2) - 3.0) < 1e-11


@pytest.mark.parametrize(
    ("update", "cluster", "message"),
    [
        (np.ones(8), 0, "shape"),
        (np.zeros(9), 0, "zero"),
        (np.full(9, np.nan), 0, "not finite"),
        (np.full(9, 1e200), 0, "too long"),
        (np.ones(9), 2, "cluster"),
        (np.ones(9), -1, "cluster"),
    ],
)
def test_clients_refuse_to_encode_nonsense(update, cluster, message):
    done = Round(SMALL["one client a group"])
    with pytest.raises(UsageError, match=message):
        done.encode(0, update, cluster)


def test_sums_need_every_client():
    done = Round(SMALL["one client a group"])
    with pytest.raises(UsageError, match="all 5 clients"):
        aggregate(done.params, done.server_key, done.uploads[:-1])
    with pytest.raises(UsageError, match="all 5 clients"):
        relu_sum(done.params, done.server_key, np.zeros((4, 8, 8)))


def test_when_nobody_is_trusted_nothing_is_aggregated():
    done = Round(SMALL["one client a group"])
    done.updates = -done.server_updates[done.clusters]
    done.uploads = [done.encode(i) for i in range(done.params.num_clients)]
    found, total = done.aggregate()
    assert total == 0.0
    assert not found.any()


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_any_small_instance_equals_plain_rfca(data):
    clients = data.draw(st.integers(2, 6))
    params = PaperParameters(
        num_clients=clients,
        num_clusters=data.draw(st.integers(1, 3)),
        dim=data.draw(st.integers(1, 12)),
        segment_len=data.draw(st.integers(2, 4)),
        group_size=data.draw(st.integers(1, clients)),
        zeta=data.draw(st.sampled_from(["printed", "traceless"])),
    )
    done = Round(params, seed=data.draw(st.integers(0, 50)))
    expected, weight, cosines = done.plain()
    if weight > 0.01 and np.abs(cosines).min() > 1e-4:
        found, total = done.aggregate()
        assert relative_error(found, expected) < 1e-9
        assert total == pytest.approx(weight, rel=1e-9)
