"""The key centre's pipeline against its slow twin: one client after the other, fresh buffers, no threads."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from sealed_lab import ROOT

from ebscfl import rng
from ebscfl.protocol.sealed import pad_work
from ebscfl.protocol.sealed.pad_work import Claim, PadWork, Rows
from ebscfl.sealed import (
    Workers,
    batch_seed,
    client_keys,
    encode,
    fold,
    guard_products,
    guard_row,
    guard_scalar,
    kdc_check,
    make_sketch,
    master_key,
    new_sum,
    pads,
    plan,
    products,
    quantize_server_updates,
    seal,
    seal_blind,
)

both = pytest.mark.parametrize("field", ["m31", "m61"])


def play(field: str, *, n: int, dim: int) -> SimpleNamespace:
    """What an honest server says of n honest uploads, and the slow twin's verdicts on them."""
    draw = rng.numpy_generator(ROOT, rng.USAGE_BENCH, "pad-work")
    params, server = plan(n, dim, 2, field), draw.standard_normal((2, dim))
    server_row, seed = quantize_server_updates(params, server), batch_seed(ROOT, 0)
    lam = guard_scalar(params, ROOT, "test", 1)
    rows = Rows(server_row, make_sketch(params, seed), guard_row(params, seed), lam)
    claims, verdicts, own_pads = [], [], []
    for i in range(n):
        keys = client_keys(params, master_key(ROOT, "test", i), "test", 1, i)
        update = server[i % 2] + draw.standard_normal(dim)
        upload = seal(params, encode(params, update, i % 2, ROOT, 1, i), keys)
        counts = upload.words[0, params.dim :: params.slot_size]
        guard = guard_products(params, counts, upload.guard, seal_blind(params, keys, ROOT, 1), rows.guard_row)
        claims.append(Claim(keys, products(params, upload.words, server_row, rows.sketch), guard))
        own_pads.append(pads(params, keys))
        own = products(params, own_pads[i], server_row, rows.sketch)
        verdicts.append(kdc_check(params, claims[i].products, own, keys, lam))
    return SimpleNamespace(params=params, rows=rows, claims=claims, verdicts=verdicts, pads=own_pads)


def slow_sum(played: SimpleNamespace, left_out: tuple[int, ...] = ()) -> tuple[np.ndarray, np.ndarray]:
    """P over the accepted, one client at a time."""
    total = new_sum(played.params)
    for i, verdict in enumerate(played.verdicts):
        if i not in left_out:
            assert verdict.answer is not None
            fold(played.params, total, [verdict.answer], [played.pads[i]], [played.claims[i].keys.guard_pad])
    return total.words, total.guard


@both
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_verdicts_and_sum_are_those_of_one_after_the_other(field: str, threads: int) -> None:
    played = play(field, n=11, dim=300)
    played.claims[4].guard[1] ^= 1
    work, total = PadWork(played.params), new_sum(played.params)
    work._workers = Workers(threads)
    for _ in range(threads):
        work._free.put([])
    verdicts = work.judge(total, played.rows, played.claims)
    assert [v.accepted for v in verdicts] == [i != 4 for i in range(11)]
    assert verdicts[4].reason == "tag"
    assert all(verdicts[i].answer == played.verdicts[i].answer for i in range(11) if i != 4)
    words, guard = slow_sum(played, (4,))
    assert np.array_equal(total.words, words)
    assert np.array_equal(total.guard, guard)


@both
def test_a_restart_adds_up_the_same_sum(field: str) -> None:
    played = play(field, n=7, dim=40)
    total = new_sum(played.params)
    PadWork(played.params).add(total, [c.keys for c in played.claims], [v.answer for v in played.verdicts])
    words, guard = slow_sum(played)
    assert np.array_equal(total.words, words)
    assert np.array_equal(total.guard, guard)


def test_buffers_are_few_and_large_pads_take_fewer_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    played = play("m31", n=9, dim=40)
    work, total = PadWork(played.params), new_sum(played.params)
    for _ in range(3):
        work.judge(total, played.rows, played.claims)
    assert 1 <= len(work.buffers) <= pad_work.GROUP_CLIENTS
    monkeypatch.setattr(pad_work, "PAD_BYTES", 1)
    tight = PadWork(played.params)
    tight.judge(total, played.rows, played.claims)
    assert len(tight.buffers) == 1


def test_nothing_secret_prints() -> None:
    played = play("m31", n=1, dim=40)
    assert repr(PadWork(played.params)) == "PadWork(<redacted>)"
    assert repr(played.rows) == "Rows(<redacted>)"
    assert repr(played.claims[0].keys) == "ClientKeys(<redacted>)"
