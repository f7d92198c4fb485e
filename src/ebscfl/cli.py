"""The `ebs-cfl` command: parse, build, call, print. No logic lives here."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import click
import typer

from ebscfl import cli_audit, cli_bench, cli_federation, cli_kdc, cli_output, cli_reproduce, cli_round
from ebscfl.errors import EbscflError, UsageError

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Secure, robust, clustered federated learning.")
data_app = typer.Typer(no_args_is_help=True, help="Data sets: what is there, fetch it, check it.")
app.add_typer(data_app, name="data")

DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="Where data sets lie (else EBSCFL_DATA, else a cache).")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else.")]


@app.command("run")
def run_command(
    preset: Annotated[str | None, typer.Argument(help="A preset, or a TOML file (default: default).")] = None,
    sets: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Replace one setting.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The run's directory (default: a new one in runs/).")
    ] = None,
    resume: Annotated[Path | None, typer.Option("--resume", help="Finish the stopped run in this directory.")] = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Train every method under every attack and compare them."""
    from ebscfl.config import load_preset
    from ebscfl.sim import runner

    if resume is not None and (preset is not None or sets or out is not None):
        raise UsageError("--resume takes everything from the run's directory: leave out the preset, --set and --out")
    with cli_output.live_progress() as progress:
        if resume is not None:
            result = runner.resume(resume, data_dir=data_dir, progress=progress)
        else:
            name, chosen = preset or "default", tuple(sets or ())
            config = load_preset(name, chosen)
            result = runner.run(config, preset=name, sets=chosen, out=out, data_dir=data_dir, progress=progress)
    page = cli_output.report_if_possible(result.run_dir)
    if as_json:
        print(json.dumps(result.document, allow_nan=False))
    else:
        cli_output.print_results(result.rows)
    cli_output.print_standstills(result.run_dir)
    cli_output.print_where(result.run_dir, page)


app.command("round")(cli_round.round_command)
app.command("audit")(cli_audit.audit_command)
app.command("reproduce")(cli_reproduce.reproduce_command)
app.add_typer(cli_bench.bench_app, name="bench")
app.add_typer(cli_kdc.app, name="kdc")
app.add_typer(cli_kdc.client_app, name="client")
app.add_typer(cli_federation.app, name="federation")


@app.command("presets")
def presets_command() -> None:
    """List the presets."""
    from ebscfl.config import list_presets

    cli_output.print_pairs(list_presets())


@app.command("report")
def report_command(run_dir: Annotated[Path, typer.Argument(metavar="DIR", help="The directory of a run.")]) -> None:
    """Write report.html for a finished or stopped run."""
    from ebscfl.report import write_report

    print(write_report(run_dir))


@data_app.command("list")
def data_list_command(data_dir: DataDir = None) -> None:
    """Say which data sets are here."""
    from ebscfl.learning.sources import list_datasets

    cli_output.print_datasets(list_datasets(data_dir))


@data_app.command("fetch")
def data_fetch_command(
    name: Annotated[str, typer.Argument(help="One of `ebs-cfl data list`.")], data_dir: DataDir = None
) -> None:
    """Download a data set, going on where an earlier download stopped."""
    from ebscfl.learning.sources import fetch

    with cli_output.download_progress() as progress:
        status = fetch(name, data_dir, progress=progress)
    cli_output.print_verified(status)


@data_app.command("verify")
def data_verify_command(
    name: Annotated[str, typer.Argument(help="One of `ebs-cfl data list`.")], data_dir: DataDir = None
) -> None:
    """Check every file of a data set against its checksum."""
    from ebscfl.learning.sources import verify

    cli_output.print_verified(verify(name, data_dir))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; every error is one line on stderr and the exit code of its class."""
    # Read by OpenMP when torch is first imported: idle threads sleep. Spinning ones cost minutes on a shared machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        app(args=None if arguments is None else list(arguments), standalone_mode=False)
    except EbscflError as error:
        print(f"ebs-cfl: {error}", file=sys.stderr)
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as help_text:
        print(help_text.format_message())
        return UsageError.exit_code
    except click.ClickException as error:
        print(f"ebs-cfl: {error.format_message()}", file=sys.stderr)
        return UsageError.exit_code
    except (KeyboardInterrupt, click.exceptions.Abort):
        print("ebs-cfl: stopped; the same command starts again (a download goes on where it was)", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
