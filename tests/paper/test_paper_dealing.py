"""Masks, refresh, re-dealing and the randomness of the key center."""

import dataclasses

import numpy as np
import pytest
from paper_rounds import SMALL, Round, plain_rfca, relative_error

from ebscfl.errors import UsageError
from ebscfl.paper import PaperParameters, deal, re_deal_alpha, refresh
from ebscfl.rng import root_from_seed


@pytest.mark.parametrize("name", SMALL)
def test_masks_have_unit_length_over_all_clusters_and_segments(name):
    # Erratum 1: 1 for R''_i over clusters and segments together and 1 for mu_i over segments, so |ek^1|^2 = 2.
    done = Round(SMALL[name])
    for key in done.round_keys.client:
        assert np.sum(key.mask**2) == pytest.approx(2.0, abs=1e-11)
    masks = done.dealt.secret.masks
    assert np.abs(masks.sum(axis=0)).max() < 1e-12
    assert np.sum(masks**2, axis=1) == pytest.approx(1.0 / done.params.num_segments, rel=1e-11)


def test_the_printed_mask_norm_would_give_another_length():
    # |R''_ij| = 1 for each of m clusters makes |delta|^2 = 1 + m + 1: 3 only for a single cluster.
    done = Round(SMALL["three clusters, padded"])
    params, kept, i = done.params, done.dealt.secret, 1
    assert np.sum(done.uploads[i] ** 2) == pytest.approx(3.0, abs=1e-11)
    block = kept.update_basis[params.group_of(i), params.group_size + params.slot_of(i)]
    dealt_part = done.round_keys.client[i].mask @ block.T  # R''_i A
    by_cluster = dealt_part @ np.swapaxes(kept.cluster_basis, 1, 2)  # (m, s, t), R''_ij
    scale = 1.0 / np.linalg.norm(by_cluster, axis=(1, 2))[:, None, None]
    printed = (scale * by_cluster @ kept.cluster_basis).sum(axis=0)
    upload = done.uploads[i] + (printed - dealt_part) @ block
    assert np.sum(upload**2) == pytest.approx(2.0 + params.num_clusters, abs=1e-11)


def test_refresh_changes_masks_and_tags_and_nothing_else():
    done = Round(SMALL["pairs, last group half full"])
    again = refresh(done.params, done.dealt.secret, 0)
    later = refresh(done.params, done.dealt.secret, 1)
    for i in range(done.params.num_clients):
        assert np.array_equal(again.client[i].mask, done.round_keys.client[i].mask)
        assert np.abs(later.client[i].mask - done.round_keys.client[i].mask).max() > 1e-3
    assert not np.any(later.server.tags == done.round_keys.server.tags)
    assert later.server.round_id == later.client[0].round_id == 1
    done.round_keys = later
    done.uploads = [done.encode(i) for i in range(done.params.num_clients)]
    for i, upload in enumerate(done.uploads):
        done.verify(i, upload)
    assert relative_error(done.aggregate()[0], done.plain()[0]) < 1e-10


@pytest.mark.parametrize("name", ["one client a group", "naive"])
def test_new_server_updates_need_a_new_scoring_key_only(name):
    done = Round(SMALL[name], lean=0.5)
    fresh = done.server_updates + 0.3 * done.server_updates[::-1]
    key = done.server_key.with_scoring_key(re_deal_alpha(done.params, done.dealt.secret, fresh))
    for field in dataclasses.fields(key):
        if field.name != "scoring_key":
            assert getattr(key, field.name) is getattr(done.server_key, field.name)
    found, total = done.aggregate(server_key=key)
    expected, weight, _ = plain_rfca(done.updates, done.clusters, fresh)
    assert relative_error(found, expected) < 1e-10
    assert total == pytest.approx(weight, rel=1e-10)


def test_the_scale_of_server_updates_does_not_matter():
    done = Round(SMALL["one client a group"], lean=0.5)
    key = re_deal_alpha(done.params, done.dealt.secret, 1e6 * done.server_updates)
    found, _ = done.aggregate(server_key=done.server_key.with_scoring_key(key))
    assert relative_error(found, done.aggregate()[0]) < 1e-12


def test_keys_are_a_function_of_the_secret():
    params = SMALL["one client a group"]
    g0 = Round(params).server_updates
    first, second, other = (deal(params, g0, root_from_seed(seed)) for seed in (1, 1, 2))
    assert np.array_equal(first.server_key.decode_key, second.server_key.decode_key)
    assert np.abs(first.server_key.decode_key - other.server_key.decode_key).max() > 0.01


@pytest.mark.parametrize("bad", ["shape", "zero", "nan"])
def test_bad_server_updates_are_refused(bad):
    params = PaperParameters(num_clients=4, num_clusters=2, dim=6)
    updates = np.ones((2, 5 if bad == "shape" else 6))
    if bad != "shape":
        updates[1] = 0.0 if bad == "zero" else np.nan
    with pytest.raises(UsageError, match="shape" if bad == "shape" else r"clusters \[1\]"):
        deal(params, updates, root_from_seed(0))


def test_a_restart_deals_to_the_clients_that_are_left():
    done = Round(SMALL["one client a group"], lean=0.5)
    left = [0, 1, 3, 4]
    params = dataclasses.replace(done.params, num_clients=len(left))
    again = Round(params, lean=0.5)
    again.updates, again.clusters, again.server_updates = done.updates[left], done.clusters[left], done.server_updates
    again.dealt = deal(params, done.server_updates, root_from_seed(77))
    again.round_keys = refresh(params, again.dealt.secret, 0)
    again.uploads = [again.encode(i) for i in range(len(left))]
    assert relative_error(again.aggregate()[0], again.plain()[0]) < 1e-10
