"""Play one round of the paper's protocol, then read every client's update out of the server's own messages.

    python examples/break_the_paper_protocol.py

The attack gets a `View`: what the server received, and nothing else. Then the same round under `sealed`.
"""

from __future__ import annotations

from ebscfl import rng
from ebscfl.audit import example_truth, judge, play, server_view, spectral
from ebscfl.audit.sealed_uploads import read_uploads

CLIENTS, CLUSTERS, DIM, SEED = 20, 3, 10_000, 7


def main() -> int:
    """Returns 0 when the paper's protocol falls and sealed stands."""
    truth = example_truth(CLIENTS, CLUSTERS, DIM, rng.root_from_seed(SEED), opposed=0.2)

    # 1. All roles play a round; every message crosses the codec and is recorded for its receiver.
    record = play("paper", [truth], seed=SEED)
    # 2. Keep what the server received. The clients' inputs are not in it.
    view = server_view(record)
    # 3. Take the masked scores apart; only here does the attacker compute anything.
    estimate = spectral(view)
    # 4. Compare with the truth.
    finding = judge("spectral", record, estimate)
    print(f"paper   {finding.updates_recovered} of {finding.of} updates (median cosine {finding.median_cosine:.12f}),")
    print(f"        {finding.clusters_recovered} of {finding.of} clusters, {view}")
    assert estimate.scores is not None
    for client in range(4):
        true = truth.scores()[client]
        print(f"        client {client}: score {estimate.scores[client]:+.9f}, truly {true:+.9f}")

    # 5. The same inputs under sealed, read as if nothing hid them.
    sealed = play("sealed", [truth], seed=SEED)
    ((_, guess),) = read_uploads(server_view(sealed), "masked")
    other = judge("masked", sealed, guess)
    print(f"sealed  {other.updates_recovered} of {other.of} updates (median cosine {other.median_cosine:+.4f}),")
    print(f"        {other.clusters_recovered} of {other.of} clusters; guessing gets {other.of * other.chance:.1f}")
    return 0 if finding.updates_recovered == CLIENTS and other.updates_recovered == 0 else 1


if __name__ == "__main__":
    raise SystemExit(main())
