"""Every accuracy experiment by name: what `ebs-cfl reproduce` and ``python -m ebscfl.reproduce`` can run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ebscfl.errors import ConfigError
from ebscfl.reproduce import convergence, defenses, iid, noniid, search
from ebscfl.reproduce.accuracy import SCALES, Experiment, perform, write_views
from ebscfl.settings_table import nearest
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
    progress: Progress | None = None,
) -> list[Path]:
    """Make one experiment in ``folder``/<name>/<scale>; the files it wrote. ``render_only`` draws what is measured."""
    if name not in EXPERIMENTS:
        raise ConfigError(f"there is no experiment {name!r}; {nearest(name, list(EXPERIMENTS))}")
    if scale not in SCALES:
        raise ConfigError(f"scale must be one of {', '.join(SCALES)}, not {scale!r}")
    if render_only:
        if not (folder / name / scale / "results.json").is_file():
            raise ConfigError(f"{folder / name / scale} holds no results.json to render")
        return write_views(EXPERIMENTS[name], folder / name / scale)
    if name == convergence.NAME:
        return convergence.figure_convergence(folder, scale=scale, seeds=seeds)
    return perform(
        EXPERIMENTS[name],
        folder,
        scale=scale,
        seeds=seeds,
        resume=resume,
        data_dir=data_dir,
        time_limit=time_limit,
        use_packed=use_packed,
        progress=progress,
    )
