"""``ebs-cfl federation ...``: the whole federation on one machine."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from ebscfl import cli_output
from ebscfl.errors import EbscflError, Interrupted
from ebscfl.federation.processes import ProcessFailed

app = typer.Typer(no_args_is_help=True, help="A real federation: Flower, the key centre and clients as processes.")


@app.command("app")
def app_command(directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write it.")]) -> None:
    """Write the Flower app that `flwr run` takes."""
    from ebscfl.flower.app_files import write_app

    print(write_app(directory))


@app.command("faults")
def faults_command(
    kills: Annotated[
        bool, typer.Option(help="Also break Flower's own line and kill every role of a real federation at every phase.")
    ] = True,
    out: Annotated[Path | None, typer.Option(help="Keep the broken federations and their logs here.")] = None,
) -> None:
    """Break a federation on this machine in every way and print as JSON what was lost (nothing, or exit code 1)."""
    from ebscfl.federation.faults import run_all, total
    from ebscfl.federation.kills import run_kills
    from ebscfl.federation.lines import run_lines

    def play(home: Path) -> dict[str, Any]:
        parts = {"faults": run_all(say=_say)}
        if kills:
            parts |= {"lines": run_lines(home / "lines", say=_say), "kills": run_kills(home / "kills", say=_say)}
        return total(parts)

    document = _below(out, "ebscfl-faults-", play)
    print(json.dumps(document))
    failed = [name for part in ("faults", "lines", "kills") for name in document.get(part, {}).get("failed", [])]
    if failed or document["faults_survived"] != document["faults_injected"]:
        raise EbscflError(f"cases failed: {failed}")


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

    settings = DemoSettings(
        preset, nodes, steps, protocol, attack, sets=tuple(sets or ()), workers=workers, faults=faults
    )
    _print(_below(out, "ebscfl-demo-", lambda home: run_demo(home, settings, _say)), as_json)


@app.command("simulate")
def simulate_command(
    preset: Annotated[str, typer.Argument(help="A preset, or a TOML file.")] = "default",
    nodes: Annotated[int, typer.Option(help="Simulated SuperNodes, one client each.")] = 4,
    steps: Annotated[int, typer.Option(help="Training rounds.")] = 3,
    protocol: Annotated[str, typer.Option(help="sealed, paper or plain.")] = "sealed",
    attack: Annotated[str, typer.Option(help="none, or an attack on data (label-flip, backdoor).")] = "none",
    sets: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Replace a setting.")] = None,
    out: Annotated[Path | None, typer.Option(help="Keep keys, state and logs here (default: a temporary one).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Train the same app in Flower's own simulation runtime (Ray); `ebs-cfl run` is the fast simulator."""
    from ebscfl.federation.simulation import run_simulation
    from ebscfl.federation.site import SiteSettings

    settings = SiteSettings(preset, nodes, steps, protocol, attack, sets=tuple(sets or ()))
    _print(_below(out, "ebscfl-simulation-", lambda home: run_simulation(home, settings, _say)), as_json)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _below(out: Path | None, prefix: str, play: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """Play in ``out`` or in a directory that is gone afterwards; a signal unwinds and all processes are stopped."""

    def stop(*_: object) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)  # stopping has begun: a second Ctrl-C must not leave processes behind
        raise Interrupted("stopped; every process that was started is gone")

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    if out is not None:
        return play(out)
    home = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        document = play(home)
    except ProcessFailed as error:
        raise ProcessFailed(f"{error} (kept for you to read; remove it afterwards)") from None
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)
        raise
    shutil.rmtree(home, ignore_errors=True)
    return document


def _print(document: dict[str, Any], as_json: bool) -> None:
    """The table of `ebs-cfl run`, and how it went."""
    if as_json:
        print(json.dumps(document, allow_nan=False))
        return
    cli_output.print_results(document["results"], "accuracy in percent; -: the server of a federation cannot know it")
    print(f"{document['rounds']} rounds in {document['seconds']} s", end="")
    if "faults_injected" in document:
        print(f"; faults survived: {document['faults_survived']} of {document['faults_injected']}", end="")
    print(f"; updates lost: {document['updates_lost']}", end="")
    print("" if document["released_twice"] is None else f"; released twice: {document['released_twice']}")
