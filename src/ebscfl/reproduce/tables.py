"""Markdown of results documents: ours beside the paper's numbers, and a verdict where both were measured alike.

A verdict is given only for full-scale results (the paper's data set, as far as it can be known). A cell is

* *reproduced*: our mean FA is within `CLOSE` points of the paper's;
* *same ordering*: it is not, but the method has the paper's rank among the methods of its column;
* *not reproduced*: neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ebscfl.config import NO_ATTACK
from ebscfl.report.tables import attack_name, method_name
from ebscfl.reproduce.accuracy import summaries

CLOSE = 3.0
"""Points of accuracy that count as the same number: about the spread over seeds plus that of an unknown split."""
MISSING = "-"

Pair = tuple[float, float] | None

# FA / MA / ASR / AIR (printed) of the paper's non-i.i.d. table, by alpha.
PAPER_NONIID: dict[tuple[str, str], dict[float, tuple[float, float, float, float]]] = {
    ("fedavg", "label-flip"): {
        0.1: (38.82, 39.53, 100.0, 15.29),
        0.5: (45.36, 48.40, 100.0, 14.77),
        0.9: (41.77, 43.25, 100.0, 18.29),
    },
    ("fedavg", "sine"): {
        0.1: (12.78, 40.22, 100.0, 26.52),
        0.5: (14.28, 43.71, 100.0, 28.21),
        0.9: (43.61, 48.86, 100.0, 15.51),
    },
    ("fltrust", "label-flip"): {
        0.1: (49.49, 49.49, 49.5, 6.15),
        0.5: (55.07, 55.20, 38.0, 8.56),
        0.9: (57.88, 57.88, 35.5, 6.33),
    },
    ("fltrust", "sine"): {
        0.1: (47.28, 47.28, 100.0, 8.11),
        0.5: (57.95, 57.95, 100.0, 6.45),
        0.9: (59.59, 59.59, 100.0, 5.55),
    },
    ("ifca", "label-flip"): {
        0.1: (48.18, 49.01, 100.0, 15.83),
        0.5: (37.57, 42.50, 100.0, 20.04),
        0.9: (49.63, 52.03, 100.0, 13.05),
    },
    ("ifca", "sine"): {
        0.1: (12.31, 25.48, 100.0, 36.72),
        0.5: (10.29, 20.49, 100.0, 38.48),
        0.9: (41.52, 42.93, 100.0, 19.31),
    },
    ("rfca", "label-flip"): {
        0.1: (62.13, 64.58, 7.0, 1.73),
        0.5: (65.29, 66.30, 0.0, 0.25),
        0.9: (65.88, 65.90, 0.5, 2.10),
    },
    ("rfca", "sine"): {
        0.1: (60.56, 61.95, 9.0, 3.38),
        0.5: (65.45, 66.17, 31.5, 0.74),
        0.9: (66.74, 67.09, 37.0, 1.85),
    },
}
# Accuracy of the paper's i.i.d. table: LF, Krum, Trim, Scaling, Adaptive.
_IID_ATTACKS = ("label-flip", "krum-attack", "trim-attack", "backdoor", "adaptive")
PAPER_IID: dict[tuple[str, str], tuple[float, ...]] = {
    ("mnist", "fedavg"): (92.21, 97.31, 37.54, 43.79, 96.84),
    ("mnist", "median"): (96.47, 97.25, 57.84, 97.06, 52.22),
    ("mnist", "krum"): (65.12, 5.32, 77.16, 67.55, 73.07),
    ("mnist", "fltrust"): (96.82, 98.31, 97.30, 96.52, 97.76),
    ("mnist", "rfca"): (97.82, 98.79, 97.21, 97.96, 98.43),
    ("cifar10", "fedavg"): (71.31, 70.93, 18.72, 9.86, 12.38),
    ("cifar10", "median"): (68.54, 36.02, 24.67, 70.42, 17.33),
    ("cifar10", "krum"): (46.63, 11.37, 40.68, 51.77, 40.92),
    ("cifar10", "fltrust"): (64.29, 65.79, 66.17, 65.34, 66.23),
    ("cifar10", "rfca"): (72.19, 71.76, 72.84, 72.52, 71.46),
}


def paper_iid(dataset: str, method: str, attack: str) -> float | None:
    """The paper's accuracy, None where it has none."""
    row = PAPER_IID.get((dataset, method))
    return row[_IID_ATTACKS.index(attack)] if row and attack in _IID_ATTACKS else None


def shown(pair: Pair, digits: int = 1) -> str:
    """ "61.2 ± 0.8" """
    return MISSING if pair is None else f"{pair[0] + 0.0:.{digits}f} ± {pair[1]:.{digits}f}"


def plain(pair: Pair, digits: int = 1) -> str:
    """The mean alone."""
    return MISSING if pair is None else f"{pair[0] + 0.0:.{digits}f}"


def verdict(ours: float, paper: float, our_rank: int, paper_rank: int) -> str:
    """See the module's docstring."""
    if abs(ours - paper) <= CLOSE:
        return "reproduced"
    return "same ordering" if our_rank == paper_rank else "not reproduced"


def rank(of: str, values: Mapping[str, float]) -> int:
    """1 for the highest."""
    return 1 + sum(value > values[of] for value in values.values())


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]], texts: int) -> str:
    """A table whose first ``texts`` columns are words."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * texts + "---:|" * (len(head) - texts)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


MEASURES = (
    *("FA own", "NA own", "MA own", "FA global", "NA global"),
    *("ASR", "AIR points", "AIR printed", "share", "after 10", "clusters", "largest"),
)


def measures(row: Mapping[str, Any]) -> list[str]:
    """The columns of `MEASURES`."""
    own, union = row["own"], row["global"]
    return [
        shown(own["fa"]),
        plain(own["na"]),
        plain(own["ma"]),
        shown(union["fa"]),
        plain(union["na"]),
        plain(row["asr"]),
        plain(own["air_points"]),
        plain(own["air_printed"]),
        plain(row["share"]),
        plain(row["share_settled"]),
        plain(row["clusters_used"]),
        plain(row["largest_cluster"]),
    ]


def header(document: Mapping[str, Any]) -> str:
    """Where the numbers come from, in a line or two."""
    done, wanted = document["runs"]
    state = "complete" if document["complete"] else f"**{done} of {wanted} runs finished: the rest is missing**"
    commits = ", ".join(
        commit[:12] + "+" * commit.endswith("+") for commit in (document["commit"] or "no checkout").split(", ")
    )
    data, seeds = ", ".join(document["datasets"]), ", ".join(map(str, document["seeds"]))
    return (
        f"`{document['command']}`: {state}; {data}; seeds {seeds}, {document['device']}, torch {document['torch']}, "
        f"{document['seconds']:.0f} s of runs, commit {commits}.\n\n"
        "Percent, mean ± standard deviation over the seeds. own: honest clients on their own label mix; global: the "
        "same models on the whole test set; share: the attackers' part of all weight, and the same after round 10; "
        "clusters: how many were chosen in the last round, and by how many clients the largest."
    )


def order(row: Mapping[str, Any], keys: Sequence[str]) -> tuple[Any, ...]:
    """Attacks before the runs without, settings as they were run."""
    return (row["attack"] == NO_ATTACK, row["attack"], *(row[key] for key in keys))


def by_setting(*keys: str) -> Callable[[Mapping[str, Any]], str]:
    """A renderer with one line per setting, attack and method."""

    def render(document: Mapping[str, Any]) -> str:
        rows = sorted(summaries(document, keys), key=lambda row: order(row, keys))
        head = ["attack", *keys, "method", *MEASURES]
        body = [
            [attack_name(row["attack"]), *(str(row[key]) for key in keys), method_name(row["method"]), *measures(row)]
            for row in rows
        ]
        return f"{header(document)}\n\n{markdown_table(head, body, 2 + len(keys))}\n"

    return render


def noniid_method(row: Mapping[str, Any]) -> str:
    """RFCA's literal reading is named so."""
    return method_name(row["method"]) + (" (as printed)" if row["variant"] == "literal" else "")


def render_noniid(document: Mapping[str, Any]) -> str:
    """The main table: ours, the paper's FA / MA / ASR / AIR, and the verdict."""
    rows = sorted(summaries(document, ("alpha", "variant")), key=lambda row: order(row, ("alpha",)))
    body = []
    for row in rows:
        if row["attack"] == NO_ATTACK:
            continue
        published = PAPER_NONIID.get((row["method"], row["attack"]), {})
        paper = published.get(row["alpha"]) if document["scale"] == "full" else None
        body.append(
            [
                attack_name(row["attack"]),
                str(row["alpha"]),
                noniid_method(row),
                *measures(row),
                MISSING if paper is None else " / ".join(f"{value:.2f}" for value in paper),
                _noniid_verdict(document, rows, row),
            ]
        )
    head = ["attack", "alpha", "method", *MEASURES, "paper FA / MA / ASR / AIR", "verdict"]
    return f"{header(document)}\n\n{markdown_table(head, body, 3)}\n"


def _noniid_verdict(document: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], row: Mapping[str, Any]) -> str:
    alpha, attack, method = row["alpha"], row["attack"], row["method"]
    paper = {m: cells[alpha][0] for (m, a), cells in PAPER_NONIID.items() if a == attack and alpha in cells}
    if document["scale"] != "full":
        return "other data"
    if method not in paper:
        return "ours"
    # The column's other methods, with the reading of RFCA that this row has.
    column = {
        r["method"]: r["own"]["fa"][0]
        for r in rows
        if r["attack"] == attack
        and r["alpha"] == alpha
        and r["method"] in paper
        and (r["method"] != "rfca" or r["variant"] == (row["variant"] if method == "rfca" else "working"))
    }
    if set(column) != set(paper):
        return "not all methods measured"
    return verdict(column[method], paper[method], rank(method, column), rank(method, paper))


def render_iid(document: Mapping[str, Any]) -> str:
    """The i.i.d. table, judged by the accuracy on the whole test set."""
    rows = sorted(summaries(document, ("dataset",)), key=lambda row: order(row, ("dataset",)))
    body = []
    for row in rows:
        dataset, attack, method = row["dataset"], row["attack"], row["method"]
        paper = paper_iid(dataset, method, attack)
        column = {r["method"]: r["global"]["fa"][0] for r in rows if (r["dataset"], r["attack"]) == (dataset, attack)}
        published = {m: value for m in column if (value := paper_iid(dataset, m, attack)) is not None}
        if paper is None:
            text = "other data" if document["scale"] != "full" else MISSING
        elif set(published) != {m for d, m in PAPER_IID if d == dataset}:
            text = "not all methods measured"
        else:
            text = verdict(column[method], paper, rank(method, column), rank(method, published))
        numbers = [shown(row["global"][name]) for name in ("fa", "na")]
        extra = [plain(row["asr"]), plain(row["global"]["air_points"]), plain(row["share"]), plain(row["backdoor"])]
        body.append(
            [
                attack_name(attack),
                dataset,
                method_name(method),
                *numbers,
                *extra,
                MISSING if paper is None else f"{paper:.2f}",
                text,
            ]
        )
    head = ["attack", "data", "method", "FA", "NA", "ASR", "AIR points", "share", "backdoor", "paper", "verdict"]
    return f"{header(document)}\n\n{markdown_table(head, body, 3)}\n"
