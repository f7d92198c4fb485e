"""Puts the page together: fills the template with tables, figures, costs and the configuration, writes the file.

Everything that comes from the run is escaped (the template escapes by default, `charts` escapes what it draws), and the
page forbids itself every network access by its content security policy.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ebscfl.errors import DependencyError
from ebscfl.report import charts, tables
from ebscfl.report.figures import accuracy_tabs, attack_tab
from ebscfl.report.load import RunData, load_run

COPY_SCRIPT = """
for (const button of document.querySelectorAll("button[data-copy]")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const source = document.getElementById(button.dataset.copy);
    try { await navigator.clipboard.writeText(source.textContent); button.textContent = "Copied"; }
    catch { getSelection().selectAllChildren(source); button.textContent = "Selected"; }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}
"""

GLOSSARY = (
    ("FA", "final accuracy: the test accuracy in percent after the last round."),
    ("MA", "maximum accuracy: the best test accuracy of any round."),
    ("NA", "no-attack accuracy: what the same method ends with when nobody attacks."),
    ("ASR", "attack success rate: of all pairs of attacker and round, the percentage that got non-zero weight."),
    ("AIR points", "attack impact in percentage points: NA - (FA + MA) / 2. Below zero means no harm."),
    ("AIR printed", "attack impact rate as the paper prints it: (2 NA - FA - MA) / (2 NA), in percent."),
    ("Attacker weight", "the share of all aggregation weight that attackers held, averaged over the rounds."),
    ("Backdoor", "percentage of test images with the trigger that the final model gives the attackers' class."),
)


MEASURED_ON = {
    "own": "Accuracies are those of honest clients on data like their own, with the model of the cluster they chose.",
    "global": "Accuracies are those on the global test set.",
}


@dataclass(frozen=True)
class CostRow:
    """Totals of one cell by name, and a bar of them."""

    heading: str
    bar: str
    texts: tuple[str, ...]


@dataclass(frozen=True)
class CostTable:
    """Totals of all cells under one list of names."""

    heading: str
    explanation: str
    names: tuple[str, ...]
    rows: tuple[CostRow, ...]


def write_report(run_dir: Path) -> Path:
    """Write ``report.html`` into a run directory and return its path; an older page is replaced in one step."""
    html = render(load_run(run_dir))
    path = run_dir / "report.html"
    partial = run_dir / "report.html.tmp"
    partial.write_text(html, encoding="utf-8")
    os.replace(partial, path)
    return path


def render(run: RunData) -> str:
    """The page as text."""
    try:
        import jinja2
        import markupsafe
    except ImportError as error:
        raise DependencyError("the report needs jinja2: pip install 'jinja2>=3.1'") from error
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("ebscfl.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["svg"] = markupsafe.Markup  # only for what `charts` drew
    groups = tables.headline(run)
    digest = base64.b64encode(hashlib.sha256(COPY_SCRIPT.encode()).digest()).decode()
    return environment.get_template("report.html.j2").render(
        run=run,
        facts=_facts(run),
        verdict=tables.verdict(run),
        columns=groups[0].rows[0].entries if groups else (),
        groups=groups,
        measured_on=MEASURED_ON.get(run.evaluation, ""),
        glossary=[entry for entry in GLOSSARY if entry[0] != "Backdoor" or _any_backdoor(run)],
        accuracy=accuracy_tabs(run),
        attacks=[attack_tab(run, attack) for attack in run.attacks],
        costs=_costs(run),
        privacy=_privacy(run),
        palette=range(charts.PALETTE_SIZE),
        method_name=tables.method_name,
        attack_name=tables.attack_name,
        copy_script=markupsafe.Markup(COPY_SCRIPT),
        script_digest=digest,
    )


def _facts(run: RunData) -> list[tuple[str, str]]:
    recorded = dict(run.info.facts)
    clients = max((c.num_clients for c in run.cells), default=0)
    attackers = max((len(c.attackers) for c in run.cells), default=0)
    rounds = max((r.round_id for c in run.cells for r in c.rounds), default=0)
    facts = [
        ("clients", f"{clients}, {attackers} of them attackers" if attackers else str(clients)),
        ("rounds", str(rounds)),
        ("seed", run.info.seed),
        ("time", tables.duration(run.info.seconds)),
        ("device", recorded.get("device", "-")),
        ("started", tables.moment(recorded.get("started"))),
    ]
    return [(name, text) for name, text in facts if text != "-"]


def _any_backdoor(run: RunData) -> bool:
    return any(cell.end is not None and cell.end.backdoor is not None for cell in run.cells)


def _costs(run: RunData) -> list[CostTable]:
    """Time per phase, bytes per message and seconds per role, each summed over the rounds of a cell."""
    kinds = (
        ("Time per phase", "Seconds every phase took in all rounds together.", "seconds", tables.number),
        ("Bytes per message", "Bytes that crossed the wire in all rounds together.", "message_bytes", tables.byte_size),
        ("Time per role", "Seconds each party of the protocol computed, in all rounds.", "role_seconds", tables.number),
    )
    out = []
    for heading, explanation, read, show in kinds:
        totals = {
            (cell.method, cell.attack): total
            for cell in run.cells
            if (total := sum_by_name(getattr(r, read) for r in cell.rounds))
        }
        names = tuple(dict.fromkeys(name for total in totals.values() for name in total))
        longest = max((sum(total.values()) for total in totals.values()), default=0.0)
        rows = tuple(
            CostRow(
                f"{tables.method_name(method)}, {tables.attack_name(attack)}",
                charts.stacked_bar({name: total.get(name, 0.0) for name in names}, longest),
                (show(sum(total.values())), *(show(total.get(name)) for name in names)),
            )
            for (method, attack), total in totals.items()
        )
        if rows:
            out.append(CostTable(heading, explanation, names, rows))
    return out


def sum_by_name(records: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Entry-wise sum of mappings, names in order of first appearance."""
    total: dict[str, float] = {}
    for record in records:
        for name, value in record.items():
            total[name] = total.get(name, 0.0) + value
    return total


def _privacy(run: RunData) -> list[tuple[str, str, str, str, str]]:
    """(cell, epsilon of a round, delta, epsilon in all, rounds) where differential privacy was on."""
    out = []
    for cell in run.cells:
        records = [r.privacy for r in cell.rounds if r.privacy]
        if records:
            last = records[-1]
            out.append(
                (
                    f"{tables.method_name(cell.method)}, {tables.attack_name(cell.attack)}",
                    _significant(last.get("epsilon")),
                    _significant(last.get("delta")),
                    _significant(last.get("epsilon_total")),
                    str(len(records)),
                )
            )
    return out


def _significant(value: float | None) -> str:
    return tables.MISSING if value is None else f"{value:.4g}"
