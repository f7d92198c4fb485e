"""The server's keys of the paper's protocol, put together from its view; shared by the attacks on that protocol."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ebscfl.audit.views import Floats, View
from ebscfl.linalg import F64
from ebscfl.paper import DenseScoringKey, FactoredScoringKey, PaperParameters, ServerKey, TransformKeys
from ebscfl.paper import score as encoded_score
from ebscfl.protocol import messages
from ebscfl.protocol.paper import parameters


@dataclass(frozen=True, eq=False, repr=False)
class Received:
    """Keys and uploads of the last round; clients are numbered by their place in the deal."""

    params: PaperParameters
    key: ServerKey
    clients: tuple[int, ...]
    uploads: tuple[F64, ...]  # delta_i

    def alpha(self, place: int) -> F64:
        """alpha_i, which the honest server computes too."""
        alpha: F64 = np.asarray(encoded_score(self.params, self.key, place, self.uploads[place]), dtype=np.float64)
        return alpha

    def sum_basis(self, group: int) -> F64:
        """beta of a leaf group, (p, q)."""
        basis: F64 = plain_key(self.key.sum_basis, 3)[group]
        return basis

    def without_mu(self, group: int) -> F64:
        """The projection (u, u) that removes the third mask block from an upload.

        The mask factor of the scoring key spans exactly the vectors mu_j M'_{j+2n} of the group, so what the paper
        calls mu_i, and with it the fresh mask T_i of the key transformation, can be projected away.
        """
        width = self.params.update_width
        if not isinstance(self.key.scoring_key, FactoredScoringKey):
            return np.eye(width)
        _, sizes, rows = np.linalg.svd(self.key.scoring_key.mask_factor[group], full_matrices=False)
        frame = rows[sizes > 1e-10 * sizes[0]]  # a group that is not full has fewer directions than slots
        return np.asarray(np.eye(width) - frame.T @ frame)


def plain_key(array: npt.NDArray[np.float64], ndim: int) -> F64:
    """Keys that need more digits travel as pairs along a first axis of two; eight digits less do for an attack."""
    return np.asarray(array.sum(axis=0)) if array.ndim == ndim + 1 else array


def receive(view: View) -> Received:
    """Assemble the server's keys from the messages in its view."""
    package = view.last(messages.ServerKeyPackage)
    uploads = dict(view.uploads(messages.EncodedUpdate))
    clients = tuple(sorted(uploads))
    scoring: FactoredScoringKey | DenseScoringKey
    if view.has(messages.DenseScoringKey):
        scoring = DenseScoringKey(dense=np.array(view.last(messages.DenseScoringKey).dense))
    else:
        sent = view.last(messages.ScoringKey)
        scoring = FactoredScoringKey(
            value_factor=np.asarray(sent.value_factor),
            mask_factor=np.asarray(sent.mask_factor),
            maps=np.asarray(sent.maps),
        )
    transform = None
    if package.transform:
        weight_key, update_key = package.transform
        transform = TransformKeys(weight_key=np.asarray(weight_key), update_key=np.asarray(update_key))
    key = ServerKey(
        cluster_basis=np.asarray(package.cluster_basis),
        scoring_key=scoring,
        sum_basis=np.asarray(package.sum_basis),
        relu_key_1=np.asarray(package.relu_key_1),
        relu_key_2=np.asarray(package.relu_key_2),
        relu_key_3=np.asarray(package.relu_key_3),
        decode_key=np.asarray(package.decode_key),
        verification_key=np.asarray(package.verification_key),
        transform=transform,
    )
    params = parameters(view.public, len(clients))
    return Received(params, key, clients, tuple(uploads[i].delta for i in clients))


def read_slots(params: PaperParameters, key: ServerKey, spread: F64) -> tuple[Floats, int]:
    """g A_c, (s, p), taken apart: the flat update, and the cluster whose slot holds its energy."""
    m, t, s = params.num_clusters, params.segment_len, params.num_segments
    slots = spread @ key.cluster_basis.reshape(m * t, params.width).T  # (s, m·t)
    energy = np.einsum("st,st->t", slots, slots).reshape(m, t).sum(axis=1)
    cluster = int(energy.argmax())
    flat = slots.reshape(s, m, t)[:, cluster].reshape(s * t)
    return np.ascontiguousarray(flat[: params.dim]), cluster
