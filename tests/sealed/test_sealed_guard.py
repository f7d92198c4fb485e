"""False second tags are seen when they come, and the check shows the key center nothing about the slot."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest
from sealed_round import ROOT, play

from ebscfl.rng import derive
from ebscfl.sealed import Upload, blind_pads, guard_holds, guard_products, guard_row, seal_blind

both = pytest.mark.parametrize("field", ["m31", "m61"])


def products_of(
    played: object, upload: Upload, blind: np.ndarray, seed: bytes, client: int = 0
) -> tuple[np.ndarray, ...]:
    """The server's products and the key center's."""
    params, keys = played.params, played.keys[client]  # type: ignore[attr-defined]
    row = guard_row(params, seed)
    counts = upload.words[0, params.dim :: params.slot_size]
    own = played.pads[client][0, params.dim :: params.slot_size]  # type: ignore[attr-defined]
    sent = guard_products(params, counts, upload.guard, blind, row)
    return sent, guard_products(params, own, keys.guard_pad, blind_pads(params, keys), row)


@both
def test_true_tags_hold_and_any_false_word_fails(field: str) -> None:
    played = play(field, n=2, dim=20, m=3)
    params, upload = played.params, played.uploads[0]
    blind = seal_blind(params, played.keys[0], ROOT, 1)
    for trial in range(50):
        seed = derive(ROOT, "test", trial)
        assert guard_holds(params, *products_of(played, upload, blind, seed), played.keys[0])
        for k in range(3):
            guard = upload.guard.copy()
            guard[k] = (int(guard[k]) + 1 + trial) % params.field.modulus
            assert not guard_holds(
                params, *products_of(played, Upload(upload.words, guard), blind, seed), played.keys[0]
            )
        false_blind = params.field.add(blind, np.array([0, 1], dtype=blind.dtype))
        assert not guard_holds(params, *products_of(played, upload, false_blind, seed), played.keys[0])
        assert not guard_holds(params, *products_of(played, upload, blind, seed), played.keys[1])


def test_products_match_python_integers() -> None:
    played = play("m31", n=1, dim=20, m=3)
    params, upload, p = played.params, played.uploads[0], played.params.field.modulus
    blind = seal_blind(params, played.keys[0], ROOT, 1)
    row = [int(v) for v in guard_row(params, ROOT)]
    sent, _ = products_of(played, upload, blind, ROOT)
    counts = [int(v) for v in upload.words[0, params.dim :: params.slot_size]] + [int(blind[0])]
    tags = [int(v) for v in upload.guard] + [int(blind[1])]
    assert [int(v) for v in sent] == [sum(a * b for a, b in zip(x, row, strict=True)) % p for x in (counts, tags)]


def test_what_the_key_center_sees_is_uniform_whatever_the_slot() -> None:
    """Enumerated over F_5: <count, h> + h_s s over all s, for every h and slot; without s it names the slot."""
    p, half = 5, 3
    for h in product(range(p), range(p), range(1, p)):
        views = [Counter((half * h[slot] + h[2] * s) % p for s in range(p)) for slot in range(2)]
        assert views[0] == views[1] == Counter(range(p))
    naked = [(half * 1) % p, (half * 2) % p]
    assert naked[0] != naked[1]


def test_what_the_server_sees_of_the_blinding_is_uniform_whatever_it_is() -> None:
    """(s + r_s, kappa' s + b'_s) over all pads, for every s and kappa'."""
    p = 5
    uniform = Counter(product(range(p), range(p)))
    for s, kappa in product(range(p), range(p)):
        assert Counter(((s + r) % p, (kappa * s + b) % p) for r, b in product(range(p), repeat=2)) == uniform


def test_the_blinding_never_falls_away() -> None:
    params = play("m31", n=1, dim=20, m=3).params
    assert all(int(guard_row(params, derive(ROOT, "row", k))[-1]) > 0 for k in range(200))
