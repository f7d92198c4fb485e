"""``python -m ebscfl.reproduce NAME``: experiments where only torch, numpy and Pillow are installed (a GPU machine)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ebscfl.errors import EbscflError
from ebscfl.reproduce.accuracy import SCALES, parse_labels
from ebscfl.reproduce.experiments import EXPERIMENTS, make


class Lines:
    """One line a cell on stderr."""

    def cell_started(self, method: str, attack: str, first_round: int, rounds: int) -> None:
        """Say which."""
        print(f"{method} x {attack}: from round {first_round} of {rounds}", file=sys.stderr, flush=True)

    def round_finished(self, method: str, attack: str, round_id: int, accuracy: float | None) -> None:
        """Nothing to say."""

    def cell_finished(self, method: str, attack: str, accuracy: float) -> None:
        """Say how it ended."""
        print(f"{method} x {attack}: {accuracy:.2f} %", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, run, print the files; every error is one line and its exit code."""
    parser = argparse.ArgumentParser(prog="python -m ebscfl.reproduce", description=__doc__)
    parser.add_argument("name", help=f"one of {', '.join(sorted(EXPERIMENTS))}; or several with commas between them")
    parser.add_argument("--scale", choices=SCALES, default="full")
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--render", action="store_true", help="only draw what is measured already")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--time-limit", type=float, metavar="SECONDS")
    parser.add_argument("--packed", action="store_true", help="use CIFAR as scripts/pack_cifar.py re-encodes it")
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the runs")
    parser.add_argument("--only", action="append", default=[], metavar="LABEL=VALUE", help="settings with this label")
    given = parser.parse_args(arguments)
    try:
        paths = make(
            given.name,
            given.out,
            scale=given.scale,
            seeds=given.seeds,
            resume=given.resume,
            data_dir=given.data_dir,
            time_limit=given.time_limit,
            render_only=given.render,
            use_packed=given.packed,
            jobs=given.jobs,
            only=parse_labels(given.only),
            progress=Lines(),
        )
    except EbscflError as error:
        print(f"ebs-cfl: {error}", file=sys.stderr)
        return error.exit_code
    print("\n".join(map(str, paths)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
