"""A role's threads: order, errors, and no thread where none helps."""

from __future__ import annotations

import threading

import pytest

from ebscfl.sealed import Workers, workers_for
from ebscfl.sealed.workers import MOST_THREADS, THREADED_WIDTH


@pytest.mark.parametrize("threads", [1, 3])
def test_results_come_in_the_order_of_the_items(threads: int) -> None:
    workers = Workers(threads)
    for _ in range(2):
        assert workers.map(lambda v: v * v, range(20)) == [v * v for v in range(20)]
    assert workers.map(lambda v: v, []) == []


@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_reaches_the_caller(threads: int) -> None:
    with pytest.raises(ZeroDivisionError):
        Workers(threads).map(lambda v: 1 // v, [1, 0, 2])


def test_threads_are_opened_once() -> None:
    workers, seen = Workers(2), set()
    for _ in range(10):
        seen |= set(workers.map(lambda _: threading.get_ident(), range(4)))
    assert len(seen) <= 2
    assert threading.get_ident() not in seen


def test_short_inputs_and_single_items_stay_in_place() -> None:
    assert workers_for(THREADED_WIDTH - 1).threads == 1
    assert 1 <= workers_for(THREADED_WIDTH).threads <= MOST_THREADS
    assert workers_for(THREADED_WIDTH, 0).threads == 1
    assert Workers(4).map(lambda _: threading.get_ident(), [0]) == [threading.get_ident()]
