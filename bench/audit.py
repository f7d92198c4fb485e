"""How long the spectral attack takes: seconds by step, beside one round of the honest server on the same uploads.

    python bench/audit.py [--clients 100 --dim 200000 --segment 2 --clusters 2 --seed 0]

Prints one JSON document. The issue's bound: n = 100, l = 200 000, t = 2, m = 2 in at most 30 s on two cores.
The keys and uploads of that size take about 4 GB.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np

from ebscfl import rng
from ebscfl.audit.record import cosines, example_truth
from ebscfl.audit.spectral import spectral
from ebscfl.audit.views import OwnRound, View
from ebscfl.ids import KDC, client_address
from ebscfl.paper import aggregate as honest_server
from ebscfl.paper import deal, encode, refresh
from ebscfl.protocol import messages
from ebscfl.protocol.bus import Received
from ebscfl.protocol.paper import parameters
from ebscfl.protocol.roles import Setup


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("clients", 100), ("dim", 200_000), ("segment", 2), ("clusters", 2), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    root = rng.root_from_seed(args.seed)
    truth = example_truth(args.clients, args.clusters, args.dim, root, opposed=0.2)
    setup = Setup("paper", args.clients, args.clusters, args.dim, options={"segment": args.segment})
    params = parameters(setup)

    # The messages of the round, without the roles: at this size the bus would hold every array twice.
    dealt = deal(params, truth.server_updates, root)
    keys = refresh(params, dealt.secret, 1)
    key = dealt.server_key
    parts = () if key.transform is None else (key.transform.weight_key, key.transform.update_key)
    package = messages.ServerKeyPackage(
        key.cluster_basis, key.sum_basis, key.relu_key_1, key.relu_key_2, key.relu_key_3, key.decode_key,
        key.verification_key, parts,
    )  # fmt: skip
    scoring = key.scoring_key
    received = [
        Received(KDC, package),
        Received(KDC, messages.ScoringKey(scoring.value_factor, scoring.mask_factor, scoring.maps)),
    ]
    uploads = []
    for i in range(args.clients):
        delta = encode(params, dealt.client_keys[i], keys.client[i], truth.updates[i], truth.clusters[i])
        uploads.append(delta)
        received.append(Received(client_address(i), messages.EncodedUpdate(1, delta)))
    view = View("server", tuple(received), setup, (OwnRound(1, truth.server_updates),))

    started = time.perf_counter()
    honest_server(params, key, uploads)
    server = time.perf_counter() - started
    started = time.perf_counter()
    estimate = spectral(view)
    attack = time.perf_counter() - started
    cosine = cosines(estimate.updates, truth.updates)
    document = {
        **vars(args),
        "seconds_honest_server": server,
        "seconds_attack": attack,
        "ratio": attack / server,
        "updates_recovered": int((cosine >= 0.99).sum()),
        "smallest_cosine": float(cosine.min()),
        "clusters_recovered": int((estimate.clusters == np.array(truth.clusters)).sum()),
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
