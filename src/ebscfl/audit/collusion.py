"""The server pools its view with k corrupt clients.

Under `paper` it needs none of them. Under `sealed` (and under any exact sum) the pair knows its own contributions and
subtracts them from the published sums: what is left is the sum over the honest clients of each cluster. That is one
client's update exactly where one honest client is left, which the quorum is there to prevent.
"""

from __future__ import annotations

import numpy as np

from ebscfl.audit.spectral import spectral
from ebscfl.audit.views import Estimate, Floats, View, nothing, stacked
from ebscfl.plain import rfca_sums
from ebscfl.protocol.messages import EncodedUpdate


def collusion(view: View) -> Estimate:
    """The honest clients' updates, as far as the coalition gets."""
    honest = [i for i in range(view.public.num_clients) if i not in view.corrupt]
    if view.has(EncodedUpdate):
        whole = spectral(view)
        keep = [place for place, i in enumerate(whole.targets) if i in honest]
        claims = [(whole.targets[k], whole.updates[k], int(whole.clusters[k])) for k in keep]
        return stacked(view, claims, note="the corrupt clients add nothing the server did not have")
    return isolate(view, honest)


def isolate(view: View, honest: list[int]) -> Estimate:
    """Published sums minus the coalition's own contributions; the heaviest slot left is claimed for everybody.

    That claim is right where one honest client is left, and carries the cosine of a mean otherwise.
    """
    own = view.rounds[-1]
    if own.sums is None or own.server_updates is None:
        return nothing(view, "this party sees no sums")
    rest: Floats = own.sums
    if own.inputs:
        updates = np.stack([update for _, update, _ in own.inputs])
        mine, _ = rfca_sums(updates, [cluster for _, _, cluster in own.inputs], own.server_updates)
        rest = own.sums - mine.weighted_sum
    energy = np.einsum("ml,ml->m", rest, rest)
    cluster = int(energy.argmax())
    note = f"published sums minus {len(own.inputs)} own contributions: the sum over {len(honest)} honest clients"
    return stacked(view, [(i, rest[cluster], cluster) for i in honest], note=note)
