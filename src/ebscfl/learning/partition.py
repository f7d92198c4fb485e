"""Who holds which sample: i.i.d., skewed and clustered federations of a data set, as a function of a seed root."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ebscfl.errors import ConfigError
from ebscfl.learning import splits
from ebscfl.learning.data import Dataset
from ebscfl.rng import USAGE_DATA_SPLIT, USAGE_PARTITION, USAGE_ROOT_SET, numpy_generator

KINDS = ("iid", "group", "dirichlet", "dirichlet-client", "rotation", "permutation", "writer")
ROOT_PARTS = ("clients", "domains", "balanced")
REDRAWS = 200
"""How often a split that leaves some client too little is drawn again."""

Labels = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Domain:
    """What a holder's world does to a raw sample."""

    quarter_turns: int  # torch.rot90 by this many
    label_map: npt.NDArray[np.int64]  # (classes,): y becomes label_map[y]


@dataclass(frozen=True, eq=False)
class Part:
    """The rows of the train set that one holder has, and the domain it sees them through."""

    indices: npt.NDArray[np.int64]
    domain: int


@dataclass(frozen=True, eq=False)
class Partition:
    """Clients and the server's clean root set; no train row has two holders."""

    clients: tuple[Part, ...]
    root: tuple[Part, ...]
    domains: tuple[Domain, ...]


@dataclass(frozen=True)
class PartitionSettings:
    """How to share a train set out; checked on construction."""

    kind: str = "iid"  # one of KINDS
    clients: int = 20
    alpha: float = 0.5  # concentration of the Dirichlet kinds
    skew: float = 0.5  # q of FLTrust ("group"); 1 / classes is i.i.d.
    groups: int = 4  # rotations or label permutations
    min_size: int = 10  # fewest samples a client may hold
    root_size: int = 100  # samples the server holds in all
    root_parts: str = "clients"  # one of ROOT_PARTS
    root_bias: float = 0.1  # p of FLTrust ("balanced"): share of class 1 in the root set
    samples: int | None = None  # use only this many train samples

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"partition kind must be one of {', '.join(KINDS)}, not {self.kind!r}")
        if self.root_parts not in ROOT_PARTS:
            raise ConfigError(f"root_parts must be one of {', '.join(ROOT_PARTS)}, not {self.root_parts!r}")
        for name in ("clients", "groups", "min_size", "root_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.samples is not None and self.samples < 1:
            raise ConfigError(f"samples must be at least 1, not {self.samples}")
        if not (np.isfinite(self.alpha) and self.alpha > 0):
            raise ConfigError(f"alpha must be a positive number, not {self.alpha}")
        for name in ("skew", "root_bias"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} must lie in 0..1, not {getattr(self, name)}")
        if self.kind in ("rotation", "permutation") and self.clients < self.groups:
            raise ConfigError(f"{self.groups} groups need at least as many clients, not {self.clients}")
        if self.kind == "rotation" and self.groups > 4:
            raise ConfigError(f"an image has 4 quarter turns: groups must be at most 4, not {self.groups}")
        if self.root_parts == "clients" and self.root_size < self.clients:
            raise ConfigError(
                f"root_size must be at least {self.clients}, one sample for each client's part, not {self.root_size}"
            )


def make_partition(dataset: Dataset, settings: PartitionSettings, root: bytes) -> Partition:
    """Shares the train set out: the same dataset, settings and root give the same partition.

    The root set is drawn from the train data and its samples belong to no client. With ``root_parts="clients"`` part i
    is a draw out of what client i's world would have given it, so it follows client i's domain and label mix (the
    paper's "according to real-world data distribution", and Algorithm 2's split of D_0).

    Raises:
        ConfigError: there are too few samples, or no draw satisfies ``min_size``.
    """
    pool = _pool(dataset, settings, root)
    needed = settings.clients * settings.min_size + settings.root_size
    if len(pool) < needed:
        raise ConfigError(
            f"{settings.clients} clients of at least {settings.min_size} samples and a root set of "
            f"{settings.root_size} need {needed} samples; {dataset.name} gives {len(pool)}"
        )
    domains = _domains(dataset, settings, root)
    rng = numpy_generator(root, USAGE_ROOT_SET, settings.root_parts)
    if settings.root_parts == "clients":
        sizes = _even_sizes(settings.root_size, settings.clients)
        held, client_domain = _share_out(dataset, settings, pool, settings.min_size + sizes, len(domains), root)
        drawn = [_draw(dataset, rows, size, rng) for rows, size in zip(held, sizes.tolist(), strict=True)]
        held = [np.setdiff1d(rows, gone) for rows, gone in zip(held, drawn, strict=True)]
        root_domain = client_domain
    else:
        if settings.root_parts == "balanced":
            drawn, root_domain = [_biased_draw(dataset, settings, pool, rng)], np.zeros(1, dtype=np.int64)
        else:
            drawn, root_domain = _draw_for_domains(dataset, settings, pool, len(domains), rng), np.arange(len(domains))
        pool = np.setdiff1d(pool, np.concatenate(drawn))
        least = np.full(settings.clients, settings.min_size)
        held, client_domain = _share_out(dataset, settings, pool, least, len(domains), root)
    return Partition(
        clients=tuple(Part(np.sort(rows), int(d)) for rows, d in zip(held, client_domain, strict=True)),
        root=tuple(Part(np.sort(rows), int(d)) for rows, d in zip(drawn, root_domain, strict=True)),
        domains=domains,
    )


def stratified_sample(labels: Labels, size: int, rng: np.random.Generator) -> Labels:
    """``size`` positions of ``labels`` whose label mix is that of all: each class count is its exact share, rounded
    down or up.

    Systematic sampling of the positions ordered by class: every n/size-th one from a random start. Each position is
    equally likely to be drawn, and no two draws coincide while size <= n.
    """
    n = len(labels)
    class_order = rng.permutation(int(labels.max()) + 1)[labels]
    by_class = np.lexsort((rng.permutation(n), class_order))
    # Whole numbers only: (start + k n) / size stays below n for start < n and k < size.
    steps = (int(rng.integers(n)) + np.arange(size, dtype=np.int64) * n) // size
    return np.sort(by_class[steps])


def _pool(dataset: Dataset, settings: PartitionSettings, root: bytes) -> Labels:
    """The train rows in use."""
    available = len(dataset.y_train)
    if settings.samples is None:
        return np.arange(available)
    if settings.samples > available:
        raise ConfigError(f"samples is {settings.samples}, but {dataset.name} has {available} train samples")
    rng = numpy_generator(root, USAGE_DATA_SPLIT, "samples")
    return stratified_sample(dataset.y_train, settings.samples, rng)


def _domains(dataset: Dataset, settings: PartitionSettings, root: bytes) -> tuple[Domain, ...]:
    identity = np.arange(dataset.num_classes)
    if settings.kind == "rotation":
        # Two groups are half a turn apart (IFCA's CIFAR set-up), four a quarter (its MNIST set-up).
        step = 2 if settings.groups == 2 else 1
        return tuple(Domain(step * group, identity) for group in range(settings.groups))
    if settings.kind != "permutation":
        return (Domain(0, identity),)
    if settings.groups > math.factorial(min(dataset.num_classes, 10)):
        raise ConfigError(f"{dataset.num_classes} classes have fewer than {settings.groups} label maps")
    rng = numpy_generator(root, USAGE_PARTITION, "label-maps")
    maps = [identity]
    while len(maps) < settings.groups:
        candidate = rng.permutation(dataset.num_classes)
        if not any(np.array_equal(candidate, known) for known in maps):
            maps.append(candidate)
    return tuple(Domain(0, label_map) for label_map in maps)


def _even_sizes(total: int, parts: int) -> Labels:
    """``total`` in ``parts`` that differ by at most 1, larger ones first."""
    return total // parts + (np.arange(parts) < total % parts).astype(np.int64)


def _draw(dataset: Dataset, rows: Labels, size: int, rng: np.random.Generator) -> Labels:
    return rows[stratified_sample(dataset.y_train[rows], size, rng)]


def _draw_for_domains(
    dataset: Dataset, settings: PartitionSettings, pool: Labels, num_domains: int, rng: np.random.Generator
) -> list[Labels]:
    """One part per domain, each with the label mix of the pool."""
    if settings.root_size < num_domains:
        raise ConfigError(f"root_size must be at least {num_domains}, one sample a domain, not {settings.root_size}")
    drawn: list[Labels] = []
    for size in _even_sizes(settings.root_size, num_domains).tolist():
        drawn.append(_draw(dataset, pool, size, rng))
        pool = np.setdiff1d(pool, drawn[-1])
    return drawn


def _biased_draw(dataset: Dataset, settings: PartitionSettings, pool: Labels, rng: np.random.Generator) -> Labels:
    """FLTrust's root set: a share p of class 1, the rest evenly from the other classes."""
    first = int(settings.root_bias * settings.root_size + 0.5)
    counts = np.zeros(dataset.num_classes, dtype=np.int64)
    others = rng.permutation(np.delete(np.arange(dataset.num_classes), 1))
    counts[others] = _even_sizes(settings.root_size - first, len(others))
    counts[1] = first
    labels = dataset.y_train[pool]
    drawn = []
    for label, count in enumerate(counts.tolist()):
        members = pool[labels == label]
        if len(members) < count:
            raise ConfigError(f"the root set needs {count} samples of class {label}; there are {len(members)}")
        drawn.append(rng.permutation(members)[:count])
    return np.concatenate(drawn)


def _share_out(
    dataset: Dataset, settings: PartitionSettings, pool: Labels, least: Labels, num_domains: int, root: bytes
) -> tuple[list[Labels], Labels]:
    """Rows per client, at least ``least`` each, and the domain of each client."""
    rng = numpy_generator(root, USAGE_PARTITION, "domains")
    client_domain = rng.permutation(np.arange(settings.clients) % num_domains)
    sizes = np.zeros(0)
    for attempt in range(REDRAWS):
        rng = numpy_generator(root, USAGE_PARTITION, settings.kind, attempt)
        held = [pool[where] for where in _split(dataset, settings, pool, rng)]
        sizes = np.array([len(rows) for rows in held])
        if (sizes >= least).all():
            return held, client_domain
    worst = int(np.argmin(sizes - least))
    raise ConfigError(
        f"no {settings.kind} split among {REDRAWS} draws leaves every client enough: in the last, client {worst} got "
        f"{sizes[worst]} samples and needs {least[worst]}; lower min_size or clients, or make the split less uneven"
    )


def _split(
    dataset: Dataset, settings: PartitionSettings, pool: Labels, rng: np.random.Generator
) -> list[npt.NDArray[np.int64]]:
    """Positions in ``pool`` per client."""
    labels, clients = dataset.y_train[pool], settings.clients
    match settings.kind:
        case "group":
            return splits.split_by_group(labels, clients, settings.skew, dataset.num_classes, rng)
        case "dirichlet":
            return splits.split_by_dirichlet(labels, clients, settings.alpha, rng)
        case "dirichlet-client":
            return splits.split_by_client_dirichlet(labels, clients, settings.alpha, rng)
        case "writer":
            if dataset.writers_train is None:
                raise ConfigError(
                    f"{dataset.name} does not say who wrote its images; use mnist with `ebs-cfl data fetch mnist`"
                )
            return splits.split_by_writer(dataset.writers_train[pool], clients, rng)
        case _:  # iid, and the clustered kinds: they differ in domains only
            return splits.split_iid(len(pool), clients, rng)
