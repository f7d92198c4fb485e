"""Which charts are shown, and how long runs are thinned."""

import pytest
from synthetic_run import ATTACKS, METHODS, write_run

from ebscfl.report import load_run
from ebscfl.report.figures import MAX_COLUMNS, accuracy_tabs, attack_tab, thin


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return load_run(write_run(tmp_path_factory.mktemp("figures") / "run", rounds=6))


@pytest.mark.parametrize("count", [0, 1, 2, MAX_COLUMNS, MAX_COLUMNS + 1, 3 * MAX_COLUMNS + 2])
def test_thin_keeps_the_last_round_and_the_limit(run, count):
    records = list(run.cells[0].rounds)
    rounds = [records[i % len(records)] for i in range(count)]
    kept = thin(rounds)
    assert len(kept) <= MAX_COLUMNS
    assert kept[-1:] == rounds[-1:]
    if count <= MAX_COLUMNS:
        assert kept == rounds


def test_accuracy_has_one_chart_per_method_and_way_of_measuring(run):
    tabs = accuracy_tabs(run)
    assert [tab.label for tab in tabs] == ["Clients' own data", "Global test set"]
    for tab in tabs:
        (block,) = tab.blocks
        assert len(block.figures) == len(METHODS)
        assert [label for _, label in block.legend] == ["no attack", "label flip", "sine"]
        assert all(figure.svg.count('class="line ') == len(ATTACKS) + 1 for figure in block.figures)


def test_every_block_explains_itself_and_shows_every_method(run):
    for attack in run.attacks:
        blocks = attack_tab(run, attack).blocks
        assert len(blocks) == 4  # weights, cluster accuracy, clusters, confusion; no backdoor recorded
        for block in blocks:
            assert len(block.figures) == len(METHODS)
            assert block.explanation.endswith(".")
            assert all(figure.svg or figure.note for figure in block.figures)


def test_weight_notes_tell_the_attackers_share(run):
    notes = {figure.heading: figure.note for figure in attack_tab(run, "sine").blocks[0].figures}
    assert notes["FedAvg"] == "Attackers hold 40.00 % of the weight."  # 8 of 20, equal weights
    assert all(figure.note == "" for figure in attack_tab(run, "none").blocks[0].figures)


def test_events_name_their_round(run):
    (ifca, rfca) = attack_tab(run, "sine").events
    assert (ifca[0], rfca[0]) == ("IFCA", "RFCA")
    assert ifca[1] == ("round 3: cluster 3 is empty: it keeps its model",)
    assert ifca[2] == 0


def test_long_runs_say_that_rounds_are_left_out(tmp_path):
    rounds = 2 * MAX_COLUMNS
    long = load_run(write_run(tmp_path / "run", rounds=rounds, methods=("fedavg",), attacks=()))
    (figure,) = attack_tab(long, "none").blocks[0].figures
    assert figure.note == f"{MAX_COLUMNS} of {rounds} rounds are drawn."
