"""One cell: one method under one attack, from its first models (or a checkpoint) to its last round.

Every method of a run meets the same world: the same clients, batches, first models and attackers, because all draws are
functions of the run's seed and none of the method.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ebscfl.algorithms import ALGORITHMS, Algorithm, Environment, RoundReport, ServerState
from ebscfl.algorithms.aggregation import make_aggregator
from ebscfl.algorithms.environment import PHASES, root_settings
from ebscfl.config import NO_ATTACK, RunConfig
from ebscfl.errors import ConfigError, UsageError
from ebscfl.learning.data import load_dataset
from ebscfl.learning.federation import FederatedData, build_federation
from ebscfl.learning.models import FlatModel, make_model
from ebscfl.learning.partition import make_partition
from ebscfl.rng import root_from_seed
from ebscfl.sim import metrics
from ebscfl.sim.adversary import UpdateAdversary, choose_attackers, poison
from ebscfl.sim.attack_plans import ATTACKS
from ebscfl.sim.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from ebscfl.sim.evaluate import Backdoor, Evaluation, evaluate, triggered
from ebscfl.sim.journal import Journal, Line
from ebscfl.sim.progress import Progress


@dataclass(frozen=True, eq=False)
class World:
    """What all cells of a run share."""

    config: RunConfig
    root: bytes
    model: FlatModel
    data: FederatedData  # nobody poisoned yet
    attackers: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Cell:
    """A cell ready to play."""

    method: str
    attack: str
    algorithm: Algorithm
    env: Environment
    attackers: tuple[int, ...]
    honest: tuple[int, ...]
    backdoor: Backdoor | None
    asleep: Environment | None = None  # the same surroundings with the attackers behaving, for the rounds they do

    def env_of(self, config: RunConfig, round_id: int) -> Environment:
        """What holds in a round: sleepers and on-off attackers train and upload honestly while they are not hostile."""
        return self.env if self.asleep is None or config.attack.hostile(round_id) else self.asleep


def build_world(config: RunConfig, data_dir: Path | None = None) -> World:
    """Load, split and place the data, and draw the attackers.

    Raises:
        ConfigError: the settings do not fit the data (a client without samples, an option the attack cannot take), or
            there is no such data set or device.
        DataError: the data set is missing or damaged.
    """
    root = root_from_seed(config.seed)
    device = choose_device(config.device)
    try:
        dataset = load_dataset(config.data.dataset, data_dir)
    except UsageError as error:
        raise ConfigError(f"data.dataset: {error}") from None
    for attack in config.attacks:
        if attack != NO_ATTACK:
            ATTACKS[attack].check(
                config.attack.options[attack],
                num_classes=dataset.num_classes,
                image_shape=dataset.x_train.shape[1:],
            )
    partition = make_partition(dataset, config.data, root)
    empty = [i for i, part in enumerate(partition.clients) if len(part.indices) == 0]
    if empty:
        raise ConfigError(f"clients {empty} hold no data: lower data.clients or raise data.min_size")
    data = build_federation(dataset, partition, standardize=config.data.standardize).to(device)
    channels, height, width = data.x.shape[1:]
    model = make_model(config.model.name, (channels, height, width), data.num_classes)
    attackers = choose_attackers(root, config.num_attackers, data.client_domain.tolist(), config.attack.placement)
    return World(config, root, model, data, attackers)


def choose_device(name: str) -> torch.device:
    """The torch device of a ``device`` setting."""
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise ConfigError("device: this machine has no CUDA device; set device=cpu or device=auto")
    return torch.device("cuda" if available and name != "cpu" else "cpu")


def build_cell(world: World, method: str, attack: str) -> Cell:
    """The surroundings of one method under one attack."""
    config = world.config
    env = Environment(
        root=world.root,
        model=world.model,
        data=world.data,
        local=config.local,
        server=config.server,
        faulty=config.faulty,
        aggregator=make_aggregator(
            config.protocol, config.data.clients, world.root, config.secure.options(config.protocol, config.rounds)
        ),
    )
    attackers: tuple[int, ...] = ()
    backdoor, asleep = None, None
    if attack != NO_ATTACK:
        attackers, asleep = world.attackers, env
        env, backdoor = _attacked(world, env, attack)
    honest = tuple(i for i in range(env.num_clients) if i not in attackers)
    return Cell(method, attack, ALGORITHMS[method], env, attackers, honest, backdoor, asleep)


def _attacked(world: World, env: Environment, attack: str) -> tuple[Environment, Backdoor | None]:
    """``env`` with the attackers' samples poisoned and their uploads corrupted."""
    settings = world.config.attack
    spec, options = ATTACKS[attack], settings.options[attack]
    adversary = UpdateAdversary(
        root=world.root,
        attackers=world.attackers,
        spec=spec,
        options=options,
        model=world.model,
        clean=world.data,
        proxy_settings=root_settings(env),
        proxy_size=world.config.data.root_size,
    )
    data = poison(world.data, world.attackers, spec, options, world.root)
    attacked = replace(
        env, data=data, adversary=adversary, choice_data=world.data if settings.claim == "clean" else None
    )
    plants_trigger = spec.kind == "both"
    return attacked, triggered(world.data, options["target"]) if plants_trigger else None


def play_cell(cell: Cell, config: RunConfig, run_dir: Path, journal: Journal, progress: Progress) -> Line:
    """Play the rounds that are still missing and return the cell's last line.

    An interruption leaves a checkpoint of the last whole round behind.
    """
    digest = config.digest()
    done = _restore(cell, run_dir, digest, journal)
    progress.cell_started(cell.method, cell.attack, done.round_id, config.rounds)
    started = time.perf_counter()
    try:
        if done.round_id == 0:
            journal.append(_first_line(cell, done.state))
        for round_id in range(done.round_id + 1, config.rounds + 1):
            state, report = cell.algorithm.round(cell.env_of(config, round_id), done.state, round_id)
            line = _round_line(cell, config, state, round_id, report)
            journal.append(line)
            done = Checkpoint(cell.method, cell.attack, round_id, state)
            if round_id % config.checkpoint_every == 0:
                save_checkpoint(run_dir, digest, done)
            progress.round_finished(cell.method, cell.attack, round_id, line[f"accuracy_{config.evaluation}"])
    except KeyboardInterrupt:
        save_checkpoint(run_dir, digest, done)
        raise
    line = _last_line(cell, config, done.state, journal.rounds(cell.method, cell.attack), time.perf_counter() - started)
    save_checkpoint(run_dir, digest, done)
    journal.append(line)
    progress.cell_finished(cell.method, cell.attack, line["fa"])
    return line


def _restore(cell: Cell, run_dir: Path, digest: str, journal: Journal) -> Checkpoint:
    """Where to go on: the checkpoint, with the metrics cut back to it, or the start."""
    found = load_checkpoint(run_dir, digest, cell.method, cell.attack)
    reached = 0 if found is None else found.round_id
    recorded = {line["round"] for line in journal.rounds(cell.method, cell.attack)}
    if reached and not set(range(reached + 1)) <= recorded:
        found, reached = None, 0  # metrics lag behind the checkpoint: only a fresh start can make them whole

    def wanted(line: Line) -> bool:
        mine = line["method"] == cell.method and line["attack"] == cell.attack
        return not mine or (reached > 0 and line["kind"] == "round" and line["round"] <= reached)

    journal.keep(wanted)
    if found is None:
        return Checkpoint(cell.method, cell.attack, 0, cell.algorithm.init(cell.env))
    return Checkpoint(cell.method, cell.attack, reached, found.state.to(cell.env.device))


def _first_line(cell: Cell, state: ServerState) -> Line:
    """Round 0: the models before any training."""
    started = time.perf_counter()
    result = evaluate(cell.env, state.models, cell.honest, 0, cell.backdoor, state.choices)
    seconds = {**dict.fromkeys(PHASES, 0.0), "evaluate": time.perf_counter() - started}
    report = RoundReport(result.choices, (0.0,) * cell.env.num_clients, seconds)
    line = _line(cell, 0, report, result)
    # Said at once, so that the report of a stopped cell can mark the attackers too.
    return {**line, "attackers": list(cell.attackers), "client_domain": cell.env.data.client_domain.tolist()}


def _round_line(cell: Cell, config: RunConfig, state: ServerState, round_id: int, report: RoundReport) -> Line:
    result = None
    if round_id % config.eval_every == 0 or round_id == config.rounds:
        started = time.perf_counter()
        result = evaluate(cell.env, state.models, cell.honest, round_id, cell.backdoor, state.choices)
        report.seconds["evaluate"] += time.perf_counter() - started
    return _line(cell, round_id, report, result)


def _line(cell: Cell, round_id: int, report: RoundReport, result: Evaluation | None) -> Line:
    return {
        "kind": "round",
        "method": cell.method,
        "attack": cell.attack,
        "round": round_id,
        "accuracy_own": result.own if result else None,
        "accuracy_global": result.union if result else None,
        "accuracy_clusters": list(result.clusters) if result else [],
        "clusters": list(report.clusters),
        "weights": list(report.weights),
        "scores": None if report.scores is None else list(report.scores),
        "attacker_weight_share": metrics.attacker_share(report.weights, cell.attackers),
        "attackers_accepted": metrics.accepted(report.weights, cell.attackers),
        "backdoor": result.backdoor if result else None,
        "seconds": dict(report.seconds),
        "bytes": None if report.bytes is None else dict(report.bytes),
        "role_seconds": None if report.role_seconds is None else dict(report.role_seconds),
        "dp": None if report.privacy is None else dict(report.privacy),
        "events": list(report.events),
    }


def _last_line(cell: Cell, config: RunConfig, state: ServerState, rounds: list[Line], seconds: float) -> Line:
    result = evaluate(cell.env, state.models, cell.honest, config.rounds, cell.backdoor, state.choices)
    curve = metrics.accuracies(rounds, config.evaluation)
    return {
        "kind": "cell",
        "method": cell.method,
        "attack": cell.attack,
        "fa": curve[-1],
        "ma": max(curve),
        "asr": metrics.attack_success_rate(rounds, cell.attackers),
        "attacker_weight_share": metrics.mean_share(rounds),
        "backdoor": result.backdoor,
        "attackers": list(cell.attackers),
        "client_domain": cell.env.data.client_domain.tolist(),
        "confusion": result.confusion,
        "purity": result.purity,
        "seconds": seconds,
    }
