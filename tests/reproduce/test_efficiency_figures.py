"""Bytes in the figures are those of real rounds, slopes are slopes, and every file is written."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from ebscfl.errors import ConfigError, UsageError
from ebscfl.reproduce import complexity, efficiency, features, plots, registry, secure_sums


@pytest.mark.parametrize("protocol", ["plain", "sealed", "paper"])
@pytest.mark.parametrize("clusters", [1, 3])
def test_client_bytes_are_those_of_a_real_round(protocol: str, clusters: int) -> None:
    sizes = efficiency.client_bytes(protocol, clients=6, clusters=clusters, dim=41)
    row = secure_sums.measure(protocol, clients=6, dim=41, clusters=clusters)
    assert sizes["upload"] == row["client_upload_bytes"]
    assert sizes["download"] == row["client_download_bytes"]
    assert (sizes["setup"] > 0) == (protocol == "paper")


def test_the_papers_model_is_the_mlp() -> None:
    assert efficiency.MODEL_DIM * 4 == 794 * 1024


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
def test_a_slope_is_the_exponent_of_a_power(exponent: float) -> None:
    assert complexity.slope([(x, 3 * x**exponent) for x in (1, 10, 20, 400)]) == pytest.approx(exponent)


def test_slopes_look_at_the_upper_half_only() -> None:
    assert complexity.slope([(1, 5.0), (2, 5.0), (10, 10.0), (100, 100.0)]) == pytest.approx(1.0)
    with pytest.raises(ConfigError, match="two points"):
        complexity.slope([(1, 1)])


def test_exponents_of_claims_are_found_in_rows_that_follow_them() -> None:
    rows = []
    for varied, values in (("clients", (50, 100, 200, 400)), ("dim", (10**5, 10**6)), ("clusters", (1, 2, 4, 8))):
        for value in values:
            point = {"clients": 20, "dim": 20_000, "clusters": 1} | {varied: value}
            n, d, m = (float(point[key]) for key in ("clients", "dim", "clusters"))
            for protocol, costs in complexity.CLAIMS.items():
                slots = protocol in ("paper", "sealed")
                made = {
                    cost: 7.0 * (claim(n, d, m) if slots else claim(n, m * d, 1.0))
                    for cost, (_, claim) in costs.items()
                }
                rows.append({"varied": varied, "protocol": protocol, **point, **made})
    for line in complexity.exponents(rows):
        for varied in ("clients", "dim", "clusters"):
            assert line[f"{varied}_measured"] == pytest.approx(line[f"{varied}_claimed"])
    # m^2 (n m l + ...) at l >> n, m: cubic in m but for nl log n, which is m^2
    paper = next(x for x in complexity.exponents(rows) if x["protocol"] == "paper" and x["cost"] == "server_cpu_s")
    assert 2 < paper["clusters_claimed"] < 3
    assert paper["dim_claimed"] == pytest.approx(1.0, abs=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("name", [item.name for item in registry.ITEMS if item.available and item.folder])
def test_every_efficiency_item_is_made_at_smoke_scale(name: str, tmp_path: Path) -> None:
    paths = registry.make(name, tmp_path, scale="smoke")
    assert paths
    assert all(path.stat().st_size > 100 and path.parent == tmp_path / "efficiency" for path in paths)
    for path in paths:
        if path.suffix == ".csv":
            with path.open() as file:
                assert len(list(csv.DictReader(file))) > 2
        if path.suffix == ".json":
            assert json.loads(path.read_text())["rows"]


def test_drawings_are_the_same_bytes_for_the_same_data(tmp_path: Path) -> None:
    made = []
    for folder in ("one", "two"):
        figure, (axis,) = plots.new_figure(1)
        plots.line(axis, "sealed", [(1, 2), (3, 4)])
        plots.label(axis, "title", "x", "y", log="xy")
        plots.legend_below(figure, axis)
        made.append([path.read_bytes() for path in plots.save(figure, tmp_path / folder, "it")])
    assert made[0] == made[1]
    with pytest.raises(UsageError, match="no rows"):
        plots.write_csv([], tmp_path, "it")


def test_the_registry_knows_every_label_of_the_paper_and_says_what_is_missing(tmp_path: Path) -> None:
    assert len({item.name for item in registry.ITEMS}) == len(registry.ITEMS)
    assert {"table-noniid", "table-iid", "figure-model-accuracy", "figure-cifar100-lf", "figure-convergence"} <= set(
        registry.BY_NAME
    )
    with pytest.raises(ConfigError, match="--list"):
        registry.make("figure-9", tmp_path)
    with pytest.raises(ConfigError, match="scale"):
        registry.make("table-features", tmp_path, scale="huge")
    for item in registry.ITEMS:
        if not item.available:
            with pytest.raises(ConfigError, match=item.name):
                registry.make(item.name, tmp_path)


def test_features_name_the_broken_scheme_and_sources() -> None:
    text = features.markdown()
    assert "broken" in next(line for line in text.splitlines() if line.startswith("| PEFL"))
    assert all(feature.source for feature in features.FEATURES)
    assert {"SwiftAgg+", "PEFL", "SAFELearning", "RFLPA", "SAFEFL"} <= {feature.scheme for feature in features.FEATURES}
    assert len({line.count("|") for line in text.splitlines()}) == 1
