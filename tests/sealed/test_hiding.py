"""Perfect hiding, by enumerating every key: what the server sees has one distribution for all inputs with one output.

The equations are those of `ebscfl.sealed`, on Python and numpy integers modulo any p; the last test runs them at
p = 2^31 - 1 with the keys of a real round and finds the real messages. One coordinate, two clients, p = 5 and 7.
Four mutants, each without one ingredient, must fail the same enumeration. The messages of the count check (second tag
and blinding word) are enumerated for one client, with everything else it sends: seven words, uniform together.
"""

from __future__ import annotations

import itertools
from collections import defaultdict

import numpy as np
import pytest
from sealed_round import ROOT, play

from ebscfl.sealed import blind_pads, seal_blind

Ints = np.ndarray
SMALL = pytest.mark.parametrize("p", [5, 7])


def seal_tiny(p: int, x: object, r: object, b: object, kappa: object) -> tuple[Ints, Ints]:
    """c = x + r, t = kappa x + b."""
    return np.mod(x + r, p), np.mod(kappa * x + b, p)  # type: ignore[operator]


def answer_tiny(p: int, rho: object, kappa: object) -> Ints:
    """alpha = rho - kappa."""
    return np.mod(rho - kappa, p)  # type: ignore[operator]


def pad_tiny(p: int, alpha: object, r: object, b: object) -> Ints:
    """A client's part of P: alpha r + b."""
    return np.mod(alpha * r + b, p)  # type: ignore[operator]


def trust(p: int, x: int) -> int:
    """rho: ReLU of the lifted input (a score against G = 1), as the key center computes it."""
    return x if x <= p // 2 else 0


def all_keys(p: int) -> tuple[Ints, Ints, Ints]:
    """Every (r, b, kappa), as three arrays of p^3."""
    grid = np.meshgrid(np.arange(p), np.arange(p), np.arange(p), indexing="ij")
    return grid[0].ravel(), grid[1].ravel(), grid[2].ravel()


def client_view(p: int, x: int, rho: int, mutant: str) -> tuple[Ints, Ints]:
    """(code of (c, t, alpha) in base p + 1, own part of P) under every key."""
    r, b, kappa = all_keys(p)
    if mutant == "no kappa":
        kappa = np.zeros_like(kappa)
    c, t = seal_tiny(p, x, r, b, kappa)
    alpha = answer_tiny(p, rho, kappa)
    part = pad_tiny(p, alpha, r, b)
    if mutant == "alpha only for the accepted" and rho == 0:
        alpha, part = np.full_like(alpha, p), np.zeros_like(part)  # p stands for: no answer, not in the sum
    return (c * (p + 1) + t) * (p + 1) + alpha, part


def server_views(p: int, inputs: tuple[tuple[int, int], ...], mutant: str = "") -> bytes:
    """The multiset of the server's views over all keys of both clients, as the bytes of its histogram."""
    (one, part_one), (two, part_two) = (client_view(p, x, rho, mutant) for x, rho in inputs)
    base = (p + 1) ** 3
    both = one[:, None] * base + two[None, :]
    if mutant == "P per client":
        last = part_one[:, None] * p + part_two[None, :]
        codes, size = both * (p * p) + last, base * base * p * p
    else:
        codes, size = both * p + (part_one[:, None] + part_two[None, :]) % p, base * base * p
    values, counts = np.unique(codes, return_counts=True)
    assert values[-1] < size
    return values.tobytes() + counts.tobytes()


def groups_that_differ(p: int, choices: list[tuple[tuple[int, int], ...]], mutant: str = "") -> list[int]:
    """Outputs for which two inputs give the server different multisets of views."""
    seen: dict[int, set[bytes]] = defaultdict(set)
    for inputs in choices:
        output = sum(rho * x for x, rho in inputs) % p
        seen[output].add(server_views(p, inputs, mutant))
    assert len(seen) > 1
    return sorted(output for output, views in seen.items() if len(views) > 1)


def all_inputs(p: int) -> list[tuple[tuple[int, int], ...]]:
    """All inputs of two clients, with the trust weight that follows from each."""
    return [tuple((x, trust(p, x)) for x in pair) for pair in itertools.product(range(p), repeat=2)]


@SMALL
def test_inputs_with_the_same_output_give_the_same_multiset_of_views(p: int) -> None:
    assert groups_that_differ(p, all_inputs(p)) == []


def test_so_it_is_for_any_weights_whatever() -> None:
    """Weights that do not follow from the inputs (another G, another rule): a sample of all (x, rho) pairs."""
    p = 5
    clients = list(itertools.product(range(p), repeat=2))
    assert groups_that_differ(p, [(a, b) for a in clients[::3] for b in clients[::4]]) == []


@SMALL
@pytest.mark.parametrize("mutant", ["no kappa", "alpha only for the accepted", "P per client"])
def test_every_ingredient_is_needed(p: int, mutant: str) -> None:
    assert groups_that_differ(p, all_inputs(p), mutant) != []


def two_round_views(p: int, inputs: tuple[int, int], reuse: bool) -> bytes:
    """One client's part of the server's view of two rounds, (c, t, alpha) twice, under every key."""
    r, b, kappa = all_keys(p)
    size = p**3
    first = np.repeat(np.arange(size), size)
    second = np.tile(np.arange(size), size)
    if reuse:
        same = kappa[first] == kappa[second]
        first, second = first[same], second[same]
    code = np.zeros(first.size, dtype=np.int64)
    for x, index in zip(inputs, (first, second), strict=True):
        c, t = seal_tiny(p, x, r[index], b[index], kappa[index])
        for part in (c, t, answer_tiny(p, trust(p, x), kappa[index])):
            code = code * p + part
    return np.bincount(code, minlength=p**6).tobytes()


@SMALL
def test_kappa_must_not_serve_two_rounds(p: int) -> None:
    """Fresh keys: the same views whatever the two inputs are. One kappa for both: the difference of weights shows."""
    fresh = {two_round_views(p, pair, reuse=False) for pair in itertools.product(range(p), repeat=2)}
    reused = {two_round_views(p, pair, reuse=True) for pair in itertools.product(range(p), repeat=2)}
    assert len(fresh) == 1
    assert len(reused) > 1


def words_of_a_client(p: int, x: int, rho: int, lam: int, s: int, mutant: str = "") -> bytes:
    """The server's view of one client at a count coordinate under all keys, as a histogram over F_p^7.

    c, t, alpha; the second tag t' = kappa' x + b' and its answer alpha' = lambda rho - kappa'; the blinding word s as
    c_s = s + r_s and t_s = kappa' s + b_s. What the client adds to P and P' follows from these and its part of the
    result, so it tells nothing more: asserted for every key.
    """
    r, b, kappa, b2, kappa2, rs, bs = (axis.ravel() for axis in np.meshgrid(*[np.arange(p)] * 7, indexing="ij"))
    if mutant == "no second kappa":
        kappa2 = np.zeros_like(kappa2)
    if mutant == "no pad on the blinding tag":
        bs = np.zeros_like(bs)
    if mutant == "one pad for both second tags":
        bs = b2
    c, t = seal_tiny(p, x, r, b, kappa)
    alpha = answer_tiny(p, rho, kappa)
    _, t2 = seal_tiny(p, x, r, b2, kappa2)
    alpha2 = answer_tiny(p, lam * rho, kappa2)
    cs, ts = seal_tiny(p, s, rs, bs, kappa2)
    assert np.array_equal(pad_tiny(p, alpha, r, b), (alpha * c + t - rho * x) % p)
    assert np.array_equal(pad_tiny(p, alpha2, r, b2), (alpha2 * c + t2 - lam * rho * x) % p)
    code = np.zeros_like(c)
    for part in (c, t, alpha, t2, alpha2, cs, ts):
        code = code * p + part
    return np.bincount(code, minlength=p**7).tobytes()


@pytest.mark.parametrize("p", [3, 5])
def test_all_seven_words_of_a_client_are_uniform_whatever_it_holds(p: int) -> None:
    uniform = np.ones(p**7, dtype=np.int64).tobytes()
    few = range(p) if p == 3 else (0, 1, 3)
    for x, rho, lam, s in itertools.product(range(p), few, few, few):
        assert words_of_a_client(p, x, rho, lam, s) == uniform


@pytest.mark.parametrize("mutant", ["no second kappa", "no pad on the blinding tag", "one pad for both second tags"])
def test_every_ingredient_of_the_count_check_is_needed(mutant: str) -> None:
    """Over all s: the view without the ingredient differs between two clients that hold different things."""
    views = {
        tuple(sorted(words_of_a_client(3, x, rho, 1, s, mutant) for s in range(3)))
        for x, rho in itertools.product(range(3), repeat=2)
    }
    assert len(views) > 1


def test_the_tiny_equations_are_those_of_the_real_round() -> None:
    """At p = 2^31 - 1, with the keys of a played round: every upload, answer and P."""
    played = play("m31", n=3, dim=30, m=2)
    p = played.params.field.modulus
    total = np.zeros(played.params.width, dtype=object)
    for i, keys in enumerate(played.keys):
        r, b = (row.astype(object) for row in played.pads[i])
        c, t = seal_tiny(p, played.inputs[i].dense(played.params).astype(object), r, b, keys.kappa)
        assert np.array_equal(c, played.uploads[i].words[0])
        assert np.array_equal(t, played.uploads[i].words[1])
        alpha = answer_tiny(p, played.verdicts[i].weight, keys.kappa)
        answer = played.verdicts[i].answer
        assert answer is not None
        assert alpha == answer.alpha
        assert answer_tiny(p, played.lam * played.verdicts[i].weight, keys.guard_kappa) == answer.guard_alpha
        counts = played.inputs[i].dense(played.params)[played.params.dim :: played.params.slot_size].astype(object)
        _, second = seal_tiny(p, counts, 0, keys.guard_pad.astype(object), keys.guard_kappa)
        assert np.array_equal(second, played.uploads[i].guard)
        r_s, b_s = (int(word) for word in blind_pads(played.params, keys))
        blind = [int(word) for word in seal_blind(played.params, keys, ROOT, 1)]
        s = (blind[0] - r_s) % p
        assert blind[1] == (keys.guard_kappa * s + b_s) % p
        total = (total + pad_tiny(p, int(alpha), r, b)) % p
    assert np.array_equal(total, played.pads_sum.words)
