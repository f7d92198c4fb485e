"""Server and key centre as partial sums over some of the clients, for work that is split over processes or machines.

Both roles hold a sum over the answered clients and nothing else that grows with them. A shard folds its own clients;
`ebscfl.sealed.merge` adds shards in any order and grouping, and gives the very bits of one process. Which client is
answered is still decided in one place, the key centre's store: a shard gets answers, it does not make them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ebscfl.field import Words
from ebscfl.protocol.messages import SealedUpload
from ebscfl.protocol.sealed.pad_work import PadWork
from ebscfl.protocol.sealed.words import from_wire
from ebscfl.sealed import Answer, RunningSum, SealedParameters, client_keys, fold, new_sum


def upload_sum(params: SealedParameters, uploads: Sequence[tuple[SealedUpload, Answer]]) -> RunningSum:
    """The server's y over these uploads and their answers."""
    total = new_sum(params)
    for upload, answer in uploads:
        pair: Words = from_wire(params.field, upload.words, (2, params.width), name="an upload")
        guard = from_wire(params.field, upload.guard, (params.num_clusters,), name="a guard")
        fold(params, total, [answer], [pair], [guard])
    return total


def pad_sum(
    params: SealedParameters, run: str, round_id: int, masters: Mapping[int, bytes], answers: Mapping[int, Answer]
) -> RunningSum:
    """The key centre's P over these clients: what a restart adds up again, too."""
    total = new_sum(params)
    clients = sorted(answers)
    keys = [client_keys(params, masters[client], run, round_id, client) for client in clients]
    PadWork(params).add(total, keys, [answers[client] for client in clients])
    return total
