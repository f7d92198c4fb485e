"""What a run does: typed, closed settings from a preset, a TOML file and ``--set`` values.

`RunConfig` is the whole of it; its sections are frozen dataclasses that check themselves. docs/samples/full.toml shows
every key with its meaning.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar

from ebscfl.algorithms import ALGORITHMS, ServerSettings
from ebscfl.algorithms.aggregation import PROTOCOLS, normalization
from ebscfl.errors import ConfigError
from ebscfl.learning.local import LocalSettings
from ebscfl.learning.models import MODEL_NAMES
from ebscfl.learning.partition import PartitionSettings
from ebscfl.settings_table import assign, build, dump_toml, nearest, parse_assignment
from ebscfl.sim.attack_plans import ATTACKS, attack_options

NO_ATTACK = "none"
DEVICES = ("auto", "cpu", "cuda")
EVALUATIONS = ("own", "global")
PLACEMENTS = ("uniform", "per-domain")
CLAIMS = ("clean", "poisoned")


@dataclass(frozen=True)
class DataSettings(PartitionSettings):
    """[data]: which data set, and how it is shared out."""

    dataset: str = "mnist-mini"
    """One of `ebs-cfl data list`."""
    standardize: bool = False
    """Mean 0 and variance 1 per channel instead of the range 0..1."""


@dataclass(frozen=True)
class ModelSettings:
    """[model]: what every client trains."""

    name: str = "mlp"

    def __post_init__(self) -> None:
        """Refuse unknown models."""
        if self.name not in MODEL_NAMES:
            raise ConfigError(f"name: unknown model {self.name!r}; {nearest(self.name, MODEL_NAMES)}")


@dataclass(frozen=True)
class AttackSettings:
    """[attack]: how many attack and what they know; [attack.<name>]: the options of one attack."""

    EXTRA_TABLES: ClassVar[str] = "options"

    fraction: float = 0.4
    """Share of the clients that attack."""
    placement: str = "uniform"
    """uniform: any clients, by the seed; per-domain: the same share of every data domain."""
    claim: str = "clean"
    """Data an attacker chooses its cluster with. clean: it hides among clients of its own world; poisoned: it follows
    the protocol on its poisoned samples, which tend to fit the worst-trained model best."""
    start_round: int = 1
    """The first hostile round; later than 1: sleepers, honest before."""
    period: int | None = None
    """On-off attackers: so many hostile rounds, then as many honest ones, and so on; none: always hostile."""
    knowledge: str | None = None
    """full or partial for every attack that has the choice; none: each attack's published default."""
    options: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse values outside their range and options no attack has."""
        if not 0 <= self.fraction < 1:
            raise ConfigError(f"fraction must lie in 0..1 (1 excluded), not {self.fraction}")
        if self.placement not in PLACEMENTS:
            raise ConfigError(f"placement must be one of {', '.join(PLACEMENTS)}, not {self.placement!r}")
        if self.claim not in CLAIMS:
            raise ConfigError(f"claim must be one of {', '.join(CLAIMS)}, not {self.claim!r}")
        if self.knowledge not in (None, "full", "partial"):
            raise ConfigError(f"knowledge must be full, partial or none, not {self.knowledge!r}")
        for name in ("start_round", "period"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, not {value}")
        for name in self.options:
            if name not in ATTACKS:
                raise ConfigError(
                    f"attack.{name}: unknown key or attack; {nearest(name, [*ATTACKS, 'fraction', 'placement'])}"
                )

    def hostile(self, round_id: int) -> bool:
        """Whether the attackers attack in this round."""
        since = round_id - self.start_round
        return since >= 0 and (self.period is None or since // self.period % 2 == 0)


@dataclass(frozen=True)
class SecureSettings:
    """[secure]: options of the protocol; each applies to the protocols named, the others ignore it."""

    segment: int | None = None
    """paper: t, coordinates in a segment; none: 2."""
    group: int | None = None
    """paper: xi_1, clients in a leaf group; none: 1."""
    zeta: str = "printed"
    """paper: decode masks that sum to zero (printed) or to an invertible matrix of trace zero (traceless)."""
    field: str | None = None
    """sealed: m31 or m61; none: the smaller one that is exact enough."""
    quorum: int | None = None
    """sealed: uploads without which nothing is released; none: more than half of the clients."""
    tolerated: int | None = None
    """sealed: clients whose tags may fail before the server is taken for the liar; none: quorum - 1."""
    min_slot_weight: float = 0.0
    """sealed: trust weight under which a cluster's sum is not released."""
    epsilon: float | None = None
    """sealed: differential privacy budget of the whole run; none: no noise."""
    delta: float = 1e-5
    """sealed: delta of that budget."""

    def __post_init__(self) -> None:
        """Refuse values outside their range; what depends on the number of clients is checked by the protocol."""
        for name in ("segment", "group", "quorum"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, not {value}")
        if self.zeta not in ("printed", "traceless"):
            raise ConfigError(f"zeta must be printed or traceless, not {self.zeta!r}")
        if self.field not in (None, "m31", "m61"):
            raise ConfigError(f"field must be m31, m61 or none, not {self.field!r}")
        if self.epsilon is not None and not 0 < self.epsilon < float("inf"):
            raise ConfigError(f"epsilon must be a positive number or none, not {self.epsilon}")
        if not 0 < self.delta < 1:
            raise ConfigError(f"delta must lie between 0 and 1, not {self.delta}")

    def options(self, protocol: str, rounds: int) -> dict[str, Any]:
        """The options ``protocol`` understands, those left open not named."""
        if protocol in ("paper", "paper-naive"):
            given: dict[str, Any] = {"segment": self.segment, "group": self.group, "zeta": self.zeta}
        elif protocol == "sealed":
            given = {name: getattr(self, name) for name in ("field", "quorum", "tolerated", "min_slot_weight")}
            if self.epsilon is not None:
                given |= {"epsilon": self.epsilon, "delta": self.delta, "dp_rounds": rounds}
        else:
            given = {}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides what a run computes."""

    rounds: int = 20
    """Global rounds of every cell (method x attack)."""
    eval_every: int = 1
    """Evaluate every so many rounds; the last round always."""
    checkpoint_every: int = 5
    """Write a checkpoint every so many rounds."""
    seed: int = 1
    device: str = "cpu"
    evaluation: str = "own"
    """own: FA, MA and NA on every honest client's own distribution; global: on the union of all domains."""
    protocol: str = "sealed"
    """Who computes RFCA's aggregate: direct (the rule, no roles), or the roles of plain, paper, paper-naive, sealed."""
    methods: tuple[str, ...] = ("fedavg", "ifca", "fltrust", "rfca")
    attacks: tuple[str, ...] = ("label-flip",)
    """Attacks beside the run without any, which is always made (NA)."""
    data: DataSettings = field(default_factory=DataSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    local: LocalSettings = field(default_factory=LocalSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    attack: AttackSettings = field(default_factory=AttackSettings)
    secure: SecureSettings = field(default_factory=SecureSettings)

    def __post_init__(self) -> None:
        """Refuse values outside their range, and what no round could survive (Krum with too few clients)."""
        for name in ("rounds", "eval_every", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed must lie in 0..2^63 - 1, not {self.seed}")
        for name, allowed in (("device", DEVICES), ("evaluation", EVALUATIONS), ("protocol", PROTOCOLS)):
            if getattr(self, name) not in allowed:
                raise ConfigError(f"{name} must be one of {', '.join(allowed)}, not {getattr(self, name)!r}")
        if normalization(self.protocol, self.server.normalize) != self.server.normalize:
            if self.server.share == "body":
                raise ConfigError(
                    f"server.share: a body is shared by the weights of clusters, which {self.protocol!r} hides; "
                    "use none, or protocol=direct, plain or sealed"
                )
            # The paper's protocol divides by the weight of all m clusters; m times the rate undoes that scaling.
            server = replace(self.server, normalize="global", eta=self.server.eta * self.server.clusters)
            object.__setattr__(self, "server", server)
        _known("methods", self.methods, ALGORITHMS)
        _known("attacks", self.attacks, (*ATTACKS, NO_ATTACK))
        if self.attacks and set(self.attacks) != {NO_ATTACK} and self.num_attackers == 0:
            raise ConfigError(
                f"attack.fraction = {self.attack.fraction} of data.clients = {self.data.clients} is none; "
                "raise it, or set attacks=[]"
            )
        if "rfca-h" in self.methods:
            self._check_history()
        for method in self.methods:
            check = ALGORITHMS[method].check
            if check:
                check(self.server, self.data.clients, self.faulty)

    def _check_history(self) -> None:
        """Who can keep a score history: the rule itself, and the key center of `sealed`."""
        if self.protocol not in ("direct", "sealed"):
            raise ConfigError(
                f"methods: rfca-h needs protocol=direct or sealed: nobody in {self.protocol!r} sees scores over rounds"
            )
        if self.protocol == "sealed" and self.server.history_scope == "cluster":
            raise ConfigError(
                "server.history_scope: the key center of sealed does not know clusters; use all, or protocol=direct"
            )

    @property
    def num_attackers(self) -> int:
        """How many clients attack: the fraction, rounded to the nearest count."""
        return round(self.attack.fraction * self.data.clients)

    @property
    def faulty(self) -> int:
        """The number of attackers Krum and the trimmed mean are set up for."""
        return self.num_attackers if self.server.faulty is None else self.server.faulty

    @property
    def cells(self) -> tuple[tuple[str, str], ...]:
        """(method, attack) in the order they run; every method's run without attack comes first."""
        attacks = (NO_ATTACK, *(attack for attack in self.attacks if attack != NO_ATTACK))
        return tuple((method, attack) for method in self.methods for attack in attacks)

    def to_toml(self) -> str:
        """Every setting as TOML that `parse_config` reads back to an equal object."""
        return dump_toml(self)

    def digest(self) -> str:
        """A hash of every setting: what ties a checkpoint to its run."""
        return hashlib.sha256(self.to_toml().encode()).hexdigest()


def _known(key: str, names: Iterable[str], registry: Iterable[str]) -> None:
    registry, names = list(registry), list(names)
    for name in names:
        if name not in registry:
            raise ConfigError(f"{key}: unknown {key[:-1]} {name!r}; {nearest(name, registry)}")
    if len(set(names)) != len(names):
        raise ConfigError(f"{key}: the same name stands twice in {names}")
    if key == "methods" and not names:
        raise ConfigError("methods: name at least one method")


def config_from_table(table: Mapping[str, Any]) -> RunConfig:
    """A config from nested tables, with the options of every attack it runs filled in."""
    config = build(RunConfig, table)
    options = {}
    for name in {*config.attacks, *config.attack.options} - {NO_ATTACK}:
        given = config.attack.options.get(name, {})
        options[name] = attack_options(name, given, knowledge=config.attack.knowledge)
    return replace(config, attack=replace(config.attack, options=dict(sorted(options.items()))))


def parse_config(text: str, sets: Iterable[str] = (), *, source: str = "config") -> RunConfig:
    """TOML text, then ``key=value`` assignments in order."""
    try:
        table: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is not TOML: {error}") from None
    for assignment in sets:
        keys, value = parse_assignment(assignment)
        table = assign(table, keys, value)
    return config_from_table(table)


def list_presets() -> dict[str, str]:
    """Preset names with the first comment line of each file."""
    presets = {}
    for entry in sorted(resources.files("ebscfl").joinpath("presets").iterdir(), key=lambda e: e.name):
        if entry.name.endswith(".toml"):
            first = entry.read_text(encoding="utf-8").split("\n", 1)[0]
            presets[entry.name.removesuffix(".toml")] = first.lstrip("# ").strip()
    return presets


def load_preset(name: str = "default", sets: Iterable[str] = ()) -> RunConfig:
    """A preset by name, or a TOML file by path, with ``key=value`` assignments on top.

    Raises:
        ConfigError: no such preset or file, or a key or value in it is wrong.
    """
    if name.endswith(".toml"):
        try:
            return parse_config(Path(name).read_text(encoding="utf-8"), sets, source=name)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the config file {name}: {error}") from None
    known = list_presets()
    if name not in known:
        raise ConfigError(f"unknown preset {name!r}; {nearest(name, list(known))}")
    text = resources.files("ebscfl").joinpath("presets", f"{name}.toml").read_text(encoding="utf-8")
    return parse_config(text, sets, source=f"preset {name}")
