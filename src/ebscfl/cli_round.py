"""`ebs-cfl round`: one round of a protocol on random unit updates, with its error, bytes and seconds."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from ebscfl.report.tables import byte_size


def round_command(
    protocol: Annotated[str, typer.Option("--protocol", help="plain, paper, paper-naive or sealed.")] = "sealed",
    clients: Annotated[int, typer.Option("--clients", help="n")] = 20,
    clusters: Annotated[int, typer.Option("--clusters", help="m")] = 2,
    dim: Annotated[int, typer.Option("--dim", help="l, coordinates of an update")] = 20_000,
    seed: Annotated[int, typer.Option("--seed")] = 0,
    segment: Annotated[int | None, typer.Option("--segment", help="paper: t, segment length")] = None,
    group: Annotated[int | None, typer.Option("--group", help="paper: xi_1, clients in a leaf group")] = None,
    zeta: Annotated[str | None, typer.Option("--zeta", help="paper: printed or traceless")] = None,
    field: Annotated[str | None, typer.Option("--field", help="sealed: m31 or m61")] = None,
    normalize: Annotated[str | None, typer.Option("--normalize", help="cluster or global")] = None,
    repeats: Annotated[int, typer.Option("--repeats", help="Measured rounds; seconds are their median.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Play a round of a protocol and compare it with plain RFCA: exactness, bytes, seconds."""
    from ebscfl.protocol.measure import measure_round

    given = {"segment": segment, "group": group, "zeta": zeta, "field": field}
    document = measure_round(
        protocol,
        num_clients=clients,
        num_clusters=clusters,
        dim=dim,
        seed=seed,
        repeats=repeats,
        normalize=normalize,
        **{name: value for name, value in given.items() if value is not None},
    )
    if as_json:
        print(json.dumps(document, allow_nan=False))
    else:
        _print(document)


def _print(document: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from ebscfl.protocol.registry import protocol_info

    console = Console()
    info = protocol_info(document["protocol"])
    privacy = (
        "" if info.hides_updates else " [yellow]— does not hide updates from a curious server: use sealed[/yellow]"
    )
    console.print(f"[bold]{info.name}[/bold]: {info.summary}{privacy}")
    console.print(
        f"{document['clients']} clients, {document['clusters']} clusters, {document['dim']} coordinates, "
        f"seed {document['seed']}, normalize {document['normalize']}"
    )
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("relative error, worst cluster", f"{document['relative_error']:.2e}")
    table.add_row("error of the total weight", f"{document['total_weight_error']:.2e}")
    table.add_row("culprits", ", ".join(document["culprits"]) or "none")
    for name, size in document["bytes"].items():
        table.add_row(f"{name.replace('_', ' ')}, per client and round", byte_size(size))
    for name, seconds in document["seconds"].items():
        table.add_row(f"{name.replace('_', ' ')} seconds", f"{1000 * seconds:.3f} ms")
    for name, value in document["details"].items():
        table.add_row(name.replace("_", " "), str(value))
    console.print(table)
