"""The ways to split samples among clients. Each returns one array of positions per client, no position twice."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ebscfl.errors import ConfigError

Labels = npt.NDArray[np.int64]
Split = list[npt.NDArray[np.int64]]


def split_iid(num_samples: int, clients: int, rng: np.random.Generator) -> Split:
    """All samples, shuffled, in sizes that differ by at most 1."""
    return np.array_split(rng.permutation(num_samples), clients)


def split_by_group(labels: Labels, clients: int, skew: float, num_classes: int, rng: np.random.Generator) -> Split:
    """FLTrust's assignment (Cao, Fang, Liu, Gong, NDSS 2021, section "assigning data").

    There is a group of clients per class. A sample of class l goes to group l with probability q (``skew``), to each
    other group with (1 - q) / (L - 1), then to a uniform client of the group. q = 1/L is i.i.d. Clients are shuffled,
    so that the group of a client does not follow from its number.
    """
    if clients < num_classes:
        raise ConfigError(f"a group split needs at least one client per class: {num_classes}, not {clients}")
    other = rng.integers(num_classes - 1, size=len(labels))
    other += other >= labels  # uniform over the classes except the own one
    group = np.where(rng.random(len(labels)) < skew, labels, other)
    members = np.array_split(rng.permutation(clients), num_classes)
    sizes = np.array([len(clients_of_group) for clients_of_group in members])
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    holder = np.concatenate(members)[starts[group] + rng.integers(sizes[group])]
    return [np.flatnonzero(holder == client) for client in range(clients)]


def split_by_dirichlet(labels: Labels, clients: int, alpha: float, rng: np.random.Generator) -> Split:
    """Per class (Yurochkin et al., ICML 2019): class k is cut into shares p_k ~ Dir_n(alpha). Sizes differ."""
    pieces: list[Split] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(clients, alpha))
        cuts = (np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
        for client, piece in enumerate(np.split(members, cuts)):
            pieces[client].append(piece)
    return [np.concatenate(piece) for piece in pieces]


def split_by_client_dirichlet(labels: Labels, clients: int, alpha: float, rng: np.random.Generator) -> Split:
    """Per client (Hsu, Qi, Brown 2019, arXiv 1909.06335): label mix q_i ~ Dir(alpha p), p the prior of the classes.

    Every client draws floor(N / n) samples without replacement by its q_i; when a class is used up, q_i is taken
    over the classes that are left. Clients draw in random order, since the last ones find fewer classes left. The
    N mod n samples that remain belong to nobody.
    """
    classes, counts = np.unique(labels, return_counts=True)
    stock = [rng.permutation(np.flatnonzero(labels == label)) for label in classes]
    left = counts.copy()
    split: Split = [np.zeros(0, dtype=np.int64)] * clients
    for client in rng.permutation(clients):
        mix = rng.dirichlet(alpha * counts / counts.sum())
        taken = _draw_counts(mix, left, len(labels) // clients, rng)
        split[client] = np.concatenate(
            [pile[rest - take : rest] for pile, rest, take in zip(stock, left.tolist(), taken.tolist(), strict=True)]
        )
        left -= taken
    return split


def split_by_writer(writers: Labels, clients: int, rng: np.random.Generator) -> Split:
    """Each client is a group of whole writers: a natural federation. Sizes are as even as whole writers allow.

    Writers come in random order, each to the client that holds the fewest samples so far.
    """
    names, writer_of, counts = np.unique(writers, return_inverse=True, return_counts=True)
    if len(names) < clients:
        raise ConfigError(f"{clients} clients need as many writers; these samples have {len(names)}")
    sizes = np.zeros(clients, dtype=np.int64)
    client_of = np.empty(len(names), dtype=np.int64)
    for writer in rng.permutation(len(names)):
        client_of[writer] = np.argmin(sizes)
        sizes[client_of[writer]] += counts[writer]
    holder = client_of[writer_of]
    return [np.flatnonzero(holder == client) for client in range(clients)]


def _draw_counts(mix: npt.NDArray[np.float64], left: Labels, size: int, rng: np.random.Generator) -> Labels:
    """How many of each class: multinomial by ``mix``, never more than ``left``; the excess is drawn again."""
    taken = np.zeros_like(left)
    while (missing := size - int(taken.sum())) > 0:
        room = left - taken
        weights = np.where(room > 0, mix, 0.0)
        if weights.sum() < np.finfo(np.float64).tiny:
            weights = room.astype(np.float64)  # nothing the client likes is left: it takes what there is
        taken += np.minimum(rng.multinomial(missing, weights / weights.sum()), room)
    return taken
