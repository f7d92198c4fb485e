"""`ebs-cfl reproduce`: the paper's tables and figures, one command each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ebscfl.errors import UsageError


def reproduce_command(
    name: Annotated[str | None, typer.Argument(help="A table or figure of `ebs-cfl reproduce --list`.")] = None,
    list_all: Annotated[bool, typer.Option("--list", help="Name every table and figure of the paper.")] = False,
    out: Annotated[Path, typer.Option("--out", help="Where results go.")] = Path("results"),
    scale: Annotated[str, typer.Option("--scale", help="smoke, small or full")] = "full",
    seed: Annotated[int | None, typer.Option("--seed", help="One seed (default: 0, or all of an experiment).")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Accuracy: go on with what is there.")] = False,
    render: Annotated[bool, typer.Option("--render", help="Accuracy: only draw what is measured already.")] = False,
    time_limit: Annotated[
        float | None, typer.Option("--time-limit", metavar="SECONDS", help="Accuracy: stop then, so that --resume can.")
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", help="Accuracy: processes that share the runs.")] = 1,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="LABEL=VALUE", help="Accuracy: settings with this label.")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option("--data-dir", help="Where data sets lie.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Make one table or figure of the paper again."""
    from ebscfl.cli_output import live_progress
    from ebscfl.reproduce.registry import ITEMS, make

    if list_all == (name is not None):
        raise UsageError("name one table or figure, or ask for --list")
    if name is not None:
        from ebscfl.reproduce.accuracy import parse_labels

        running = {
            "resume": resume,
            "render_only": render,
            "time_limit": time_limit,
            "data_dir": data_dir,
            "jobs": jobs,
            "only": parse_labels(only or []),
        }
        with live_progress() as progress:
            made = make(name, out, scale=scale, seed=seed, progress=progress, **running)
        files = [str(path) for path in made]
        print(json.dumps({"name": name, "files": files}) if as_json else "\n".join(files))
        return
    if as_json:
        rows = [
            {"name": item.name, "label": item.label, "title": item.title, "available": item.available} for item in ITEMS
        ]
        print(json.dumps({"items": rows}))
        return
    width = max(len(item.name) for item in ITEMS)
    for item in ITEMS:
        print(f"{item.name:<{width}}  {item.title}" + ("" if item.available else f" ({item.missing})"))
