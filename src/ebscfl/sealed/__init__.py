"""`sealed`: trust-weighted clustered aggregation in which the server learns only the result.

The mathematics, without roles and messages. One round, in order: `encode`, `seal` (client); `products` (server);
`pads`, `products`, `kdc_check` (key center); `fold` (both); `open_counts` (server); `decide_slots`, `release` (key
center); `unseal`, `aggregates` (server). ``docs/security-model.md`` holds the proof.
"""

from ebscfl.sealed.dp import NoiseSettings, calibrate, discrete_gaussian, round_noise, spent_epsilon
from ebscfl.sealed.encode import (
    EncodedInput,
    Upload,
    check_server_row,
    commitment,
    encode,
    quantize_server_updates,
    seal,
)
from ebscfl.sealed.guard import blind_pads, guard_holds, guard_products, guard_row, seal_blind
from ebscfl.sealed.masks import VERSION, ClientKeys, client_keys, guard_scalar, master_key, pads
from ebscfl.sealed.parameters import SealedParameters, plan
from ebscfl.sealed.release import (
    OpenedSums,
    Release,
    RunningSum,
    SlotDecision,
    aggregates,
    check_quorum,
    decide_slots,
    fold,
    merge,
    new_sum,
    open_counts,
    release,
    slot_weights,
    unseal,
)
from ebscfl.sealed.score import NUM_PRODUCTS, Answer, Verdict, kdc_check, products, products_many
from ebscfl.sealed.sketch import Sketch, batch_seed, make_sketch
from ebscfl.sealed.workers import Workers, workers_for

__all__ = [
    "NUM_PRODUCTS",
    "VERSION",
    "Answer",
    "ClientKeys",
    "EncodedInput",
    "NoiseSettings",
    "OpenedSums",
    "Release",
    "RunningSum",
    "SealedParameters",
    "Sketch",
    "SlotDecision",
    "Upload",
    "Verdict",
    "Workers",
    "aggregates",
    "batch_seed",
    "blind_pads",
    "calibrate",
    "check_quorum",
    "check_server_row",
    "client_keys",
    "commitment",
    "decide_slots",
    "discrete_gaussian",
    "encode",
    "fold",
    "guard_holds",
    "guard_products",
    "guard_row",
    "guard_scalar",
    "kdc_check",
    "make_sketch",
    "master_key",
    "merge",
    "new_sum",
    "open_counts",
    "pads",
    "plan",
    "products",
    "products_many",
    "quantize_server_updates",
    "release",
    "round_noise",
    "seal",
    "seal_blind",
    "slot_weights",
    "spent_epsilon",
    "unseal",
    "workers_for",
]
