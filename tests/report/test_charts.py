"""Geometry of the charts, and that each is well-formed XML that escapes what it is given."""

import base64
import io
import xml.etree.ElementTree as ET
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from ebscfl.errors import UsageError
from ebscfl.report.charts import (
    WIDTH,
    MapRow,
    Series,
    cluster_map,
    confusion_matrix,
    legend_swatch,
    line_chart,
    runs,
    spread,
    stacked_bar,
    ticks,
    weight_map,
)

HOSTILE = "<script>alert('x')</script> & \"quotes\""


def rows(n, attackers=(), domains=None):
    return [MapRow(i, i in attackers, f"client {i}", domains[i] if domains else None) for i in range(n)]


def numbers(element):
    return {key: float(element.attrib[key]) for key in ("x", "y", "width", "height")}


def pixels(svg):
    """The gray values of the one mask in a chart."""
    (image,) = ET.fromstring(svg).iter("image")
    data = image.attrib["href"].removeprefix("data:image/png;base64,")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


@given(st.floats(0.5, 1e6), st.booleans())
def test_ticks_start_at_zero_and_stay_inside(top, integer):
    values = ticks(top, integer=integer)
    assert values[0] == 0
    assert values[-1] <= top * (1 + 1e-9)
    assert len(values) <= 7
    assert np.allclose(np.diff(values), values[1] - values[0] if len(values) > 1 else 0)
    if integer:
        assert all(v == int(v) for v in values)


def test_ticks_of_a_percentage():
    assert ticks(100.0) == [0, 20, 40, 60, 80, 100]
    assert ticks(3.0, integer=True) == [0, 1, 2, 3]
    assert ticks(0.0) == [0.0]


@given(st.lists(st.integers(0, 3), max_size=30))
def test_runs_tile_the_list_with_constant_pieces(values):
    pieces = runs(values)
    assert [v for a, b in pieces for v in values[a:b]] == values
    assert all(len(set(values[a:b])) == 1 for a, b in pieces)
    assert all(values[b - 1] != values[b] for _, b in pieces[:-1])


@given(st.lists(st.floats(0, 100), max_size=8))
def test_spread_keeps_order_range_and_gap(positions):
    moved = spread(positions, 10.0, 0.0, 100.0)
    assert all(-1e-6 <= p <= 100 + 1e-6 for p in moved)
    order = sorted(range(len(positions)), key=lambda i: positions[i])
    assert all(moved[b] - moved[a] >= 10.0 - 1e-6 for a, b in pairwise(order))


def test_spread_leaves_what_is_far_enough_apart():
    assert spread([50.0, 10.0, 90.0], 10.0, 0.0, 100.0) == [50.0, 10.0, 90.0]


def test_line_chart_puts_points_where_the_axes_say():
    series = Series("a", ((0.0, 0.0), (5.0, 50.0), (10.0, 100.0)), 0)
    svg = ET.fromstring(line_chart([series], title="t", y_label="%"))
    (line,) = (e for e in svg.iter("path") if e.attrib.get("class") == "line s0")
    (x0, y0), (x1, y1), (x2, y2) = (map(float, p.split()) for p in line.attrib["d"].removeprefix("M").split("L"))
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.02)
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.02)
    grid = [float(e.attrib["d"].split()[1].split("H")[0]) for e in svg.iter("path") if e.attrib.get("class") == "grid"]
    assert (max(grid), min(grid)) == (y0, y2)
    assert x2 < WIDTH


def test_line_chart_without_points_and_with_one():
    ET.fromstring(line_chart([], title="t", y_label="%"))
    ET.fromstring(line_chart([Series("a", ((0.0, 7.0),), 3, "A")], title="t", y_label="%"))


def test_series_differ_in_more_than_color():
    lines = [legend_swatch(i) for i in range(8)]
    stripped = {line.replace(f"s{i}", "").replace(f"f{i}", "") for i, line in enumerate(lines)}
    assert len(stripped) == 8


def test_weight_map_is_linear_up_to_three_equal_shares():
    n = 10  # equal share 0.1: the scale ends at 0.3
    weights = np.full((n, 3), 0.1)
    weights[0] = [0.0, 0.3, 0.9]
    weights[1] = [np.nan, 0.2, 0.1]
    gray = pixels(weight_map(rows(n, attackers=(0,)), weights, [1, 2, 3], name="m", title="t"))
    assert gray.shape == (n, 3)
    assert gray[0].tolist() == [0, 255, 255]
    assert gray[1].tolist() == [0, 255 * 2 // 3, 255 // 3]
    assert np.all(gray[2:] == 255 // 3)


def test_weight_map_marks_attackers_by_shape_and_hatching():
    weights = np.full((4, 2), 0.25)
    svg = ET.fromstring(weight_map(rows(4, attackers=(0, 1)), weights, [1, 2], name="m", title="t"))
    assert sum(e.attrib.get("class") == "attacker" for e in svg.iter("path")) == 2
    (strip,) = (numbers(e) for e in svg.iter("rect") if e.attrib.get("class") == "strip")
    (plot,) = (numbers(e) for e in svg.iter("rect") if e.attrib.get("class") == "plot")
    assert strip["height"] == pytest.approx(plot["height"] * 2 / 4)
    assert any(e.attrib.get("fill") == "url(#hatch)" for e in svg.iter("rect"))
    honest = weight_map(rows(4), weights, [1, 2], name="m", title="t")
    assert "attacker" not in honest
    assert "#hatch" not in honest


@pytest.mark.parametrize("n", [1, 2, 7, 20, 100, 500])
@pytest.mark.parametrize("columns", [1, 3, 40, 240])
def test_maps_stay_on_the_canvas(n, columns):
    rounds = list(range(1, columns + 1))
    domains = [4 * i // n for i in range(n)]
    charts = (
        weight_map(rows(n, attackers=(0,)), np.full((n, columns), 1 / n), rounds, name="m", title="t"),
        cluster_map(rows(n, domains=domains), np.zeros((n, columns), dtype=np.int64), rounds, title="t"),
    )
    for chart in charts:
        svg = ET.fromstring(chart)
        _, _, width, height = map(float, svg.attrib["viewBox"].split())
        for element in svg.iter("rect"):
            box = numbers(element)
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= width + 0.05
            assert box["y"] + box["height"] <= height
            assert box["height"] >= 0
        for element in svg.iter("text"):
            assert 0 <= float(element.attrib["y"]) <= height


@pytest.mark.parametrize("rounds", [[5], list(range(1, 41)), list(range(2, 301, 2)), list(range(3, 30_000, 130))])
def test_round_labels_name_their_column_and_do_not_touch(rounds):
    svg = ET.fromstring(weight_map(rows(2), np.full((2, len(rounds)), 0.5), rounds, name="m", title="t"))
    (plot,) = (numbers(e) for e in svg.iter("rect") if e.attrib.get("class") == "plot")
    below = [e for e in svg.iter("text") if float(e.attrib["y"]) == plot["y"] + plot["height"] + 13]
    column = plot["width"] / len(rounds)
    edge = 0.0
    assert below
    for label in below:
        assert label.text is not None
        x, half = float(label.attrib["x"]), 3.6 * len(label.text)
        assert abs(x - (plot["x"] + column * (rounds.index(int(label.text)) + 0.5))) <= half + 0.02
        assert x - half >= edge
        edge = x + half
    assert edge <= WIDTH


def test_cluster_map_draws_one_path_per_cluster_covering_its_cells():
    clusters = np.array([[0, 0, 1], [1, 1, 1]])
    svg = ET.fromstring(cluster_map(rows(2, domains=[0, 1]), clusters, [1, 2, 3], title="t"))
    area = {}
    for path in svg.iter("path"):
        kind = path.attrib.get("class", "")
        if kind.startswith("b") and kind[1:].isdigit():
            pieces = path.attrib["d"].removesuffix("z").split("z")
            area[int(kind[1:])] = sum(
                float(p.split("h")[1].split("v")[0]) * float(p.split("v")[1].split("h")[0]) for p in pieces
            )
    assert area[1] / area[0] == pytest.approx(4 / 2, rel=1e-3)
    labels = {e.text for e in svg.iter("text")}
    assert {"D0", "D1"} <= labels
    assert {e.text for e in svg.iter("text") if "bold" in e.attrib.get("class", "") and e.text[0] == "C"} == {"C1"}


def test_cluster_map_margin_follows_honest_clients_only():
    clusters = np.array([[2], [2], [1]])
    svg = ET.fromstring(cluster_map(rows(3, attackers=(0, 1), domains=[0, 0, 0]), clusters, [1], title="t"))
    assert [e.text for e in svg.iter("text") if e.attrib.get("class", "").endswith(" bold")] == ["C1", "D0"]


def test_confusion_rows_are_percentages_of_their_class():
    svg = ET.fromstring(confusion_matrix([[3, 1], [0, 0]], name="c", title="t"))
    shown = [e.text for e in svg.iter("text") if e.attrib.get("class", "").startswith("cell")]
    assert shown == ["75", "25"]  # the class without images stays empty


def test_confusion_of_many_classes_is_a_picture():
    gray = pixels(confusion_matrix(np.eye(100).tolist(), name="c", title="t"))
    assert np.array_equal(gray, np.eye(100, dtype=np.uint8) * 255)


def test_stacked_bar_parts_are_shares_of_the_total():
    svg = ET.fromstring(stacked_bar({"train": 3.0, "cluster": 1.0}, 8.0))
    bars = [float(e.attrib["width"]) for e in svg.iter("rect") if e.attrib.get("class")]
    assert bars == [WIDTH * 3 / 8, WIDTH * 1 / 8]
    ET.fromstring(stacked_bar({"train": 0.0}, 0.0))


def test_everything_is_escaped():
    point = ((0.0, 1.0), (1.0, 2.0))
    row = [MapRow(0, True, HOSTILE, 0)]
    one = np.ones((1, 1))
    for chart in (
        line_chart([Series(HOSTILE, point, 0, HOSTILE)], title=HOSTILE, y_label=HOSTILE),
        weight_map(row, one, [1], name=HOSTILE, title=HOSTILE),
        cluster_map(row, one.astype(np.int64), [1], title=HOSTILE),
        confusion_matrix([[1.0]], name=HOSTILE, title=HOSTILE),
        stacked_bar({HOSTILE: 1.0}, 1.0),
    ):
        ET.fromstring(chart)
        assert "<script" not in chart


def test_shapes_must_agree():
    with pytest.raises(UsageError, match=r"weights are \(2, 3\) for 2 clients and 1 rounds"):
        weight_map(rows(2), np.zeros((2, 3)), [1], name="m", title="t")
    with pytest.raises(UsageError, match=r"clusters are \(1, 1\) for 2 clients"):
        cluster_map(rows(2), np.zeros((1, 1), dtype=np.int64), [1], title="t")
