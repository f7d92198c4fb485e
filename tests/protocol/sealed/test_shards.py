"""Partial sums of two processes merge to the bits of one, on both sides."""

from __future__ import annotations

import subprocess
import sys
from itertools import permutations
from pathlib import Path

import numpy as np
from sealed_lab import Lab, N, make_lab

from ebscfl.ids import client_address
from ebscfl.protocol.messages import SealedUpload
from ebscfl.protocol.sealed.shards import pad_sum, upload_sum
from ebscfl.sealed import Answer, RunningSum, merge


def answered() -> tuple[Lab, dict[int, Answer]]:
    """A round up to its release, and everybody's answer."""
    lab = make_lab()
    lab.start(1)
    for i, upload in enumerate(lab.uploads(1)):
        lab.deliver(lab.to_server(upload, client_address(i)))
    lab.close()
    stored = lab.kdc._store.answers(1)
    return lab, {i: Answer(a.alpha, a.guard_alpha) for i, a in stored.items()}


def partial_sums(clients: range) -> list[RunningSum]:
    """[y, P] over ``clients``: what one process does with its uploads, keys and answers."""
    lab, answers = answered()
    fresh = make_lab().uploads(1)  # the same bytes as those the roles saw
    mine = [(u, answers[i]) for i, u in enumerate(fresh) if i in clients and isinstance(u, SealedUpload)]
    masters = {i: lab.kdc._store.master_key(i) or b"" for i in clients}
    run = lab.setup.run_id.hex()
    return [upload_sum(lab.params, mine), pad_sum(lab.params, run, 1, masters, {i: answers[i] for i in clients})]


def in_another_process(low: int, high: int) -> subprocess.Popen[bytes]:
    paths = [str(Path(__file__).parent), *filter(None, sys.path)]
    script = (
        f"import sys; sys.path[:0] = {paths!r}\n"
        "from test_shards import partial_sums\n"
        f"for s in partial_sums(range({low}, {high})):\n"
        "    sys.stdout.buffer.write(s.words.tobytes() + s.guard.tobytes())\n"
    )
    return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)


def test_two_processes_give_the_bits_of_one() -> None:
    lab, _ = answered()
    params = lab.params
    children = [in_another_process(0, 3), in_another_process(3, N)]
    size = (params.width + params.num_clusters) * params.field.word_size
    shards: list[list[RunningSum]] = [[], []]  # of y, of P
    for child in children:
        data, _ = child.communicate(timeout=120)
        assert child.returncode == 0
        assert len(data) == 2 * size
        for which in range(2):
            words = np.frombuffer(data[which * size : (which + 1) * size], dtype=params.field.dtype)
            shards[which].append(RunningSum(words[: params.width].copy(), words[params.width :].copy()))
    current = lab.kdc._current()
    assert current is not None
    for which, whole in enumerate((lab.server.running_sum, current.total)):
        merged = merge(params, shards[which])
        assert np.array_equal(merged.words, whole.words)
        assert np.array_equal(merged.guard, whole.guard)
    # The server goes on with what its shards gave and comes to the reference.
    lab.server._sum = merge(params, shards[0])
    lab.deliver(lab.server.finish_round())
    assert lab.server.outcome is not None
    assert np.array_equal(lab.server.outcome.aggregates, lab.reference(range(N)))


def test_merging_is_associative_and_commutative() -> None:
    lab, _ = answered()
    parts = [partial_sums(part)[1] for part in (range(2), range(2, 5), range(5, N))]
    want = merge(lab.params, parts)
    for order in permutations(parts):
        nested = merge(lab.params, [merge(lab.params, order[:2]), order[2]])
        assert np.array_equal(nested.words, want.words)
        assert np.array_equal(nested.guard, want.guard)
