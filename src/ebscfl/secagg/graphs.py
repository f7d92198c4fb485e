"""Who shares masks and key shares with whom: complete (SecAgg), Harary (SecAgg+), Erdős–Rényi (CCESA).

SecAgg+ (Bell et al., CCS 2020) needs only k = O(log n) neighbors: `harary` places clients on a circle in random order
and joins each to the k/2 nearest on both sides. CCESA (Choi et al., 2020) draws every edge with p = c sqrt(log n / n).
`neighborhood_risk` says what a small k costs: the chance that some client's key shares are lost or exposed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ebscfl.errors import CapacityError, ConfigError

MAX_DRAWS = 1000


@dataclass(frozen=True)
class Graph:
    """Undirected and without loops: ``neighbors[i]`` in ascending order."""

    neighbors: tuple[tuple[int, ...], ...]

    def degree(self, client: int) -> int:
        """How many neighbors ``client`` has."""
        return len(self.neighbors[client])

    def is_connected(self) -> bool:
        """Whether every client is reached from client 0: if not, the sums of parts are revealed."""
        seen, frontier = {0}, [0]
        while frontier:
            for other in self.neighbors[frontier.pop()]:
                if other not in seen:
                    seen.add(other)
                    frontier.append(other)
        return len(seen) == len(self.neighbors)


def _from_matrix(adjacency: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Graph:
    return Graph(tuple(tuple(int(j) for j in np.flatnonzero(row)) for row in adjacency))


def complete(num_clients: int) -> Graph:
    """Everybody with everybody."""
    _check_clients(num_clients)
    return _from_matrix(~np.eye(num_clients, dtype=bool))


def harary_degree(num_clients: int) -> int:
    """k = 3 log2 n, rounded up to an even number, at most n - 1 (then the graph is complete)."""
    return min(num_clients - 1, 2 * math.ceil(1.5 * math.log2(num_clients)))


def harary(num_clients: int, degree: int, draw: np.random.Generator) -> Graph:
    """The k-regular circulant graph on a random circle; k is even unless the graph is complete."""
    _check_clients(num_clients)
    if degree >= num_clients - 1:
        return complete(num_clients)
    if degree < 2 or degree % 2:
        raise ConfigError(f"the degree of a Harary graph must be even and at least 2, not {degree}")
    place = draw.permutation(num_clients)
    adjacency = np.zeros((num_clients, num_clients), dtype=bool)
    for step in range(1, degree // 2 + 1):
        other = np.roll(place, -step)
        adjacency[place, other] = adjacency[other, place] = True
    return _from_matrix(adjacency)


def edge_probability(num_clients: int, factor: float = 1.0) -> float:
    """p = c sqrt(log n / n), the order at which CCESA's reliability and privacy hold; at most 1."""
    return min(1.0, factor * math.sqrt(math.log(num_clients) / num_clients))


def erdos_renyi(num_clients: int, probability: float, draw: np.random.Generator) -> Graph:
    """G(n, p). A graph that is not connected would reveal sums of parts, so it is drawn again."""
    _check_clients(num_clients)
    if not 0 < probability <= 1:
        raise ConfigError(f"an edge probability lies in (0, 1], not {probability}")
    for _ in range(MAX_DRAWS):
        upper = np.triu(draw.random((num_clients, num_clients)) < probability, 1)
        graph = _from_matrix(upper | upper.T)
        if graph.is_connected():
            return graph
    raise CapacityError(f"no connected graph of {num_clients} clients at edge probability {probability:.3g}")


def neighborhood_risk(num_clients: int, degree: int, bad: int, at_least: int) -> float:
    """Union bound over clients: P(``at_least`` of one's ``degree`` random neighbors are among ``bad`` of the others).

    With bad = colluders and at_least = threshold it bounds the exposure of a key; with bad = drop-outs and
    at_least = degree - threshold + 2 its loss (a client that stays holds one share of its own).
    """
    others = num_clients - 1
    if not (0 <= bad <= others and 1 <= degree <= others and at_least >= 0):
        raise ConfigError(f"no neighborhood of {degree} with {bad} bad among {others} others")
    ways = sum(math.comb(bad, k) * math.comb(others - bad, degree - k) for k in range(at_least, min(bad, degree) + 1))
    return min(1.0, num_clients * ways / math.comb(others, degree))


def _check_clients(num_clients: int) -> None:
    if num_clients < 2:
        raise ConfigError(f"a secure sum needs at least two clients, not {num_clients}")
