"""`ebs-cfl audit`: the command's options and how its result is printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ebscfl.audit import AuditReport


def audit_command(
    protocol: Annotated[str, typer.Option("--protocol", help="plain, paper, sealed, or all.")] = "all",
    clients: Annotated[int, typer.Option("--clients", help="Clients in a round.")] = 10,
    clusters: Annotated[int, typer.Option("--clusters", help="Clusters.")] = 2,
    dim: Annotated[int, typer.Option("--dim", help="Length of an update.")] = 2000,
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same audit.")] = 0,
    rounds: Annotated[int, typer.Option("--rounds", help="Rounds of sealed that the statistics rest on.")] = 200,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for audit.html and audit.json.")] = None,
    data_dir: Annotated[Path | None, typer.Option("--data-dir", help="Where CIFAR-10 lies, for the pictures.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else.")
    ] = False,
) -> None:
    """Try to break every protocol from what its server, its key center and its clients really see."""
    from ebscfl.audit import run_audit

    report = run_audit(protocol, clients, clusters, dim, seed, out, rounds=rounds, data_dir=data_dir)
    if as_json:
        print(json.dumps(report.to_json(), allow_nan=False))
    else:
        print_report(report, out)
    if report.alarms:
        raise typer.Exit(code=1)


def print_report(report: AuditReport, out: Path | None = None) -> None:
    """A table of findings, the alarms if there are any, and where the page is."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(
        title="what each party recovers from its own view", title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0)
    )
    for title in ("protocol", "attack"):
        table.add_column(title, no_wrap=True)
    for title in ("updates", "clusters", "cosine", "stat.", "p"):
        table.add_column(title, justify="right", no_wrap=True)
    for f in report.findings:
        table.add_row(
            f.protocol,
            f.name,
            f"{f.updates_recovered}/{f.of}",
            str(f.clusters_recovered),
            f"{f.median_cosine:.3f}",
            "" if f.statistic is None else f"{f.statistic:.2f}",
            "" if f.p_value is None else f"{f.p_value:.2g}",
        )
    console.print(table)
    for alarm in report.alarms:
        console.print(f"[bold red]alarm[/] {alarm}")
    if out is not None:
        console.print(f"page: {out / 'audit.html'}")
