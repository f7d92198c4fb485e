"""`ebs-cfl bench secure-aggregation`: what every protocol costs clients, server and key centre, in one run."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

bench_app = typer.Typer(no_args_is_help=True, help="Measure costs on this machine.")


@bench_app.callback()
def bench_group() -> None:
    """Measure costs on this machine."""


@bench_app.command("secure-aggregation")
def secure_aggregation_command(
    clients: Annotated[int, typer.Option("--clients", help="n")] = 100,
    dim: Annotated[int, typer.Option("--dim", help="l, coordinates of an update")] = 200_000,
    clusters: Annotated[int, typer.Option("--clusters", help="m; the comparators hide it in m slots")] = 1,
    dropouts: Annotated[float, typer.Option("--dropouts", help="Share of clients that leave before uploading.")] = 0.1,
    protocols: Annotated[
        list[str] | None, typer.Option("--protocol", help="Only these (may be repeated); default all but paper.")
    ] = None,
    repeats: Annotated[int, typer.Option("--repeats", help="Rounds; the median counts.")] = 3,
    seed: Annotated[int, typer.Option("--seed")] = 0,
    peers: Annotated[bool, typer.Option("--peers", help="Measure Flower and byzfl too, where installed.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Measure one round of every secure-aggregation protocol: CPU seconds and bytes per role."""
    from ebscfl.reproduce import secure_sums

    document: dict[str, Any] = secure_sums.bench(
        clients=clients,
        dim=dim,
        clusters=clusters,
        dropouts=dropouts,
        protocols=protocols or secure_sums.HEADLINE,
        repeats=repeats,
        seed=seed,
    )
    if peers:
        from ebscfl.reproduce.peers import measure_peers

        document["peers"] = measure_peers(clients=clients, dim=dim, dropouts=dropouts, repeats=repeats)
    if as_json:
        print(json.dumps(document, allow_nan=False))
    else:
        _print(document)


def _print(document: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title="one round, CPU milliseconds and bytes", title_justify="left")
    table.add_column("protocol")
    for name in ("drop-outs", "client ms", "server ms", "KDC ms", "client up MB", "client down MB", "measured clients"):
        table.add_column(name, justify="right")
    for row in document["rows"]:
        table.add_row(
            row["protocol"],
            f"{100 * row['dropouts']:.0f} %",
            *(f"{1e3 * row[key]:.2f}" for key in ("client_cpu_s", "server_cpu_s", "kdc_cpu_s")),
            f"{row['client_upload_bytes'] / 1e6:.3f}",
            f"{row['client_download_bytes'] / 1e6:.3f}",
            str(row["sampled_clients"]),
        )
    console.print(table)
    for target in document["targets"]:
        mark = "reached" if target["reached"] else "not reached"
        console.print(f"{target['target']}: {target['measured']:.2f} ({mark})")
    for row in document.get("peers", {}).get("rows", []):
        console.print(", ".join(f"{key} {value}" for key, value in row.items()))
    for line in document.get("peers", {}).get("skipped", []):
        console.print(line)
