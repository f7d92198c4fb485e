"""Numbers as text, what counts as best, and the headline table."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_run import ATTACKS, METHODS, write_run

from ebscfl.report import load_run
from ebscfl.report.tables import (
    COLUMNS,
    attack_name,
    best_of,
    byte_size,
    duration,
    headline,
    method_name,
    moment,
    number,
    percent,
    share_percent,
    verdict,
)

HIGH = next(c for c in COLUMNS if c.key == "fa")
LOW = next(c for c in COLUMNS if c.key == "asr")


@pytest.mark.parametrize(
    ("value", "text"),
    [(93.125, "93.12"), (0.0, "0.00"), (-0.001, "0.00"), (-1.5, "-1.50"), (100.0, "100.00")]
    + [(bad, "-") for bad in (None, math.nan, math.inf, -math.inf)],
)
def test_percent(value, text):
    assert percent(value) == text


def test_share_percent_is_a_hundred_times_the_share():
    assert share_percent(0.4) == percent(40.0)
    assert share_percent(None) == "-"


@given(st.floats(-1e6, 1e6), st.integers(0, 4))
def test_number_is_within_half_a_unit_of_its_last_digit(value, digits):
    text = number(value, digits)
    assert abs(float(text) - value) <= 0.5 * 10.0**-digits * (1 + 1e-6) + 1e-9
    assert not text.startswith("-") or float(text) < 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.42, "0.42 s"),
        (9.996, "10.0 s"),
        (59.96, "1 min 00 s"),
        (2 * 60 + 5, "2 min 05 s"),
        (59 * 60 + 59.6, "1 h 00 min"),
        (3 * 3600 + 7 * 60, "3 h 07 min"),
        (None, "-"),
        (math.nan, "-"),
    ],
)
def test_duration(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (794 * 1024, "794.00 KiB"),
        (1.5 * 2**30, "1.50 GiB"),
        (2**41, "2.00 TiB"),
        (None, "-"),
    ],
)
def test_byte_size(count, text):
    assert byte_size(count) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("2026-01-01T12:00:00Z", "2026-01-01 12:00 UTC"),
        ("2026-01-01T01:30:59+02:00", "2025-12-31 23:30 UTC"),
        ("2026-01-01T12:00:00", "2026-01-01 12:00"),
        ("yesterday", "yesterday"),
        ("", "-"),
        (None, "-"),
    ],
)
def test_moment(text, shown):
    assert moment(text) == shown


def test_names():
    assert method_name("multi_krum") == method_name("multi-krum") == "Multi-Krum"
    assert method_name("mine") == "mine"
    assert attack_name("none") == "no attack"
    assert attack_name("label-flip") == attack_name("label_flip") == "label flip"


@pytest.mark.parametrize(
    ("values", "column", "winners"),
    [
        ([1.0, 3.0, 2.0], HIGH, {1}),
        ([1.0, 3.0, 2.0], LOW, {0}),
        ([3.0, 3.0, 2.0], HIGH, {0, 1}),
        ([3.001, 3.004, 2.0], HIGH, {0, 1}),  # both read 3.00
        ([2.0, 2.0], HIGH, set()),
        ([2.0, None], HIGH, set()),
        ([None, 1.0, 2.0], LOW, {1}),
        ([], HIGH, set()),
    ],
)
def test_best_of(values, column, winners):
    assert best_of(values, column) == winners


def test_headline_groups_methods_by_attack(tmp_path):
    run = load_run(write_run(tmp_path / "run", rounds=3))
    groups = headline(run)
    assert [g.attack for g in groups] == [*ATTACKS, "none"]
    assert all(tuple(row.method for row in g.rows) == METHODS for g in groups)
    assert all(row.note == "" for g in groups for row in g.rows)
    assert "backdoor" not in {e.column.key for e in groups[0].rows[0].entries}
    for group in groups:
        best = [e for row in group.rows for e in row.entries if e.best]
        assert best
        if group.attack == "none":
            assert {e.column.key for e in best} <= {"fa", "ma", "na", "seconds"}


def test_headline_says_where_a_cell_stopped(tmp_path):
    run = load_run(write_run(tmp_path / "run", rounds=5, stop_after=2))
    last = headline(run)[-1].rows[-1]
    assert last.note == "stopped after round 2"
    assert {e.text for e in last.entries} == {"-"}


def test_verdict_names_highest_and_lowest(tmp_path):
    run = load_run(write_run(tmp_path / "run", rounds=30))
    sentences = verdict(run)
    assert len(sentences) == len(ATTACKS)
    for attack, sentence in zip(ATTACKS, sentences, strict=True):
        by_accuracy = sorted((r for r in run.results if r.attack == attack), key=lambda r: r.fa)
        assert f"{method_name(by_accuracy[-1].method)} ends highest at {percent(by_accuracy[-1].fa, 1)}" in sentence
        assert f"{method_name(by_accuracy[0].method)} lowest at {percent(by_accuracy[0].fa, 1)}" in sentence
