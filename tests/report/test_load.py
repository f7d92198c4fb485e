"""Reading a run back: what a complete and a partial run give, and which line each bad file earns."""

import json
import math

import pytest
from synthetic_run import ATTACKERS, ATTACKS, CLIENTS, CONFIG, DOMAINS, METHODS, write_run

from ebscfl.errors import DataError, UsageError
from ebscfl.report.load import load_run


@pytest.fixture
def run_dir(tmp_path):
    return write_run(tmp_path / "run", rounds=4)


def edit_line(run_dir, index, **changes):
    """Change fields of one line of metrics.jsonl; ``...`` as value removes the field."""
    path = run_dir / "metrics.jsonl"
    lines = path.read_text().splitlines()
    record = json.loads(lines[index]) | changes
    lines[index] = json.dumps({k: v for k, v in record.items() if v is not ...})
    path.write_text("\n".join(lines) + "\n")


def edit_json(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_complete_run(run_dir):
    run = load_run(run_dir)
    assert run.info.complete
    assert run.info.seed == "7"
    assert run.config == CONFIG
    assert run.evaluation == "own"
    assert run.methods == METHODS
    assert run.attacks == (*ATTACKS, "none")
    assert len(run.cells) == len(METHODS) * (len(ATTACKS) + 1)
    cell = run.cell("rfca", "sine")
    assert cell is not None
    assert cell.end is not None
    assert [r.round_id for r in cell.rounds] == [0, 1, 2, 3, 4]
    assert cell.num_clients == CLIENTS
    assert cell.attackers == set(ATTACKERS)
    assert cell.end.client_domain == DOMAINS
    written = json.loads((run_dir / "results.json").read_text())["results"]
    assert [vars(row) for row in run.results] == written


def test_a_round_written_twice_counts_once_and_the_later_line_wins(run_dir):
    path = run_dir / "metrics.jsonl"
    first = json.loads(path.read_text().splitlines()[1])
    with path.open("a") as file:
        file.write(json.dumps(first | {"accuracy_own": 12.5}) + "\n")
    cell = load_run(run_dir).cell(first["method"], first["attack"])
    assert cell is not None
    assert [r.accuracy_own for r in cell.rounds if r.round_id == first["round"]] == [12.5]


def test_nan_and_infinity_read_as_missing(run_dir):
    edit_line(run_dir, 1, accuracy_own=math.nan, accuracy_global=math.inf)
    record = load_run(run_dir).cells[0].rounds[1]
    assert record.accuracy_own is None
    assert record.accuracy_global is None


def test_partial_run_needs_no_results_and_forgives_a_torn_last_line(tmp_path):
    run_dir = write_run(tmp_path / "run", rounds=4, stop_after=2)
    assert not (run_dir / "results.json").exists()
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "round", "method": "rf')
    run = load_run(run_dir)
    last = run.cells[-1]
    assert not run.info.complete
    assert last.end is None
    assert [r.round_id for r in last.rounds] == [0, 1, 2]
    first_end = run.cells[0].end
    assert first_end is not None
    assert run.results[0].fa == first_end.fa
    assert run.results[0].attacker_weight_share == 100 * first_end.attacker_weight_share
    assert run.results[0].na is None
    assert run.results[-1].fa is None


def test_round_0_marks_the_attackers_of_a_cell_that_has_not_finished(tmp_path):
    run_dir = write_run(tmp_path / "run", rounds=4, stop_after=2)
    last = load_run(run_dir).cells[-1]
    assert not last.attackers_known
    assert (last.attackers, last.client_domain) == (set(), ())
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    first = max(i for i, line in enumerate(lines) if line.get("round") == 0)
    edit_line(run_dir, first, attackers=[2, 5], client_domain=[1] * CLIENTS)
    last = load_run(run_dir).cells[-1]
    assert last.attackers_known
    assert (last.attackers, last.client_domain) == ({2, 5}, (1,) * CLIENTS)
    edit_line(run_dir, first, attackers=[CLIENTS])
    with pytest.raises(DataError, match="attackers must be client ids below 20"):
        load_run(run_dir)
    edit_line(run_dir, first, attackers=[2], client_domain=[0])
    with pytest.raises(DataError, match="client_domain has 1 entries for 20 clients"):
        load_run(run_dir)


def test_run_stopped_before_its_first_line(tmp_path):
    run_dir = write_run(tmp_path / "run", rounds=4, stop_after=2)
    (run_dir / "metrics.jsonl").unlink()
    (run_dir / "config.toml").write_text("")
    run = load_run(run_dir)
    assert (run.cells, run.results, run.attacks, run.evaluation) == ((), (), (), "")


def test_a_torn_line_is_refused_in_a_complete_run_and_in_the_middle(tmp_path, run_dir):
    path = run_dir / "metrics.jsonl"
    path.write_text(path.read_text() + '{"kind": "rou')
    lines = len(path.read_text().splitlines())
    with pytest.raises(DataError, match=rf"metrics\.jsonl, line {lines} is not valid JSON"):
        load_run(run_dir)
    partial = write_run(tmp_path / "partial", rounds=4, stop_after=2)
    path = partial / "metrics.jsonl"
    path.write_text("{\n" + path.read_text())
    with pytest.raises(DataError, match=r"line 1 is not valid JSON"):
        load_run(partial)


def test_no_run_there(tmp_path):
    with pytest.raises(UsageError, match="is not a directory"):
        load_run(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"run\.json is missing"):
        load_run(tmp_path)


@pytest.mark.parametrize("name", ["config.toml", "metrics.jsonl", "results.json"])
def test_missing_file(run_dir, name):
    (run_dir / name).unlink()
    with pytest.raises(DataError, match=rf"{name} is missing"):
        load_run(run_dir)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("config.toml", "TOML"), ("metrics.jsonl", "JSON"), ("results.json", "JSON"), ("run.json", "JSON")],
)
def test_corrupt_file(run_dir, name, kind):
    (run_dir / name).write_text("= not [ at all\n")
    with pytest.raises(DataError, match=rf"{name}.* is not valid {kind}") as caught:
        load_run(run_dir)
    assert "\n" not in str(caught.value)


def test_binary_file(run_dir):
    (run_dir / "config.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"config\.toml cannot be read as text"):
        load_run(run_dir)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "step"}, "kind is 'step', expected 'round' or 'cell'"),
        ({"method": ...}, "method must be a string, it is missing"),
        ({"round": "one"}, "round must be an integer, it is 'one'"),
        ({"accuracy_own": "high"}, "accuracy_own must be a number"),
        ({"accuracy_own": 10**400}, "accuracy_own must be a number below"),
        ({"weights": [0.5, True]}, "weights must be a number"),
        ({"weights": 1.0}, "weights must be a list"),
        ({"weights": [1.0]}, "20 clusters but 1 weights"),
        ({"clusters": [-1] * CLIENTS}, "clusters count from 0, found -1"),
        ({"clusters": [0.5] * CLIENTS}, "clusters must be a list of integers"),
        ({"clusters": [0], "weights": [1.0]}, "the number of clients changes between rounds"),
        ({"seconds": [1.0]}, "seconds must be an object of numbers"),
    ],
)
def test_bad_round(run_dir, changes, message):
    edit_line(run_dir, 2, **changes)
    with pytest.raises(DataError, match=message) as caught:
        load_run(run_dir)
    assert "metrics.jsonl" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attackers": [CLIENTS]}, "attackers must be client ids below 20"),
        ({"client_domain": [0]}, "client_domain has 1 entries for 20 clients"),
        ({"confusion": [[1, 2]]}, "confusion: must be a square matrix"),
        ({"confusion": [1, 2]}, "row must be a list"),
    ],
)
def test_bad_cell(run_dir, changes, message):
    edit_line(run_dir, 5, **changes)  # rounds 0..4 come first
    with pytest.raises(DataError, match=message):
        load_run(run_dir)


def test_bad_result_and_bad_info(run_dir):
    edit_json(run_dir / "results.json", results=[{"method": "rfca", "attack": "none", "fa": "x"}])
    with pytest.raises(DataError, match=r"results\.json, results\[0\]: fa must be a number"):
        load_run(run_dir)
    (run_dir / "run.json").write_text("[]")
    with pytest.raises(DataError, match=r"run\.json must hold a JSON object, not list"):
        load_run(run_dir)
