"""Every accuracy experiment by name: what `ebs-cfl reproduce` and ``python -m ebscfl.reproduce`` can run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from ebscfl.errors import ConfigError
from ebscfl.reproduce import convergence, defenses, iid, noniid, search
from ebscfl.reproduce.accuracy import SCALES, Experiment, perform, write_views
from ebscfl.settings_table import nearest
from ebscfl.sim.exclusive import only_process
from ebscfl.sim.progress import Progress

EXPERIMENTS: dict[str, Experiment] = {
    **noniid.EXPERIMENTS,
    **iid.EXPERIMENTS,
    **search.EXPERIMENTS,
    **defenses.EXPERIMENTS,
    convergence.NAME: Experiment(
        convergence.NAME,
        "The convergence theorem, simulated",
        lambda scale: [],
        convergence.render,
        convergence.draw,
    ),
}


def make(
    name: str,
    folder: Path,
    *,
    scale: str = "full",
    seeds: Sequence[int] | None = None,
    resume: bool = False,
    data_dir: Path | None = None,
    time_limit: float | None = None,
    render_only: bool = False,
    use_packed: bool = False,
    jobs: int = 1,
    only: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Make one experiment, or several (names with commas between them, their runs share the processes), in
    ``folder``/<name>/<scale>; the files it wrote. ``render_only`` draws what is measured."""
    names = list(dict.fromkeys(name.split(",")))
    for one in names:
        if one not in EXPERIMENTS:
            raise ConfigError(f"there is no experiment {one!r}; {nearest(one, list(EXPERIMENTS))}")
    if scale not in SCALES:
        raise ConfigError(f"scale must be one of {', '.join(SCALES)}, not {scale!r}")
    if render_only:
        for one in names:
            if not (folder / one / scale / "results.json").is_file():
                raise ConfigError(f"{folder / one / scale} holds no results.json to render")
        return [path for one in names for path in write_views(EXPERIMENTS[one], folder / one / scale)]
    with ExitStack() as held:
        for one in names:
            held.enter_context(only_process(folder / one / scale))
        made = [figure for one in names if one == convergence.NAME for figure in _convergence(folder, scale, seeds)]
        runs = [EXPERIMENTS[one] for one in names if one != convergence.NAME]
        if runs:
            made += perform(
                runs,
                folder,
                scale=scale,
                seeds=seeds,
                resume=resume,
                data_dir=data_dir,
                time_limit=time_limit,
                use_packed=use_packed,
                jobs=jobs,
                only=only,
                progress=progress,
            )
        return made


def _convergence(folder: Path, scale: str, seeds: Sequence[int] | None) -> list[Path]:
    return convergence.figure_convergence(folder, scale=scale, seeds=seeds)
