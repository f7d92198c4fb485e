"""One round of the paper's scheme on random data, and plain RFCA beside it, for the tests of this folder."""

from dataclasses import dataclass, field

import numpy as np

from ebscfl.paper import PaperParameters, aggregate, deal, encode, refresh, verify
from ebscfl.rng import USAGE_BENCH, numpy_generator, root_from_seed


def plain_rfca(updates, clusters, server_updates):
    """Global normalization, client by client: (m, l) aggregates, total weight, (n,) cosines."""
    aggregates = np.zeros_like(server_updates)
    total, scores = 0.0, []
    for update, cluster in zip(updates, clusters, strict=True):
        unit = update / np.linalg.norm(update)
        cosine = unit @ server_updates[cluster] / np.linalg.norm(server_updates[cluster])
        scores.append(cosine)
        weight = max(cosine, 0.0)
        aggregates[cluster] += weight * unit
        total += weight
    return aggregates / (total or 1.0), total, np.array(scores)


def relative_error(found, expected):
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


@dataclass
class Round:
    params: PaperParameters
    seed: int = 0
    lean: float = 0.0  # how far updates lean to their server update, every third one away from it
    round_id: int = 0
    uploads: list = field(init=False)

    def __post_init__(self):
        p = self.params
        rng = numpy_generator(root_from_seed(self.seed), USAGE_BENCH, p.dim, p.num_clients)
        self.server_updates = rng.normal(size=(p.num_clusters, p.dim))
        self.clusters = rng.integers(0, p.num_clusters, p.num_clients)
        sign = np.where(np.arange(p.num_clients) % 3 == 2, -1.0, 1.0)
        lean = self.lean * sign[:, None] * self.server_updates[self.clusters]
        self.updates = rng.normal(size=(p.num_clients, p.dim)) + lean
        self.dealt = deal(p, self.server_updates, root_from_seed(self.seed))
        self.round_keys = refresh(p, self.dealt.secret, self.round_id)
        self.uploads = [self.encode(i) for i in range(p.num_clients)]

    def encode(self, i, update=None, cluster=None, round_keys=None, key=None):
        return encode(
            self.params,
            self.dealt.client_keys[i if key is None else key],
            (round_keys or self.round_keys).client[i if key is None else key],
            self.updates[i] if update is None else update,
            int(self.clusters[i]) if cluster is None else cluster,
        )

    @property
    def server_key(self):
        return self.dealt.server_key

    def verify(self, i, upload):
        verify(self.params, self.server_key, self.round_keys.server, i, upload)

    def aggregate(self, uploads=None, server_key=None):
        return aggregate(self.params, server_key or self.server_key, self.uploads if uploads is None else uploads)

    def plain(self):
        return plain_rfca(self.updates, self.clusters, self.server_updates)


SMALL = {
    "one client a group": PaperParameters(num_clients=5, num_clusters=2, dim=9),
    "pairs, last group half full": PaperParameters(num_clients=5, num_clusters=2, dim=9, group_size=2),
    "all in one group": PaperParameters(num_clients=4, num_clusters=2, dim=6, group_size=4),
    "three clusters, padded": PaperParameters(num_clients=4, num_clusters=3, dim=10, segment_len=3),
    "width one": PaperParameters(num_clients=4, num_clusters=1, dim=5, segment_len=1),
    "one segment": PaperParameters(num_clients=3, num_clusters=2, dim=4, segment_len=4),
    "naive": PaperParameters(num_clients=3, num_clusters=2, dim=4, scheme="naive"),
    "traceless": PaperParameters(num_clients=5, num_clusters=2, dim=9, zeta="traceless"),
    "traceless pairs": PaperParameters(num_clients=6, num_clusters=2, dim=9, group_size=2, zeta="traceless"),
    "traceless naive": PaperParameters(num_clients=3, num_clusters=2, dim=4, scheme="naive", zeta="traceless"),
}
