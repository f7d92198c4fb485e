"""``ebs-cfl federation ...``: the whole federation on one machine."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from ebscfl.errors import EbscflError

app = typer.Typer(no_args_is_help=True, help="A real federation: Flower, the key centre and clients as processes.")


@app.command("app")
def app_command(directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write it.")]) -> None:
    """Write the Flower app that `flwr run` takes."""
    from ebscfl.flower.app_files import write_app

    print(write_app(directory))


@app.command("faults")
def faults_command() -> None:
    """Play the fault harness on the loopback interface and print what was lost (nothing, or exit code 1)."""
    from ebscfl.federation.faults import run_all

    document = run_all()
    print(json.dumps(document))
    if document["faults_survived"] != document["faults_injected"]:
        raise EbscflError(f"{len(document['failed'])} cases failed")


@app.command("demo")
def demo_command(
    preset: Annotated[str, typer.Argument(help="A preset, or a TOML file.")] = "default",
    nodes: Annotated[int, typer.Option(help="SuperNodes, one client each.")] = 4,
    steps: Annotated[int, typer.Option(help="Training rounds.")] = 3,
    protocol: Annotated[str, typer.Option(help="sealed, paper or plain.")] = "sealed",
    attack: Annotated[str, typer.Option(help="none, or an attack on data (label-flip, backdoor).")] = "none",
    faults: Annotated[bool, typer.Option(help="Kill a client and the key centre on the way.")] = True,
    sets: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Replace a setting.")] = None,
    workers: Annotated[int, typer.Option(help="Processes that share each side's heavy sums; 0: none.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Keep keys, state and logs here (default: a temporary one).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Start key centre, SuperLink, server app and SuperNodes over TLS; train, break, repair; print the table."""
    from ebscfl.federation.demo import DemoSettings, run_demo

    settings = DemoSettings(preset, nodes, steps, protocol, attack, faults, sets=tuple(sets or ()), workers=workers)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt  # so that everything that was started is stopped

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    if out is not None:
        document = run_demo(out, settings, say)
    else:
        with tempfile.TemporaryDirectory(prefix="ebscfl-demo-") as home:
            document = run_demo(Path(home), settings, say)
    if as_json:
        print(json.dumps(document, allow_nan=False))
    else:
        print_document(document)


def print_document(document: dict[str, Any]) -> None:
    """The table of `ebs-cfl run`, and what the faults did."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="accuracy in percent; `-`: not known to a server that sees sums only", title_justify="left")
    columns = {"FA": "fa", "MA": "ma", "NA": "na", "ASR": "asr", "AIR": "air_printed", "AIR pts": "air_points"}
    for name in ("attack", "method", *columns):
        table.add_column(name)
    for row in document["results"]:
        numbers = ("-" if row[key] is None else f"{row[key]:.2f}" for key in columns.values())
        table.add_row(row["attack"], row["method"], *numbers)
    Console(width=120).print(table)
    print(
        f"{document['rounds']} rounds in {document['seconds']} s; faults survived: {document['faults_survived']} of "
        f"{document['faults_injected']}; updates lost: {document['updates_lost']}; "
        f"released twice: {document['released_twice']}"
    )


def main(arguments: list[str] | None = None) -> int:
    """``python -m ebscfl.cli_federation``: the same without the rest of ``ebs-cfl``."""
    try:
        app(args=arguments, standalone_mode=False)
    except EbscflError as error:
        print(f"ebs-cfl: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
