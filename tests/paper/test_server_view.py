"""Why the paper's protocol is not private: what a curious server, and a hostile client, can do with their own view.

Errata 7, 8, 10 and 11 of docs/explanation-paper-protocol.md, each in small.
"""

import itertools

import numpy as np
import pytest
from paper_rounds import Round, relative_error

from ebscfl.paper import PaperParameters, decoder, relu_sum, score
from ebscfl.paper.compressed import spread_over_clusters


def hidden(done, i):
    """What nobody should see: the (s, p) rows g_i/|g_i| A_c of client i."""
    per_cluster = np.zeros((done.params.num_clusters, done.params.dim))
    per_cluster[done.clusters[i]] = done.updates[i] / np.linalg.norm(done.updates[i])
    return spread_over_clusters(done.params, done.server_key.cluster_basis, per_cluster)


def curious_decoder(done):
    params, key = done.params, done.server_key
    alphas = [score(params, key, i, upload) for i, upload in enumerate(done.uploads)]
    weights = relu_sum(params, key, alphas)
    return decoder(params, key, weights), weights.total_weight


def cluster_of(done, rows):
    return int(np.argmax([np.linalg.norm(rows @ basis.T) for basis in done.server_key.cluster_basis]))


@pytest.mark.parametrize("zeta", ["printed", "traceless"])
def test_erratum_7_dk_opens_a_single_upload_unless_zeta_is_traceless(zeta):
    done = Round(PaperParameters(num_clients=3, num_clusters=2, dim=4, scheme="naive", zeta=zeta), lean=0.5)
    _, _, cosines = done.plain()
    dk, total = curious_decoder(done)
    i = int(np.argmax(cosines))
    opened = done.uploads[i] @ dk.T * total / cosines[i]
    if zeta == "printed":
        assert relative_error(opened, hidden(done, i)) < 1e-10
        assert cluster_of(done, opened) == done.clusters[i]
    else:
        assert relative_error(opened, hidden(done, i)) > 0.1


def test_erratum_7_in_the_compressed_scheme_up_to_one_row():
    # T_i adds the same row to every segment, so differences between segments are in the clear.
    done = Round(PaperParameters(num_clients=4, num_clusters=2, dim=30), lean=0.5)
    _, _, cosines = done.plain()
    dk, total = curious_decoder(done)
    i = int(np.argmax(cosines))
    opened = done.uploads[i] @ done.server_key.transform.update_key[i] @ dk.T * total / cosines[i]
    expected = hidden(done, i)
    assert relative_error(opened - opened.mean(axis=0), expected - expected.mean(axis=0)) < 1e-10
    assert cluster_of(done, opened - opened.mean(axis=0)) == done.clusters[i]


def spectral_weight(alpha, width):
    """alpha has the eigenvalues of R' and of w R': the real w that splits its 2p largest into S and w S (p > 2).

    Returns w and the projection on the span of M_i, the invariant subspace of w S.
    """
    values, vectors = np.linalg.eig(alpha)
    order = np.argsort(-np.abs(values))[: 2 * width]
    values, vectors = values[order], vectors[:, order]
    best = (np.inf, 0.0, ())
    for half in itertools.combinations(range(2 * width), width):
        rest = [k for k in range(2 * width) if k not in half]
        ratio = (values[rest].sum() / values[list(half)].sum()).real
        if abs(ratio) >= 1.0:
            continue
        misfit = np.abs(np.poly(values[rest]) - np.poly(ratio * values[list(half)])).max()
        best = min(best, (misfit, ratio, rest), key=lambda found: found[0])
    _, weight, rest = best
    frame, *_ = np.linalg.svd(np.concatenate([vectors[:, rest].real, vectors[:, rest].imag], axis=1))
    basis = frame[:, :width]
    return weight, basis @ basis.T


def test_erratum_8_the_spectrum_of_alpha_gives_weight_key_and_update():
    # Traceless zeta does not help: alpha_i alone gives w_i (with its sign) and the projection on the span of M_i.
    params = PaperParameters(num_clients=3, num_clusters=1, dim=3, scheme="naive", zeta="traceless")
    done = Round(params, seed=1, lean=1.0)
    _, _, cosines = done.plain()
    beta = done.server_key.sum_basis[0, 0]
    for i, upload in enumerate(done.uploads):
        alpha = np.asarray(score(params, done.server_key, i, upload), dtype=np.float64)
        weight, projection = spectral_weight(alpha, params.width)
        assert weight == pytest.approx(cosines[i], rel=1e-8)
        update_block = beta @ projection @ done.server_key.decode_key  # M_i dk = M'_i
        assert relative_error(upload @ update_block.T, hidden(done, i)) < 1e-7


def test_erratum_8_names_the_cluster_too():
    params = PaperParameters(num_clients=4, num_clusters=2, dim=20, zeta="traceless")
    done = Round(params, seed=2, lean=1.0)
    _, _, cosines = done.plain()
    key = done.server_key
    for i, upload in enumerate(done.uploads):
        alpha = np.asarray(score(params, key, i, upload), dtype=np.float64)
        weight, projection = spectral_weight(alpha, params.width)
        assert weight == pytest.approx(cosines[i], rel=1e-8)
        slot = key.sum_basis[0, i] @ projection @ key.transform.weight_key[i] @ key.decode_key
        rows = upload @ key.transform.update_key[i] @ slot.T
        assert cluster_of(done, rows - rows.mean(axis=0)) == done.clusters[i]


def test_erratum_10_the_server_updates_open_the_scoring_key():
    # The server made g0 and holds A: across segments the value factor is a fixed row plus (known rows)·M'_i.
    done = Round(PaperParameters(num_clients=4, num_clusters=2, dim=60, zeta="traceless"))
    params, key = done.params, done.server_key
    units = done.server_updates / np.linalg.norm(done.server_updates, axis=1)[:, None]
    known = spread_over_clusters(params, key.cluster_basis, units)
    for i, upload in enumerate(done.uploads):
        factor = key.scoring_key.value_factor[i, 0]
        block, *_ = np.linalg.lstsq(known - known.mean(axis=0), factor - factor.mean(axis=0), rcond=None)
        block /= np.linalg.norm(block, axis=1).mean()  # the gauge is a number, its sign stays open
        opened = upload @ block.T
        expected = hidden(done, i)
        assert min(relative_error(opened, expected), relative_error(-opened, expected)) < 1e-10
        assert cluster_of(done, opened) == done.clusters[i]


def test_erratum_11_verification_does_not_bind_the_third_block():
    # Rows of ek^1 differ by multiples of M'_{i+n}; what is left of one row is mu_i M'_{i+2n}. Its sign is free.
    done = Round(PaperParameters(num_clients=4, num_clusters=2, dim=40), lean=0.5)
    mask = done.round_keys.client[0].mask
    *_, frame = np.linalg.svd(mask - mask.mean(axis=0))
    span = frame[: done.params.width]
    third = mask[0] - mask[0] @ span.T @ span
    forged = done.uploads[0] - 2.0 * third
    done.verify(0, forged)  # passes both checks
    found, _ = done.aggregate([forged, *done.uploads[1:]])
    assert relative_error(found, done.plain()[0]) > 0.1
