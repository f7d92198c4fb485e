"""Attack on the paper's protocol: the key that decodes the sum also decodes one upload (erratum 7).

dk' = (sum_i E(ReLU(w_i))) dk is made to be applied to the sum of all uploads. With zeta_i that sum to zero, as
printed, it holds no mask at all: applied to one delta_i it gives ReLU(w_i) g_i A_c. Needs no eigenvalue, only the
wrong argument. With zeta_i of trace zero ("traceless") one upload decodes to the update plus a mask.
"""

from __future__ import annotations

import numpy as np

from ebscfl.audit.paper_keys import read_slots, receive
from ebscfl.audit.views import Estimate, View, stacked
from ebscfl.paper import decoder, relu_sum


def decode(view: View) -> Estimate:
    """Decode every upload on its own; a client of trust weight zero has no share in dk' and stays hidden from it."""
    got = receive(view)
    alphas = np.stack([got.alpha(place) for place in range(len(got.clients))])
    weights = relu_sum(got.params, got.key, alphas)
    combined = decoder(got.params, got.key, weights)  # dk', (p, columns of the update key space)
    claims = []
    for place, client in enumerate(got.clients):
        if got.key.transform is None:
            columns = combined.T
        else:
            group = got.params.group_of(place)
            columns = got.without_mu(group) @ (got.key.transform.update_key[group] @ combined.T)
        update, cluster = read_slots(got.params, got.key, got.uploads[place] @ columns)
        claims.append((client, update, cluster))
    return stacked(view, claims, note="the decode key of the sum, applied to single uploads")
